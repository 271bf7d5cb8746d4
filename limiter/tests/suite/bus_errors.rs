//! A page that is truncated between the check and the access, and the signal that reports it (SIGBUS). The signal
//! belongs to the program, which has to see exactly what it sees without the limiter.

use crate::common::{
    COMPUTE_LIMIT, GIB, MEMORY_LIMIT, Outcome, Stage, UUIDS, first_device, outcome,
};
use std::path::{Path, PathBuf};

/// Checks that the signal ended the program.
const ENDED: i32 = 1000 + libc::SIGBUS;

struct Bus {
    stage: Stage,
    program: PathBuf,
}

impl Bus {
    fn new() -> Self {
        let stage = Stage::new();
        let program = stage.compile("bus.c", "bus", &[]);
        Self { stage, program }
    }

    fn page(&self) -> PathBuf {
        self.stage.session("session").join(format!("{}.page", UUIDS[0]))
    }

    fn limited(&self, arguments: &[&str]) -> Outcome {
        let mut command = self.stage.limited(&self.program);
        outcome(command.args(arguments).env(MEMORY_LIMIT, first_device(2 * GIB)))
    }

    /// What a program with its own handler sees without the limiter: the expected result.
    fn as_native(&self, handler: &str, order: &str, event: &str) -> Outcome {
        let arguments = ["host", handler, order, event, "2"];
        let native = outcome(self.stage.native(&self.program).args(arguments));
        let limited = self.limited(&arguments);
        assert_eq!(
            (native.code(), &native.stdout, &native.stderr),
            (limited.code(), &limited.stdout, &limited.stderr),
            "{arguments:?}"
        );
        limited
    }

    /// The results of calls when the page is truncated in a program with its own handler.
    fn cut_short(&self, handler: &str, order: &str, event: &str, times: &str) -> Outcome {
        let page = self.page();
        let run = || self.limited(&["host", handler, order, event, times, text(&page)]);
        let mut cut = run();
        // If the limiter's handler cannot be called, a truncation between the check and the access still ends a
        // program, which is rare.
        let unhandled = handler == "ignored" || event == "blocked";
        for _ in 0..2 {
            if unhandled && cut.code() == ENDED {
                std::fs::remove_file(&page).unwrap();
                cut = run();
            }
        }
        // `CUDA_ERROR_NOT_PERMITTED`
        assert!(cut.stdout.ends_with("allocations: 800\nend\n"), "{handler} {order}: {cut:#?}");
        let lines = cut.complaints();
        assert_eq!(lines.len(), 1, "{handler} {order}: {cut:#?}");
        let why = ".page was damaged while in use: it has 4096 bytes instead of";
        assert!(lines[0].contains(why), "{handler} {order}: {cut:#?}");
        std::fs::remove_file(page).unwrap();
        cut.succeeded()
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn a_handler_of_the_programs_own_sees_what_it_would_see() {
    let bus = Bus::new();
    for order in ["before", "after"] {
        for handler in ["plain", "info"] {
            for event in ["access", "access-in-thread", "access-in-child"] {
                let seen = bus.as_native(handler, order, event).succeeded();
                assert_eq!(seen.stdout.matches("recovered").count(), 2, "{seen:#?}");
            }
            for event in ["sent", "sent-to-child", "wait", "hold-back"] {
                let seen = bus.as_native(handler, order, event).succeeded();
                assert!(seen.stdout.contains("handler: 7"), "{seen:#?}");
            }
        }
        let seen = bus.as_native("passing-on", order, "access");
        assert_eq!((seen.code(), seen.stdout.as_str()), (ENDED, "passing on: 7\n"));
        // The second time the handler is no longer installed.
        for event in ["access", "sent"] {
            let seen = bus.as_native("once", order, event);
            assert_eq!(seen.code(), ENDED, "{seen:#?}");
            assert_eq!(seen.stdout.matches("handler: 7").count(), 1, "{seen:#?}");
        }
    }
}

#[test]
fn a_program_without_a_handler_is_ended_by_its_own_mistakes() {
    let bus = Bus::new();
    for event in ["access", "access-in-thread", "sent", "wait"] {
        let seen = bus.as_native("default", "before", event);
        assert_eq!((seen.code(), seen.stdout.as_str()), (ENDED, ""), "{event}");
    }
    for event in ["access-in-child", "sent-to-child"] {
        let seen = bus.as_native("default", "before", event).succeeded();
        assert_eq!(seen.stdout.matches("signal 7").count(), 2, "{seen:#?}");
    }
}

#[test]
fn a_program_that_ignores_the_signal_goes_on_ignoring_it() {
    let bus = Bus::new();
    for order in ["before", "after"] {
        let seen = bus.as_native("ignored", order, "sent").succeeded();
        assert_eq!(seen.stdout, "went on\nwent on\nend\n");
        let seen = bus.as_native("ignored", order, "wait").succeeded();
        assert_eq!(seen.stdout, "read: 1, -\nread: 1, -\nend\n");
        // An access cannot be ignored.
        assert_eq!(bus.as_native("ignored", order, "access").code(), ENDED);
    }
}

#[test]
fn a_page_that_is_cut_short_is_no_business_of_the_programs_handler() {
    let bus = Bus::new();
    for order in ["before", "after"] {
        for handler in ["default", "ignored", "plain", "info"] {
            let seen = bus.cut_short(handler, order, "none", "0");
            assert_eq!(seen.stdout, "allocations: 800\nend\n", "{handler} {order}");
        }
        // The program's own handler is not affected.
        let seen = bus.cut_short("info", order, "access", "2");
        assert_eq!(seen.stdout.matches("recovered").count(), 2, "{seen:#?}");
    }
    // In a thread that blocks the signal no handler could run.
    for handler in ["default", "info"] {
        let seen = bus.cut_short(handler, "before", "blocked", "0");
        assert_eq!(seen.stdout, "allocations: 800\nend\n", "{handler}");
    }
}

fn storm(memory: &str, launching: &str, rounds: &str) {
    let bus = Bus::new();
    let page = bus.page();
    let mut command = bus.stage.limited(&bus.program);
    command.args(["storm", text(&page), memory, launching, rounds]);
    command.env(MEMORY_LIMIT, first_device(2 * GIB));
    if launching != "0" {
        command.env(COMPUTE_LIMIT, first_device(50));
    }
    let seen = outcome(&mut command);
    println!("{} {:?}", seen.stdout, seen.took);
    assert_eq!((seen.code(), seen.value("bad")), (0, 0), "{}", seen.stdout);
    let lines = seen.complaints();
    let clear = |line: &&str| line.contains(".page was damaged while in use: ");
    // Two threads that notice at the same moment may both report it.
    let said = lines.iter().filter(|line| clear(line)).count() as u64;
    assert!(said >= seen.value("rounds"), "{said} lines; {}", seen.stdout);
    // A ledger that was open at that moment may be reported as well.
    let other =
        |line: &&&str| !clear(line) && !line.contains("the session's page is damaged: slot");
    assert_eq!(lines.iter().find(other), None);
}

/// The page is truncated at any moment of a thread's work.
#[test]
fn a_page_that_is_cut_short_in_the_middle_of_calls_ends_nobody() {
    storm("4", "0", "500");
}

#[test]
fn nor_in_the_middle_of_launches() {
    storm("2", "2", "300");
}
