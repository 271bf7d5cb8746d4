//! Each refusal names the limit that refused.

use crate::common::{MEMORY_LIMIT, MIB, Outcome, Stage, UUIDS, first_device, outcome, start};
use limits::{Limits, MemoryLimit};
use session::Page;
use std::fs;

const LIMIT: &str = "the memory limit of ";
const REAL: &str = "the part of the memory limit that may be on the device, ";

struct Session {
    stage: Stage,
    limit: u64,
}

impl Session {
    /// A session with a limit in MiB, and the part of it that may be on the device.
    fn new(limit: u64, real: Option<u64>) -> Self {
        let stage = Stage::new();
        stage.compile("steps.c", "steps", &[]);
        let memory = MemoryLimit { limit: limit * MIB, real: real.map(|real| real * MIB) };
        let limits = Limits { memory: Some(memory), ..Limits::NONE };
        Page::open(&stage.session("session"), UUIDS[0].parse().unwrap(), &limits).unwrap();
        Self { stage, limit: limit * MIB }
    }

    fn command(&self, steps: &[&str]) -> std::process::Command {
        let mut command = self.stage.limited(self.stage.folder().join("steps"));
        command.env(MEMORY_LIMIT, first_device(self.limit)).env("SLUICE_LOG", "debug").args(steps);
        command
    }

    fn steps(&self, steps: &[&str]) -> Outcome {
        outcome(&mut self.command(steps))
    }
}

/// The one line about a refusal ends with `wanted`, and no line names another limit.
#[track_caller]
fn says(seen: &Outcome, wanted: &str) {
    let about = |line: &&&str| line.contains("would be exceeded");
    let lines = seen.complaints();
    let found: Vec<_> = lines.iter().filter(about).collect();
    assert!(!found.is_empty(), "{seen:#?}");
    for line in found {
        assert!(line.contains(wanted), "{wanted}: {line}");
    }
}

#[test]
fn contexts() {
    // A context takes 512 MiB.
    let seen = Session::new(1024, Some(256)).steps(&["used"]);
    says(&seen, &format!("takes 512 MiB; {REAL}256 MiB, would be exceeded (0 MiB in use)"));
    let seen = Session::new(256, None).steps(&["used"]);
    says(&seen, &format!("takes 512 MiB; {LIMIT}256 MiB would be exceeded (0 MiB in use)"));
    // The second process finds the first one's use.
    for (limit, real, wanted) in [
        (1000, None, format!("{LIMIT}1000 MiB would be exceeded (512 MiB in use")),
        (2000, Some(600), format!("{REAL}600 MiB, would be exceeded (512 MiB in use")),
        (1000, Some(600), format!("{LIMIT}1000 MiB would be exceeded (512 MiB in use")),
    ] {
        let session = Session::new(limit, real);
        let first = start(&mut session.command(&["sleep:4000"]));
        let page = session.stage.session("session").join(format!("{}.page", UUIDS[0]));
        crate::common::eventually("the first context", || {
            Page::open_existing(&page).unwrap().summary().unwrap().total() == 512 * MIB
        });
        says(&session.steps(&["used"]), &wanted);
        first.kill();
    }
}

/// The first context is measured once it exists, and counts once.
#[test]
fn a_context_that_fits_to_the_byte() {
    for (limit, real) in [(512, None), (520, None), (1024, Some(512)), (1024, Some(530))] {
        let session = Session::new(limit, real);
        for _ in 0..2 {
            let seen = session.steps(&["used"]).succeeded();
            assert!(!seen.stderr.contains("would be exceeded"), "{limit}, {real:?}: {seen:#?}");
        }
    }
}

#[test]
fn a_context_whose_size_is_a_guess() {
    let session = Session::new(256, None);
    for name in ["libnvidia-ml.so", "libnvidia-ml.so.1"] {
        fs::remove_file(session.stage.driver().join(name)).unwrap();
    }
    let seen = session.steps(&["used"]);
    says(&seen, "NVML does not show the size of a CUDA context, which is assumed to be 512 MiB; ");
}

#[test]
fn allocations() {
    for (step, places_on_host) in [
        ("alloc:200", true),
        ("pitch:200", true),
        ("managed:200", true),
        ("async:200", true),
        ("create:200", false),
    ] {
        // Too little on the device but enough in total: only memory that cannot be on the host is refused.
        let seen = Session::new(2000, Some(600)).steps(&[step]).succeeded();
        if !places_on_host {
            says(&seen, &format!("{REAL}600 MiB, would be exceeded (512 MiB in use"));
            // Log lines have a level, unlike reports.
            let is_plain = |line: &&&str| line.starts_with("sluice: device");
            assert_eq!(seen.complaints().iter().filter(is_plain).count(), 1, "{seen:#?}");
        }
        // Too little in total.
        for real in [None, Some(600)] {
            let seen = Session::new(700, real).steps(&[step]).succeeded();
            says(&seen, &format!("{LIMIT}700 MiB would be exceeded (512 MiB in use"));
        }
    }
}
