//! Programs of a session that try to decide its limits.

use std::collections::BTreeSet;
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::support::{Sluice, outcome};
use serde_json::Value;

const FIRST: &str = "GPU-5a1ce000-0000-4000-8000-000000000000";
const MIB: u64 = 1 << 20;
/// What is left of 1 GiB beside a context of the simulated device.
const GRANTED: u64 = 512 * MIB;
/// What a program without a limit is granted.
const ASKED: u64 = 4096 * MIB;

/// `sluice run` on the simulated GPU, for the script `run`, in which `$take` takes memory until it is refused, and
/// `$sluice` is the command.
fn session(sluice: &Sluice, options: &[&str], script: &str) -> Command {
    let mut command = sluice.run(&["--fake-gpu", "--daemon", "none"]);
    let take = format!(
        "'{}' mem --api alloc --chunk 64MiB --cap {ASKED}",
        sluice.built("tenant", "tenant").display()
    );
    command.args(options).args(["--", "sh", "-c", &prepared(script, &take)]);
    command
}

fn prepared(script: &str, take: &str) -> String {
    script.replace("$take", take).replace("$sluice", &format!("'{}'", env!("CARGO_BIN_EXE_sluice")))
}

/// How much each `tenant mem` of the output was granted.
fn granted(stdout: &str) -> Vec<u64> {
    let lines = stdout.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines.filter_map(|line| line["granted_bytes"].as_u64()).collect()
}

#[track_caller]
fn said_once(stderr: &str, part: &str) {
    let lines: Vec<_> = stderr.lines().filter(|line| line.contains(part)).collect();
    assert_eq!(lines.len(), 1, "{part}: {stderr}");
}

/// One setting of each dialect and kind, to more than the session may have.
fn more() -> Vec<(&'static str, String)> {
    let first = |value: &str| format!(r#"{{"{FIRST}":"{value}"}}"#);
    let mut more: Vec<(&'static str, String)> = vec![
        ("TENSOR_FUSION_CUDA_MEM_LIMIT", first("8GiB")),
        ("TENSOR_FUSION_CUDA_UP_LIMIT", first("90")),
        ("SLUICE_SOFT_LIMIT", first("95")),
        ("SLUICE_MEM_REAL", first("512MiB")),
    ];
    let plain = [
        ("CUDA_MEM_LIMIT", "8g"),
        ("CUDA_MEM_LIMIT_0", "8g"),
        ("CUDA_MEM_RATIO", "4"),
        ("CUDA_MEM_OVERSOLD", "true"),
        ("CUDA_DEVICE_MEMORY_LIMIT", "8g"),
        ("CUDA_DEVICE_MEMORY_LIMIT_0", "8g"),
        ("CUDA_OVERSUBSCRIBE", "1"),
        ("VCUDA_MEMORY_LIMIT", "8589934592"),
        ("CUDA_CORE_LIMIT", "90"),
        ("CUDA_CORE_LIMIT_0", "90"),
        ("CUDA_CORE_SOFT_LIMIT", "95"),
        ("CUDA_DEVICE_SM_LIMIT", "90"),
        ("CUDA_DEVICE_SM_LIMIT_0", "100"),
        ("GPU_CORE_UTILIZATION_POLICY", "disable"),
        ("CUDA_TASK_PRIORITY", "1"),
        ("CUDA_DISABLE_CONTROL", "true"),
        ("ENABLE_CUDA_HOOKS", "false"),
        ("ENABLE_NVML_HOOKS", "false"),
        ("SLUICE_POLICY", "none"),
        ("SLUICE_POLICY", "balance"),
        ("SLUICE_WEIGHT", "10000"),
        ("SLUICE_PRIORITY", "low"),
        ("SLUICE_ON_FAILURE", "open"),
        ("SLUICE_DAEMON", "/nowhere/daemon.sock"),
        // What cannot be read is not honoured either: it stops nobody.
        ("CUDA_CORE_LIMIT", "much"),
    ];
    more.extend(plain.map(|(name, value)| (name, value.to_owned())));
    more
}

/// The session's limits on the first device, as `sluice status` shows them inside of it.
fn limits(stdout: &str) -> Value {
    let mut lines = stdout.lines();
    let session = lines.find_map(|line| line.strip_prefix("session ")).unwrap();
    let status: Value = serde_json::from_str(lines.next().unwrap()).unwrap();
    let sessions = status["sessions"].as_array().unwrap();
    let found = sessions.iter().find(|one| one["session"] == session).unwrap();
    let devices = found["devices"].as_array().unwrap();
    devices.iter().find(|device| device["uuid"] == FIRST).unwrap().clone()
}

/// The session's name is the first part of its folder's.
const SHOW: &str =
    r#"name=${SLUICE_SESSION_DIR##*/}; echo "session ${name%%.*}"; $sluice status --json"#;

#[track_caller]
fn as_decided(stdout: &str) {
    let limits = limits(stdout);
    assert_eq!(limits["memory"]["limit"], 1024 * MIB, "{limits}");
    assert_eq!(limits["memory"]["real"], Value::Null, "{limits}");
    let compute = &limits["compute"];
    assert_eq!((&compute["policy"], &compute["priority"]), (&"fixed".into(), &"high".into()));
    assert_eq!((&compute["share_ppm"], &compute["soft_ppm"]), (&100_000.into(), &Value::Null));
    assert_eq!(compute["weight"], 10);
}

#[test]
fn no_variable_of_a_child_moves_a_limit() {
    let sluice = Sluice::new();
    let options = ["--mem", "1GiB", "--compute", "10"];
    for (name, value) in more() {
        // The first process of the session is the one that asks for more.
        let script = format!("{name}='{value}' $take; $take; {SHOW}");
        let (code, stdout, stderr) = outcome(&mut session(&sluice, &options, &script));
        assert_eq!(code, 0, "{name}={value}: {stderr}");
        assert_eq!(granted(&stdout), [GRANTED, GRANTED], "{name}={value}: {stderr}");
        as_decided(&stdout);
        said_once(&stderr, &format!("{name}: not honoured"));
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
    }
}

#[test]
fn what_is_unset_or_equal_changes_nothing_and_is_not_mentioned() {
    let sluice = Sluice::new();
    let options = ["--mem", "1GiB", "--compute", "10"];
    let all: BTreeSet<_> = more().into_iter().map(|(name, _)| format!("-u {name} ")).collect();
    let all: String = all.into_iter().collect();
    let equal = r#"TENSOR_FUSION_CUDA_MEM_LIMIT="$TENSOR_FUSION_CUDA_MEM_LIMIT""#;
    let bare = r#"env -i LD_PRELOAD="$LD_PRELOAD" LD_LIBRARY_PATH="$LD_LIBRARY_PATH" SLUICE_FAKE_NODE="$SLUICE_FAKE_NODE""#;
    for how in [&format!("env {all}"), equal, bare, "env -u SLUICE_SESSION_DIR"] {
        let script = format!("{how} $take; $take; {SHOW}");
        let (code, stdout, stderr) = outcome(&mut session(&sluice, &options, &script));
        assert_eq!((code, stderr.as_str()), (0, ""), "{how}");
        assert_eq!(granted(&stdout), [GRANTED, GRANTED], "{how}");
        as_decided(&stdout);
    }
}

#[test]
fn the_callers_own_variables_are_the_sessions() {
    let mut sluice = Sluice::new();
    sluice.set("CUDA_MEM_LIMIT", "1g");
    sluice.set("CUDA_CORE_LIMIT_0", "10");
    let script = format!("env -u CUDA_MEM_LIMIT -u CUDA_CORE_LIMIT_0 $take; {SHOW}");
    let (code, stdout, stderr) = outcome(&mut session(&sluice, &[], &script));
    assert_eq!((code, stderr.as_str()), (0, ""));
    assert_eq!(granted(&stdout), [GRANTED]);
    as_decided(&stdout);
    // One that cannot be read stops the session, whatever a child sets instead.
    sluice.set("CUDA_MEM_LIMIT", "much");
    let (_, stdout, stderr) = outcome(&mut session(&sluice, &[], "CUDA_MEM_LIMIT=8g $take"));
    assert!(granted(&stdout).is_empty(), "{stdout}");
    said_once(&stderr, "CUDA_MEM_LIMIT=much");
}

#[test]
fn another_sessions_folder_is_not_joined() {
    let sluice = Sluice::new();
    let options = ["--mem", "1GiB", "--compute", "10"];
    let own = sluice.folder().join("own");
    fs::create_dir(&own).unwrap();
    // A roomier session of the same user, which is there all the time.
    let inner = format!(
        "SLUICE_SESSION_DIR=$0 $take; SLUICE_SESSION_DIR='{}' $take; {SHOW}",
        own.display()
    );
    let mut command = session(&sluice, &options, &inner);
    let roomy = sluice
        .run(&["--fake-gpu", "--mem", "8GiB", "--", "sh", "-c"])
        .arg(r#"echo "$SLUICE_SESSION_DIR"; exec sleep 60"#)
        .stdout(std::process::Stdio::piped())
        .spawn();
    let mut roomy = roomy.unwrap();
    let mut line = [0; 256];
    let length = roomy.stdout.as_mut().unwrap().read(&mut line).unwrap();
    let other = std::str::from_utf8(&line[..length]).unwrap().trim();
    let (code, stdout, stderr) = outcome(command.arg(other));
    let _ = rustix::process::kill_process(
        rustix::process::Pid::from_child(&roomy),
        rustix::process::Signal::TERM,
    );
    roomy.wait().unwrap();
    assert_eq!(code, 0, "{stderr}");
    assert_eq!(granted(&stdout), [GRANTED, GRANTED]);
    as_decided(&stdout);
    let lines: Vec<_> = stderr.lines().collect();
    assert_eq!(lines.len(), 2, "{stderr}");
    assert!(
        lines.iter().all(|line| line.contains("SLUICE_SESSION_DIR is not honoured")),
        "{stderr}"
    );
    assert_eq!(fs::read_dir(&own).unwrap().count(), 0);
}

/// Nothing is known then, so nothing is granted, whatever the environment says.
#[test]
fn a_session_whose_folder_is_gone_grants_nothing() {
    let mut sluice = Sluice::new();
    // Once with a library that the loader can name, once with one that it cannot.
    let folder = sluice.folder().join("a b");
    fs::create_dir(&folder).unwrap();
    let library = folder.join("libcuda_limiter.so");
    fs::copy(sluice.built("libcuda_limiter.so", "cuda-limiter"), &library).unwrap();
    for spaced in [false, true] {
        if spaced {
            sluice.set("SLUICE_LIBRARY", library.to_str().unwrap());
        }
        for (what, how) in [
            ("sluice-session.json", ""),
            ("sluice-session.json", "SLUICE_ON_FAILURE=open"),
            ("", ""),
            ("", "SLUICE_ON_FAILURE=open"),
            ("", "env -u SLUICE_SESSION_DIR -u TENSOR_FUSION_CUDA_MEM_LIMIT"),
        ] {
            // The simulated driver is in the folder as well.
            let away = sluice.folder().join("driver");
            let script = format!(
                r#"cp -r "$SLUICE_SESSION_DIR/fake-driver" '{away}'; export LD_LIBRARY_PATH='{away}'
                rm -r "$SLUICE_SESSION_DIR/{what}"; {how} $take; rm -r '{away}'"#,
                away = away.display()
            );
            for options in [&["--mem", "1GiB"][..], &[]] {
                let (_, stdout, stderr) = outcome(&mut session(&sluice, options, &script));
                assert!(granted(&stdout).is_empty(), "{what} {how}: {stdout}{stderr}");
                said_once(&stderr, "its limits are not known");
                assert!(stderr.contains("NOT_PERMITTED"), "{stderr}");
            }
        }
    }
}

#[test]
fn what_happens_on_a_failure_is_the_callers_choice() {
    for (caller, child, expected) in
        [("closed", "open", vec![]), ("", "open", vec![]), ("open", "closed", vec![ASKED])]
    {
        let mut sluice = Sluice::new();
        sluice.set("SLUICE_ON_FAILURE", caller);
        let script = format!(
            r#"echo nothing > "$SLUICE_SESSION_DIR/{FIRST}.page"; SLUICE_ON_FAILURE={child} $take"#
        );
        let (_, stdout, stderr) = outcome(&mut session(&sluice, &["--mem", "1GiB"], &script));
        assert_eq!(granted(&stdout), expected, "{caller} {child}: {stderr}");
        said_once(&stderr, "SLUICE_ON_FAILURE: not honoured");
    }
}

#[test]
fn devices_that_were_not_chosen_are_not_used() {
    let sluice = Sluice::new();
    for how in ["env -u CUDA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES=1", "CUDA_VISIBLE_DEVICES=1,0"]
    {
        for options in [&["--device", "1"][..], &["--device", "0", "--mem", "1GiB"]] {
            let script = format!("{how} $take; $take");
            let (_, stdout, stderr) = outcome(&mut session(&sluice, options, &script));
            let own = if options[1] == "0" { GRANTED } else { ASKED };
            let chosen = how.starts_with("env") == (options[1] == "0");
            let expected = if chosen { vec![own, own] } else { vec![own] };
            assert_eq!(granted(&stdout), expected, "{how} {options:?}: {stderr}");
            if !chosen {
                said_once(&stderr, "does not belong to this session");
            }
        }
    }
}

#[test]
fn a_daemon_of_the_programs_own_is_not_asked() {
    let sluice = Sluice::new();
    let path = sluice.folder().join("own.sock");
    let unix = UnixListener::bind(&path).unwrap();
    unix.set_nonblocking(true).unwrap();
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    tcp.set_nonblocking(true).unwrap();
    let port = tcp.local_addr().unwrap().port();
    let tenant = sluice.built("tenant", "tenant");
    for (name, how) in [
        ("SLUICE_DAEMON", format!("SLUICE_DAEMON='{}'", path.display())),
        ("HYPERVISOR_IP", format!("HYPERVISOR_IP=127.0.0.1 HYPERVISOR_PORT={port}")),
    ] {
        let script = format!("{how} '{}' dense --kernel-us 1000 --seconds 0.2", tenant.display());
        let (code, _, stderr) = outcome(&mut session(&sluice, &["--compute", "50"], &script));
        assert_eq!(code, 0, "{stderr}");
        said_once(&stderr, name);
        said_once(&stderr, "not honoured");
    }
    assert_eq!(unix.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
    assert_eq!(tcp.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
}

#[test]
fn the_sessions_daemon_is_asked_whatever_a_child_unsets() {
    let sluice = Sluice::new();
    let path = sluice.folder().join("the.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut request = [0; 4096];
            let _ = stream.read(&mut request);
            count.fetch_add(1, Ordering::Relaxed);
            let _ = stream.write_all(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n");
        }
    });
    let tenant = sluice.built("tenant", "tenant");
    let script = format!("'{}' dense --kernel-us 1000 --seconds 0.2", tenant.display());
    let mut command = sluice.run(&["--fake-gpu", "--compute", "50", "--daemon"]);
    command.arg(&path).args(["--", "env", "-u", "SLUICE_DAEMON", "sh", "-c", &script]);
    assert_eq!(outcome(&mut command).0, 0);
    // `sluice run` has asked once.
    assert!(asked.load(Ordering::Relaxed) > 1);
}

#[test]
fn a_session_inside_a_session_is_seen_by_either_sign() {
    let sluice = Sluice::new();
    for unset in ["SLUICE_SESSION_DIR", "LD_PRELOAD"] {
        let script = format!("env -u {unset} $sluice run --mem 8GiB -- echo inner");
        let (code, stdout, stderr) = outcome(&mut session(&sluice, &["--mem", "1GiB"], &script));
        assert_eq!((code, stdout.as_str()), (2, ""), "{stderr}");
        said_once(&stderr, "already inside a session");
        let script = format!("env -u {unset} $sluice run -- $take");
        let (code, stdout, stderr) = outcome(&mut session(&sluice, &["--mem", "1GiB"], &script));
        assert_eq!(code, 0, "{stderr}");
        assert_eq!(granted(&stdout), [GRANTED], "{stderr}");
    }
}

/// Neither a program that is told to join nothing, nor one whose session is gone, runs without limits.
#[test]
fn what_is_no_session_is_not_joined() {
    let sluice = Sluice::new();
    let empty = sluice.folder().join("empty");
    fs::create_dir(&empty).unwrap();
    let gone = sluice.folder().join("4711-1-0123456789abcdef");
    let library = gone.join("libcuda_limiter.so");
    for (name, value, dir) in [
        ("SLUICE_SESSION_DIR", "/nonexistent".as_ref(), "/nonexistent".as_ref()),
        ("SLUICE_SESSION_DIR", empty.as_path(), empty.as_path()),
        ("SLUICE_SESSION_DIR", gone.as_path(), gone.as_path()),
        ("LD_PRELOAD", library.as_path(), gone.as_path()),
    ] {
        for options in [&[][..], &["--fake-gpu", "--mem", "1GiB"]] {
            let mut command = sluice.run(options);
            command.args(["--", "echo", "ran"]).env("CUDA_MEM_LIMIT", "1g").env(name, value);
            let (code, stdout, stderr) = outcome(&mut command);
            assert_eq!((code, stdout.as_str()), (70, ""), "{name} {value:?}: {stderr}");
            let said = format!("{name}: {}: ", dir.display());
            said_once(&stderr, &said);
        }
    }
    let script = r#"rm "$SLUICE_SESSION_DIR/$0"; env -u LD_PRELOAD $sluice run -- echo ran"#;
    for lost in ["sluice-session.json", "libcuda_limiter.so"] {
        let (code, stdout, stderr) = outcome(session(&sluice, &[], script).arg(lost));
        assert_eq!((code, stdout.as_str()), (70, ""), "{stderr}");
        let said: Vec<_> = stderr.lines().filter(|line| line.starts_with("sluice: ")).collect();
        // Without the secret in the folder's name.
        assert!(matches!(said[..], [one] if one.contains(&format!(".*/{lost}"))), "{stderr}");
    }
}

/// The limiter is put back in front of what the program preloads.
#[test]
fn within_a_session_other_preloads_stay() {
    let sluice = Sluice::new();
    let script = r#"before=$LD_PRELOAD; echo "$before"; LD_PRELOAD=libm.so.6 $sluice run -- sh -c 'echo $LD_PRELOAD'
        $sluice run -- sh -c 'echo $LD_PRELOAD'"#;
    let (code, stdout, stderr) = outcome(&mut session(&sluice, &[], script));
    assert_eq!((code, stderr.as_str()), (0, ""));
    let lines: Vec<_> = stdout.lines().collect();
    assert_eq!(lines, [lines[0], &format!("{}:libm.so.6", lines[0]), lines[0]]);
}

#[test]
fn the_library_runs_once_under_its_two_names() {
    let sluice = Sluice::new();
    let script = r#"echo "$LD_PRELOAD"; grep -c 'r-xp.*libcuda_limiter' /proc/self/maps"#;
    let (code, stdout, stderr) = outcome(sluice.run(&[]).args(["--", "sh", "-c", script]));
    assert_eq!((code, stderr.as_str()), (0, ""));
    let lines: Vec<_> = stdout.lines().collect();
    assert_eq!(lines[0].split(':').count(), 2, "{stdout}");
    assert_eq!(lines[1], "1", "{stdout}");
}

/// `sluice limit` changes what was decided, also on a device that no process has used.
#[test]
fn a_limit_is_changed_before_the_first_use() {
    let sluice = Sluice::new();
    let script = format!(
        r#"name=${{SLUICE_SESSION_DIR##*/}}; name=${{name%%.*}}
        env -u LD_PRELOAD $sluice limit "$name" --mem 2GiB; $take; $sluice status "$name" | grep -c "^  GPU-"
        {SHOW}"#
    );
    let (code, stdout, stderr) = outcome(&mut session(&sluice, &["--mem", "1GiB"], &script));
    assert_eq!((code, stderr.as_str()), (0, ""));
    assert_eq!(stdout.matches("memory was 1GiB, is now 2GiB").count(), 2, "{stdout}");
    assert_eq!(granted(&stdout), [GRANTED + 1024 * MIB]);
    // People are shown the device that was used, programs all of them.
    assert!(stdout.lines().any(|line| line == "1"), "{stdout}");
    assert_eq!(limits(&stdout)["memory"]["limit"], 2048 * MIB);
}

/// There NVML shows the limit: half of that is not half of the device, and more than that is not more than it has.
#[test]
fn within_a_session_its_limit_is_not_the_devices_size() {
    let sluice = Sluice::new();
    let script = r#"name=${SLUICE_SESSION_DIR##*/}; name=${name%%.*}
        $sluice limit "$name" --mem 50%; $sluice limit "$name" --mem 2GiB"#;
    let (code, stdout, stderr) = outcome(&mut session(&sluice, &["--mem", "1GiB"], script));
    assert!(code == 0 && stderr.lines().count() == 1, "{stderr}");
    assert!(stderr.contains("--mem: 50% needs the size of"), "{stderr}");
    assert_eq!(stdout.matches("memory was 1GiB, is now 2GiB").count(), 2, "{stdout}");
}
