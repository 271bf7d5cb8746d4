//! Changes that are refused, and damaged pages.

use std::fs;

use super::program::{DEVICE, GIB, OTHER, Program, device_of, limit, session_of, status};
use crate::support::{Sluice, outcome};

#[test]
fn a_damaged_page_is_named_and_stops_nothing_else() {
    let sluice = Sluice::new();
    let mut program = Program::run(&sluice, &["--mem", "2GiB"]);
    let good = program.session.join(format!("{DEVICE}.page"));
    let bad = program.session.join(format!("{OTHER}.page"));
    let size = fs::metadata(&good).unwrap().len();
    for content in [b"not a page".to_vec(), vec![0x5a; usize::try_from(size).unwrap()]] {
        fs::write(&bad, content).unwrap();
        let status = status(&sluice);
        let damaged = status["damaged"].as_array().unwrap();
        let told = session::directory::told(&bad);
        let named = damaged.iter().find(|damaged| damaged["page"] == told.to_str().unwrap());
        let named = named.unwrap_or_else(|| panic!("{bad:?} is not in {damaged:?}"));
        assert_eq!(named["session"], program.name());
        assert!(named["problem"].as_str().unwrap().contains(OTHER), "{named}");
        assert_eq!(session_of(&status, program.pid)["devices"][0]["memory"]["limit"], 2 * GIB);
        let (_, stdout, _) = outcome(sluice.command().arg("status"));
        assert!(stdout.contains(&format!("DAMAGED {}", program.name())), "{stdout}");
        // If not everything can be changed, nothing is.
        let (code, stdout, stderr) = limit(&sluice, &program.name(), &["--mem", "1GiB"]);
        assert_eq!((code, stdout.as_str()), (70, ""), "{stderr}");
        assert!(stderr.contains(told.to_str().unwrap()), "{stderr}");
        assert_eq!(program.tell("info"), "2048 1536");
    }
    let (code, _, stderr) = limit(&sluice, &program.name(), &["--mem", "1GiB", "--device", DEVICE]);
    assert_eq!((code, stderr.as_str()), (0, ""));
    assert_eq!(program.tell("info"), "1024 512");
}

const OTHER_UNUSED: &str = "does not name exactly one device that session";

#[test]
fn what_cannot_be_changed_is_refused_and_named() {
    let sluice = Sluice::new();
    let program = Program::run(&sluice, &["--mem", "2GiB"]);
    let name = program.name();
    let cases: [(&[&str], i32, &str); 14] = [
        (&[], 2, "nothing to change"),
        (&["--mem", "0"], 2, "--mem"),
        (&["--mem", "101%"], 2, "--mem"),
        (&["--mem", "17GiB"], 2, "--mem-real"),
        (&["--mem", "24GiB", "--mem-real", "17GiB"], 2, "--mem-real"),
        (&["--mem-real", "3GiB"], 2, "is more than the present memory limit of 2GiB"),
        (&["--mem", "8"], 2, "did you mean 8GiB?"),
        (&["--burst", "30"], 2, "has no compute limit: --burst needs --compute"),
        (&["--policy", "none", "--compute", "3"], 2, "--policy none"),
        (&["--no-mem", "--mem", "1GiB"], 2, "--no-mem"),
        (&["--weight", "0"], 2, "--weight"),
        (&["--device", "1", "--mem", "1GiB"], 2, OTHER_UNUSED),
        (&["--device", "9", "--mem", "1GiB"], 2, "is no such device"),
        (&["--device", "GPU-77", "--mem", "1GiB"], 2, OTHER_UNUSED),
    ];
    for (options, expected, named) in cases {
        let (code, stdout, stderr) = limit(&sluice, &name, options);
        assert_eq!((code, stdout.as_str()), (expected, ""), "{options:?}: {stderr}");
        assert!(stderr.contains(named), "{options:?}: {stderr}");
    }
    for session in ["nothing-like-it", "4294967290", ""] {
        let (code, _, stderr) = limit(&sluice, session, &["--mem", "1GiB"]);
        assert_eq!(code, 2, "{stderr}");
        assert!(stderr.contains("no such session"), "{stderr}");
    }
    assert_eq!(device_of(&sluice, &program)["memory"]["limit"], 2 * GIB);
    let timed = Program::run(&sluice, &["--compute", "50"]);
    let (code, _, stderr) = limit(&sluice, &timed.name(), &["--mem-real", "1GiB"]);
    assert_eq!(code, 2, "{stderr}");
    assert!(stderr.contains("--mem-real is part of a memory limit, and none is set"), "{stderr}");
    // A process in no session.
    let (code, _, stderr) = limit(&sluice, &std::process::id().to_string(), &["--mem", "1GiB"]);
    assert_eq!(code, 2, "{stderr}");
    assert!(stderr.contains("start it with 'sluice run'"), "{stderr}");
}
