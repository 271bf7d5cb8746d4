//! Single calls: renewals, overlaps, lost and late messages, nonsense.

use limits::ComputeLimit;
use limits::{Policy, Priority};
use scheduler::{
    Class, Grant, Handover, LeaseId, ScheduleError, Scheduler, SessionId, Told, WorkerId,
};

use crate::simulation::MS;

const LONE: (SessionId, WorkerId) = (SessionId(1), WorkerId(1));
const OTHER: (SessionId, WorkerId) = (SessionId(2), WorkerId(2));

fn scheduler(sessions: &[((SessionId, WorkerId), u32)]) -> Scheduler {
    let mut scheduler = Scheduler::default();
    for &((session, worker), share) in sessions {
        scheduler.set_session(session, ComputeLimit::fixed(share), 0).unwrap();
        scheduler.join(worker, session).unwrap();
    }
    scheduler
}

fn told(held_ms: u64, used_ms: u64, done: bool) -> Told {
    let (held_ns, estimated_ns) = (held_ms * MS, used_ms * MS);
    let (backlogged_ns, idle_ns, launches) = (0, 0, used_ms);
    Told { held_ns, estimated_ns, backlogged_ns, idle_ns, launches, done }
}

fn granted(scheduler: &mut Scheduler, worker: WorkerId, now: u64) -> Option<Grant> {
    scheduler.ask(worker, now).unwrap();
    scheduler.decide(now).into_iter().find(|grant| grant.worker == worker)
}

/// Lets a worker hold alone until its utilization is known.
fn learn(scheduler: &mut Scheduler, worker: WorkerId, from_ms: u64, used_ms: u64) {
    let lease = granted(scheduler, worker, from_ms * MS).unwrap().lease;
    let end = from_ms + 10;
    assert!(scheduler.report(worker, lease, told(10, used_ms, true), end * MS).unwrap());
}

#[test]
fn a_lone_holder_goes_on_under_the_same_lease() {
    let mut scheduler = scheduler(&[(LONE, 1_000_000)]);
    let worker = LONE.1;
    let grant = granted(&mut scheduler, worker, 0).unwrap();
    assert_eq!((grant.length_ns, grant.shared), (30 * MS, false));
    for step in 1..200 {
        let now = step * 20 * MS;
        assert!(scheduler.report(worker, grant.lease, told(20, 20, false), now).unwrap());
        assert_eq!(scheduler.renew(worker, grant.lease, now), Some(grant));
    }
    let view = scheduler.view(4_000 * MS);
    assert_eq!(view.sessions[0].charged_ns, 4_000 * MS);
    assert_eq!((view.leases.len(), view.leases[0].held_ns), (1, 4_000 * MS));
}

#[test]
fn a_dense_holder_stops_at_its_turn_s_end_when_another_waits() {
    let mut scheduler = scheduler(&[(LONE, 1_000_000), (OTHER, 1_000_000)]);
    let grant = granted(&mut scheduler, LONE.1, 0).unwrap();
    assert_eq!(granted(&mut scheduler, OTHER.1, 5 * MS), None);
    scheduler.report(LONE.1, grant.lease, told(10, 10, false), 10 * MS).unwrap();
    let renewed = scheduler.renew(LONE.1, grant.lease, 10 * MS).unwrap();
    assert_eq!(renewed.length_ns, 20 * MS);
    // For a moment, a poll that has just ended counts like one that lasts.
    scheduler.withdraw(OTHER.1, 29_900_000);
    scheduler.report(LONE.1, grant.lease, told(20, 20, false), 30 * MS).unwrap();
    assert_eq!(scheduler.renew(LONE.1, grant.lease, 30 * MS), None);
    scheduler.report(LONE.1, grant.lease, told(1, 1, true), 31 * MS).unwrap();
    assert!(granted(&mut scheduler, OTHER.1, 31 * MS).is_some());
}

#[test]
fn sparse_ones_hold_together_and_know_it() {
    let mut scheduler = scheduler(&[(LONE, 500_000), (OTHER, 500_000)]);
    learn(&mut scheduler, LONE.1, 100, 3);
    learn(&mut scheduler, OTHER.1, 200, 4);
    let first = granted(&mut scheduler, LONE.1, 300 * MS).unwrap();
    let second = granted(&mut scheduler, OTHER.1, 305 * MS).unwrap();
    assert!(!first.shared && second.shared);
    scheduler.report(LONE.1, first.lease, told(10, 3, false), 310 * MS).unwrap();
    assert!(scheduler.renew(LONE.1, first.lease, 310 * MS).unwrap().shared);
    scheduler.report(OTHER.1, second.lease, told(10, 4, true), 315 * MS).unwrap();
    scheduler.report(LONE.1, first.lease, told(10, 3, false), 320 * MS).unwrap();
    assert!(!scheduler.renew(LONE.1, first.lease, 320 * MS).unwrap().shared);
    let view = scheduler.view(320 * MS);
    let charged: Vec<u64> = view.sessions.iter().map(|session| session.charged_ns / MS).collect();
    assert_eq!(charged, [9, 8]);
    assert!(view.sessions.iter().all(|session| session.class == Class::Sparse));
    assert_eq!(view.sessions[0].density_ppm, Some(300_000));
}

#[test]
fn alone_the_busier_figure_counts_and_beside_others_the_estimate() {
    let mut scheduler = scheduler(&[(LONE, 500_000), (OTHER, 500_000)]);
    let lease = granted(&mut scheduler, LONE.1, 100 * MS).unwrap().lease;
    let busy = Told { backlogged_ns: 10 * MS, ..told(10, 8, true) };
    scheduler.report(LONE.1, lease, busy, 110 * MS).unwrap();
    assert_eq!(scheduler.view(110 * MS).sessions[0].charged_ns, 10 * MS);
    learn(&mut scheduler, OTHER.1, 120, 1);
    let own = granted(&mut scheduler, LONE.1, 200 * MS).unwrap().lease;
    granted(&mut scheduler, OTHER.1, 200 * MS).unwrap();
    let busy = Told { backlogged_ns: 10 * MS, ..told(10, 4, true) };
    scheduler.report(LONE.1, own, busy, 210 * MS).unwrap();
    // Its estimates were known to be a fifth too low.
    assert_eq!(scheduler.view(210 * MS).sessions[0].charged_ns, 15 * MS);
}

#[test]
fn a_lost_grant_is_found_by_asking_again() {
    let mut scheduler = scheduler(&[(LONE, 500_000)]);
    let worker = LONE.1;
    let first = granted(&mut scheduler, worker, 100 * MS).unwrap();
    assert!(scheduler.decide(101 * MS).is_empty());
    let second = granted(&mut scheduler, worker, 102 * MS).unwrap();
    assert_ne!(first.lease, second.lease);
    assert!(!scheduler.report(worker, first.lease, told(0, 0, true), 103 * MS).unwrap());
    assert_eq!(scheduler.renew(worker, first.lease, 103 * MS), None);
    assert!(scheduler.report(worker, second.lease, told(1, 1, true), 103 * MS).unwrap());
    // The lost lease counts as used.
    assert_eq!(scheduler.view(103 * MS).sessions[0].charged_ns, 3 * MS);
}

#[test]
fn an_undelivered_grant_costs_nothing() {
    let mut scheduler = scheduler(&[(LONE, 500_000)]);
    let grant = granted(&mut scheduler, LONE.1, 100 * MS).unwrap();
    scheduler.take_back(LONE.1, grant.lease, 101 * MS);
    let view = scheduler.view(101 * MS);
    assert_eq!((view.sessions[0].charged_ns, view.leases.len()), (0, 0));
}

#[test]
fn hostile_figures_are_cut_off() {
    let hostile = Told {
        held_ns: u64::MAX,
        estimated_ns: u64::MAX,
        backlogged_ns: u64::MAX,
        idle_ns: 0,
        launches: u64::MAX,
        done: false,
    };
    for density in [1, 10] {
        let mut scheduler = scheduler(&[(LONE, 500_000), (OTHER, 500_000)]);
        learn(&mut scheduler, LONE.1, 100, density);
        learn(&mut scheduler, OTHER.1, 200, 1);
        let grant = granted(&mut scheduler, LONE.1, 300 * MS).unwrap();
        granted(&mut scheduler, OTHER.1, 300 * MS).unwrap();
        let before = scheduler.view(300 * MS).sessions[0].charged_ns;
        scheduler.report(LONE.1, grant.lease, hostile, 303 * MS).unwrap();
        scheduler.report(LONE.1, grant.lease, hostile, 303 * MS).unwrap();
        // It reports more use than holding, and leaves most of the time out: that counts as silence,
        // but for what messages may take.
        let more = Told { held_ns: MS, ..hostile };
        scheduler.report(LONE.1, grant.lease, more, 306 * MS).unwrap();
        let charged = scheduler.view(306 * MS).sessions[0].charged_ns - before;
        assert_eq!(charged, 4 * MS + (2 * MS - 3 * MS / 4));
        // Another worker's lease, no lease at all, and times in the past.
        assert!(!scheduler.report(OTHER.1, grant.lease, hostile, 306 * MS).unwrap());
        assert!(!scheduler.report(LONE.1, LeaseId(u64::MAX), hostile, 306 * MS).unwrap());
        assert_eq!(scheduler.renew(OTHER.1, grant.lease, 306 * MS), None);
        assert!(scheduler.report(LONE.1, grant.lease, hostile, 0).unwrap());
        assert!(scheduler.report(LONE.1, grant.lease, hostile, u64::MAX).unwrap());
        assert!(scheduler.view(u64::MAX).sessions[0].balance_ns >= -10_000_000_000);
    }
}

#[test]
fn draining_keeps_a_lease_alive_for_a_while() {
    let mut scheduler = scheduler(&[(LONE, 1_000_000), (OTHER, 1_000_000)]);
    let grant = granted(&mut scheduler, LONE.1, 0).unwrap();
    assert_eq!(granted(&mut scheduler, OTHER.1, MS), None);
    let mut now = 0;
    loop {
        now += 10 * MS;
        scheduler.report(LONE.1, grant.lease, told(10, 10, false), now).unwrap();
        if let Some(other) = scheduler.decide(now).first() {
            assert_eq!(other.worker, OTHER.1);
            break;
        }
        let deadline = scheduler.next_deadline(now).unwrap();
        assert!(deadline > now && deadline <= now.max(30 * MS) + 20 * MS);
    }
    assert_eq!(now, 2_030 * MS);
    // While it drains, it is not prolonged.
    assert_eq!(scheduler.renew(LONE.1, grant.lease, now), None);
    // From here on all time is charged, whatever it reports.
    scheduler.report(LONE.1, grant.lease, told(0, 0, true), now + 100 * MS).unwrap();
    assert_eq!(scheduler.view(now + 100 * MS).sessions[0].charged_ns, now + 100 * MS);
}

#[test]
fn silence_is_revoked_after_the_grace() {
    let mut scheduler = scheduler(&[(LONE, 1_000_000), (OTHER, 1_000_000)]);
    granted(&mut scheduler, LONE.1, 0).unwrap();
    assert_eq!(granted(&mut scheduler, OTHER.1, MS), None);
    // Until then it is only looked at who wants the device.
    assert_eq!(scheduler.next_deadline(MS), Some(20 * MS));
    assert!(scheduler.decide(20 * MS).is_empty());
    assert_eq!(scheduler.next_deadline(41 * MS), Some(50 * MS));
    assert!(scheduler.decide(49 * MS).is_empty());
    assert_eq!(scheduler.decide(50 * MS).len(), 1);
}

/// A lease was granted by what the session might have then.
#[test]
fn who_may_have_less_than_before_has_its_lease_stopped() {
    for (quota, stopped) in [(10_000, true), (600_000, false)] {
        let mut scheduler = scheduler(&[(LONE, 500_000)]);
        scheduler.set_handover(LONE.1, Handover::InStream).unwrap();
        let grant = granted(&mut scheduler, LONE.1, 100 * MS).unwrap();
        scheduler.set_session(LONE.0, ComputeLimit::fixed(quota), 101 * MS).unwrap();
        let expected = if stopped { vec![(LONE.1, grant.lease)] } else { vec![] };
        assert_eq!(scheduler.to_stop(101 * MS), expected);
        assert_eq!(scheduler.renew(LONE.1, grant.lease, 101 * MS).is_some(), !stopped);
    }
}

#[test]
fn after_a_silence_of_the_caller_all_start_anew() {
    let mut scheduler = scheduler(&[(LONE, 500_000), (OTHER, 500_000)]);
    let grant = granted(&mut scheduler, LONE.1, 100 * MS).unwrap();
    assert_eq!(granted(&mut scheduler, OTHER.1, 105 * MS), None);
    assert!(scheduler.is_in_use());
    scheduler.dismiss_all(108 * MS);
    assert!(!scheduler.is_in_use());
    let view = scheduler.view(108 * MS);
    assert_eq!((view.sessions[0].charged_ns, view.sessions[1].charged_ns), (8 * MS, 0));
    assert!(view.leases.is_empty() && !view.sessions[1].asks);
    // Reports and renewals of the old lease have no effect.
    assert!(!scheduler.report(LONE.1, grant.lease, told(9, 9, false), 109 * MS).unwrap());
    assert_eq!(scheduler.renew(LONE.1, grant.lease, 109 * MS), None);
    assert!(granted(&mut scheduler, OTHER.1, 109 * MS).is_some());
    assert_eq!(scheduler.view(200 * MS).sessions[0].charged_ns, 8 * MS);
}

#[test]
fn a_low_holder_with_gates_in_its_streams_is_stopped_for_a_high_one() {
    for handover in [Handover::InStream, Handover::OnThread] {
        let mut scheduler = scheduler(&[(LONE, 500_000), (OTHER, 500_000)]);
        let low = ComputeLimit { priority: Priority::Low, ..ComputeLimit::balance(500_000, 1) };
        scheduler.set_session(LONE.0, low, 0).unwrap();
        scheduler.set_handover(LONE.1, handover).unwrap();
        let grant = granted(&mut scheduler, LONE.1, 100 * MS).unwrap();
        assert!(scheduler.to_stop(101 * MS).is_empty());
        let other = granted(&mut scheduler, OTHER.1, 102 * MS);
        if handover == Handover::OnThread {
            assert!(other.is_none() && scheduler.to_stop(102 * MS).is_empty());
            continue;
        }
        // Each is named once, and the other one begins beside what still runs: a short batch.
        assert!(other.is_some_and(|other| !other.shared));
        assert_eq!(scheduler.to_stop(102 * MS), [(LONE.1, grant.lease)]);
        assert!(scheduler.to_stop(102 * MS).is_empty());
        assert_eq!(scheduler.renew(LONE.1, grant.lease, 102 * MS), None);
        // What is reported late is charged.
        assert!(scheduler.report(LONE.1, grant.lease, told(3, 3, true), 103 * MS).unwrap());
        assert_eq!(scheduler.view(103 * MS).sessions[0].charged_ns, 3 * MS);
    }
    let mut scheduler = Scheduler::default();
    assert!(scheduler.set_handover(LONE.1, Handover::InStream).is_err());
}

#[test]
fn a_lease_may_be_kept_while_nobody_else_holds_or_waits() {
    let mut scheduler = scheduler(&[(LONE, 500_000), (OTHER, 500_000)]);
    let grant = granted(&mut scheduler, LONE.1, 100 * MS).unwrap();
    // Nobody could end it early.
    assert!(scheduler.to_keep(100 * MS).is_empty());
    scheduler.set_handover(LONE.1, Handover::InStream).unwrap();
    // Each change is told once.
    assert_eq!(scheduler.to_keep(101 * MS), [(LONE.1, grant.lease, true)]);
    assert!(scheduler.to_keep(101 * MS).is_empty());
    // What is kept is no use of the device: what it is known to be stays.
    let idle = Told { held_ns: 20 * MS, idle_ns: 20 * MS, ..told(0, 0, false) };
    assert!(scheduler.report(LONE.1, grant.lease, idle, 121 * MS).unwrap());
    let view = scheduler.view(121 * MS);
    assert_eq!((view.sessions[0].charged_ns, view.sessions[0].density_ppm), (0, None));
    assert!(scheduler.renew(LONE.1, grant.lease, 121 * MS).is_some());
    assert_eq!(granted(&mut scheduler, OTHER.1, 122 * MS), None);
    assert_eq!(scheduler.to_keep(122 * MS), [(LONE.1, grant.lease, false)]);
    // Who asked a moment ago will ask again.
    scheduler.withdraw(OTHER.1, 123 * MS);
    assert!(scheduler.to_keep(123 * MS).is_empty());
    assert_eq!(scheduler.to_keep(133 * MS), [(LONE.1, grant.lease, true)]);
}

/// A process that is stopped, as `docker pause` does it, while it keeps a lease does not use it.
#[test]
fn a_kept_lease_of_a_stopped_process_costs_nothing_after_its_end() {
    let charged = |idle_ms: u64| {
        let mut scheduler = scheduler(&[(LONE, 500_000), (OTHER, 500_000)]);
        scheduler.set_handover(LONE.1, Handover::InStream).unwrap();
        let grant = granted(&mut scheduler, LONE.1, 100 * MS).unwrap();
        let last = Told { idle_ns: idle_ms * MS, ..told(10, 10 - idle_ms, false) };
        assert!(scheduler.report(LONE.1, grant.lease, last, 110 * MS).unwrap());
        // It ends by itself, and others go on.
        assert_eq!(granted(&mut scheduler, OTHER.1, 120 * MS), None);
        assert_eq!(scheduler.decide(2_000 * MS).len(), 1);
        assert!(scheduler.report(LONE.1, grant.lease, told(0, 0, true), 5_000 * MS).unwrap());
        scheduler.view(5_000 * MS).sessions[0].charged_ns / MS
    };
    assert_eq!((charged(0), charged(9)), (10 + 4_890, 1 + 4_890));
    // No more than until its end: it may have gone on.
    assert!(charged(10) <= 30, "{}", charged(10));
}

/// What a stopped lease has running may take long. Then the hardware slices.
#[test]
fn others_wait_for_a_stopped_lease_for_a_moment_only() {
    let mut scheduler = scheduler(&[(LONE, 500_000), (OTHER, 500_000)]);
    scheduler.set_handover(LONE.1, Handover::InStream).unwrap();
    // Nobody waits: it is longer than a turn.
    let grant = granted(&mut scheduler, LONE.1, 100 * MS).unwrap();
    assert!(grant.length_ns > 20 * MS, "{grant:?}");
    assert_eq!(granted(&mut scheduler, OTHER.1, 102 * MS), None);
    assert!(scheduler.to_stop(102 * MS).is_empty());
    assert_eq!(scheduler.to_stop(110 * MS), [(LONE.1, grant.lease)]);
    assert_eq!(scheduler.next_deadline(110 * MS), Some(113 * MS));
    assert!(scheduler.decide(113 * MS - 1).is_empty());
    assert_eq!(scheduler.decide(113 * MS).len(), 1);
    // It is charged for all that it reports.
    assert!(scheduler.report(LONE.1, grant.lease, told(15, 15, true), 115 * MS).unwrap());
    assert_eq!(scheduler.view(115 * MS).sessions[0].charged_ns, 15 * MS);
}

/// A session that uses its share a little at a time waits neither for the end of a turn nor for what runs.
#[test]
fn who_has_saved_up_begins_beside_what_runs() {
    let mut scheduler = scheduler(&[(LONE, 500_000), (OTHER, 500_000)]);
    scheduler.set_handover(LONE.1, Handover::InStream).unwrap();
    let mut now = 100 * MS;
    let mut grant = granted(&mut scheduler, LONE.1, now).unwrap();
    // It uses what it has saved up.
    while now < 180 * MS {
        now += 10 * MS;
        assert!(scheduler.report(LONE.1, grant.lease, told(10, 10, false), now).unwrap());
        grant = scheduler.renew(LONE.1, grant.lease, now).unwrap();
    }
    let other = granted(&mut scheduler, OTHER.1, now + MS);
    assert!(other.is_some_and(|other| !other.shared), "{other:?}");
    assert_eq!(scheduler.to_stop(now + MS), [(LONE.1, grant.lease)]);
    assert!(scheduler.report(LONE.1, grant.lease, told(3, 3, true), now + 3 * MS).unwrap());
    assert_eq!(scheduler.view(now + 3 * MS).sessions[0].charged_ns, 83 * MS);
}

/// The page says that a lease's work is done, before the report does.
#[test]
fn others_go_on_when_a_lease_has_ended_and_its_report_counts() {
    let mut scheduler = scheduler(&[(LONE, 500_000), (OTHER, 500_000)]);
    for (_, worker) in [LONE, OTHER] {
        scheduler.set_handover(worker, Handover::InStream).unwrap();
    }
    let grant = granted(&mut scheduler, LONE.1, 100 * MS).unwrap();
    assert_eq!(granted(&mut scheduler, OTHER.1, 101 * MS), None);
    // Another's lease, and one that it does not hold.
    let no_such = LeaseId(grant.lease.0 + 1);
    assert!(!scheduler.ended(OTHER.1, grant.lease, 103 * MS));
    assert!(!scheduler.ended(LONE.1, no_such, 103 * MS));
    assert!(!scheduler.ended(WorkerId(7), grant.lease, 103 * MS));
    assert!(scheduler.decide(103 * MS).is_empty());
    assert!(scheduler.ended(LONE.1, grant.lease, 103 * MS));
    assert!(!scheduler.ended(LONE.1, grant.lease, 103 * MS));
    let other = scheduler.decide(103 * MS);
    // It has the device to itself, and for no longer than its turn: the first one will be back.
    let [other] = other[..] else { panic!("{other:?}") };
    assert!((other.worker, other.shared) == (OTHER.1, false), "{other:?}");
    assert!(other.length_ns <= 10 * MS, "{other:?}");
    assert!(scheduler.to_stop(103 * MS).is_empty());
    assert_eq!(scheduler.renew(LONE.1, grant.lease, 103 * MS), None);
    assert!(scheduler.report(LONE.1, grant.lease, told(3, 3, true), 104 * MS).unwrap());
    assert_eq!(scheduler.view(104 * MS).sessions[0].charged_ns, 3 * MS);
    assert_eq!(granted(&mut scheduler, LONE.1, 104 * MS), None);
    // Without a report it pays for all of the time.
    assert!(scheduler.ended(OTHER.1, other.lease, 107 * MS));
    assert_eq!(scheduler.decide(107 * MS).len(), 1);
    scheduler.leave(OTHER.1, 127 * MS);
    assert_eq!(scheduler.view(127 * MS).sessions[1].charged_ns, 24 * MS);
}

/// The gate was opened for it, but the answer was lost.
#[test]
fn a_lease_that_nobody_took_over_is_paid_for_until_it_ends() {
    let mut scheduler = scheduler(&[(LONE, 500_000), (OTHER, 500_000)]);
    scheduler.set_handover(LONE.1, Handover::InStream).unwrap();
    let grant = granted(&mut scheduler, LONE.1, 100 * MS).unwrap();
    scheduler.end_unreported(LONE.1, LeaseId(grant.lease.0 + 1), 101 * MS);
    assert_eq!(scheduler.view(101 * MS).leases.len(), 1);
    scheduler.end_unreported(LONE.1, grant.lease, 104 * MS);
    let view = scheduler.view(104 * MS);
    assert_eq!((view.sessions[0].charged_ns, view.leases.len()), (4 * MS, 0));
    // If it is not even known to be lost, its gate is closed when others no longer wait for it.
    let grant = granted(&mut scheduler, LONE.1, 110 * MS).unwrap();
    assert_eq!(granted(&mut scheduler, OTHER.1, 111 * MS), None);
    assert!(!scheduler.decide(1_000 * MS).is_empty());
    assert_eq!(scheduler.to_stop(1_000 * MS), [(LONE.1, grant.lease)]);
    assert!(scheduler.view(1_000 * MS).leases[0].revoked);
}

#[test]
fn nonsense_is_refused() {
    let mut scheduler = Scheduler::default();
    let (session, worker) = LONE;
    let refused = scheduler.set_session(session, ComputeLimit::fixed(0), 0);
    assert_eq!(refused, Err(ScheduleError::NoShare));
    let free = ComputeLimit { policy: Policy::None, ..ComputeLimit::fixed(1) };
    assert_eq!(scheduler.set_session(session, free, 0), Err(ScheduleError::NotScheduled));
    let unknown = Err(ScheduleError::UnknownSession(session));
    assert_eq!(scheduler.join(worker, session), unknown);
    assert!(scheduler.ask(worker, 0).is_err());
    assert!(scheduler.report(worker, LeaseId(1), Told::UNUSED, 0).is_err());
    assert_eq!(scheduler.renew(worker, LeaseId(1), 0), None);
    scheduler.withdraw(worker, 0);
    scheduler.leave(worker, 0);
    assert!(scheduler.decide(u64::MAX).is_empty());
    assert_eq!(scheduler.next_deadline(0), None);
    // Shares and weights that make no sense are harmless.
    let odd = ComputeLimit { soft_ppm: Some(0), weight: 0, ..ComputeLimit::balance(u32::MAX, 0) };
    scheduler.set_session(session, odd, 0).unwrap();
    scheduler.join(worker, session).unwrap();
    assert!(granted(&mut scheduler, worker, 100 * MS).is_some());
}
