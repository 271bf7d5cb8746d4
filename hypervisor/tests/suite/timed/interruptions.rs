//! Holders, callers and the daemon itself, killed, frozen or gone.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use http_bidir_comm::client::ClientError;
use protocol::{Admission, Decision, LeaseReport, path};
use rustix::process::Signal;

use crate::holders::{holder, now_us};
use crate::process::{Daemon, GPU_ID, admission, freeze, place, register, seen, thaw};

/// How long others wait for a holder that is frozen, and may be killed a moment later.
fn wait_for_holder(kill: bool) -> Duration {
    let (_dir, socket) = place();
    let daemon = Daemon::start(&socket);
    let client = daemon.client();
    let worker = register(&client, "waiting", 1_000_000).unwrap();
    // It never reports within this test: it sleeps through a lease of its own making.
    let mut command = holder(&socket, "holding", 1_000_000, Duration::from_secs(60));
    let mut process = command.spawn().unwrap();
    let mut output = process.stdout.take().unwrap();
    let mut seen = String::new();
    let mut byte = [0u8];
    while !seen.ends_with("HOLDING") {
        output.read_exact(&mut byte).unwrap();
        seen.push(char::from(byte[0]));
    }
    // It is frozen, so that only its death can free the device before the grace is over.
    freeze(&process);
    let asked = thread::spawn(move || {
        let lease = admission(&client, worker, None, Some(Duration::from_secs(10))).unwrap();
        (lease, Instant::now())
    });
    thread::sleep(Duration::from_millis(5));
    let since = Instant::now();
    if kill {
        process.kill().unwrap();
    }
    let (lease, granted) = asked.join().unwrap();
    process.kill().unwrap();
    process.wait().unwrap();
    assert!(lease.is_some());
    granted.saturating_duration_since(since)
}

/// It takes 15 ms, for which the device may go on with its work, and the promise is 50 ms. Where the daemon did not see the
/// death, others would wait for the grace after a frozen holder's lease. That is what a busy machine is compared with.
#[test]
fn a_killed_holder_frees_the_device() {
    let longest = |kill| (0..3).map(|_| wait_for_holder(kill)).max().unwrap();
    let (killed, frozen) = (longest(true), longest(false));
    println!("{killed:?}, frozen {frozen:?}");
    assert!(killed * 2 < frozen, "{killed:?}, frozen {frozen:?}");
}

#[test]
fn a_frozen_holder_delays_others_by_its_grace_only() {
    let (_dir, socket) = place();
    let daemon = Daemon::start(&socket);
    let mut command = holder(&socket, "frozen", 1_000_000, Duration::from_secs(60));
    let mut process = command.spawn().unwrap();
    thread::sleep(Duration::from_millis(500));
    freeze(&process);
    let client = daemon.client();
    let worker = register(&client, "waiting", 500_000).unwrap();
    let started = Instant::now();
    let lease = admission(&client, worker, None, Some(Duration::from_secs(10))).unwrap();
    assert!(lease.is_some());
    // It is frozen for a minute.
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
    process.kill().unwrap();
    process.wait().unwrap();
}

#[test]
fn tenants_resume_when_the_daemon_comes_back() {
    let (_dir, socket) = place();
    let mut first = Daemon::start(&socket);
    let running = holder(&socket, "a", 500_000, Duration::from_secs(3)).spawn().unwrap();
    thread::sleep(Duration::from_millis(1_000));
    assert_eq!(first.signal(Signal::KILL), None);
    let killed_at = now_us();
    thread::sleep(Duration::from_millis(300));
    // Its socket still exists and is replaced.
    assert!(socket.exists());
    let _second = Daemon::start(&socket);
    let held: Vec<(u64, u64)> = seen(running);
    let before = held.iter().filter(|held| held.1 < killed_at).count();
    let after = held.iter().filter(|held| held.0 > killed_at + 250_000).count();
    assert!(before > 0 && after > 0, "{before} leases before the restart, {after} after");
}

#[test]
fn a_caller_that_hangs_up_gives_its_grant_back() {
    let (_dir, socket) = place();
    let daemon = Daemon::start(&socket);
    let client = daemon.client();
    let worker = register(&client, "a", 1_000_000).unwrap();
    // Asks that end before they are answered, or at that moment.
    for wait_us in (0..40).map(|n| n * 25) {
        let admission = Admission { ask: Some(5_000_000), ..Admission::of(worker, GPU_ID) };
        let mut stream = UnixStream::connect(&socket).unwrap();
        let body = serde_json::to_string(&admission).unwrap();
        write!(
            stream,
            "POST {} HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n{body}",
            path::ADMISSION,
            body.len()
        )
        .unwrap();
        thread::sleep(Duration::from_micros(wait_us));
    }
    let started = Instant::now();
    assert!(admission(&client, worker, None, Some(Duration::from_secs(10))).unwrap().is_some());
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
}

/// The daemon is stopped for seconds. None of that time is charged. Calls that were sent and given
/// up meanwhile are granted nothing. Calls after that are answered at once.
#[test]
fn a_daemon_that_stood_still() {
    let (_dir, socket) = place();
    let daemon = Daemon::start(&socket);
    let client = daemon.client();
    let worker = register(&client, "a", 100_000).unwrap();
    let poll = Some(Duration::from_secs(5));
    let lease = admission(&client, worker, None, poll).unwrap().expect("a lease");
    freeze(&daemon.process);
    // Each call asks for more of that lease, or for a new one, and its caller gives up.
    for (report, path) in [(true, path::ADMISSION), (false, path::ADMISSION), (true, path::REPORT)]
    {
        let report =
            report.then_some(LeaseReport { done: false, ..LeaseReport::busy(lease.id, 5_000) });
        let ask = Some(10_000_000);
        let message = Admission { report, ask, ..Admission::of(worker, GPU_ID) };
        let given_up =
            client.post::<_, Decision>(path, &message, Duration::from_millis(300)).unwrap_err();
        assert!(matches!(given_up, ClientError::Timeout { .. }), "{given_up}");
    }
    thread::sleep(Duration::from_secs(2));
    thaw(&daemon.process);
    thread::sleep(Duration::from_millis(100));
    let (_, session) = daemon.limited().remove(0);
    assert!(daemon.leases().is_empty() && !session.asks, "{session:#?}");
    assert!(session.charged_us < 200_000, "{session:#?}");
    let health: api::Health = client.get(api::path::HEALTH, crate::process::PATIENCE).unwrap();
    assert!(health.uptime_us > 2_900_000, "{health:#?}");
    // It owes nothing for the stop: that would be more than the call may take.
    admission(&client, worker, None, poll).unwrap().expect("a lease");
}
