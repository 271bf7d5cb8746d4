//! Leases of the session's own account, on a virtual clock.

use core::sync::atomic::Ordering::Relaxed;
use limits::bucket::{Bucket, earned};
use limits::turns::{Handover, burst_ns};
use limits::{ComputeLimit, GpuId, Limits};
use session::Page;
use session::layout::PageLayout;
use session::ledger::{Ledger, TAKEN_OFF_NS, Turn};

const MS: u64 = 1_000_000;
/// Before all events of these tests.
const NOW: u64 = 1;

struct Stage {
    _folder: tempfile::TempDir,
    page: Page,
}

impl Stage {
    fn new(share_ppm: u32, processes: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let limits = Limits { compute: ComputeLimit::fixed(share_ppm), ..Limits::NONE };
        let page = Page::open(folder.path(), GpuId::from_bytes([3; 16]), &limits).unwrap();
        for slot in 0..processes {
            Ledger::new(page.layout()).enroll(slot, 100 + u32::try_from(slot).unwrap(), 1, NOW);
        }
        Self { _folder: folder, page }
    }

    fn layout(&self) -> &PageLayout {
        self.page.layout()
    }

    fn charged(&self, slot: usize) -> u64 {
        self.layout().slots[slot].charged_ns.load(Relaxed)
    }
}

/// A process's load: the part of the held time that it uses, and how long (ns) its last kernel overruns the lease.
#[derive(Clone, Copy)]
struct Load {
    density: f64,
    overrun: u64,
}

#[derive(Clone, Copy)]
enum State {
    Waits(u64),
    Holds { from: u64, end: u64, renew: u64 },
    Drains { from: u64, until: u64 },
}

/// Runs processes of one session for `ms` milliseconds; returns the time (ns) that each held the device.
fn simulate(stage: &Stage, loads: &[Load], ms: u64) -> Vec<u64> {
    let mut states = vec![State::Waits(0); loads.len()];
    let mut held = vec![0; loads.len()];
    for step in 0..ms * 10 {
        let now = 1_000 * MS + step * MS / 10;
        for (slot, load) in loads.iter().enumerate() {
            let mut ledger = Ledger::new(stage.layout());
            let used = |from: u64| ((now - from) as f64 * load.density) as u64;
            states[slot] = match states[slot] {
                State::Waits(until) if now >= until => match ledger.begin_lease(slot, now) {
                    Turn::Granted(length) => {
                        State::Holds { from: now, end: now + length, renew: now + 10 * MS }
                    }
                    Turn::In(wait) => State::Waits(now + wait.clamp(1, 10 * MS)),
                },
                State::Holds { from, end, renew } => {
                    held[slot] += MS / 10;
                    if now >= end {
                        State::Drains { from, until: now + load.overrun }
                    } else if now >= renew {
                        let end = match ledger.renew_lease(slot, now, used(from)) {
                            Turn::Granted(length) => now + length,
                            Turn::In(_) => end,
                        };
                        State::Holds { from: now, end, renew: now + 10 * MS }
                    } else {
                        State::Holds { from, end, renew }
                    }
                }
                State::Drains { from, until } if now >= until => {
                    ledger.end_lease(slot, now, used(from));
                    State::Waits(now)
                }
                other => other,
            };
        }
    }
    held
}

#[track_caller]
fn is_near(value: u64, of: u64, part: f64) {
    let got = value as f64 / of as f64;
    assert!((got - part).abs() < 0.015, "{got} instead of {part}");
}

#[test]
fn a_dense_process_uses_its_share() {
    for (share, overrun) in [(100_000, 0), (250_000, 3), (500_000, 20), (900_000, 2)] {
        let stage = Stage::new(share, 1);
        simulate(&stage, &[Load { density: 1.0, overrun: overrun * MS }], 20_000);
        is_near(stage.charged(0), 20_000 * MS, f64::from(share) / 1e6);
    }
}

/// Needs 40 % of the device and has 50 %, so its gate never closes.
#[test]
fn a_sparse_process_within_its_share_is_never_stopped() {
    let stage = Stage::new(500_000, 1);
    let held = simulate(&stage, &[Load { density: 0.4, overrun: 0 }], 5_000);
    is_near(held[0], 5_000 * MS, 1.0);
    is_near(stage.charged(0), 5_000 * MS, 0.4);
}

#[test]
fn a_sparse_process_beyond_its_share_is_held_to_it() {
    let stage = Stage::new(250_000, 1);
    simulate(&stage, &[Load { density: 0.5, overrun: 0 }], 10_000);
    is_near(stage.charged(0), 10_000 * MS, 0.25);
}

/// They never hold the device at the same time, and each holds it equally long.
#[test]
fn dense_siblings_take_turns() {
    for processes in [2, 3, 8] {
        let stage = Stage::new(500_000, processes);
        let load = Load { density: 1.0, overrun: MS };
        let held = simulate(&stage, &vec![load; processes], 20_000);
        let sum: u64 = (0..processes).map(|slot| stage.charged(slot)).sum();
        is_near(sum, 20_000 * MS, 0.5);
        for part in held {
            let fair = 10_000 * MS / processes as u64;
            assert!(part.abs_diff(fair) < fair / 8, "{part} of {fair}");
        }
    }
}

/// A dense process does not use the rest of a sparse sibling's lease as its turn.
#[test]
fn dense_siblings_of_sparse_ones_get_equal_parts() {
    let load = |(density, overrun)| Load { density, overrun };
    let sets: [(u32, &[(f64, u64)]); 3] = [
        (300_000, &[(1.0, MS / 2), (0.88, MS / 2), (0.7, 0), (0.7, 3 * MS)]),
        (300_000, &[(1.0, 0), (1.0, MS / 2), (0.4, 8 * MS)]),
        (30_000, &[(1.0, MS / 2), (0.88, 0), (0.83, 3 * MS)]),
    ];
    for (share, loads) in sets {
        let stage = Stage::new(share, loads.len());
        let loads: Vec<Load> = loads.iter().copied().map(load).collect();
        let held = simulate(&stage, &loads, 30_000);
        let sum: u64 = (0..loads.len()).map(|slot| stage.charged(slot)).sum();
        is_near(sum, 30_000 * MS, f64::from(share) / 1e6);
        assert!(held[0].abs_diff(held[1]) < held[0] / 8, "{share}: {held:?}");
    }
}

#[test]
fn sparse_siblings_hold_at_once_and_are_charged_together() {
    let stage = Stage::new(800_000, 2);
    let held = simulate(&stage, &[Load { density: 0.3, overrun: 0 }; 2], 5_000);
    // They take turns until they are known to be sparse.
    assert!(held.iter().all(|&part| part > 4_500 * MS), "{held:?}");
    is_near(stage.charged(0) + stage.charged(1), held[0] + held[1], 0.3);
}

#[test]
fn a_process_that_stopped_asking_loses_its_place() {
    let stage = Stage::new(1_000_000, 2);
    let mut ledger = Ledger::new(stage.layout());
    let start = 1_000 * MS;
    // The account begins to fill at the first call.
    let _ = ledger.begin_lease(0, start - 50 * MS);
    assert!(matches!(ledger.begin_lease(0, start), Turn::Granted(_)));
    assert!(matches!(ledger.begin_lease(1, start + MS), Turn::In(_)));
    // A sibling waits, so the lease is not renewed, and ends.
    assert_eq!(ledger.renew_lease(0, start + 10 * MS, 10 * MS), Turn::In(0));
    ledger.end_lease(0, start + 20 * MS, 10 * MS);
    // The process that waited comes first ...
    assert!(matches!(ledger.begin_lease(0, start + 20 * MS), Turn::In(_)));
    // ... unless it has stopped asking.
    assert!(matches!(ledger.begin_lease(0, start + 120 * MS), Turn::Granted(_)));
}

#[test]
fn a_dead_holder_pays_until_the_end_of_its_lease() {
    let stage = Stage::new(500_000, 1);
    let mut ledger = Ledger::new(stage.layout());
    let start = 1_000 * MS;
    assert!(matches!(ledger.begin_lease(0, start), Turn::In(_)));
    let Turn::Granted(length) = ledger.begin_lease(0, start + 50 * MS) else { unreachable!() };
    let before = stage.layout().balance_ns.load(Relaxed);
    ledger.vacate(0, start + 51 * MS);
    let after = stage.layout().balance_ns.load(Relaxed);
    // The account continued to earn meanwhile.
    assert_eq!(before - after, i64::try_from(length - earned(length, 500_000)).unwrap());
    assert_eq!(stage.layout().holders.load(Relaxed), 0);
}

/// How long a process waits for its first lease if it asks as often as told.
fn wait_of(ledger: &mut Ledger<'_>, slot: usize, from: u64) -> u64 {
    let mut now = from;
    while let Turn::In(wait) = ledger.begin_lease(slot, now) {
        now = now.saturating_add(wait.max(MS));
        if now - from > 60_000 * MS {
            break;
        }
    }
    now - from
}

proptest::proptest! {
    /// One of two processes has a different clock (another time namespace or machine) and leaves the account in any
    /// state; the other one waits no longer than for a process that is stopped.
    #[test]
    fn a_clock_that_differs_keeps_nobody_waiting(
        differs: u64,
        begins in 1_000 * MS..u64::MAX / 2,
        share in 10_000_u32..=1_000_000,
        ends: bool,
    ) {
        let stage = Stage::new(share, 2);
        let mut ledger = Ledger::new(stage.layout());
        let differs = differs.clamp(1_000 * MS, u64::MAX / 2);
        let _ = ledger.begin_lease(0, differs);
        let held = ledger.begin_lease(0, differs + 100 * MS);
        let _ = ledger.renew_lease(0, differs + 101 * MS, MS);
        if ends {
            ledger.end_lease(0, differs + 102 * MS, MS);
        }
        assert!(matches!(held, Turn::Granted(_)));
        let waited = wait_of(&mut ledger, 1, begins);
        assert!(waited < 8_000 * MS, "{waited}");
        assert!(stage.layout().balance_ns.load(Relaxed) <= i64::try_from(MS * 1_000).unwrap());
    }
}

/// A session with a process that has just got a lease, and the time of that.
fn holder(share_ppm: u32) -> (Stage, u64) {
    let stage = Stage::new(share_ppm, 2);
    let mut ledger = Ledger::new(stage.layout());
    let start = 1_000 * MS;
    assert!(matches!(ledger.begin_lease(0, start), Turn::In(_)));
    assert!(matches!(ledger.begin_lease(0, start + 100 * MS), Turn::Granted(_)));
    (stage, start + 100 * MS)
}

#[test]
fn a_death_is_charged_for_work_of_unknown_length_until_it_is_noticed() {
    for (after_ms, charged_ms) in [(7, 20), (300, 313), (1_900, 1_913), (600_000, 2_000)] {
        let (stage, start) = holder(50_000);
        let slot = &stage.layout().slots[0];
        slot.work_was_seen(slot.work(), start + 5 * MS, false);
        slot.unknown_work_begins();
        Ledger::new(stage.layout()).vacate(0, start + after_ms * MS);
        assert_eq!(stage.layout().busy_until_ns.load(Relaxed), start + charged_ms * MS);
    }
}

#[test]
fn a_death_with_known_work_is_charged_until_the_device_is_rid_of_it() {
    let (stage, start) = holder(500_000);
    let slot = &stage.layout().slots[0];
    slot.work_was_seen(slot.work(), start + 8 * MS, false);
    Ledger::new(stage.layout()).vacate(0, start + 60_000 * MS);
    assert_eq!(stage.layout().busy_until_ns.load(Relaxed), start + 8 * MS + TAKEN_OFF_NS);
}

#[test]
fn a_death_with_nothing_under_way_costs_nothing() {
    let (stage, start) = holder(500_000);
    let mut ledger = Ledger::new(stage.layout());
    let slot = &stage.layout().slots[0];
    slot.unknown_work_begins();
    slot.work_was_seen(slot.work(), start + 3 * MS, false);
    ledger.end_lease(0, start + 3 * MS, 2 * MS);
    let before = stage.layout().balance_ns.load(Relaxed);
    ledger.vacate(0, start + 3 * MS);
    assert_eq!(stage.layout().balance_ns.load(Relaxed), before);
    assert_eq!(slot.work_mark.load(Relaxed), 0);
}

/// It blocks its siblings for a while, and the session pays for that.
#[test]
fn a_holder_that_stands_still_is_charged_by_the_clock() {
    let (stage, start) = holder(500_000);
    let mut ledger = Ledger::new(stage.layout());
    let slot = &stage.layout().slots[0];
    slot.work_was_seen(slot.work(), start + 5 * MS, false);
    slot.unknown_work_begins();
    let before = stage.layout().balance_ns.load(Relaxed);
    let _ = ledger.begin_lease(1, start + 3_000 * MS);
    assert_eq!(slot.holding.load(Relaxed), 0);
    let after = stage.layout().balance_ns.load(Relaxed);
    assert!(after <= before - 500 * MS.cast_signed(), "{before} {after}");
}

#[test]
fn what_was_used_elsewhere_is_not_saved_up_here() {
    let stage = Stage::new(500_000, 1);
    let mut ledger = Ledger::new(stage.layout());
    let start = 1_000 * MS;
    let _ = ledger.begin_lease(0, start);
    ledger.stop_waiting(0);
    ledger.used_elsewhere(0, start + 40 * MS, 40 * MS, 15 * MS, 0);
    assert_eq!(stage.layout().balance_ns.load(Relaxed), 5_000_000);
    ledger.used_elsewhere(0, start + 50 * MS, 10 * MS, 30 * MS, 0);
    assert_eq!(stage.layout().balance_ns.load(Relaxed), 0);
}

#[test]
fn any_numbers_in_a_page_do_no_harm() {
    let stage = Stage::new(500_000, 2);
    let mut ledger = Ledger::new(stage.layout());
    for value in [0, 1, u64::MAX / 2, u64::MAX] {
        for slot in &stage.layout().slots[..2] {
            slot.charged_until_ns.store(value, Relaxed);
            slot.lease_end_ns.store(value, Relaxed);
            slot.waiting_since_ns.store(value, Relaxed);
            slot.charged_ns.store(value, Relaxed);
            slot.density_ppm.store(u32::MAX, Relaxed);
            slot.holding.store(1, Relaxed);
            slot.work_mark.store(value, Relaxed);
        }
        stage.layout().busy_until_ns.store(value, Relaxed);
        stage.layout().settled_at_ns.store(value, Relaxed);
        for now in [0, 5, u64::MAX / 2, u64::MAX] {
            let _ = ledger.begin_lease(0, now);
            let _ = ledger.renew_lease(0, now, u64::MAX);
            ledger.end_lease(1, now, u64::MAX);
            ledger.vacate(0, now);
            ledger.enroll(0, 7, 7, now);
        }
    }
}

#[test]
fn a_session_that_comes_to_be_limited_has_nothing_saved_up() {
    let stage = Stage::new(750_000, 1);
    let mut ledger = Ledger::new(stage.layout());
    assert!(matches!(ledger.begin_lease(0, 1_000 * MS), Turn::In(_)));
    assert!(matches!(ledger.begin_lease(0, 2_000 * MS), Turn::Granted(_)));
    ledger.end_lease(0, 2_010 * MS, 10 * MS);
    ledger.forget_savings(5_000 * MS);
    assert!(matches!(ledger.begin_lease(0, 5_000 * MS), Turn::In(_)));
    // A debt stays.
    stage.layout().balance_ns.store(-3 * MS.cast_signed(), Relaxed);
    ledger.forget_savings(5_000 * MS);
    assert_eq!(stage.layout().balance_ns.load(Relaxed), -3 * MS.cast_signed());
}

/// A session that always gets the leases it asks for elsewhere.
#[test]
fn leases_from_elsewhere_are_believed_up_to_a_slack() {
    for share in [10_000, 100_000, 500_000, 700_000] {
        let stage = Stage::new(share, 1);
        let mut ledger = Ledger::new(stage.layout());
        let (start, mut now, mut used) = (1_000 * MS, 1_000 * MS, 0);
        while now < start + 10_000 * MS {
            let length = ledger.allowed_elsewhere(now).min(30 * MS);
            now += length.max(MS);
            if length >= MS {
                ledger.used_elsewhere(0, now, length, length, length);
                used += length;
            }
        }
        let allowed = u64::from(share + share / 4 + 20_000);
        // Over 10 s, plus half a second of savings. A lease may overrun.
        let most = (10_000 * MS + 500 * MS) / 1_000_000 * allowed;
        let near = most - most / 20..most + 60 * MS;
        assert!(near.contains(&used), "{share}: {used} of {most}");
        // Leases of the page's own account count as well: nothing is left elsewhere.
        assert!(ledger.allowed_elsewhere(now) < 40 * MS);
    }
}

/// A correct daemon's measure is at most a quarter below the session's own.
#[test]
fn an_honest_session_is_never_cut() {
    for share in [10_000, 100_000, 300_000, 500_000, 900_000] {
        let stage = Stage::new(share, 1);
        let mut ledger = Ledger::new(stage.layout());
        let start = 1_000 * MS;
        let mut now = start;
        while now < start + 60_000 * MS {
            // A kernel longer than its lease, paid for before the next one.
            let charged = if (now / MS).is_multiple_of(7) { 200 * MS } else { 20 * MS };
            let allowed = ledger.allowed_elsewhere(now);
            // The longest turn that a daemon grants.
            let turn = (u64::from(share) * 100).clamp(2 * MS, 30 * MS);
            assert!(allowed >= turn, "{share}: {allowed}");
            let sure = charged + charged / 4;
            ledger.used_elsewhere(0, now + charged, sure, charged, sure);
            now += charged * 1_000_000 / u64::from(share);
        }
    }
}

/// Each process is delayed by the others, so each sees its work queued all the time.
#[test]
fn processes_that_hold_at_once_use_no_more_together_than_the_time() {
    const SHARE: u64 = 400_000;
    let stage = Stage::new(SHARE as u32, 3);
    let mut ledger = Ledger::new(stage.layout());
    let mut now = 1_000 * MS;
    for round in 0..1_000 {
        for (slot, late) in [4, 5, 6].into_iter().enumerate() {
            let at = now + late * MS;
            assert!(ledger.allowed_elsewhere(at) >= 30 * MS, "round {round}");
            ledger.used_elsewhere(slot, at, 10 * MS, 10 * MS, 10 * MS);
        }
        now += 10 * MS * 1_000_000 / SHARE;
    }
    // Together they held for 12 ms of every 25 ms.
    let delivered = stage.layout().delivered_ns.load(Relaxed);
    assert!((11_000 * MS..=12_000 * MS).contains(&delivered), "{delivered}");
    let of_processes = stage.layout().slots[..3].iter().map(|slot| slot.charged_ns.load(Relaxed));
    assert_eq!(of_processes.sum::<u64>(), delivered);
}

/// A daemon whose answers are late again and again: each account grants a kernel that is longer than any turn.
#[test]
fn a_true_daemon_that_is_late_is_not_taken_for_a_lying_one() {
    const SHARE: u32 = 100_000;
    const KERNEL: u64 = 60 * MS;
    for late_ms in [0, 200, 400, 700] {
        let stage = Stage::new(SHARE, 1);
        let mut ledger = Ledger::new(stage.layout());
        let mut daemon = Bucket::empty_at(1_000 * MS);
        let (mut now, mut ahead) = (1_000 * MS, 0);
        while now < 120_000 * MS {
            daemon.settle(now, SHARE, burst_ns(SHARE, Handover::default()), false);
            let is_late = (now / MS) % 1_000 < late_ms;
            let own = is_late.then(|| ledger.begin_lease(0, now));
            match own {
                Some(Turn::Granted(_)) => {
                    now += KERNEL;
                    ledger.end_lease(0, now, KERNEL);
                }
                None if daemon.balance_ns >= (9 * MS).cast_signed() => {
                    if ledger.allowed_elsewhere(now) >= MS {
                        now += KERNEL;
                        ledger.used_elsewhere(0, now, KERNEL, KERNEL, KERNEL);
                        daemon.charge(KERNEL);
                    } else {
                        ahead += 1;
                        assert!(!ledger.is_granted_elsewhere_only(now), "{late_ms}: {now}");
                        now += 5 * MS;
                    }
                }
                _ => now += 5 * MS,
            }
        }
        println!("late for {late_ms} ms of each second: not granted {ahead} times");
        assert_eq!(ahead > 0, late_ms > 0);
    }
    // A daemon that always grants.
    let stage = Stage::new(SHARE, 1);
    let mut ledger = Ledger::new(stage.layout());
    let mut now = 1_000 * MS;
    while ledger.allowed_elsewhere(now) >= MS {
        now += 30 * MS;
        ledger.used_elsewhere(0, now, 30 * MS, 30 * MS, 30 * MS);
    }
    assert!(now < 2_000 * MS && ledger.is_granted_elsewhere_only(now), "{now}");
}
