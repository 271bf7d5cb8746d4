//! More memory than the session may have on the device: the rest is on the host.

use crate::common::{CONTEXT, MIB, Outcome, Stage, UUIDS, eventually, outcome, start};
use limits::{Limits, MemoryLimit};
use session::Page;
use session::layout::MemoryKind;
use std::process::Command;
use std::sync::atomic::Ordering::Relaxed;

const USED: u64 = CONTEXT / MIB;

struct Host {
    stage: Stage,
    page: Page,
}

impl Host {
    /// A session with a limit in MiB, and the part of it that may be on the device.
    fn new(limit: u64, real: u64) -> Self {
        let stage = Stage::new();
        stage.compile("steps.c", "steps", &[]);
        let memory = Some(MemoryLimit { limit: limit * MIB, real: Some(real * MIB) });
        let limits = Limits { memory, ..Limits::NONE };
        let dir = stage.session("session");
        let page = Page::open(&dir, UUIDS[0].parse().unwrap(), &limits).unwrap();
        Self { stage, page }
    }

    fn command(&self, steps: &[&str]) -> Command {
        let mut command = self.stage.limited(self.stage.folder().join("steps"));
        let limit = self.page.layout().memory_limit.load(Relaxed);
        command.env(crate::common::MEMORY_LIMIT, crate::common::first_device(limit)).args(steps);
        command
    }

    fn steps(&self, steps: &[&str]) -> Outcome {
        outcome(&mut self.command(steps)).succeeded()
    }

    /// The session's MiB of one kind.
    fn has(&self, kind: MemoryKind) -> u64 {
        let slots = self.page.layout().slots.iter();
        slots.map(|slot| slot.bytes[kind as usize].load(Relaxed)).sum::<u64>() / MIB
    }

    /// MiB in use on the device itself.
    fn on_device(&self) -> u64 {
        let mut native = self.stage.native(self.stage.folder().join("steps"));
        outcome(native.arg("used")).succeeded().value("used") - USED
    }
}

fn values(outcome: &Outcome, name: &str) -> Vec<u64> {
    let value = |word: &str| word.strip_prefix(name)?.strip_prefix('=')?.parse().ok();
    outcome.stdout.split_whitespace().filter_map(value).collect()
}

/// 1 GiB on the device, 2 GiB in total: the context and 512 MiB fit on the device.
#[test]
fn what_does_not_fit_on_the_device_is_placed_on_the_host() {
    for api in ["alloc", "pitch", "managed", "async"] {
        let host = Host::new(2048, 1024);
        let fills = format!("{api}:400");
        let more = format!("{api}:300");
        let last = format!("{api}:1024");
        let steps =
            ["info", &fills, &more, "where", "fill", &more, "fill", "info", &last, "sleep:1500"];
        let running = start(&mut host.command(&steps));
        eventually(&format!("{api}: on the host"), || host.has(MemoryKind::Overcommitted) == 600);
        assert!(host.on_device() <= 1024, "{api}");
        let outcome = running.end().succeeded();
        assert_eq!(values(&outcome, api), [0, 0, 0, 2], "{api}: {outcome:#?}");
        assert_eq!(values(&outcome, "is_managed"), [1], "{api}: {outcome:#?}");
        assert_eq!(values(&outcome, "fill"), [0, 0], "{api}: {outcome:#?}");
        assert_eq!(values(&outcome, "total"), [2048, 2048], "{api}: {outcome:#?}");
        assert_eq!(values(&outcome, "size"), [2048, 2048], "{api}: {outcome:#?}");
        // A pool grows by whole chunks.
        let left = 2048 - USED - if api == "async" { 1016 } else { 1000 };
        assert_eq!(values(&outcome, "free"), [2048 - USED, left], "{api}: {outcome:#?}");
        assert_eq!(outcome.stderr, "", "{api}");
    }
}

#[test]
fn what_is_freed_can_be_placed_again() {
    let host = Host::new(1536, 1024);
    let outcome = host.steps(&[
        "alloc:500",
        "alloc:500",
        "alloc:500",
        "free",
        "alloc:500",
        "free",
        "free",
        "alloc:500",
        "where",
        "used",
    ]);
    assert_eq!(values(&outcome, "alloc"), [0, 0, 2, 0, 0], "{outcome:#?}");
    assert_eq!(values(&outcome, "is_managed"), [0], "{outcome:#?}");
    assert_eq!(values(&outcome, "used"), [USED + 500], "{outcome:#?}");
}

/// A device that others have filled has the same effect as the real part.
#[test]
fn a_full_device_sends_allocations_to_the_host() {
    let host = Host::new(3072, 2048);
    let mut holder = host.stage.native(host.stage.folder().join("steps"));
    let holder = start(holder.args(["alloc:15200", "sleep:20000"]));
    eventually("the device is full", || host.on_device() > 15000);
    let outcome = host.steps(&["alloc:300", "where", "async:300", "where", "fill"]);
    holder.kill();
    let _ = holder.end();
    assert_eq!(values(&outcome, "is_managed"), [1, 1], "{outcome:#?}");
    assert_eq!(values(&outcome, "fill"), [0], "{outcome:#?}");
}

#[test]
fn without_overcommitment_nothing_is_placed_on_the_host() {
    let host = Host::new(1024, 1024);
    let outcome = host.steps(&["alloc:500", "alloc:500", "async:500"]);
    assert_eq!(values(&outcome, "alloc"), [0, 2], "{outcome:#?}");
    assert_eq!(values(&outcome, "async"), [2], "{outcome:#?}");
    assert_eq!(outcome.stderr, "");
}

/// The caller does not wait for the kernel. The memory stays until the kernel is done.
#[test]
fn a_free_in_the_order_of_a_stream_is_put_off() {
    let host = Host::new(2048, 1024);
    let steps =
        ["alloc:500", "alloc:500", "busy:1000", "freeasync", "used", "sync", "sleep:200", "used"];
    let outcome = host.steps(&steps);
    assert_eq!(values(&outcome, "freeasync"), [0], "{outcome:#?}");
    assert_eq!(values(&outcome, "used"), [USED + 1000, USED + 500], "{outcome:#?}");
    assert_eq!(outcome.stderr, "");
    // Deferred frees are done when their bytes are needed, and when their context ends.
    let steps = ["alloc:500", "async:1000", "freeasync", "sync", "alloc:1000", "used"];
    let outcome = host.steps(&steps);
    assert_eq!(values(&outcome, "alloc"), [0, 0], "{outcome:#?}");
    let outcome =
        host.steps(&["alloc:500", "async:700", "busy:300", "freeasync", "destroy", "used"]);
    assert_eq!(values(&outcome, "used"), [USED], "{outcome:#?}");
}

#[test]
fn what_cannot_be_placed_on_the_host_is_refused_and_said() {
    let host = Host::new(2048, 1024);
    let mut command = host.command(&[
        "alloc:400",
        "create:200",
        "create:200",
        "alloc:200",
        "ipc",
        "bring",
        "fill",
        "sleep:1500",
        "where",
    ]);
    let running = start(&mut command);
    eventually("on the host", || host.has(MemoryKind::Overcommitted) == 200);
    std::thread::sleep(std::time::Duration::from_millis(500));
    assert_eq!(host.on_device(), USED + 400);
    let outcome = running.end().succeeded();
    assert_eq!(values(&outcome, "create"), [2, 2], "{outcome:#?}");
    assert_eq!(values(&outcome, "ipc"), [801], "{outcome:#?}");
    assert_eq!(values(&outcome, "bring"), [0], "{outcome:#?}");
    assert_eq!(values(&outcome, "is_managed"), [1], "{outcome:#?}");
    let said = outcome.complaints();
    assert_eq!(said.len(), 2, "{outcome:#?}");
    assert!(said[0].contains("1024 MiB") && said[0].contains("cuMemCreate"), "{outcome:#?}");
    assert!(said[1].contains("shared with other processes"), "{outcome:#?}");
}

#[test]
fn graphs_neither_place_nor_free_on_the_host() {
    let host = Host::new(2048, 1024);
    let outcome = host.steps(&[
        "alloc:500",
        "alloc:500",
        "capture:100",
        "freeasync",
        "sync",
        "sleep:200",
        "used",
    ]);
    assert_eq!(values(&outcome, "captured_free"), [801], "{outcome:#?}");
    assert_eq!(values(&outcome, "freeasync"), [0], "{outcome:#?}");
    assert_eq!(values(&outcome, "used"), [USED + 500], "{outcome:#?}");
}
