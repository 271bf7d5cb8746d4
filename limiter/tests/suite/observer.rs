//! The daemon observes the devices: faults, and unknown processes.

use crate::common::{
    COMPUTE_LIMIT, GIB, MEMORY_LIMIT, Running, SESSION_DIR, Stage, UUIDS, built, eventually,
    first_device, outcome, start,
};
use http_bidir_comm::client::{BlockingHttpClient, Endpoint};
use rustix::process::{Signal, kill_process};
use serde_json::Value;
use session::clock::now_ns;
use session::node_page::{NodeDevice, NodeFigures, NodeHealth, NodePage, NodePageWriter, beside};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A daemon that observes the simulated devices.
pub(crate) struct Observed {
    pub(crate) stage: Stage,
    daemon: Option<Running>,
    /// The events at `/api/v1/events`.
    events: Arc<Mutex<String>>,
}

impl Drop for Observed {
    fn drop(&mut self) {
        if let Some(daemon) = &self.daemon {
            daemon.kill();
        }
    }
}

impl Observed {
    pub(crate) fn new(policy: &str) -> Self {
        let stage = Stage::new();
        let mut observed = Self { stage, daemon: None, events: Arc::default() };
        let mut command = observed.stage.native(built("hypervisor"));
        command.args(["daemon", "--unknown-processes", policy, "--socket"]);
        observed.daemon = Some(start(command.arg(observed.socket())));
        eventually("the daemon listens", || UnixStream::connect(observed.socket()).is_ok());
        let mut events = UnixStream::connect(observed.socket()).unwrap();
        events.write_all(b"GET /api/v1/events HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
        let said = Arc::clone(&observed.events);
        std::thread::spawn(move || {
            let mut piece = [0; 4096];
            while let Ok(length @ 1..) = events.read(&mut piece) {
                said.lock().unwrap().push_str(&String::from_utf8_lossy(&piece[..length]));
            }
        });
        eventually("events are sent", || observed.events.lock().unwrap().contains("200 OK"));
        observed
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.stage.folder().join("daemon.sock")
    }

    fn client(&self) -> BlockingHttpClient {
        BlockingHttpClient::new(Endpoint::Unix(self.socket()))
    }

    /// The first device, as the API shows it.
    fn device(&self) -> Value {
        let path = format!("/api/v1/devices/{}", UUIDS[0]);
        self.client().get(&path, Duration::from_secs(10)).unwrap_or(Value::Null)
    }

    /// Whether an event was reported whose text contains all of these.
    pub(crate) fn was_told(&self, kind: &str, parts: &[&str]) -> bool {
        let events = self.events.lock().unwrap();
        let of_kind = format!("\"kind\":\"{kind}\"");
        events
            .lines()
            .any(|line| line.contains(&of_kind) && parts.iter().all(|part| line.contains(part)))
    }

    fn fault(&self, line: &str) {
        let mut path = self.stage.node().into_os_string();
        path.push(".faults");
        let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
        writeln!(file.unwrap(), "{line}").unwrap();
    }

    /// A session's program that asks for leases.
    fn limited(&self) -> Running {
        let mut command = self.stage.limited(built("tenant"));
        command
            .env(SESSION_DIR, self.stage.session("known"))
            .env(COMPUTE_LIMIT, first_device(50))
            .env("SLUICE_DAEMON", self.socket());
        start(busy(&mut command))
    }

    /// A program without limits.
    fn stranger(&self) -> Running {
        start(busy(&mut self.stage.native(built("tenant"))))
    }

    fn charged(&self) -> u64 {
        self.device()["own"]["charged_us"].as_u64().unwrap_or(0)
    }

    /// Waits until sessions are granted leases.
    fn goes_on(&self) {
        let before = self.charged();
        eventually("leases are granted", || self.charged() > before + 50_000);
    }

    /// Waits until no leases are granted and the last one has ended.
    fn is_withheld(&self, why: &str) {
        eventually(why, || self.device()["withheld"] == why);
        eventually("the last lease ends", || self.device()["own"]["leases"] == 0);
        let before = self.charged();
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!(self.charged(), before);
    }
}

fn busy(command: &mut Command) -> &mut Command {
    command.args(["dense", "--kernel-us", "2000", "--seconds", "80"])
}

#[test]
fn a_device_with_a_fault_or_a_stranger_is_not_handed_out() {
    let observed = Observed::new("hold");
    let session = observed.limited();
    observed.goes_on();
    eventually("the device is seen", || observed.device()["figures"]["processes"] == 1);
    let device = observed.device();
    assert_eq!((&device["health"], &device["unknown_seen"]), (&"healthy".into(), &0.into()));
    // The page agrees with the API.
    let page = NodePage::open(&observed.stage.folder().join("daemon.sock.devices")).unwrap();
    let seen = page.read().unwrap();
    let used = device["figures"]["memory_used_bytes"].as_u64();
    assert_eq!((seen.devices[0].memory_used, seen.devices.len()), (used, 2));
    assert!(used > Some(0) && seen.devices[0].health == NodeHealth::Healthy);

    // An unknown process is reported, and the device is granted to nobody until it is gone.
    let stranger = observed.stranger();
    let pid = stranger.pid().as_raw_pid();
    eventually("it is told", || {
        observed.was_told("unknown_process", &[&format!("\"pid\":{pid}"), "tenant", UUIDS[0]])
    });
    observed.is_withheld("unknown_process");
    let device = observed.device();
    assert_eq!(
        (&device["unknown"], &device["unknown_processes"][0]["pid"]),
        (&1.into(), &pid.into())
    );
    stranger.kill();
    stranger.end();
    eventually("its end is told", || observed.was_told("unknown_process_gone", &[UUIDS[0]]));
    observed.goes_on();

    // A program's own fault says nothing about the device, unlike the device's own faults.
    observed.fault("xid 0 13");
    eventually("the error is told", || observed.was_told("device_error", &["XID 13"]));
    assert_eq!(observed.device()["health"], "healthy");
    observed.fault("xid 0 79");
    observed.is_withheld("unhealthy");
    assert!(observed.was_told("device_unhealthy", &["XID 79", UUIDS[0]]));
    assert_eq!(observed.device()["unhealthy"], "XID 79 (GPU has fallen off the bus)");
    eventually("the page has it", || {
        let seen = page.read().unwrap();
        let health = |index: usize| seen.devices[index].health;
        (health(0), health(1)) == (NodeHealth::Unhealthy, NodeHealth::Healthy)
    });
    let mut status = observed.stage.native(built("sluice"));
    let said = outcome(status.arg("status").env("SLUICE_DAEMON", observed.socket())).stdout;
    let line = format!("{} is UNHEALTHY: XID 79 (GPU has fallen off the bus)", UUIDS[0]);
    assert!(said.contains(&line), "{said}");

    // The operator has checked the device.
    let healthy = format!("/api/v1/devices/{}/healthy", UUIDS[0]);
    let declare = || observed.client().post::<_, Value>(&healthy, &(), Duration::from_secs(10));
    assert_eq!(declare().unwrap()["changed"], true);
    assert_eq!(declare().unwrap()["changed"], false);
    observed.goes_on();
    observed.fault("ecc 0 uncorrected 2");
    observed.is_withheld("unhealthy");
    assert_eq!(observed.device()["unhealthy"], "2 ECC errors could not be corrected");

    // The waiting program was told the reason, once for each reason.
    session.kill();
    let said = session.end().stderr;
    let reasons = ["a process outside any session uses it", "the device is unhealthy"];
    for reason in reasons {
        assert_eq!(said.matches(reason).count(), 1, "{said}");
    }
}

#[test]
fn a_stranger_is_ended_where_the_policy_says_so_and_sessions_are_not() {
    let mut observed = Observed::new("kill");
    // With a memory limit alone, the daemon does not know the program.
    let mut command = observed.stage.limited(built("tenant"));
    let session = start(busy(command.env(MEMORY_LIMIT, first_device("4Gi"))));
    eventually("it is on the device", || observed.device()["figures"]["processes"] == 1);
    let stranger = observed.stranger();
    let pid = stranger.pid().as_raw_pid();
    // SIGTERM
    assert_eq!(stranger.end().code(), 1015);
    let parts = [&*format!("\"pid\":{pid}"), "SIGTERM"];
    eventually("it is told", || observed.was_told("unknown_process_killed", &parts));
    eventually("it is gone", || observed.device()["unknown"] == 0);
    assert_eq!(observed.device()["unknown_seen"], 1);
    session.kill();
    assert_eq!(session.end().code(), 1009);
    let page = observed.stage.folder().join("daemon.sock.devices");
    assert!(page.exists());
    let daemon = observed.daemon.take().unwrap();
    kill_process(daemon.pid(), Signal::TERM).unwrap();
    daemon.end().succeeded();
    assert!(!page.exists());
}

/// The page has another size than NVML (16 GiB), so that the source of the answer shows.
#[test]
fn a_devices_size_is_what_the_page_of_the_node_says_while_a_daemon_writes_it() {
    let stage = Stage::new();
    let socket = stage.folder().join("daemon.sock");
    let device = |uuid: &str, memory_total| NodeDevice {
        uuid: uuid.parse().unwrap(),
        memory_total,
        memory_used: None,
        sm_percent: None,
        memory_percent: None,
        health: NodeHealth::Healthy,
        read_ns: 0,
    };
    let half = |name: &str| {
        let mut command = stage.limited(built("tenant"));
        command.args(["mem", "--api", "alloc", "--chunk", "1GiB", "--cap", "1GiB"]);
        command.env(SESSION_DIR, stage.session(name)).env(MEMORY_LIMIT, first_device("50%"));
        let said = outcome(command.env("SLUICE_DAEMON", &socket)).succeeded();
        said.json()["meminfo_total"].as_u64().unwrap()
    };
    assert_eq!(half("no page"), 8 * GIB);
    let page = NodePageWriter::create(&beside(&socket)).unwrap();
    assert_eq!(half("nothing is written"), 8 * GIB);
    // Not of this device, or not known.
    page.publish(&NodeFigures { written_ns: now_ns(), devices: vec![device(UUIDS[1], Some(GIB))] });
    assert_eq!(half("another device"), 8 * GIB);
    for size in [None, Some(0)] {
        page.publish(&NodeFigures { written_ns: now_ns(), devices: vec![device(UUIDS[0], size)] });
        assert_eq!(half(&format!("{size:?}")), 8 * GIB);
    }
    let devices = vec![device(UUIDS[1], Some(GIB)), device(UUIDS[0], Some(6 * GIB))];
    // As of the future, so that a slow machine does not make it old.
    let soon = now_ns() + 4_000_000_000;
    page.publish(&NodeFigures { written_ns: soon, devices: devices.clone() });
    assert_eq!(half("the page"), 3 * GIB);
    let long_ago = now_ns().saturating_sub(6_000_000_000).max(1);
    page.publish(&NodeFigures { written_ns: long_ago, devices });
    assert_eq!(half("a daemon that has stopped"), 8 * GIB);
}
