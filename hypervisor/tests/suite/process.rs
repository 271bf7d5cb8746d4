//! The daemon as a process, and calls to it.

use std::fs;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use api::{DeviceList, Health, LeaseList, Readiness, SessionDevice, SessionList};
use http_bidir_comm::client::{BlockingHttpClient, ClientError, Endpoint};
use limits::GpuId;
use protocol::{
    Admission, Decision, DeviceQuota, Lease, LeaseReport, Register, Registered, VERSION, path,
};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use serde::de::DeserializeOwned;
use serde_json::Value;

/// As an older limiter writes it.
pub(crate) const GPU: &str = "gpu-5a1ce000-0000-4000-8000-000000000000";
pub(crate) const GPU_ID: GpuId =
    GpuId::from_bytes([0x5a, 0x1c, 0xe0, 0, 0, 0, 0x40, 0, 0x80, 0, 0, 0, 0, 0, 0, 0]);
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) struct Daemon {
    pub(crate) process: Child,
    socket: PathBuf,
}

impl Daemon {
    pub(crate) fn start(socket: &Path) -> Self {
        Self::start_by(&mut Self::command(socket), socket)
    }

    pub(crate) fn start_by(command: &mut Command, socket: &Path) -> Self {
        let process = command.spawn().unwrap();
        let daemon = Self { process, socket: socket.to_owned() };
        let start = Instant::now();
        while UnixStream::connect(socket).is_err() {
            assert!(start.elapsed() < PATIENCE, "the daemon does not listen");
            thread::sleep(Duration::from_millis(5));
        }
        daemon
    }

    pub(crate) fn command(socket: &Path) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_hypervisor"));
        command
            .env_clear()
            .args(["daemon", "--log", "warn", "--nvml", "none", "--socket"])
            .arg(socket);
        command
    }

    pub(crate) fn client(&self) -> BlockingHttpClient {
        BlockingHttpClient::new(Endpoint::Unix(self.socket.clone()))
    }

    pub(crate) fn signal(&mut self, signal: Signal) -> Option<i32> {
        kill_process(Pid::from_child(&self.process), signal).unwrap();
        self.process.wait().unwrap().code()
    }

    /// What the thread that watches for the ends of leases has used of a CPU.
    pub(crate) fn watched_for(&self) -> Duration {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.process.id())).unwrap();
        let is_it = |task: &PathBuf| fs::read_to_string(task.join("comm")).unwrap() == "ends\n";
        let task = tasks.map(|task| task.unwrap().path()).find(is_it).unwrap();
        // The first figure is nanoseconds on a CPU.
        let stat = fs::read_to_string(task.join("schedstat")).unwrap();
        Duration::from_nanos(stat.split(' ').next().unwrap().parse().unwrap())
    }

    pub(crate) fn sessions(&self) -> Vec<api::Session> {
        let list: SessionList = self.client().get(api::path::SESSIONS, PATIENCE).unwrap();
        list.sessions
    }

    pub(crate) fn leases(&self) -> Vec<api::Lease> {
        let list: LeaseList = self.client().get(api::path::LEASES, PATIENCE).unwrap();
        list.leases
    }

    /// Whether it can serve, and what it keeps.
    pub(crate) fn readiness(&self) -> Readiness {
        let answer = self.client().get(api::path::READY, PATIENCE);
        answer.unwrap()
    }

    /// How many devices are known.
    pub(crate) fn devices(&self) -> usize {
        let list: DeviceList = self.client().get(api::path::DEVICES, PATIENCE).unwrap();
        list.devices.len()
    }

    pub(crate) fn log_lines_lost(&self) -> u64 {
        let health: Health = self.client().get(api::path::HEALTH, PATIENCE).unwrap();
        health.log_lines_lost
    }

    /// The sessions on the first device that each has a limit on, with their names.
    pub(crate) fn limited(&self) -> Vec<(String, SessionDevice)> {
        let first = |mut session: api::Session| {
            (!session.devices.is_empty()).then(|| (session.name, session.devices.remove(0)))
        };
        self.sessions().into_iter().filter_map(first).collect()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// One process can be one worker only. So some are processes of their own: a test of this program, run again as a helper.
pub(crate) fn helper(test: &str, given: &Value) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--ignored", "--nocapture"]).stdout(Stdio::piped());
    command.env("HELPER", given.to_string());
    command
}

/// What this process was given, if it is a helper.
pub(crate) fn given<T: DeserializeOwned>() -> Option<T> {
    Some(serde_json::from_str(&std::env::var("HELPER").ok()?).unwrap())
}

/// What a helper has printed after `SEEN` when it ends.
pub(crate) fn seen<T: DeserializeOwned>(helper: Child) -> T {
    let output = helper.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().find_map(|line| line.split_once("SEEN "));
    serde_json::from_str(line.unwrap_or_else(|| panic!("the helper failed: {text}")).1).unwrap()
}

/// Stops a process, and returns when each of its threads has stopped: the signal alone only asks
/// for that.
pub(crate) fn freeze(process: &Child) {
    let pid = Pid::from_child(process);
    kill_process(pid, Signal::STOP).unwrap();
    let (_, status) = waitpid(Some(pid), WaitOptions::UNTRACED).unwrap().unwrap();
    assert!(status.stopped(), "{status:?}");
}

pub(crate) fn thaw(process: &Child) {
    kill_process(Pid::from_child(process), Signal::CONT).unwrap();
}

pub(crate) fn place() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("daemon.sock");
    (dir, socket)
}

pub(crate) fn registration(session: &str, share_ppm: u32) -> Register {
    Register {
        protocol: VERSION,
        session: session.to_owned(),
        devices: vec![DeviceQuota::fixed(GPU_ID, share_ppm)],
        gates: None,
    }
}

pub(crate) fn register(
    client: &BlockingHttpClient,
    session: &str,
    share_ppm: u32,
) -> Result<u64, ClientError> {
    let registered: Registered =
        client.post(path::REGISTER, &registration(session, share_ppm), PATIENCE)?;
    Ok(registered.worker)
}

pub(crate) fn admission(
    client: &BlockingHttpClient,
    worker: u64,
    report: Option<LeaseReport>,
    ask: Option<Duration>,
) -> Result<Option<Lease>, ClientError> {
    admission_by(client, worker, report, ask, None)
}

/// The same, where the daemon may open the gate whose word is named.
pub(crate) fn admission_by(
    client: &BlockingHttpClient,
    worker: u64,
    report: Option<LeaseReport>,
    ask: Option<Duration>,
    gate: Option<u32>,
) -> Result<Option<Lease>, ClientError> {
    let ask = ask.map(|ask| ask.as_micros() as u64);
    let admission = Admission { report, ask, gate, ..Admission::of(worker, GPU_ID) };
    let decision: Decision = client.post(path::ADMISSION, &admission, PATIENCE)?;
    Ok(decision.lease)
}
