//! Folders that another user made, swapped or cannot enter.

use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{CWD, RenameFlags, renameat_with};

use crate::other_users::{User, device, for_all_users, limit_of, page_in};
use crate::program::{DEVICE, DONE, Program, REFUSED, limit};
use crate::support::{Sluice, outcome};

const GIB: u64 = 1 << 30;

fn exchange(one: &Path, other: &Path) {
    renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE).unwrap();
}

/// The hostile user has a session whose folder is now its own, now a link to the other's.
#[test]
fn root_is_not_led_into_another_users_session_by_a_swapped_folder() {
    let (sluice, hostile, other) = (Sluice::new(), User::new(), User::new());
    hostile.make_base();
    other.make_base();
    let victim = other.make_session("env-victim");
    let own = hostile.make_session("env-swapped");
    let link = hostile.base().join("env-link");
    symlink(&victim, &link).unwrap();
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                exchange(&own, &link);
            }
        });
        let mut changed = 0;
        for round in 0..150 {
            let size = format!("{}GiB", 3 + round % 5);
            let (code, _, stderr) = limit(&sluice, "env-swapped", &["--mem", &size]);
            changed += i32::from(code == 0);
            assert!([0, 2, 70].contains(&code), "{code}: {stderr}");
        }
        ended.store(true, Ordering::Relaxed);
        println!("{changed} of 150 changes were made");
    });
    assert_eq!(limit_of(&page_in(&victim)), 2 * GIB);
}

/// What stands in a user's folder in place of a folder or a page.
#[test]
fn root_changes_nothing_through_links_pipes_and_second_names() {
    let (sluice, hostile, other) = (Sluice::new(), User::new(), User::new());
    hostile.make_base();
    other.make_base();
    let victim = other.make_session("env-victim");
    let at = |name: &str| hostile.base().join(name);
    let folder = |name: &str| {
        fs::create_dir(at(name)).unwrap();
        hostile.own(&at(name));
        page_in(&at(name))
    };
    symlink(&victim, at("env-linked-folder")).unwrap();
    symlink(page_in(&victim), folder("env-linked-page")).unwrap();
    fs::hard_link(page_in(&victim), folder("env-second-name")).unwrap();
    let made = |kind: &str, path: &Path| {
        let made = Command::new("mknod").arg(path).args(kind.split(' ')).status().unwrap();
        assert!(made.success());
        hostile.own(path);
    };
    made("p", &folder("env-pipe"));
    made("c 1 5", &folder("env-device"));
    fs::create_dir(folder("env-folder")).unwrap();
    // The file of the owner's lock, too.
    let dead = &format!("4000000000-1-{:016x}", hostile.uid);
    made("p", &folder(dead).with_file_name("owner"));
    fs::copy(page_in(&victim), page_in(&at(dead))).unwrap();
    hostile.own(&page_in(&at(dead)));
    for name in [
        "env-linked-folder",
        "env-linked-page",
        "env-second-name",
        "env-pipe",
        "env-device",
        "env-folder",
    ] {
        let (code, stdout, _) = limit(&sluice, name, &["--mem", "7GiB"]);
        assert!([2, 70].contains(&code), "{name}: {code}");
        assert_eq!(stdout, "", "{name}");
    }
    assert_eq!(limit(&sluice, dead, &["--mem", "7GiB"]).0, 0);
    let (code, stdout, _) = outcome(sluice.command().args(["status", "--all"]));
    assert_eq!(code, 0);
    assert!(stdout.contains(dead) && stdout.contains("DAMAGED env-second-name"), "{stdout}");
    fs::remove_file(page_in(&at("env-second-name"))).unwrap();
    assert_eq!(limit_of(&page_in(&victim)), 2 * GIB);
}

/// A library in a user's folder is not loaded by root.
#[test]
fn root_loads_no_library_of_another_user() {
    let (sluice, hostile) = (Sluice::new(), User::new());
    hostile.make_base();
    let session = hostile.make_session("env-library");
    let trace = sluice.folder().join("loaded");
    let source = sluice.folder().join("library.c");
    fs::write(
        &source,
        format!(
            "#include <stdio.h>\n__attribute__((constructor)) static void start(void) {{ fopen(\"{}\", \"w\"); }}\n",
            trace.display()
        ),
    )
    .unwrap();
    fs::create_dir(session.join("fake-driver")).unwrap();
    let library = session.join("fake-driver/libnvidia-ml.so.1");
    let built =
        Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&library, &source]).status();
    assert!(built.unwrap().success());
    let (code, _, stderr) = limit(&sluice, "env-library", &["--mem", "3GiB"]);
    assert_eq!((code, stderr.as_str()), (0, ""));
    assert!(!trace.exists());
}

/// A user's folder is deep, wide, or full of what looks like sessions.
#[test]
fn what_root_reads_of_one_user_is_bounded() {
    let (sluice, hostile, other) = (Sluice::new(), User::new(), User::new());
    hostile.make_base();
    other.make_base();
    other.make_session("env-other");
    let mut deep = hostile.base();
    for _ in 0..300 {
        deep.push("env-d");
        fs::create_dir(&deep).unwrap();
    }
    for number in 0..30_000 {
        fs::create_dir(hostile.base().join(format!("env-{number}"))).unwrap();
    }
    let chowned =
        Command::new("chown").args(["-R", &hostile.uid.to_string()]).arg(hostile.base()).status();
    assert!(chowned.unwrap().success());
    let (code, stdout, stderr) = outcome(sluice.command().args(["status", "--all"]));
    assert_eq!(code, 0, "{stderr}");
    let uid = other.uid.to_string();
    let is_it = |line: &str| line.contains("env-other") && line.contains(&uid);
    assert!(stdout.lines().any(is_it), "{stdout}");
    let said = stderr.lines().find(|line| line.contains(&*hostile.base().to_string_lossy()));
    assert!(said.unwrap().contains("not all sessions"), "{stderr}");
}

/// Pages with holes would be filled in the reader's name.
#[test]
fn a_page_without_memory_is_not_read() {
    let (sluice, hostile) = (Sluice::new(), User::new());
    hostile.make_base();
    let page = page_in(&hostile.make_session("env-holes"));
    let length = fs::metadata(&page).unwrap().len();
    let file = fs::OpenOptions::new().write(true).open(&page).unwrap();
    file.set_len(0).unwrap();
    file.set_len(length).unwrap();
    let (code, stdout, _) = outcome(sluice.command().args(["status", "--all"]));
    assert_eq!(code, 0);
    assert!(stdout.contains("DAMAGED env-holes"), "{stdout}");
    assert_eq!(fs::metadata(&page).unwrap().blocks(), 0);
}

#[test]
fn a_user_whose_folders_name_is_taken_gets_another_one() {
    let (mut sluice, user) = (Sluice::new(), User::new());
    let bin = for_all_users(&sluice);
    sluice.set("SLUICE_DAEMON", "none");
    // Root's here.
    fs::create_dir(user.base()).unwrap();
    let program = bin.join("sluice");
    let run = || {
        let mut command = user.command(&sluice, program.to_str().unwrap());
        outcome(command.args(["run", "--", "sh", "-c", r#"echo "$SLUICE_SESSION_DIR""#]))
    };
    let (code, stdout, stderr) = run();
    let place = PathBuf::from(format!("{}-1", user.base().display()));
    assert_eq!(code, 0, "{stderr}");
    assert!(stdout.starts_with(&*place.to_string_lossy()), "{stdout}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    assert!(
        stderr.contains("does not belong to this user")
            && stderr.contains(&*place.to_string_lossy())
    );
    // The environment has no say, and the place stays when the usual one is free again.
    sluice.set("XDG_RUNTIME_DIR", "/tmp");
    fs::remove_dir(user.base()).unwrap();
    let mut command = user.command(&sluice, program.to_str().unwrap());
    let (code, stdout, stderr) =
        outcome(command.args(["run", "--", "sh", "-c", r#"echo "$SLUICE_SESSION_DIR""#]));
    assert_eq!((code, stderr.as_str()), (0, ""));
    assert!(stdout.starts_with(&*place.to_string_lossy()), "{stdout}");
}

#[test]
fn a_user_of_whose_folders_many_names_are_taken_gets_another_one() {
    let (mut sluice, user) = (Sluice::new(), User::new());
    let bin = for_all_users(&sluice);
    sluice.set("SLUICE_DAEMON", "none");
    let place = |number: u32| PathBuf::from(format!("{}-{number}", user.base().display()));
    fs::create_dir(user.base()).unwrap();
    (1..63).for_each(|number| fs::create_dir(place(number)).unwrap());
    let mut command = user.command(&sluice, bin.join("sluice").to_str().unwrap());
    command.args(["run", "--", "sh", "-c", r#"echo "$SLUICE_SESSION_DIR""#]);
    let (code, stdout, stderr) = outcome(&mut command);
    assert_eq!(code, 0, "{stderr}");
    assert!(stdout.starts_with(&*place(63).to_string_lossy()), "{stdout}");
}

/// With the library preloaded only.
#[test]
fn a_preloaded_program_says_once_that_its_folder_is_elsewhere() {
    let (sluice, user) = (Sluice::new(), User::new());
    let bin = for_all_users(&sluice);
    symlink("libfake_cuda.so", bin.join("libcuda.so.1")).unwrap();
    symlink("libfake_nvml.so", bin.join("libnvidia-ml.so.1")).unwrap();
    fs::write(user.base(), "a file of root's").unwrap();
    let mut command = user.command(&sluice, bin.join("on_demand").to_str().unwrap());
    let preload = format!(r#"{{"{DEVICE}":1073741824}}"#);
    command
        .env("LD_LIBRARY_PATH", &bin)
        .env("LD_PRELOAD", bin.join("libcuda_limiter.so"))
        .env("TENSOR_FUSION_CUDA_MEM_LIMIT", preload)
        .stdin(std::process::Stdio::null());
    let (code, stdout, stderr) = outcome(&mut command);
    assert_eq!((code, stdout.as_str()), (0, "ready 0\n"), "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    assert!(stderr.contains("does not belong to this user"), "{stderr}");
    // Root finds the session there.
    let (_, stdout, _) = outcome(sluice.command().args(["status", "--all"]));
    let uid = user.uid.to_string();
    assert!(stdout.split_whitespace().any(|word| word == uid), "{stdout}");
}

/// A session of root's whose program becomes another user, in these ways.
#[test]
fn a_program_that_gives_up_root_keeps_its_session() {
    let (sluice, user) = (Sluice::new(), User::new());
    let bin = for_all_users(&sluice);
    let id = user.uid.to_string();
    let drop = format!("setpriv --reuid {id} --regid {id} --clear-groups");
    for becoming in [drop.clone(), format!("{drop} unshare -Ur"), format!("{drop} unshare -U")] {
        let script = format!(
            r#"chmod 666 "$SLUICE_FAKE_NODE"* 2>/dev/null; "$0" < /dev/null > /dev/null; echo "$$ $SLUICE_SESSION_DIR"; chmod 666 "$SLUICE_FAKE_NODE"*; exec {becoming} "$0""#
        );
        let mut command = Command::new(bin.join("sluice"));
        command
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap())
            .env("SLUICE_FAKE_NODE", sluice.folder().join("node"))
            .args(["run", "--fake-gpu", "--device", "0", "--daemon", "none", "--mem", "2GiB"])
            .args(["--", "sh", "-c", &script])
            .arg(bin.join("on_demand"));
        let mut program = Program::start(&mut command);
        assert_eq!(program.tell("take 1024"), DONE, "{becoming}");
        assert_eq!(program.tell("take 1024"), REFUSED, "{becoming}");
        // Root still rules the session.
        let (code, _, stderr) = limit(&sluice, &program.name(), &["--mem", "4GiB"]);
        assert_eq!((code, stderr.as_str()), (0, ""));
        assert_eq!(program.tell("take 1024"), DONE, "{becoming}");
        // The user cannot list, make, remove or rename anything there.
        let session = program.session.display();
        for attempt in [
            "ls /dev/shm/sluice-root".to_owned(),
            format!("ls {session}"),
            format!("touch {session}/new"),
            format!("rm -f {session}/{DEVICE}.page"),
            format!("mv {session}/used {session}/other"),
            format!("cat {session}/owner"),
        ] {
            let (code, ..) = outcome(user.command(&sluice, "sh").args(["-c", &attempt]));
            assert_ne!(code, 0, "{attempt}");
        }
        assert!(page_in(&program.session).exists());
    }
}

/// What is printed may end up where other users read it.
#[test]
fn the_secret_in_a_folders_name_is_not_printed() {
    let mut sluice = Sluice::new();
    sluice.set("SLUICE_LOG", "trace");
    let script = r#"
        echo "$SLUICE_SESSION_DIR"
        "$0" < /dev/null > /dev/null
        "$1" status --all >&2; "$1" status --all --json >&2
        for page in "$SLUICE_SESSION_DIR"/*.page; do echo noise > "$page"; done
        "$0" < /dev/null > /dev/null
        "$1" status --all >&2; "$1" status --all --json >&2
        name=${SLUICE_SESSION_DIR##*/}; "$1" limit "${name%.*}" --mem 1GiB >&2
        cp -rd "$SLUICE_SESSION_DIR/fake-driver" "$2"
        rm -rf "$SLUICE_SESSION_DIR"
        LD_LIBRARY_PATH="$2" "$0" < /dev/null > /dev/null"#;
    let mut command = sluice.run(&["--fake-gpu", "--device", "0", "--mem", "2GiB"]);
    command
        .args(["--", "sh", "-c", script])
        .arg(Program::compiled())
        .arg(env!("CARGO_BIN_EXE_sluice"));
    command.arg(sluice.folder().join("driver"));
    let (_, stdout, stderr) = outcome(&mut command);
    let secret = stdout.trim_end().rsplit_once('.').unwrap().1;
    assert_eq!(secret.len(), 32);
    for told in
        ["cannot be used", "DAMAGED", "GPU calls of this process fail", ".*/GPU-", "\"directory\""]
    {
        assert!(stderr.contains(told), "{told}: {stderr}");
    }
    // The loader's own line, about what is gone, is not ours.
    let lines: Vec<_> = stderr.lines().filter(|line| line.contains(secret)).collect();
    assert!(lines.iter().all(|line| line.starts_with("ERROR: ld.so")), "{lines:#?}");
}

/// It has the session's page in memory already.
#[test]
fn a_process_that_gives_up_root_after_its_first_call_goes_on() {
    let (sluice, user) = (Sluice::new(), User::new());
    let mut program = Program::run(&sluice, &["--mem", "2GiB"]);
    assert_eq!(program.tell("take 512"), DONE);
    assert_eq!(program.tell(&format!("become {}", user.uid)), DONE);
    assert_eq!(program.tell("take 512"), DONE);
    assert_eq!(program.tell("take 1024"), REFUSED);
}

/// The simulated device shows the limiter's refusal with no look at its folder: another user's folder
/// named in the environment is not joined.
#[test]
fn a_session_of_another_users_is_not_joined() {
    let (sluice, hostile, user) = (Sluice::new(), User::new(), User::new());
    let bin = for_all_users(&sluice);
    symlink("libfake_cuda.so", bin.join("libcuda.so.1")).unwrap();
    symlink("libfake_nvml.so", bin.join("libnvidia-ml.so.1")).unwrap();
    hostile.make_base();
    let session = hostile.make_session("env-trap");
    for path in [hostile.base(), session.clone()] {
        fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    }
    let page = page_in(&session);
    fs::set_permissions(&page, std::os::unix::fs::PermissionsExt::from_mode(0o666)).unwrap();
    let mut command = user.command(&sluice, bin.join("on_demand").to_str().unwrap());
    command
        .env("LD_LIBRARY_PATH", &bin)
        .env("LD_PRELOAD", bin.join("libcuda_limiter.so"))
        .env("SLUICE_SESSION_DIR", &session)
        .stdin(std::process::Stdio::null());
    let (_, stdout, stderr) = outcome(&mut command);
    assert_ne!(stdout, "ready 0\n", "{stderr}");
    assert!(stderr.contains("must be a directory that only user"), "{stderr}");
    assert_eq!(device().to_string(), DEVICE);
}
