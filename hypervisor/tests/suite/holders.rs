//! Processes that hold leases, one after the other.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use http_bidir_comm::client::{BlockingHttpClient, ClientError, Endpoint};
use protocol::LeaseReport;
use serde_json::json;

use crate::process::{admission, given, helper, register};

/// A helper that holds leases until its time is over, and prints when, on the clock that all processes share.
pub(crate) fn holder(socket: &Path, session: &str, share_ppm: u32, length: Duration) -> Command {
    let given = json!([socket, session, share_ppm, length.as_millis() as u64]);
    helper("holders::helper_that_holds", &given)
}

#[test]
#[ignore = "a helper process of the other tests"]
fn helper_that_holds() {
    let Some(given) = given() else { return };
    let (socket, session, share_ppm, length): (PathBuf, String, u32, u64) = given;
    let client = BlockingHttpClient::new(Endpoint::Unix(socket));
    let end = now_us() + length * 1000;
    let mut held = Vec::new();
    let (mut worker, mut report) = (None, None);
    while now_us() < end {
        let known = match worker {
            Some(known) => known,
            None => match register(&client, &session, share_ppm) {
                Ok(known) => *worker.insert(known),
                Err(ClientError::Connect { .. }) => {
                    thread::sleep(Duration::from_millis(10));
                    continue;
                }
                Err(other) => panic!("{other}"),
            },
        };
        match admission(&client, known, report.take(), Some(Duration::from_millis(250))) {
            Ok(None) => {}
            Ok(Some(lease)) => {
                let start = now_us();
                println!("HOLDING");
                thread::sleep(Duration::from_micros(lease.length_us));
                let stop = now_us();
                held.push((start, stop));
                report = Some(LeaseReport::busy(lease.id, stop - start));
            }
            // The daemon has gone, or was restarted and does not know us.
            Err(_) => worker = None,
        }
    }
    println!("SEEN {}", serde_json::to_string(&held).unwrap());
}

/// Microseconds of a clock that all processes share.
pub(crate) fn now_us() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000 + now.tv_nsec as u64 / 1_000
}
