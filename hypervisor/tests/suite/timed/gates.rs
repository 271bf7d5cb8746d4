//! Leases that end early by the gate page.

use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::thread;
use std::time::{Duration, Instant};

use http_bidir_comm::client::{BlockingHttpClient, Endpoint};
use limits::{ComputeLimit, Priority};
use protocol::{DeviceQuota, GatesInStream, LeaseReport, Register, Registered, VERSION, path};
use serde_json::json;
use session::gate_page::{GatePage, Opened};

use crate::holders::now_us;
use crate::process::{Daemon, GPU_ID, PATIENCE, admission, given, helper, place, seen};

const LENGTH: Duration = Duration::from_secs(4);

/// A dense program of low priority that goes on for [`LENGTH`]. What the device would run for it
/// ends with its lease, or half a millisecond after its gate was closed.
fn dense(socket: &Path, with_page: bool) -> Child {
    helper("timed::gates::helper_with_gates", &json!([socket, with_page])).spawn().unwrap()
}

#[test]
#[ignore = "a helper process of the other tests"]
fn helper_with_gates() {
    let Some(given) = given() else { return };
    let (socket, with_page): (PathBuf, bool) = given;
    let client = BlockingHttpClient::new(Endpoint::Unix(socket));
    let page = GatePage::create().unwrap();
    let block = page.block(page.block_of(GPU_ID).unwrap());
    let descriptor = page.as_fd().as_raw_fd().into();
    let limit = ComputeLimit { priority: Priority::Low, ..ComputeLimit::balance(300_000, 1) };
    let register = Register {
        protocol: VERSION,
        session: "training".to_owned(),
        devices: vec![DeviceQuota { uuid: GPU_ID, limit }],
        gates: with_page.then_some(GatesInStream { descriptor }),
    };
    let registered: Registered = client.post(path::REGISTER, &register, PATIENCE).unwrap();
    let (end, mut last) = (now_us() + LENGTH.as_micros() as u64, None);
    let mut stops = Vec::new();
    while now_us() < end {
        let poll = Some(Duration::from_millis(15));
        let lease = admission(&client, registered.worker, last.take(), poll).unwrap();
        let Some(mut lease) = lease else { continue };
        let (mut told, mut ends) = (now_us(), now_us() + lease.length_us);
        loop {
            let rings = block.rings();
            let is_stopped = block.open(Some(lease.id)) == Opened::Stopped;
            if is_stopped {
                stops.push(now_us());
                thread::sleep(Duration::from_micros(500));
            }
            let now = now_us();
            let done = is_stopped || now >= ends.min(end);
            let report = LeaseReport { done, ..LeaseReport::busy(lease.id, now - told) };
            if done {
                block.close();
                last = Some(report);
                break;
            }
            // It asks for its lease to go on shortly before its end.
            let left = ends - now;
            if left > 4_000 {
                block.wait(rings, Duration::from_micros(left - 3_000));
            } else if let Some(more) =
                admission(&client, registered.worker, Some(report), Some(Duration::ZERO)).unwrap()
            {
                (lease, told, ends) = (more, now, now_us() + more.length_us);
            } else {
                told = now;
                block.wait(rings, Duration::from_micros(ends.saturating_sub(now_us())));
            }
        }
    }
    println!("SEEN {}", json!(stops));
}

/// A program of high priority wants the device now and then. How long it waits each time, and how
/// long after that the other one sees that it was stopped; in order.
fn waits(with_page: bool) -> (Vec<Duration>, Vec<Duration>) {
    let (_dir, socket) = place();
    let daemon = Daemon::start(&socket);
    let client = daemon.client();
    let dense = dense(&socket, with_page);
    let register = Register {
        protocol: VERSION,
        session: "server".to_owned(),
        devices: vec![DeviceQuota::fixed(GPU_ID, 500_000)],
        gates: None,
    };
    let registered: Registered = client.post(path::REGISTER, &register, PATIENCE).unwrap();
    let start = Instant::now();
    let (mut waits, mut asks) = (Vec::new(), Vec::new());
    for n in 0.. {
        if start.elapsed() > LENGTH - Duration::from_millis(500) {
            break;
        }
        thread::sleep(Duration::from_micros(30_000 + n * 7_919 % 20_000));
        let asked = Instant::now();
        asks.push(now_us());
        let poll = Some(Duration::from_secs(10));
        let lease = admission(&client, registered.worker, None, poll).unwrap().unwrap();
        // At first the daemon looks at each program alone.
        if start.elapsed() > Duration::from_millis(1_500) {
            waits.push(asked.elapsed());
        }
        thread::sleep(Duration::from_millis(3));
        let report = LeaseReport::busy(lease.id, 3_000);
        admission(&client, registered.worker, Some(report), None).unwrap();
    }
    let stopped: Vec<u64> = seen(dense);
    let since_ask = |stop: &u64| {
        let asked = asks.iter().rfind(|ask| *ask <= stop)?;
        Some(Duration::from_micros(stop - asked))
    };
    let mut stops: Vec<_> = stopped.iter().filter_map(since_ask).collect();
    waits.sort_unstable();
    stops.sort_unstable();
    (waits, stops)
}

#[test]
fn a_program_of_high_priority_does_not_wait_for_the_end_of_a_lease() {
    let (with, stops) = waits(true);
    let (without, never) = waits(false);
    let part = |all: &[Duration], n: usize| all[all.len() * n / 100];
    println!("{} waits, stopped {} times", with.len(), stops.len());
    assert!(stops.len() > 10 && never.is_empty(), "{stops:?}, {never:?}");
    for n in [10, 50, 75, 90] {
        let (with, without, stop) = (part(&with, n), part(&without, n), part(&stops, n));
        println!("{n} %: {with:?}, without a page {without:?}; stopped after {stop:?}");
    }
    // Without a page it waits for the end of the lease, so that is what to compare with on this machine.
    let (with, without, stop) = (part(&with, 75), part(&without, 75), part(&stops, 75));
    assert!(with * 3 < without, "{with:?}, {without:?}");
    assert!(stop * 2 < without, "{stop:?}, {without:?}");
}
