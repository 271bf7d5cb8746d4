//! How long a device idles between two tenants: from one holder's report to the arrival of the
//! waiting tenant's grant, through the real daemon and the real client.
//!
//! `cargo bench -p hypervisor --bench admission` prints the figures. One process is one worker, so
//! the second tenant is another process of this program.
#![allow(missing_docs, clippy::unwrap_used, clippy::print_stdout, clippy::panic)]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use http_bidir_comm::client::{BlockingHttpClient, Endpoint};
use limits::GpuId;
use protocol::{
    Admission, Decision, DeviceQuota, Lease, LeaseReport, Register, Registered, VERSION, path,
};

const GPU_ID: GpuId =
    GpuId::from_bytes([0x5a, 0x1c, 0xe0, 0, 0, 0, 0x40, 0, 0x80, 0, 0, 0, 0, 0, 0, 0]);
const HOLD: Duration = Duration::from_millis(2);
const PATIENCE: Duration = Duration::from_secs(5);
const PARTNER: &str = "ADMISSION_PARTNER";

/// When a report was sent or a grant arrived, in microseconds on the clock that all processes
/// share; which of the two.
type Moment = (f64, bool);

struct Tenant {
    client: BlockingHttpClient,
    worker: u64,
}

impl Tenant {
    fn register(socket: &Path, session: &str) -> Self {
        let client = BlockingHttpClient::new(Endpoint::Unix(socket.to_owned()));
        let quota = DeviceQuota::fixed(GPU_ID, 1_000_000);
        let register = Register {
            protocol: VERSION,
            session: session.into(),
            devices: vec![quota],
            gates: None,
        };
        let start = Instant::now();
        loop {
            match client.post::<_, Registered>(path::REGISTER, &register, PATIENCE) {
                Ok(registered) => return Self { client, worker: registered.worker },
                Err(error) => assert!(start.elapsed() < PATIENCE, "{error}"),
            }
            sleep(Duration::from_millis(10));
        }
    }

    fn call(&self, report: Option<LeaseReport>, ask: Option<u64>) -> Option<Lease> {
        let admission = Admission { report, ask, ..Admission::of(self.worker, GPU_ID) };
        let decision: Decision = self.client.post(path::ADMISSION, &admission, PATIENCE).unwrap();
        decision.lease
    }

    /// Measures round trips of a report with the request to go on.
    fn renewals(&self, count: usize) -> Vec<f64> {
        let lease = loop {
            if let Some(lease) = self.call(None, Some(1_000_000)) {
                break lease;
            }
        };
        let mut told = Instant::now();
        let mut trips = Vec::new();
        for _ in 0..count {
            let held_us = told.elapsed().as_micros() as u64;
            let report = LeaseReport { done: false, ..LeaseReport::busy(lease.id, held_us) };
            told = Instant::now();
            assert!(self.call(Some(report), Some(0)).is_some_and(|more| more.id == lease.id));
            trips.push(told.elapsed().as_secs_f64() * 1e6);
        }
        let held_us = told.elapsed().as_micros() as u64;
        self.call(Some(LeaseReport::busy(lease.id, held_us)), None);
        trips
    }

    fn run(&self, length: Duration) -> Vec<Moment> {
        let mut moments = Vec::new();
        let mut report = None;
        let start = Instant::now();
        while start.elapsed() < length {
            moments.push((now_us(), false));
            let Some(lease) = self.call(report, Some(1_000_000)) else { continue };
            moments.push((now_us(), true));
            let held = Instant::now();
            sleep(HOLD);
            let held_us = held.elapsed().as_micros() as u64;
            report = Some(LeaseReport::busy(lease.id, held_us));
        }
        if report.is_some() {
            self.call(report, None);
        }
        moments
    }
}

fn now_us() -> f64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as f64 * 1e6 + now.tv_nsec as f64 / 1e3
}

fn show(what: &str, mut values: Vec<f64>) {
    if values.is_empty() {
        println!("{what:42} none");
        return;
    }
    values.sort_by(f64::total_cmp);
    let at = |q: f64| values[((values.len() - 1) as f64 * q) as usize];
    let (p50, p90, p99) = (at(0.5), at(0.9), at(0.99));
    println!("{what:42} p50 {p50:7.1}  p90 {p90:7.1}  p99 {p99:7.1} us  ({})", values.len());
}

fn main() {
    let seconds = Duration::from_secs(5);
    if let Ok(socket) = std::env::var(PARTNER) {
        let moments = Tenant::register(Path::new(&socket), "partner").run(seconds);
        println!("{}", serde_json::to_string(&moments).unwrap());
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let socket: PathBuf = dir.path().join("socket");
    let mut daemon = Command::new(env!("CARGO_BIN_EXE_hypervisor"))
        .args(["daemon", "--log", "warn", "--socket"])
        .arg(&socket)
        .spawn()
        .unwrap();
    let tenant = Tenant::register(&socket, "bench");

    let calls = (0..5_000).map(|_| {
        let start = Instant::now();
        tenant.call(None, None);
        start.elapsed().as_secs_f64() * 1e6
    });
    show("a call that is answered at once", calls.collect());
    show("a lease that goes on", tenant.renewals(5_000));
    let alone = tenant.run(seconds);
    show("alone: from report to the next grant", hand_overs(&alone));

    let partner = Command::new(std::env::current_exe().unwrap())
        .env(PARTNER, &socket)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut moments = tenant.run(seconds);
    let output = partner.wait_with_output().unwrap();
    moments.extend(serde_json::from_slice::<Vec<Moment>>(&output.stdout).unwrap());
    moments.sort_by(|a, b| a.0.total_cmp(&b.0));
    show("two: from one's report to the other's grant", hand_overs(&moments));
    daemon.kill().unwrap();
    daemon.wait().unwrap();
}

/// For each grant, the time since the last report of any tenant.
fn hand_overs(moments: &[Moment]) -> Vec<f64> {
    let pairs = moments.iter().zip(moments.iter().skip(1));
    pairs.filter(|(a, b)| !a.1 && b.1).map(|(a, b)| b.0 - a.0).collect()
}
