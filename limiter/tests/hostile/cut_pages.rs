//! Pages that are truncated or zeroed while threads run.

use crate::common::{COMPUTE_LIMIT, GIB, MEMORY_LIMIT, Stage, UUIDS, first_device, outcome};

/// Damage to the page is reported once, whatever it is and however many threads notice it.
#[test]
fn a_page_that_is_spoilt_while_threads_run_is_said_once() {
    for how in ["cut", "half", "zero", "noise", "slots", "again", "middle"] {
        let stage = Stage::new();
        let program = stage.compile("spoil.c", "spoil", &[]);
        let page = stage.session("session").join(format!("{}.page", UUIDS[0]));
        let mut command = stage.limited(program);
        command.arg(page).args([how, "24", "400"]);
        command.env(MEMORY_LIMIT, first_device(2 * GIB)).env(COMPUTE_LIMIT, first_device(50));
        let seen = outcome(&mut command);
        let lines = seen.complaints();
        println!(
            "{how}: {} {} lines {:#?}",
            seen.stdout,
            lines.len(),
            &lines[..lines.len().min(8)]
        );
        let expected = match how {
            // A release may find too few bytes before the page's end is zeroed too.
            "slots" => 1..=2,
            // A process that finds its slot empty registers again. Only damage in the middle of a change is reported.
            "middle" => 0..=2,
            _ => 1..=1,
        };
        assert!(seen.code() == 0 && expected.contains(&lines.len()), "{how}: {seen:#?}");
    }
}
