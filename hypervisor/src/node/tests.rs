//! Registrations, changes and exits of processes.

use super::*;
use crate::identity::{Container, Runtime};
use crate::page_memory::Sample;
use crate::quotas::AsRegistered;
use api::{DeviceState, Session, WorkerState};
use observer::View;
use protocol::{DeviceQuota, VERSION};

pub(super) const MS: u64 = 1_000_000;
pub(super) const GPUS: [GpuId; 2] = [GpuId::from_bytes([0x5a; 16]), GpuId::from_bytes([0x5b; 16])];

pub(super) fn node() -> Node {
    Node::new(1_000, Arc::new(AsRegistered))
}

impl Node {
    /// Registers devices that cannot be looked up.
    pub(super) fn admit(
        &mut self,
        caller: &Caller,
        message: &Register,
        now: u64,
    ) -> Result<Admitted, CallRefused> {
        let unlisted = message.devices.iter().map(|device| device.uuid).collect();
        self.register(caller, message, &unlisted, now)
    }
}

pub(super) fn by(pid: i32, uid: u32) -> Caller {
    Caller::new(pid, Owner::user(uid))
}

pub(super) fn register(session: &str, devices: &[(GpuId, u32)]) -> Register {
    let quota = |&(uuid, share_ppm): &(GpuId, u32)| DeviceQuota::fixed(uuid, share_ppm);
    let devices = devices.iter().map(quota).collect();
    Register { protocol: VERSION, session: session.to_owned(), devices, gates: None }
}

#[test]
fn a_process_may_register_device_by_device() {
    let mut node = node();
    let first = node.admit(&by(7, 0), &register("a", &[(GPUS[0], 500_000)]), 0).unwrap();
    let second = node.admit(&by(7, 0), &register("a", &[(GPUS[1], 250_000)]), 0).unwrap();
    assert!(first.new && !second.new);
    assert_eq!(first.worker, second.worker);
    for gpu in GPUS {
        assert!(node.device(first.worker, &by(7, 0), gpu).is_ok());
    }
    let stranger = node.device(first.worker, &by(8, 0), GPUS[0]).map(|_| ());
    assert_eq!(stranger, Err(CallRefused::UnknownWorker(first.worker.0)));
}

#[test]
fn registering_again_ends_what_was_held_on_that_device() {
    let mut node = node();
    let message = register("a", &[(GPUS[0], 500_000)]);
    let worker = node.admit(&by(7, 0), &message, 0).unwrap().worker;
    node.device(worker, &by(7, 0), GPUS[0]).unwrap().ask(worker, 0).unwrap();
    assert_eq!(node.decide(GPUS[0], 100 * MS).len(), 1);
    node.admit(&by(7, 0), &message, 110 * MS).unwrap();
    assert!(node.leases(None, 200 * MS).leases.is_empty());
    assert_eq!(
        node.sessions(None, None, &Sample::default(), 200 * MS).sessions[0].devices[0].charged_us,
        10_000
    );
}

#[test]
fn the_latest_word_about_a_quota_counts() {
    let mut node = node();
    let half = register("a", &[(GPUS[0], 500_000)]);
    let more = register("a", &[(GPUS[0], 900_000)]);
    let share = |node: &mut Node| {
        let list = node.sessions(Some(&Owner::user(0)), None, &Sample::default(), MS);
        list.sessions[0].devices[0].share_ppm
    };
    let first = node.admit(&by(7, 0), &half, 0).unwrap().worker;
    // Another user's session of the same name is a different session.
    assert!(node.admit(&by(9, 1000), &more, 0).unwrap().new);
    let own = node.sessions(Some(&Owner::user(1000)), None, &Sample::default(), 0);
    assert_eq!((own.sessions.len(), own.others), (1, 1));
    assert_eq!(node.sessions(None, None, &Sample::default(), 0).sessions.len(), 2);
    assert_eq!(share(&mut node), 500_000);
    node.admit(&by(8, 0), &more, 0).unwrap();
    assert_eq!(share(&mut node), 900_000);
    node.change(first, &by(7, 0), GPUS[0], ComputeLimit::fixed(100_000), MS).unwrap();
    assert_eq!(share(&mut node), 100_000);
    let quota = ComputeLimit::fixed(1);
    let refused = |result: Result<ComputeLimit, CallRefused>| result.unwrap_err();
    let other = CallRefused::UnknownWorker(first.0);
    assert_eq!(refused(node.change(first, &by(8, 0), GPUS[0], quota, MS)), other);
    let unknown = CallRefused::UnknownDevice(GPUS[1]);
    assert_eq!(refused(node.change(first, &by(7, 0), GPUS[1], quota, MS)), unknown);
}

#[test]
fn sessions_of_one_name_and_user_in_two_containers_are_two() {
    let mut node = node();
    let container = |digit: &str| Container {
        runtime: Runtime::Docker,
        id: digit.repeat(64).parse().unwrap(),
        user: None,
    };
    let inside = |pid, digit| {
        let owner = Owner { container: Some(container(digit)), ..Owner::user(0) };
        Caller { unit: Some("docker.scope".to_owned()), ..Caller::new(pid, owner) }
    };
    let of = |share| register("main", &[(GPUS[0], share)]);
    let host = node.admit(&by(6, 0), &of(100_000), 0).unwrap().worker;
    let first = node.admit(&inside(7, "a"), &of(200_000), 0).unwrap().worker;
    node.admit(&inside(8, "b"), &of(300_000), 0).unwrap();
    // Another process of the first container joins its session.
    node.admit(&inside(9, "a"), &of(200_000), 0).unwrap();
    let shown = |session: &Session| {
        let container = session.container.as_ref().map(|container| container.id[..1].to_owned());
        (container, session.devices[0].share_ppm, session.pids.clone())
    };
    let sessions: Vec<_> =
        node.sessions(None, None, &Sample::default(), 0).sessions.iter().map(shown).collect();
    let expected =
        |digit: Option<&str>, share, pids: &[i32]| (digit.map(str::to_owned), share, pids.to_vec());
    assert_eq!(
        sessions,
        [
            expected(None, 100_000, &[6]),
            expected(Some("a"), 200_000, &[7, 9]),
            expected(Some("b"), 300_000, &[8]),
        ]
    );
    // Each owner sees its own.
    let own = inside(7, "a").owner;
    let seen = node.sessions(Some(&own), None, &Sample::default(), 0);
    assert_eq!((seen.sessions.len(), seen.others), (1, 2));
    let workers = node.workers(Some(&own));
    assert_eq!((workers.workers.len(), workers.others), (2, 2));
    let process = &workers.workers[0];
    assert_eq!(
        (process.unit.as_deref(), process.devices[0].state),
        (Some("docker.scope"), WorkerState::Idle)
    );
    assert_eq!(node.devices(None, &View::default(), 0)[0].state, DeviceState::Idle);
    node.device(first, &inside(7, "a"), GPUS[0]).unwrap().ask(first, 0).unwrap();
    node.device(host, &by(6, 0), GPUS[0]).unwrap().ask(host, 0).unwrap();
    node.decide(GPUS[0], 100 * MS);
    let workers = node.workers(None).workers;
    let states: Vec<_> = workers.iter().map(|worker| worker.devices[0].state).collect();
    assert!(states.contains(&WorkerState::Holding), "{states:?}");
    assert_eq!(node.devices(None, &View::default(), 100 * MS)[0].state, DeviceState::InUse);
}

#[test]
fn a_limit_can_be_lifted_and_come_back() {
    let mut node = node();
    let message = register("a", &[(GPUS[0], 500_000)]);
    let workers = [7, 8].map(|pid| node.admit(&by(pid, 0), &message, 0).unwrap().worker);
    node.device(workers[1], &by(8, 0), GPUS[0]).unwrap().ask(workers[1], 0).unwrap();
    let free = ComputeLimit { policy: Policy::None, ..ComputeLimit::fixed(0) };
    node.change(workers[0], &by(7, 0), GPUS[0], free, MS).unwrap();
    assert!(node.decide(GPUS[0], 100 * MS).is_empty());
    let refused = node.device(workers[1], &by(8, 0), GPUS[0]).map(|_| ()).unwrap_err();
    assert_eq!(refused, CallRefused::NoLimit(GPUS[0]));
    node.change(workers[0], &by(7, 0), GPUS[0], ComputeLimit::fixed(500_000), 100 * MS).unwrap();
    node.device(workers[1], &by(8, 0), GPUS[0]).unwrap().ask(workers[1], 100 * MS).unwrap();
    // Nothing was saved while there was no limit.
    assert!(node.decide(GPUS[0], 100 * MS).is_empty());
    assert_eq!(node.decide(GPUS[0], 200 * MS).len(), 1);
}

#[test]
fn a_pid_that_turns_up_in_another_session_has_left_the_first() {
    let mut node = node();
    let first = node.admit(&by(7, 0), &register("a", &[(GPUS[0], 500_000)]), 0).unwrap();
    let second = node.admit(&by(7, 0), &register("b", &[(GPUS[0], 500_000)]), 0).unwrap();
    assert!(second.new && first.worker != second.worker);
    let gone = node.device(first.worker, &by(7, 0), GPUS[0]).map(|_| ());
    assert_eq!(gone, Err(CallRefused::UnknownWorker(first.worker.0)));
}

#[test]
fn sessions_are_forgotten_when_they_owe_nothing() {
    let mut node = node();
    let message = register("a", &[(GPUS[0], 500_000)]);
    let worker = node.admit(&by(7, 0), &message, 0).unwrap().worker;
    node.device(worker, &by(7, 0), GPUS[0]).unwrap().ask(worker, 0).unwrap();
    assert_eq!(node.decide(GPUS[0], 100 * MS).len(), 1);
    // The worker dies in a kernel of 500 ms.
    node.leave(worker, 600 * MS);
    node.forget_idle(600 * MS);
    assert_eq!(node.sessions.len(), 1);
    node.forget_idle(1_200 * MS);
    assert!(node.sessions.is_empty() && node.devices.is_empty());
}

#[test]
fn there_is_a_limit_to_processes_and_sessions() {
    for (what, most) in [("processes", WORKERS), ("sessions", SESSIONS)] {
        let mut node = node();
        let mut pids = 1..;
        let mut fill = |node: &mut Node, uid| {
            let refused = pids.by_ref().find_map(|pid: i32| {
                let session = if what == "sessions" { pid.to_string() } else { "a".to_owned() };
                node.admit(&by(pid, uid), &register(&session, &[(GPUS[0], 1)]), 0).err()
            });
            let own =
                node.members.values().filter(|member| member.session.owner.uid == uid).count();
            assert_eq!(refused, Some(CallRefused::TooMany { what, uid, own }));
            own
        };
        assert_eq!(fill(&mut node, 0), most / 2);
        // Another user gets as much as without the first user.
        assert_eq!(fill(&mut node, 1000), most / 4);
        // A registered process may register again, in any session.
        node.admit(&by(1, 0), &register("2", &[(GPUS[0], 2)]), 0).unwrap();
    }
}

#[test]
fn a_process_that_goes_through_sessions_keeps_nobody_out() {
    let mut node = node();
    for name in 0..2 * SESSIONS {
        let admitted = node.admit(&by(7, 0), &register(&name.to_string(), &[(GPUS[0], 1)]), 0);
        assert_eq!(admitted.map(|admitted| admitted.former.is_some()), Ok(name > 0));
    }
    assert!(node.admit(&by(8, 0), &register("a", &[(GPUS[0], 1)]), 0).is_ok());
    assert_eq!(node.members.len(), 2);
}

/// The devices from `first` on.
fn devices(first: u32, count: u32) -> Vec<(GpuId, u32)> {
    let uuid = |n: u32| {
        let mut bytes = [0x70; 16];
        bytes[12..].copy_from_slice(&n.to_be_bytes());
        GpuId::from_bytes(bytes)
    };
    (first..first + count).map(|n| (uuid(n), 1)).collect()
}

#[test]
fn a_session_has_as_many_devices_as_one_registration() {
    let mut node = node();
    node.admit(&by(7, 0), &register("a", &devices(0, 60)), 0).unwrap();
    node.admit(&by(7, 0), &register("a", &devices(30, 34)), 0).unwrap();
    let refused = node.admit(&by(8, 0), &register("a", &devices(63, 2)), 0).unwrap_err();
    assert_eq!(
        refused.to_string(),
        r#"session "a" has 64 devices and asks for 1 more; expected at most 64"#
    );
    assert_eq!((node.devices.len(), node.members.len()), (64, 1));
}

#[test]
fn there_is_a_limit_to_devices_that_cannot_be_looked_up() {
    let mut node = node();
    let fill = |node: &mut Node, uid: u32| {
        let mut named = 0;
        loop {
            let message = register(&(named / 64).to_string(), &devices(uid * 10_000 + named, 1));
            match node.admit(&by(uid.cast_signed(), uid), &message, 0) {
                Ok(_) => named += 1,
                Err(refused) => {
                    let own = named as usize;
                    assert_eq!(refused, CallRefused::TooMany { what: "devices", uid, own });
                    return own;
                }
            }
        }
    };
    assert_eq!(fill(&mut node, 1000), UNLISTED_DEVICES / 2);
    assert_eq!(fill(&mut node, 1001), UNLISTED_DEVICES / 4);
    // A device that another user has named is not new.
    node.admit(&by(1, 1001), &register("x", &devices(1000 * 10_000, 1)), 0).unwrap();
    // A device that can be looked up takes no place.
    let listed = register("x", &devices(5, 1));
    node.register(&by(1, 1001), &listed, &BTreeSet::new(), 0).unwrap();
    // Places of exited processes are free again.
    for worker in node.members.keys().copied().collect::<Vec<_>>() {
        node.leave(worker, 0);
    }
    node.forget_idle(0);
    assert!(node.unlisted.is_empty() && node.devices.is_empty() && node.sessions.is_empty());
}

#[test]
fn users_who_act_together_shut_nobody_out_of_devices() {
    let mut node = node();
    for uid in 1..=20 {
        for n in 0..UNLISTED_DEVICES as u32 {
            let message = register(&(n / 64).to_string(), &devices(uid * 10_000 + n, 1));
            if node.admit(&by(uid.cast_signed(), uid), &message, 0).is_err() {
                break;
            }
        }
    }
    assert!(node.unlisted.len() >= UNLISTED_DEVICES, "{}", node.unlisted.len());
    node.admit(&by(31_000, 31_000), &register("honest", &devices(5, 4)), 0).unwrap();
}

#[test]
fn there_is_a_limit_to_quotas_of_all_sessions() {
    let mut node = node();
    let mut sessions = 0..;
    let refused = sessions.by_ref().find_map(|n: i32| {
        node.admit(&by(n + 1, 0), &register(&n.to_string(), &devices(0, 64)), 0).err()
    });
    let own = QUOTAS / 2;
    let what = "quotas of sessions for devices";
    assert_eq!(refused, Some(CallRefused::TooMany { what, uid: 0, own }));
    assert_eq!(node.members.len(), own / 64);
    node.admit(&by(10_000, 1000), &register("a", &devices(0, 64)), 0).unwrap();
}

/// A debt of 10 s takes hours to earn back with a share of a thousandth.
#[test]
fn sessions_that_are_gone_and_owe_keep_nobody_out() {
    let mut node = node();
    let (mut now, mut most) = (0, 0);
    for n in 0..SESSIONS {
        let message = register(&n.to_string(), &[(GPUS[0], 1_000)]);
        let worker = node.admit(&by(7, 0), &message, now).unwrap().worker;
        node.device(worker, &by(7, 0), GPUS[0]).unwrap().ask(worker, now).unwrap();
        now += 2_500 * MS;
        assert_eq!(node.decide(GPUS[0], now).len(), 1, "{n}");
        // The next registration ends the running lease.
        now += 10_000 * MS;
        node.forget_idle(now);
        node.left = WORTH_FORGETTING;
        most = most.max(node.sessions.len());
    }
    assert_eq!(most, SESSIONS / 2);
    node.admit(&by(8, 0), &register("a", &[(GPUS[0], 1)]), now).unwrap();
}

/// A process sent its registration before it had a limit.
#[test]
fn a_late_registration_without_a_limit_takes_no_limit_away() {
    let mut node = node();
    let limited = register("a", &[(GPUS[0], 500_000)]);
    let mut free = limited.clone();
    free.devices[0].limit = ComputeLimit::NONE;
    let first = node.admit(&by(7, 0), &free, 0).unwrap().worker;
    node.change(first, &by(7, 0), GPUS[0], limited.devices[0].limit, 0).unwrap();
    let second = node.admit(&by(8, 0), &free, 0).unwrap().worker;
    for (worker, pid) in [(first, 7), (second, 8)] {
        assert!(node.device(worker, &by(pid, 0), GPUS[0]).is_ok(), "{pid}");
    }
    // The worker that reported the limit reports its removal.
    node.change(first, &by(7, 0), GPUS[0], ComputeLimit::NONE, 0).unwrap();
    let none = Err(CallRefused::NoLimit(GPUS[0]));
    assert_eq!(node.device(second, &by(8, 0), GPUS[0]).map(|_| ()), none);
    // The worker exits: no other could report the removal.
    node.change(first, &by(7, 0), GPUS[0], limited.devices[0].limit, 0).unwrap();
    node.leave(first, 0);
    node.admit(&by(8, 0), &free, 0).unwrap();
    assert_eq!(node.device(second, &by(8, 0), GPUS[0]).map(|_| ()), none);
}

/// Whether a dense process of low priority is ever stopped for one of high priority that wants the device now and then.
/// The first process has no limit when it registers.
fn is_stopped(handover: Option<Handover>) -> bool {
    let mut node = node();
    let mut message = register("low", &[(GPUS[0], 0)]);
    message.devices[0].limit.policy = Policy::None;
    let low = node.admit(&by(7, 0), &message, 0).unwrap().worker;
    let high = node.admit(&by(8, 0), &register("high", &[(GPUS[0], 500_000)]), 0).unwrap().worker;
    if let Some(handover) = handover {
        node.set_handover(low, GPUS[0], handover);
    }
    let priority = ::limits::Priority::Low;
    let limit = ComputeLimit { priority, ..ComputeLimit::balance(300_000, 1) };
    node.change(low, &by(7, 0), GPUS[0], limit, 0).unwrap();
    let mut held = BTreeMap::new();
    let mut stopped = 0;
    for now in (0..3_000).map(|ms| ms * MS) {
        for (worker, pid, from, length) in [(low, 7, 0, 20), (high, 8, 30 * MS, 3)] {
            let device = node.device(worker, &by(pid, 0), GPUS[0]).unwrap();
            match held.get(&worker) {
                Some(&(lease, since)) if now >= since + length * MS => {
                    let used = now - since;
                    let told = scheduler::Told {
                        held_ns: used,
                        estimated_ns: used,
                        backlogged_ns: used,
                        idle_ns: 0,
                        launches: 1,
                        done: true,
                    };
                    device.report(worker, lease, told, now).unwrap();
                    held.remove(&worker);
                }
                Some(_) => {}
                None if now % (50 * MS) >= from => device.ask(worker, now).unwrap(),
                None => device.withdraw(worker, now),
            }
        }
        for grant in node.decide(GPUS[0], now) {
            held.insert(grant.worker, (grant.lease, now));
        }
        for (worker, lease) in node.stopped(GPUS[0], now) {
            assert_eq!((worker, held[&worker].0), (low, lease));
            stopped += 1;
            held.insert(worker, (lease, now.saturating_sub(20 * MS)));
        }
    }
    // Each is counted, but not published as an event: there would be too many.
    let counted = |session: &SessionQuotas| session.served.get(&GPUS[0]).map_or(0, |s| s.stopped);
    assert_eq!(node.sessions.values().map(counted).sum::<u64>(), stopped);
    assert!(node.take_happened().len() < 5);
    stopped > 0
}

#[test]
fn how_gates_work_is_known_when_a_limit_comes_later() {
    assert!(is_stopped(Some(Handover::InStream)));
    assert!(!is_stopped(Some(Handover::OnThread)));
    assert!(!is_stopped(None));
}
