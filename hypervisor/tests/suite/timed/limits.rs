//! Limits that change, and sessions without one.

use std::thread;
use std::time::{Duration, Instant};

use http_bidir_comm::client::ClientError;
use limits::{ComputeLimit, Policy};
use protocol::{Admission, Decision, DeviceQuota, Lease, LeaseReport, Registered, path};

use crate::process::{Daemon, GPU_ID, PATIENCE, admission, place, register, registration, seen};
use crate::programs::{Program, Seen};

#[test]
fn a_quota_changes_while_programs_run() {
    let (_dir, socket) = place();
    let daemon = Daemon::start(&socket);
    let quota = DeviceQuota::fixed(GPU_ID, 200_000);
    let length = Duration::from_secs(4);
    let running = Program { session: "a", quota, density: 1.0, length }.start(&socket);
    // Another process of the session reports the change.
    let client = daemon.client();
    let charged = || daemon.limited()[0].1.charged_us as f64;
    let rate = |length: Duration| {
        let (before, start) = (charged(), Instant::now());
        thread::sleep(length);
        (charged() - before) / start.elapsed().as_micros() as f64
    };
    thread::sleep(Duration::from_millis(500));
    let before = rate(Duration::from_secs(1));
    assert!((0.15..0.25).contains(&before), "{before}");
    let worker = register(&client, "a", 200_000).unwrap();
    let change = Admission {
        quota: Some(DeviceQuota::fixed(GPU_ID, 800_000)),
        ..Admission::of(worker, GPU_ID)
    };
    let answer: Decision = client.post(path::REPORT, &change, PATIENCE).unwrap();
    assert_eq!(answer.lease, None);
    assert_eq!(daemon.limited()[0].1.share_ppm, 800_000);
    thread::sleep(Duration::from_millis(100));
    let after = rate(Duration::from_secs(1));
    assert!((0.6..0.9).contains(&after), "{after}");
    seen::<Seen>(running);
}

#[test]
fn a_session_without_limit_needs_no_lease() {
    let (_dir, socket) = place();
    let daemon = Daemon::start(&socket);
    let client = daemon.client();
    let mut registration = registration("free", 0);
    registration.devices[0].limit.policy = Policy::None;
    let registered: Registered = client.post(path::REGISTER, &registration, PATIENCE).unwrap();
    match admission(&client, registered.worker, None, Some(Duration::ZERO)) {
        Err(ClientError::Refused { status: 400, message }) => {
            assert!(message.contains("no compute limit"), "{message}");
        }
        other => panic!("{other:?}"),
    }
}

/// A process may still have to report on a lease when another one's message has taken the limit
/// away.
#[test]
fn a_limit_is_taken_away_under_a_lease_and_comes_back() {
    let (_dir, socket) = place();
    let daemon = Daemon::start(&socket);
    let client = daemon.client();
    let worker = register(&client, "a", 1_000_000).unwrap();
    let poll = Some(Duration::from_secs(10));
    let lease = admission(&client, worker, None, poll).unwrap().unwrap();
    let say = |policy: Policy, ask: Option<u64>| -> Option<Lease> {
        let quota = DeviceQuota {
            uuid: GPU_ID,
            limit: ComputeLimit { policy, ..ComputeLimit::fixed(1_000_000) },
        };
        let message = Admission { ask, quota: Some(quota), ..Admission::of(worker, GPU_ID) };
        client.post::<_, Decision>(path::ADMISSION, &message, PATIENCE).unwrap().lease
    };
    assert_eq!(say(Policy::None, None), None);
    assert!(daemon.leases().is_empty());
    for done in [false, true] {
        let report = LeaseReport { done, ..LeaseReport::busy(lease.id, 1_000) };
        assert_eq!(admission(&client, worker, Some(report), None).unwrap(), None);
    }
    // A process that knows, and asks all the same, is answered at once. One that does not know is
    // told.
    let started = Instant::now();
    assert_eq!(say(Policy::None, Some(10_000_000)), None);
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    assert!(matches!(
        admission(&client, worker, None, poll),
        Err(ClientError::Refused { status: 400, .. })
    ));
    assert!(say(Policy::Fixed, Some(10_000_000)).is_some());
}
