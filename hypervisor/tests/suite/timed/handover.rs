//! From the end of one process's work to the opening of the next one's gate.

use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::Duration;

use http_bidir_comm::client::{BlockingHttpClient, Endpoint};
use protocol::{DeviceQuota, GatesInStream, LeaseReport, Register, Registered, VERSION, path};
use serde_json::json;
use session::clock::now_ns;
use session::gate_page::{GatePage, Opened};

use crate::process::{Daemon, GPU_ID, PATIENCE, admission_by, given, helper, place, seen};

const LENGTH: Duration = Duration::from_secs(4);

/// A process that fills the device, and holds it for half of the time.
fn dense(socket: &Path, session: &str, by_page: bool) -> Child {
    let given = json!([socket, session, by_page]);
    helper("timed::handover::helper_that_takes_turns", &given).spawn().unwrap()
}

#[test]
#[ignore = "a helper process of the other tests"]
fn helper_that_takes_turns() {
    let Some(given) = given() else { return };
    let (socket, session, by_page): (PathBuf, String, bool) = given;
    let client = BlockingHttpClient::new(Endpoint::Unix(socket));
    let page = GatePage::create().unwrap();
    let block = page.block(page.block_of(GPU_ID).unwrap());
    let descriptor = page.as_fd().as_raw_fd().into();
    let register = Register {
        protocol: VERSION,
        session,
        devices: vec![DeviceQuota::fixed(GPU_ID, 500_000)],
        gates: Some(GatesInStream { descriptor }),
    };
    let registered: Registered = client.post(path::REGISTER, &register, PATIENCE).unwrap();
    let (end, mut last) = (now_ns() + LENGTH.as_nanos() as u64, None);
    let mut turns = Vec::new();
    while now_ns() < end {
        let word = if by_page { block.ask() } else { None };
        let poll = Some(Duration::from_millis(15));
        let lease = admission_by(&client, registered.worker, last.take(), poll, word).unwrap();
        let Some(lease) = lease else {
            block.withdraw();
            continue;
        };
        let begun = block.granted_at(lease.id).unwrap_or_else(now_ns);
        let ends = begun + lease.length_us * 1_000;
        loop {
            let rings = block.rings();
            let left = ends.saturating_sub(now_ns());
            if block.open(Some(lease.id)) == Opened::Stopped || left == 0 {
                break;
            }
            block.wait(rings, Duration::from_nanos(left));
        }
        block.close();
        let done = now_ns();
        if by_page {
            block.end(lease.id);
        }
        turns.push((begun, done));
        last = Some(LeaseReport::busy(lease.id, (now_ns() - begun) / 1_000));
    }
    println!("SEEN {}", json!(turns));
}

/// How long the device had no holder at each handover, in order, and the watcher's time.
fn handovers(by_page: bool) -> (Vec<Duration>, Duration) {
    let (_dir, socket) = place();
    let daemon = Daemon::start(&socket);
    let tenants = ["one", "other"].map(|session| dense(&socket, session, by_page));
    let mut all: Vec<(u64, u64)> = tenants.into_iter().flat_map(seen::<Vec<_>>).collect();
    all.sort_unstable();
    // At first the daemon looks at each process alone.
    let first = all[0].0 + 500_000_000;
    let gap = |pair: &[(u64, u64)]| {
        let (done, begun) = (pair[0].1, pair[1].0);
        // On a busy machine a process may see the end of its lease after the next one has begun.
        (first < done && done <= begun).then(|| Duration::from_nanos(begun - done))
    };
    let mut gaps: Vec<Duration> = all.windows(2).filter_map(gap).collect();
    gaps.sort_unstable();
    (gaps, daemon.watched_for())
}

#[test]
fn a_page_hands_over_in_a_fraction_of_what_messages_take() {
    let (by_page, watched) = handovers(true);
    let (by_message, _) = handovers(false);
    let part = |all: &[Duration], n: usize| all[all.len() * n / 100];
    for n in [10, 50, 75, 90] {
        println!("{n} %: {:?}, by message {:?}", part(&by_page, n), part(&by_message, n));
    }
    println!("{} handovers; watched for {watched:?} of {LENGTH:?}", by_page.len());
    // 174 a second on a quiet machine.
    assert!(by_page.len() > 100 && by_message.len() > 100);
    let (page, message) = (part(&by_page, 50), part(&by_message, 50));
    assert!(page * 3 < message * 2, "{page:?}, by message {message:?}");
    // Of one core; one device. A thread that does not sleep takes all of it; this one 1.3 %, on a quiet machine.
    assert!(watched * 8 < LENGTH, "{watched:?}");
}
