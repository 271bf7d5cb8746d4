//! The daemon as a process, and calls to it.

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};

use http_bidir_comm::client::{BlockingHttpClient, ClientError, Endpoint};
use limits::GpuId;
use protocol::status::NodeStatus;
use protocol::{
    Admission, Decision, DeviceQuota, Lease, LeaseReport, Register, Registered, VERSION, path,
};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

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
        command.env_clear().args(["daemon", "--log", "warn", "--socket"]).arg(socket);
        command
    }

    pub(crate) fn client(&self) -> BlockingHttpClient {
        BlockingHttpClient::new(Endpoint::Unix(self.socket.clone()))
    }

    pub(crate) fn signal(&mut self, signal: Signal) -> Option<i32> {
        kill_process(Pid::from_child(&self.process), signal).unwrap();
        self.process.wait().unwrap().code()
    }

    pub(crate) fn status(&self) -> NodeStatus {
        self.client().get(path::STATUS, PATIENCE).unwrap()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
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
    let ask = ask.map(|ask| ask.as_micros() as u64);
    let admission = Admission { worker, uuid: GPU_ID, report, ask, quota: None };
    let decision: Decision = client.post(path::ADMISSION, &admission, PATIENCE)?;
    Ok(decision.lease)
}
