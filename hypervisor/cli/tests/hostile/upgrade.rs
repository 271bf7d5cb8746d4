//! An upgrade while programs run.

use crate::other_users::User;
use crate::support::{Sluice, eventually, outcome};
use std::fs;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

const LIBRARY: &str = "lib/sluice/libcuda_limiter.so";
const PARTS: [(&str, &str); 8] = [
    ("libcuda_limiter.so", "cuda-limiter"),
    ("libadd_path.so", "add-path"),
    ("libfake_cuda.so", "fake-cuda"),
    ("libfake_nvml.so", "fake-nvml"),
    ("fake-nvidia-smi", "fake-smi"),
    ("tenant", "tenant"),
    ("hypervisor", "hypervisor"),
    ("sluice", "sluice"),
];

/// Where the parts of this build are.
fn build(sluice: &Sluice) -> PathBuf {
    let paths = PARTS.map(|(file, package)| sluice.built(file, package));
    paths[0].parent().unwrap().to_owned()
}

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts").join(name)
}

/// What is laid out for an archive of Sluice: what `from` has, and the script beside it.
fn archive(sluice: &Sluice, from: &Path, name: &str) -> PathBuf {
    let archive = sluice.folder().join(name);
    succeeds(sluice.command_of(script("lay-out.sh")).arg(from).arg(&archive));
    fs::copy(script("install.sh"), archive.join("install.sh")).unwrap();
    archive
}

fn install(sluice: &Sluice, archive: &Path, prefix: &Path) -> Command {
    let mut command = sluice.command_of(archive.join("install.sh"));
    command.arg("--prefix").arg(prefix);
    command
}

#[track_caller]
fn succeeds(command: &mut Command) {
    assert_eq!(outcome(command), (0, String::new(), String::new()));
}

/// The files and folders below a folder, as paths below it.
fn all(folder: &Path) -> Vec<String> {
    fn walk(folder: &Path, below: &str, found: &mut Vec<String>) {
        for entry in fs::read_dir(folder).into_iter().flatten() {
            let entry = entry.unwrap();
            let path = format!("{below}{}", entry.file_name().into_string().unwrap());
            if entry.file_type().unwrap().is_dir() {
                walk(&entry.path(), &format!("{path}/"), found);
            }
            found.push(path);
        }
    }
    let mut found = Vec::new();
    walk(folder, "", &mut found);
    found.sort();
    found
}

/// A new version of every part: the same with something behind its end.
fn new_version(build: &Path, folder: &Path) {
    fs::create_dir(folder).unwrap();
    for (file, _) in PARTS {
        fs::copy(build.join(file), folder.join(file)).unwrap();
        let mut copy = fs::OpenOptions::new().append(true).open(folder.join(file)).unwrap();
        copy.write_all(b"a new version").unwrap();
    }
}

/// A program that keeps the simulated GPU busy until it is ended, under the installed limiter.
fn program(sluice: &Sluice, prefix: &Path) -> Child {
    let mut command = sluice.command_of(prefix.join("bin/sluice"));
    command.args(["run", "--fake-gpu", "--daemon", "none", "--mem", "1GiB", "--compute", "50"]);
    command.arg("--").arg(prefix.join("lib/sluice/tenant")).args([
        "dense",
        "--kernel-us",
        "500",
        "--seconds",
        "3600",
    ]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// The inode of the limiter that a descendant of `sluice` has loaded, as the kernel's list of mappings has it.
fn loaded(sluice: u32) -> Option<(u64, bool)> {
    let children = fs::read_to_string(format!("/proc/{sluice}/task/{sluice}/children")).ok()?;
    let child: u32 = children.split_whitespace().next()?.parse().ok()?;
    let maps = fs::read_to_string(format!("/proc/{child}/maps")).ok()?;
    // The driver has been loaded, so the limiter works.
    maps.lines().find(|line| line.contains("libfake_cuda.so"))?;
    let line = maps.lines().find(|line| line.contains("libcuda_limiter.so"))?;
    let inode = line.split_whitespace().nth(4)?.parse().ok()?;
    Some((inode, line.ends_with("(deleted)")))
}

#[test]
fn a_running_program_keeps_its_library_and_the_next_one_gets_the_new_one() {
    let sluice = Sluice::new();
    let (build, prefix) = (build(&sluice), sluice.folder().join("a prefix"));
    succeeds(&mut install(&sluice, &archive(&sluice, &build, "first"), &prefix));
    let inode = || fs::metadata(prefix.join(LIBRARY)).unwrap().ino();
    let first = inode();
    let old = program(&sluice, &prefix);
    eventually("the program runs", || loaded(old.id()) == Some((first, false)));

    let newer = sluice.folder().join("newer");
    new_version(&build, &newer);
    succeeds(&mut install(&sluice, &archive(&sluice, &newer, "second"), &prefix));
    let second = inode();
    assert_ne!(first, second);
    let new = program(&sluice, &prefix);
    eventually("the next program runs", || loaded(new.id()) == Some((second, false)));
    assert_eq!(loaded(old.id()), Some((first, true)), "the first one keeps the old file");

    for program in [old, new] {
        let pid = program.id().to_string();
        succeeds(sluice.command_of("kill").arg(pid));
        let output = program.wait_with_output().unwrap();
        assert_eq!(output.status.signal(), Some(15), "ended by the signal alone: {output:?}");
        assert!(output.stderr.is_empty(), "{output:?}");
    }
}

#[test]
fn an_upgrade_that_fails_changes_nothing() {
    let sluice = Sluice::new();
    let (build, prefix) = (build(&sluice), sluice.folder().join("prefix"));
    let archive = archive(&sluice, &build, "archive");
    succeeds(&mut install(&sluice, &archive, &prefix));
    let inodes = || -> Vec<(String, u64)> {
        let inode = |file: String| (fs::metadata(prefix.join(&file)).unwrap().ino(), file);
        all(&prefix).into_iter().map(inode).map(|(inode, file)| (file, inode)).collect()
    };
    let before = inodes();

    // A folder is where a file belongs.
    fs::create_dir(archive.join("share/aside")).unwrap();
    fs::rename(archive.join("bin/sluice"), archive.join("share/aside/tool")).unwrap();
    fs::create_dir_all(prefix.join("share/aside/tool")).unwrap();
    let (code, _, said) = outcome(&mut install(&sluice, &archive, &prefix));
    assert_eq!(code, 1, "{said}");
    assert!(said.contains("share/aside/tool is a folder"), "{said}");
    fs::remove_dir_all(prefix.join("share/aside")).unwrap();
    // No file may grow as large as the library is: as on a full disk.
    let mut limited = sluice.command_of("sh");
    limited.args(["-c", r#"trap '' XFSZ; ulimit -f 2048; exec "$@""#, "sh"]);
    limited.arg(archive.join("install.sh")).arg("--prefix").arg(&prefix);
    let (code, _, said) = outcome(&mut limited);
    assert_ne!(code, 0, "{said}");
    assert_eq!(inodes(), before);
    // Where nothing was, nothing is left, not even folders.
    let nowhere = sluice.folder().join("not/yet/there");
    limited = sluice.command_of("sh");
    limited.args(["-c", r#"trap '' XFSZ; ulimit -f 2048; exec "$@""#, "sh"]);
    limited.arg(archive.join("install.sh")).arg("--prefix").arg(&nowhere);
    let (code, _, said) = outcome(&mut limited);
    assert_ne!(code, 0, "{said}");
    assert!(!sluice.folder().join("not").exists());

    for wrong in ["relative", "./x"] {
        let (code, _, said) = outcome(&mut install(&sluice, &archive, Path::new(wrong)));
        assert_eq!(code, 1, "{said}");
        assert!(said.contains("is not a path that starts with /"), "{said}");
    }
    for wrong in ["a\nb", "a\"b", "a'b", "a\\b", "a$b", "a\tb"] {
        let prefix = sluice.folder().join("wrong").join(wrong);
        let (code, _, said) = outcome(&mut install(&sluice, &archive, &prefix));
        assert_eq!(code, 1, "{said}");
        assert!(said.contains("control characters, quotes, \\ and $ are not accepted"), "{said}");
        assert!(!sluice.folder().join("wrong").exists());
    }
    let mut mistaken = sluice.command_of(archive.join("install.sh"));
    let (code, _, said) = outcome(mistaken.args(["--prefx", "/x"]));
    assert_eq!(code, 2);
    assert!(said.starts_with("install.sh: '--prefx' is not an option\n"), "{said}");
}

#[test]
fn a_unit_names_its_program_whatever_the_prefix_is_called() {
    let sluice = Sluice::new();
    let build = build(&sluice);
    let archive = archive(&sluice, &build, "archive");
    for name in ["a&b", "a prefix", "50%i", "a|b", "naïve", "a;b#c"] {
        let prefix = sluice.folder().join(name);
        succeeds(&mut install(&sluice, &archive, &prefix));
        let unit = fs::read_to_string(prefix.join("lib/systemd/system/sluice.service")).unwrap();
        let path = prefix.display().to_string().replace('%', "%%");
        let named = format!("\nExecStart=\"{path}/bin/hypervisor\" daemon");
        assert!(unit.contains(&named), "{unit}");
        succeeds(install(&sluice, &archive, &prefix).arg("--uninstall"));
        assert!(!prefix.exists());
    }
}

/// The maintainer script runs `sluice prune` as each user who has sessions.
#[test]
fn a_user_cannot_hold_up_the_removal_and_inherits_nothing() {
    let sluice = Sluice::new();
    let user = User::new();
    user.make_base();
    let prefix = sluice.folder().join("prefix");
    let told = user.base().join("told");
    for folder in ["bin", "lib/sluice"] {
        fs::create_dir_all(prefix.join(folder)).unwrap();
    }
    for folder in prefix.ancestors().take_while(|folder| folder.starts_with(sluice.folder())) {
        fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let script = prefix.join("lib/sluice/before-removal");
    fs::copy(self::script("../deploy/packages/before-removal"), &script).unwrap();
    let stops = format!(
        "#!/bin/sh\n[ \"$(id -u)\" = {} ] || exit\nls -l /proc/$$/fd >{told}\ncut -d' ' -f7 /proc/$$/stat >>{told}\nkill -STOP $$\n",
        user.uid,
        told = told.display()
    );
    fs::write(prefix.join("bin/sluice"), stops).unwrap();
    fs::set_permissions(prefix.join("bin/sluice"), fs::Permissions::from_mode(0o755)).unwrap();
    // As a package manager does: with descriptors of its own.
    let mut removes = sluice.command_of("bash");
    removes
        .arg("-c")
        .arg(r#"exec 3</etc/shadow 17</etc/shadow; exec timeout --kill-after=1 120 "$0""#);
    let (code, _, said) = outcome(removes.arg(&script));
    assert_eq!(code, 0, "{said}");
    let told = fs::read_to_string(told).unwrap();
    let open: Vec<&str> = told.lines().filter_map(|line| line.split(" -> ").nth(1)).collect();
    // Its own script, which the shell reads, and the file that it writes.
    let is_own = |path: &str| path.ends_with("bin/sluice") || path.ends_with("told");
    let others = open.iter().filter(|path| **path != "/dev/null" && !is_own(path));
    assert_eq!(others.collect::<Vec<_>>(), Vec::<&&str>::new(), "{told}");
    assert!(open.len() >= 3, "{told}");
    assert_eq!(told.lines().last(), Some("0"), "no terminal: {told}");
}

#[test]
fn what_was_installed_goes_again_and_nothing_else() {
    let sluice = Sluice::new();
    let (build, prefix) = (build(&sluice), sluice.folder().join("prefix"));
    let archive = archive(&sluice, &build, "archive");
    fs::create_dir_all(prefix.join("share/man")).unwrap();
    fs::write(prefix.join("share/man/other"), "").unwrap();
    let before = all(&prefix);

    // A later version no longer has a file and a folder of this one.
    let gone = "share/doc/sluice/gone/with.txt";
    fs::create_dir(archive.join("share/doc/sluice/gone")).unwrap();
    fs::write(archive.join(gone), "").unwrap();
    succeeds(&mut install(&sluice, &archive, &prefix));
    assert!(all(&prefix).contains(&gone.to_owned()));
    fs::remove_dir_all(archive.join("share/doc/sluice/gone")).unwrap();
    succeeds(&mut install(&sluice, &archive, &prefix));
    let mut expected =
        [before.clone(), all(&archive), vec!["lib/sluice/installed".to_owned()]].concat();
    expected.retain(|file| file != "install.sh");
    expected.sort();
    expected.dedup();
    assert_eq!(all(&prefix), expected);
    // The unit names the program by where it is.
    let unit = fs::read_to_string(prefix.join("lib/systemd/system/sluice.service")).unwrap();
    let named = format!("\nExecStart={}/bin/hypervisor daemon", prefix.display());
    assert!(unit.contains(&named), "{unit}");

    succeeds(install(&sluice, &archive, &prefix).arg("--uninstall"));
    assert_eq!(all(&prefix), before);
    let (code, _, said) = outcome(install(&sluice, &archive, &prefix).arg("--uninstall"));
    assert_eq!(code, 1);
    assert!(said.contains("nothing of Sluice was installed there"), "{said}");

    // A prefix that was not there goes, too. A list that leads elsewhere is not believed.
    let other = sluice.folder().join("other");
    let kept = sluice.folder().join("kept");
    fs::write(&kept, "").unwrap();
    succeeds(&mut install(&sluice, &archive, &other));
    let list = other.join("lib/sluice/installed");
    let lines = fs::read_to_string(&list).unwrap();
    fs::write(&list, format!("../kept\n/{}\nshare/../../kept\n{lines}", kept.display())).unwrap();
    succeeds(install(&sluice, &archive, &other).arg("--uninstall"));
    assert!(!other.exists());
    assert!(kept.exists());
}

#[test]
fn a_checkout_installs_what_it_has_built() {
    let sluice = Sluice::new();
    let (build, prefix) = (build(&sluice), sluice.folder().join("prefix"));
    let from = |folder: &Path| {
        let mut command = sluice.command_of(script("install.sh"));
        command.arg("--prefix").arg(&prefix).arg("--from").arg(folder);
        command
    };
    let (code, _, said) = outcome(&mut from(sluice.folder()));
    assert_eq!(code, 1, "{said}");
    assert!(said.contains("/sluice is missing: build it with"), "{said}");
    assert!(!prefix.exists());
    succeeds(&mut from(&build));
    for (file, _) in PARTS {
        let found = ["bin", "lib/sluice"].map(|folder| prefix.join(folder).join(file).exists());
        assert!(found.contains(&true), "{file}");
    }
    // What the manual pages, the completions and the example say.
    for file in [
        "share/man/man1/sluice-run.1.gz",
        "share/bash-completion/completions/sluice",
        "share/zsh/site-functions/_hypervisor",
        "share/fish/vendor_completions.d/sluice.fish",
    ] {
        assert!(fs::metadata(prefix.join(file)).unwrap().len() > 100, "{file}");
    }
    let mut check = sluice.command_of(prefix.join("bin/sluice"));
    check.args(["config", "check"]).arg(prefix.join("share/doc/sluice/examples/config.toml"));
    let (code, said, error) = outcome(&mut check);
    assert_eq!(code, 0, "{said}{error}");
}
