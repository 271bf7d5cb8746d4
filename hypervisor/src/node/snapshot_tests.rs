//! State that survives a restart.

use super::snapshot::{SavedDevice, SavedSession};
use super::tests::{GPUS, MS, by, node, register};
use super::*;
use crate::identity::{Container, Runtime};
use crate::page_memory::Sample;
use api::{Presence, Session, SessionDevice, SessionState};
use observer::View;
use proptest::prelude::*;

const HOUR: u64 = 3_600_000 * MS;

/// A node with a session that owes 30 ms at a share of a half.
fn in_debt() -> Node {
    let (mut node, worker) = holding();
    // The worker held the device for 160 ms without a report.
    node.leave(worker, 260 * MS);
    node
}

fn holding() -> (Node, WorkerId) {
    let mut node = node();
    let worker = node.admit(&by(7, 0), &register("a", &[(GPUS[0], 500_000)]), 0).unwrap().worker;
    node.device(worker, &by(7, 0), GPUS[0]).unwrap().ask(worker, 0).unwrap();
    assert_eq!(node.decide(GPUS[0], 100 * MS).len(), 1);
    (node, worker)
}

fn restarted(snapshot: Snapshot) -> Node {
    let mut node = node();
    node.restore(snapshot, 0);
    node
}

/// The only session.
fn session(node: &mut Node, now: u64) -> Session {
    let mut sessions = node.sessions(None, None, &Sample::default(), now).sessions;
    assert_eq!((sessions.len(), sessions[0].devices.len()), (1, 1));
    sessions.remove(0)
}

fn only(node: &mut Node, now: u64) -> SessionDevice {
    session(node, now).devices.remove(0)
}

#[test]
fn a_debt_and_the_counters_survive() {
    let mut before = in_debt();
    let old = only(&mut before, 260 * MS);
    assert!(old.balance_us < -20_000 && old.charged_us >= 150_000, "{old:?}");
    assert_eq!(session(&mut before, 260 * MS).presence, Presence::Left);
    let mut after = restarted(before.snapshot(260 * MS, 0));
    let waits = session(&mut after, 0);
    // Recent use is measured anew.
    let lately = SessionDevice { recent_ppm: None, mean_ppm: None, ..old.clone() };
    assert_eq!((waits.presence, &waits.devices[0]), (Presence::Restored, &lately));
    assert!(waits.id > before.last_session);
    let sums = node_sums(&mut after);
    assert_eq!((sums.sessions, sums.charged_us), (1, old.charged_us));
    let worker = after.admit(&by(9, 0), &register("a", &[(GPUS[0], 500_000)]), 0).unwrap().worker;
    // Ids are not reused.
    assert!(worker.0 > before.last_worker);
    let present = session(&mut after, 0);
    assert_eq!((present.presence, present.id), (Presence::Active, waits.id));
    let back = only(&mut after, 0);
    assert_eq!(back.balance_us, old.balance_us);
    assert_eq!(node_sums(&mut after).charged_us, old.charged_us);
    assert_eq!((back.charged_us, back.spare_us), (old.charged_us, old.spare_us));
    // The session must earn back its debt first.
    after.device(worker, &by(9, 0), GPUS[0]).unwrap().ask(worker, 0).unwrap();
    assert!(after.decide(GPUS[0], 40 * MS).is_empty());
    assert_eq!(after.decide(GPUS[0], 200 * MS).len(), 1);
    after.leave(worker, 210 * MS);
    let charged = only(&mut after, 210 * MS).charged_us;
    assert!((9_000..=11_000).contains(&(charged - old.charged_us)), "{charged}");
    // A device's total includes removed accounts.
    after.forget_idle(10_000 * MS);
    assert!(after.sessions.is_empty());
    let [SavedDevice { delivered, .. }] = after.snapshot(10_000 * MS, 0).devices[..] else {
        unreachable!()
    };
    assert_eq!(delivered.charged_ns / 1_000, charged);
}

fn node_sums(node: &mut Node) -> api::Sums {
    node.devices(None, &View::default(), 0).remove(0).own
}

#[test]
fn an_account_of_a_device_that_nobody_names_is_kept() {
    let mut node = node();
    let both = register("a", &[(GPUS[0], 500_000), (GPUS[1], 500_000)]);
    let worker = node.admit(&by(7, 0), &both, 0).unwrap().worker;
    node.device(worker, &by(7, 0), GPUS[1]).unwrap().ask(worker, 0).unwrap();
    assert_eq!(node.decide(GPUS[1], 100 * MS).len(), 1);
    node.leave(worker, 260 * MS);
    let saved = node.snapshot(260 * MS, 0);
    let of = |saved: &Snapshot| {
        let accounts = &saved.sessions[0].devices;
        *accounts.iter().find(|account| account.uuid == GPUS[1]).unwrap()
    };
    let mut after = restarted(saved.clone());
    after.admit(&by(9, 0), &register("a", &[(GPUS[0], 500_000)]), 0).unwrap();
    let again = after.snapshot(0, 0);
    assert_eq!(again.sessions[0].devices.len(), 2);
    assert_eq!(of(&again), of(&saved));
    assert!(of(&saved).balance_ns < 0, "{saved:?}");
}

#[test]
fn a_frozen_session_stays_frozen() {
    let (mut before, _) = holding();
    let id = before.sessions.values().next().unwrap().id;
    assert!(before.set_frozen(id.0, true, None, 110 * MS).unwrap().0);
    let mut after = restarted(before.snapshot(110 * MS, 0));
    let waits = session(&mut after, 0);
    assert_eq!((waits.state, waits.presence), (SessionState::Frozen, Presence::Restored));
    // Also over a second restart without a process.
    let mut third = restarted(after.snapshot(0, 0));
    for node in [&mut after, &mut third] {
        let worker =
            node.admit(&by(9, 0), &register("a", &[(GPUS[0], 500_000)]), 0).unwrap().worker;
        assert_eq!(session(node, 0).state, SessionState::Frozen);
        node.device(worker, &by(9, 0), GPUS[0]).unwrap().ask(worker, 0).unwrap();
        assert!(node.decide(GPUS[0], 10_000 * MS).is_empty());
        assert_eq!(node.workers(None).workers[0].devices[0].state, api::WorkerState::Asking);
        let id = session(node, 10_000 * MS).id;
        assert!(node.set_frozen(id, false, None, 10_000 * MS).unwrap().0);
        assert_eq!(node.decide(GPUS[0], 11_000 * MS).len(), 1);
    }
}

#[test]
fn a_session_can_be_frozen_and_thawed_before_its_processes_come() {
    let mut after = restarted(in_debt().snapshot(260 * MS, 0));
    let id = session(&mut after, 0).id;
    assert!(after.set_frozen(id, true, None, 0).unwrap().0 && after.is_frozen(id));
    assert!(!after.set_frozen(id, true, None, 0).unwrap().0);
    let other = after.set_frozen(id, false, Some(&Owner::user(5)), 0);
    assert_eq!(other, Err(CallRefused::UnknownSession(id)));
    assert!(after.set_frozen(id, false, None, 0).unwrap().0 && !after.is_frozen(id));
    let kinds: Vec<_> = after.take_happened().iter().map(|happened| happened.kind).collect();
    assert_eq!(kinds, [EventKind::Frozen, EventKind::Thawed]);
}

#[test]
fn what_is_earned_between_a_restart_and_the_first_call_counts() {
    let mut after = restarted(in_debt().snapshot(260 * MS, 0));
    let message = register("a", &[(GPUS[0], 500_000)]);
    after.admit(&by(9, 0), &message, 1_000 * MS).unwrap();
    let balance = only(&mut after, 1_000 * MS).balance_us;
    assert!((1..=51_000).contains(&balance), "{balance}");
}

/// A killed daemon has published more than it saved.
#[test]
fn no_counter_goes_back_after_a_kill() {
    let (mut before, worker) = holding();
    let saved = before.snapshot(110 * MS, 500 * MS);
    before.leave(worker, 500 * MS);
    let shown = only(&mut before, 500 * MS).charged_us;
    let mut after = restarted(saved);
    assert!(only(&mut after, 0).charged_us >= shown);
    // The counter stands still until real use has caught up.
    let again = only(&mut after, 0).charged_us;
    let mut third = restarted(after.snapshot(0, 0));
    assert_eq!(only(&mut third, 0).charged_us, again);
}

#[test]
fn a_session_without_processes_that_owes_nothing_is_forgotten_after_minutes() {
    const MINUTE: u64 = 60_000 * MS;
    let snapshot = in_debt().snapshot(260 * MS, 0);
    let kept = |snapshot: &Snapshot, after| {
        let mut node = restarted(snapshot.clone());
        node.forget_idle(after);
        node.restored.len()
    };
    // The debt of some 30 ms is earned back by then.
    assert_eq!((kept(&snapshot, 9 * MINUTE), kept(&snapshot, 10 * MINUTE)), (1, 0));
    let mut owes = snapshot.clone();
    owes.sessions[0].devices[0].limit.share_ppm = 10;
    assert_eq!((kept(&owes, 10 * MINUTE), kept(&owes, HOUR)), (1, 0));
    let mut frozen = snapshot;
    frozen.sessions[0].frozen = true;
    assert_eq!((kept(&frozen, 23 * HOUR), kept(&frozen, 24 * HOUR)), (1, 0));
}

#[test]
fn a_frozen_session_without_processes_is_forgotten_after_a_day_over_all_restarts() {
    let mut snapshot = in_debt().snapshot(260 * MS, 0);
    snapshot.sessions[0].frozen = true;
    let mut first = restarted(snapshot);
    first.forget_idle(20 * HOUR);
    assert_eq!(first.restored.len(), 1);
    let mut second = restarted(first.snapshot(20 * HOUR, 0));
    second.forget_idle(3 * HOUR);
    assert_eq!(second.restored.len(), 1);
    second.forget_idle(5 * HOUR);
    assert!(second.restored.is_empty());
}

#[test]
fn another_owner_does_not_get_an_account_by_its_name() {
    let mut after = restarted(in_debt().snapshot(260 * MS, 0));
    let message = register("a", &[(GPUS[0], 500_000)]);
    let id = "a".repeat(64).parse().unwrap();
    let container = Some(Container { runtime: Runtime::Podman, id, user: None });
    let inside = Caller::new(8, Owner { container, ..Owner::user(0) });
    after.admit(&inside, &message, 0).unwrap();
    let sessions =
        after.sessions(Some(&inside.owner), None, &Sample::default(), 0).sessions.remove(0).devices;
    assert_eq!((sessions[0].charged_us, sessions[0].balance_us), (0, 0));
    assert_eq!(after.restored.len(), 1);
    // And is saved under its owner.
    let saved = after.snapshot(0, 0);
    let owners: Vec<Owner> = saved.sessions.iter().map(|saved| saved.owner).collect();
    assert_eq!(owners, [inside.owner, Owner::user(0)]);
    let text = serde_json::to_string(&saved).unwrap();
    assert_eq!(serde_json::from_str::<Snapshot>(&text).unwrap(), saved);
}

#[test]
fn a_limit_that_is_lifted_is_kept_as_lifted() {
    let mut node = node();
    let worker = node.admit(&by(7, 0), &register("a", &[(GPUS[0], 500_000)]), 0).unwrap().worker;
    node.change(worker, &by(7, 0), GPUS[0], ComputeLimit::NONE, MS).unwrap();
    let saved = node.snapshot(MS, 0);
    assert_eq!(saved.sessions[0].devices[0].limit.policy, Policy::None);
    let mut after = restarted(saved);
    after.admit(&by(8, 0), &register("a", &[(GPUS[0], 500_000)]), MS).unwrap();
    assert_eq!(only(&mut after, MS).share_ppm, 500_000);
}

proptest! {
    /// A file may contain anything.
    #[test]
    fn any_snapshot_is_taken(
        names in prop::collection::vec(".{0,300}", 0..4),
        (share, balance, ceiling) in any::<(u32, i64, Option<i64>)>(),
        counters in any::<[u64; 3]>(),
        now in any::<u64>(),
    ) {
        let [charged_ns, spare_ns, shown_ns] = counters;
        let limit = ComputeLimit { soft_ppm: Some(share), ..ComputeLimit::balance(share, share) };
        let delivered = snapshot::Delivered { charged_ns, spare_ns, shown_ns };
        let (uuid, balance_ns, ceiling_ns) = (GPUS[0], balance, ceiling);
        let account = SavedAccount { uuid, limit, balance_ns, ceiling_ns, delivered };
        let session = |name: String| SavedSession {
            owner: Owner::user(0), name, absent_ns: charged_ns, frozen: false, devices: vec![account; 3],
        };
        let mut sessions: Vec<_> = names.into_iter().map(session).collect();
        sessions.push(session("a".to_owned()));
        let devices = vec![SavedDevice { uuid, delivered }];
        let saved = Snapshot { last_worker: 0, last_session: charged_ns >> 1, sessions, devices };
        let mut node = restarted(saved);
        let now = now >> 1;
        let worker = node.admit(&by(7, 0), &register("a", &[(GPUS[0], 500_000)]), now).unwrap().worker;
        node.device(worker, &by(7, 0), GPUS[0]).unwrap().ask(worker, now).unwrap();
        let later = now + 100_000 * MS;
        prop_assert_eq!(node.decide(GPUS[0], later).len(), 1);
        let sessions = node.sessions(None, None, &Sample::default(), later).sessions;
        let shown = sessions.iter().find(|one| one.name == "a").unwrap().devices[0].charged_us;
        prop_assert!(shown >= charged_ns.max(shown_ns) / 1_000);
        node.snapshot(later, MS);
    }
}
