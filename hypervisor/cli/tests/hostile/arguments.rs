//! Values that mislead.

use crate::support::{Sluice, outcome};
use std::ffi::OsStr;
use std::process::Command;

/// `sluice run` with options, as a wrong command line ends it.
#[track_caller]
fn refused(sluice: &Sluice, options: &[&str]) -> String {
    wrong(sluice.command().arg("run").args(options).args(["--", "true"]))
}

#[track_caller]
fn wrong(command: &mut Command) -> String {
    let (code, stdout, stderr) = outcome(command);
    assert_eq!((code, stdout.as_str()), (2, ""), "{stderr}");
    let hidden = |c: char| (c.is_control() && c != '\n') || matches!(c, '\u{200b}'..='\u{202e}');
    assert!(!stderr.contains(hidden), "{stderr:?}");
    stderr
}

#[test]
fn an_empty_daemon_is_no_daemon_that_was_meant() {
    let sluice = Sluice::new();
    for options in [&["--daemon", ""][..], &["--daemon="]] {
        let said = refused(&sluice, options);
        assert!(said.contains("expected the path of a socket, or 'none' for no daemon"), "{said}");
    }
    let (code, _, _) = outcome(sluice.command().args(["run", "--daemon", "none", "--", "true"]));
    assert_eq!(code, 0);
}

#[test]
fn a_hyphen_is_told_what_would_be_accepted() {
    let sluice = Sluice::new();
    for (options, hint) in [
        (["--mem", "-1"], "'-1' is not a size above 0: expected bytes"),
        (["--mem", "-8GiB"], "'-8GiB' is not a size above 0: expected bytes"),
        (["--mem-real", "-1"], "'-1' is not a size above 0: expected bytes"),
        (["--mem", "-50%"], "'-50%' is not a percentage: expected 0.0001 to 100"),
        (["--compute", "-5"], "'-5' is not a percentage: expected 0.0001 to 100"),
        (["--burst", "-5%"], "'-5%' is not a percentage: expected 0.0001 to 100"),
        (["--weight", "-1"], "'-1' is not a weight: expected a whole number from 1 to 10000"),
        (["--mem", "--compute"], "'--compute' is not a size above 0"),
    ] {
        let said = refused(&sluice, &options);
        assert!(
            said.contains(hint) && !said.contains("unexpected argument"),
            "{options:?}: {said}"
        );
    }
    let device = refused(&sluice, &["--fake-gpu", "--device", "-1"]);
    assert!(device.contains("--device '-1' is no such device; available: 0 (GPU-"), "{device}");
}

/// Each is refused with what would be accepted; none is read as something else.
#[test]
fn numbers_in_other_forms_are_refused() {
    let sluice = Sluice::new();
    let sizes = "| |+8GiB|0x10|1e9|1e9B|inf|nan|８GiB|8ＧiB|8,5GiB|8_000MiB|8 G iB|8GiBs|GiB8|0GiB|\
                 0.0GiB|1.GiB|.5GiB|1.2.3GiB|8GiB 8GiB";
    for value in sizes.split('|') {
        let said = refused(&sluice, &["--mem", value]);
        assert!(said.contains("is not a size above 0: expected bytes"), "{value}: {said}");
    }
    for value in
        ["", "+5", "1e1", "0x1", "nan", "inf", "100.0000001", "５", "5,5", "5％", "0.000001"]
    {
        let said = refused(&sluice, &["--compute", value]);
        assert!(said.contains("is not a percentage: expected 0.0001 to 100"), "{value}: {said}");
    }
    for value in ["", "+5", " 5", "05", "5.0", "1e1", "0", "10001", "５"] {
        let said = refused(&sluice, &["--compute", "50", "--burst", "60", "--weight", value]);
        assert!(said.contains("is not a weight: expected a whole number"), "{value}: {said}");
    }
    for value in ["+0", "00", "0x0", "０", "1e0"] {
        let said = refused(&sluice, &["--fake-gpu", "--device", value]);
        assert!(said.contains("is no such device"), "{value}: {said}");
    }
    let twice = refused(&sluice, &["--mem", "1GiB", "--mem", "2GiB"]);
    assert!(twice.contains("cannot be used multiple times"), "{twice}");
    let long = "9".repeat(100_000) + "GiB";
    let said = refused(&sluice, &["--mem", &long]);
    assert!(said.contains("is not a size above 0"), "{}", said.len());
}

/// Characters that a terminal obeys, or that hide what stands there, are never printed.
#[test]
fn what_would_mislead_a_reader_is_escaped() {
    let sluice = Sluice::new();
    let name = "a\u{202e}b\u{1b}[2Jc\u{200b}d";
    let escaped = r"a\u{202e}b\u{1b}[2Jc\u{200b}d";
    for option in ["--mem", "--compute", "--weight"] {
        assert!(refused(&sluice, &[option, name]).contains(escaped), "{option}");
    }
    for option in ["--policy", "--priority", name] {
        assert!(refused(&sluice, &[option, name]).contains(r"\u{202e}b"), "{option}");
    }
    assert!(refused(&sluice, &["--fake-gpu", "--device", name]).contains(escaped));
    assert!(wrong(sluice.command().args(["limit", name, "--mem", "1GiB"])).contains(escaped));
    assert!(wrong(sluice.command().arg(name)).contains(r"\u{202e}b"));
    let (code, _, said) =
        outcome(sluice.run(&["--daemon", &format!("/{name}")]).args(["--", "true"]));
    assert_eq!(code, 0, "{said}");
    assert!(said.contains(escaped) && said.lines().count() == 1, "{said:?}");
    let (code, _, said) = outcome(sluice.run(&[]).args(["--", &format!("/nowhere/{name}")]));
    assert_eq!(code, 127, "{said}");
    assert!(said.contains(escaped), "{said:?}");
    // A line break does not make a second line that looks like one of Sluice's.
    let (code, _, said) = outcome(sluice.run(&[]).args(["--", "/nowhere\nsluice: all is well"]));
    assert_eq!((code, said.lines().count()), (127, 1), "{said:?}");
}

/// The name of a process is whatever it says.
#[test]
fn the_name_of_a_process_is_escaped() {
    let sluice = Sluice::new();
    let name = "x\u{202e}y\u{1b}[m";
    let tenant = sluice.folder().join(name);
    std::os::unix::fs::symlink(sluice.built("tenant", "tenant"), &tenant).unwrap();
    let script = r#""$TENANT" mem --api alloc --chunk 1MiB --cap 1MiB --hold 30 >"$READY" & p=$!
        while ! [ -s "$READY" ]; do sleep 0.05; done; "$SLUICE" status $p; kill $p"#;
    let mut command = sluice.run(&["--fake-gpu", "--mem", "1GiB"]);
    command.args(["--", "sh", "-c", script]).env("TENANT", &tenant);
    command.env("READY", sluice.folder().join("ready")).env("SLUICE", env!("CARGO_BIN_EXE_sluice"));
    let (code, said, stderr) = outcome(&mut command);
    assert_ne!(code, 2, "{stderr}");
    assert!(said.contains(r"x\u{202e}y\u{1b}[m"), "{said:?} {stderr}");
    assert!(!said.contains(['\u{202e}', '\u{1b}']), "{said:?}");
}

/// Bytes that are no text.
#[test]
fn what_is_no_text_is_refused() {
    use std::os::unix::ffi::OsStrExt;
    let sluice = Sluice::new();
    let bytes = OsStr::from_bytes(b"8\xffGiB");
    for option in ["--mem", "--compute", "--device", "--policy"] {
        wrong(sluice.command().args(["run", option]).arg(bytes).args(["--", "true"]));
    }
}

/// What a session's members are told is what was said, or nothing runs.
#[test]
fn what_is_not_utf_8_is_not_altered() {
    use std::os::unix::ffi::OsStrExt;
    let sluice = Sluice::new();
    let path = OsStr::from_bytes(b"/run/\xff.sock");
    let said = wrong(sluice.command().args(["run", "--daemon"]).arg(path).args(["--", "true"]));
    assert!(said.contains("expected a path in UTF-8"), "{said}");
    for name in ["CUDA_MEM_LIMIT", "SLUICE_ON_FAILURE", "CUDA_VISIBLE_DEVICES"] {
        let said = wrong(sluice.run(&[]).args(["--", "echo", "ran"]).env(name, path));
        assert!(said.contains(name) && said.contains("not UTF-8"), "{said}");
    }
}

/// Whatever a session is called here: it is unknown, and shown without its control characters.
#[test]
fn sessions_that_cannot_be_frozen() {
    let sluice = Sluice::new();
    let absent = sluice.folder().join("absent");
    for action in ["freeze", "thaw"] {
        let command = |arguments: &[&OsStr]| {
            let mut command = sluice.command();
            command.arg(action).args(arguments);
            command
        };
        let (code, stdout, stderr) =
            outcome(&mut command(&["1".as_ref(), "--daemon".as_ref(), absent.as_os_str()]));
        assert_eq!((code, stdout.as_str()), (70, ""), "{stderr}");
        assert!(stderr.contains("no daemon answers there"), "{stderr}");
        assert!(!stderr.contains("own account"), "{stderr}");
        wrong(&mut command(&[]));
        wrong(&mut command(&["1".as_ref(), "--daemon".as_ref(), "".as_ref()]));
        wrong(&mut command(&["a\u{1b}[2J".as_ref(), "b\u{202e}".as_ref()]));
        wrong(&mut command(&["1".as_ref(), "--compute".as_ref(), "5".as_ref()]));
        wrong(&mut command(&["1".as_ref(), "--daemon".as_ref(), "none".as_ref()]));
    }
}
