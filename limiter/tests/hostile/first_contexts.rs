//! Many processes that start at once, before the size of a context is known.

use crate::common::{GIB, MEMORY_LIMIT, MIB, Outcome, Stage, UUIDS, first_device, start};
use fake_node::{Config, Node};
use session::Page;
use std::thread::sleep;
use std::time::Duration;

/// Starts `count` processes that make a context of `context` bytes each at the same moment, under a limit. Returns
/// their results, and the most memory that the device had in use.
fn begin(
    stage: &Stage,
    count: u32,
    context: u64,
    limit: u64,
    arguments: &[&str],
) -> (Outcome, u64) {
    let program = stage.compile("begin.c", "begin", &[]);
    let mut command = stage.limited(program);
    command.arg(count.to_string()).args(arguments).env(MEMORY_LIMIT, first_device(limit));
    let size = context.to_string();
    let running = start(command.env("SLUICE_FAKE_CONTEXT", &size));
    let config = |name: &str| (name == "SLUICE_FAKE_CONTEXT").then(|| size.clone());
    let node = Node::open_at(&stage.node(), Config::from_lookup(config).unwrap()).unwrap();
    let mut most = 0;
    std::thread::scope(|scope| {
        let ended = scope.spawn(|| running.end());
        while !ended.is_finished() {
            most = node.lock().devices[0].used.max(most);
            sleep(Duration::from_millis(2));
        }
        let ended = ended.join().unwrap().succeeded();
        println!("{} MiB of {}: {} most {most}", context / MIB, limit / MIB, ended.stdout);
        (ended, most)
    })
}

#[test]
fn small_contexts_that_begin_together_all_fit() {
    let (seen, most) = begin(&Stage::new(), 200, 8 * MIB, 2 * GIB, &[]);
    assert_eq!((seen.value("made"), seen.value("refused"), seen.value("other")), (200, 0, 0));
    assert!(most <= 2 * GIB, "{most}");
    // A limit below the size of a context on other devices.
    let (seen, _) = begin(&Stage::new(), 20, 8 * MIB, 200 * MIB, &[]);
    assert_eq!((seen.value("made"), seen.value("refused")), (20, 0), "{}", seen.stderr);
}

/// Only the first context is made before its size is known.
#[test]
fn large_contexts_that_begin_together_are_never_more_than_fit() {
    for context in [100 * MIB, 512 * MIB] {
        let (seen, most) = begin(&Stage::new(), 40, context, GIB, &[]);
        let fit = GIB / context;
        assert_eq!((seen.value("made"), seen.value("refused")), (fit, 40 - fit), "{context}");
        assert!(most <= GIB, "{most}");
    }
}

/// A process delays the others for a bounded time only.
#[test]
fn a_first_context_that_is_never_made_is_not_waited_for_without_end() {
    let stage = Stage::new();
    let limits =
        limits::Limits { memory: Some(limits::MemoryLimit::new(2 * GIB)), ..limits::Limits::NONE };
    let page = Page::open(&stage.session("session"), UUIDS[0].parse().unwrap(), &limits).unwrap();
    let path = page.path().to_str().unwrap().to_owned();
    drop(page);
    let (seen, _) = begin(&stage, 20, 8 * MIB, 2 * GIB, &["lock", &path]);
    assert_eq!((seen.value("made"), seen.value("refused")), (20, 0), "{}", seen.stderr);
    assert!((4_000..30_000).contains(&seen.value("ms")), "{}", seen.stdout);
}

mod timed {
    use super::*;

    #[test]
    fn who_dies_on_the_way_keeps_nobody() {
        for _ in 0..5 {
            let (seen, _) = begin(&Stage::new(), 60, 8 * MIB, 2 * GIB, &["kill"]);
            assert_eq!((seen.value("made"), seen.value("refused")), (30, 0), "{}", seen.stderr);
            // Others wait for such a process for 4 s.
            assert!(seen.value("ms") < 4000, "{}", seen.stdout);
        }
    }
}
