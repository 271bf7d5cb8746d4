//! Tests of a process's death at any store: each operation of the ledger is stopped before each of its stores in turn,
//! and the process that takes over must find a correct ledger.

use super::Ledger;
use crate::layout::{MemoryKind, PageLayout, SLOTS};
use core::cell::Cell;
use core::sync::atomic::Ordering::Relaxed;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

thread_local! {
    /// Number of stores left until this thread's process dies; `None`: it does not die.
    static LEFT: Cell<Option<u32>> = const { Cell::new(None) };
}

struct Died;

/// Called before each store into a ledger.
pub(super) fn may_strike() {
    match LEFT.get() {
        None => {}
        Some(0) => {
            LEFT.set(None);
            resume_unwind(Box::new(Died));
        }
        Some(left) => LEFT.set(Some(left - 1)),
    }
}

/// Runs an operation and makes it die before store number `stores`; returns whether it has that many stores.
pub(super) fn dies_after(stores: u32, operation: impl FnOnce()) -> bool {
    LEFT.set(Some(stores));
    let died = catch_unwind(AssertUnwindSafe(operation)).is_err();
    LEFT.set(None);
    died
}

/// A page whose fields are all 0 except for the limits.
pub(super) fn blank(limit: u64, real: u64) -> Box<PageLayout> {
    let layout = PageLayout::blank();
    layout.memory_limit.store(limit, Relaxed);
    layout.memory_real.store(real, Relaxed);
    layout
}

/// A slot's bytes of all kinds.
pub(super) fn total(layout: &PageLayout, slot: usize) -> u64 {
    layout.slots[slot].bytes.iter().map(|cell| cell.load(Relaxed)).sum()
}

fn sums_hold(layout: &PageLayout) -> bool {
    let all: u64 = (0..SLOTS).map(|slot| total(layout, slot)).sum();
    let host = MemoryKind::Overcommitted as usize;
    let on_host: u64 = layout.slots.iter().map(|slot| slot.bytes[host].load(Relaxed)).sum();
    layout.used.load(Relaxed) == all && layout.on_host.load(Relaxed) == on_host
}

/// A session of three processes: the first dies, the second takes over, the third has a distant slot.
const DYING: usize = 0;
const SURVIVOR: usize = 1;
const FAR: usize = 77;
const HELD: u64 = 100;
const NOW: u64 = 1_000_000;

fn session() -> Box<PageLayout> {
    let layout = blank(10_000, 5_000);
    let mut ledger = Ledger::new(&layout);
    for slot in [DYING, SURVIVOR, FAR] {
        ledger.enroll(slot, u32::try_from(slot).unwrap() + 1000, 7, NOW);
        for kind in MemoryKind::ALL {
            ledger.reserve(slot, kind, HELD).unwrap();
        }
    }
    layout
}

/// Dies at every store of `operation`, which changes one slot by at most `bytes`.
fn at_every_store(name: &str, bytes: u64, operation: impl Fn(&mut Ledger<'_>)) {
    for stores in 0.. {
        let layout = session();
        let before = total(&layout, DYING);
        let died = dies_after(stores, || operation(&mut Ledger::new(&layout)));
        let mut heir = Ledger::new(&layout);
        heir.recount();
        assert!(sums_hold(&layout), "{name}, store {stores}");
        let after = total(&layout, DYING);
        assert!(before.abs_diff(after) <= bytes, "{name}, store {stores}: {before} to {after}");
        for slot in [SURVIVOR, FAR] {
            assert_eq!(total(&layout, slot), HELD * MemoryKind::ALL.len() as u64, "{name}");
        }
        heir.vacate(DYING, NOW);
        assert!(sums_hold(&layout), "{name}, store {stores}");
        assert_eq!(heir.used(), 2 * HELD * MemoryKind::ALL.len() as u64, "{name}, store {stores}");
        assert_eq!(heir.on_device(), 2 * HELD * (MemoryKind::ALL.len() as u64 - 1), "{name}");
        if !died {
            assert!(stores > 0, "{name} stores nothing");
            return;
        }
    }
}

#[test]
fn whatever_store_a_process_dies_at_its_heir_finds_the_sums_right() {
    let everything = HELD * MemoryKind::ALL.len() as u64;
    for kind in MemoryKind::ALL {
        at_every_store("reserve", 50, |ledger| ledger.reserve(DYING, kind, 50).unwrap());
        at_every_store("charge", 9_000, |ledger| ledger.charge(DYING, kind, 9_000));
        at_every_store("release", 60, |ledger| ledger.release(DYING, kind, 60).unwrap());
        at_every_store("release too much", HELD, |ledger| {
            ledger.release(DYING, kind, 2 * HELD).unwrap_err();
        });
        at_every_store("set", 20_000 - HELD, |ledger| ledger.set(DYING, kind, 20_000));
    }
    at_every_store("reserve on the host", 7_000, |ledger| {
        ledger.reserve_anywhere(DYING, MemoryKind::Data, 7_000).unwrap();
    });
    at_every_store("enroll", everything, |ledger| ledger.enroll(DYING, 5, 6, NOW));
    at_every_store("vacate", everything, |ledger| ledger.vacate(DYING, NOW));
    at_every_store("recount", 0, |ledger| ledger.recount());
}

/// The process that takes over may itself die while doing so.
#[test]
fn an_heir_that_dies_too_leaves_the_same() {
    for stores in 0.. {
        let layout = session();
        assert!(dies_after(1, || Ledger::new(&layout).charge(DYING, MemoryKind::Data, 50)));
        let died = dies_after(stores, || {
            let mut heir = Ledger::new(&layout);
            heir.recount();
            heir.vacate(DYING, NOW);
        });
        let mut last = Ledger::new(&layout);
        last.recount();
        last.vacate(DYING, NOW);
        last.vacate(SURVIVOR, NOW);
        assert!(sums_hold(&layout), "store {stores}");
        assert_eq!(last.used(), HELD * MemoryKind::ALL.len() as u64);
        if !died {
            return;
        }
    }
}
