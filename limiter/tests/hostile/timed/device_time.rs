//! The simulated GPU's own account of the time for which it worked, independent of how programs count.

use crate::common::{Busy, Measured, Running, Stage, built, eventually, start};
use fake_node::{Config, Node};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Stdio;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How often the device is polled; it then also notices at once which processes have died.
const LOOK: Duration = Duration::from_millis(2);

/// The stage's first device.
pub(super) struct Device(Node);

/// The device's work in a period.
#[derive(Debug)]
pub(super) struct Worked {
    /// Percent of the time, for each watched process.
    pub(super) percent: Vec<f64>,
    /// The longest time for which each watched process did not get the device.
    pub(super) longest_pause: Vec<Duration>,
    /// Percent of the time for which the device worked for any process.
    pub(super) all: f64,
    /// How busy the machine was meanwhile.
    pub(super) busy: Busy,
}

impl Device {
    pub(super) fn of(stage: &Stage) -> Self {
        Self(
            Node::open_at(&stage.node(), Config { context: 8 << 20, ..Config::default() }).unwrap(),
        )
    }

    /// Watches the device for a period.
    pub(super) fn watch(&self, processes: &[u32], time: Duration) -> Worked {
        let look = || {
            let state = self.0.lock();
            let by = |&process: &u32| state.worked_ns_by(0, process);
            let each: Vec<u64> = processes.iter().map(by).collect();
            (Instant::now(), state.worked_ns(0), each)
        };
        let measured = Measured::begin();
        let (start, all, first) = look();
        let mut since = vec![start; processes.len()];
        let mut longest_pause = vec![Duration::ZERO; processes.len()];
        let mut before = first.clone();
        loop {
            sleep(LOOK);
            let (now, all_now, each) = look();
            for at in 0..processes.len() {
                if each[at] != before[at] {
                    since[at] = now;
                }
                longest_pause[at] = longest_pause[at].max(now - since[at]);
            }
            before = each;
            let passed = now - start;
            if passed >= time {
                let percent = |ns: u64| ns as f64 / passed.as_nanos() as f64 * 100.0;
                let each = before.iter().zip(&first).map(|(now, first)| percent(now - first));
                return Worked {
                    percent: each.collect(),
                    longest_pause,
                    all: percent(all_now - all),
                    busy: measured.end(),
                };
            }
        }
    }
}

/// A running daemon and its socket.
pub(super) fn daemon(stage: &Stage) -> (PathBuf, Running) {
    let socket = stage.folder().join("daemon.sock");
    let mut command = stage.native(built("hypervisor"));
    command.args(["daemon", "--log", "warn", "--socket"]).arg(&socket);
    let daemon = start(command.stdout(Stdio::null()));
    eventually("the daemon listens", || UnixStream::connect(&socket).is_ok());
    (socket, daemon)
}
