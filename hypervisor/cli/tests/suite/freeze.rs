//! `sluice freeze` and `sluice thaw`.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use api::{LeaseList, SessionList, SessionState};
use http_bidir_comm::client::{BlockingHttpClient, Endpoint};
use rustix::process::{Pid, Signal, kill_process};

use crate::support::{Sluice, eventually, outcome};

pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// A program that is ended. `sluice run` passes that on.
pub(crate) struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = kill_process(Pid::from_child(&self.0), Signal::TERM);
        let _ = self.0.wait();
    }
}

pub(crate) fn start(command: &mut Command) -> Running {
    Running(command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap())
}

/// A daemon of this test alone.
pub(crate) struct Daemon {
    pub(crate) socket: PathBuf,
    pub(crate) client: BlockingHttpClient,
    running: Running,
}

impl Daemon {
    pub(crate) fn start(sluice: &Sluice) -> Self {
        Self::start_at(sluice, sluice.folder().join("d.sock"))
    }

    pub(crate) fn start_at(sluice: &Sluice, socket: PathBuf) -> Self {
        Self::start_with(sluice, socket, &[])
    }

    pub(crate) fn start_with(sluice: &Sluice, socket: PathBuf, options: &[&OsStr]) -> Self {
        let mut daemon = sluice.command_of(sluice.built("hypervisor", "hypervisor"));
        Self::start_by(daemon.args(["daemon", "--log", "warn"]).args(options), socket)
    }

    /// The daemon of a command that lacks nothing but the socket.
    pub(crate) fn start_by(command: &mut Command, socket: PathBuf) -> Self {
        let running = start(command.arg("--socket").arg(&socket));
        let client = BlockingHttpClient::new(Endpoint::Unix(socket.clone()));
        eventually("the daemon answers", || client.reach(api::path::HEALTH, PATIENCE).is_ok());
        Self { socket, client, running }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.running.0), signal).unwrap();
    }
}

#[test]
fn a_program_is_kept_from_its_device_until_it_is_thawed() {
    let sluice = Sluice::new();
    let daemon = Daemon::start(&sluice);
    let Daemon { socket, client, .. } = &daemon;
    let mut run = sluice.command();
    run.args(["run", "--fake-gpu", "--device", "0", "--compute", "40", "--daemon"]).arg(socket);
    run.arg("--").arg(sluice.built("tenant", "tenant"));
    let _program = start(run.args(["dense", "--kernel-us", "2000", "--seconds", "120"]));
    let session = || {
        let list: SessionList = client.get(api::path::SESSIONS, PATIENCE).unwrap();
        list.sessions.into_iter().find(|session| !session.pids.is_empty())
    };
    let charged = || session().unwrap().devices[0].charged_us;
    eventually("it is served", || session().is_some() && charged() > 0);
    let found = session().unwrap();
    let act = |action: &str, session: &str| {
        outcome(sluice.command().args([action, session, "--daemon"]).arg(socket))
    };
    let (code, stdout, stderr) = act("freeze", &found.pids[0].to_string());
    assert_eq!(code, 0, "{stderr}");
    assert!(stdout.contains(" is now frozen"), "{stdout}");
    assert_eq!(session().unwrap().state, SessionState::Frozen);
    eventually("its leases end", || {
        let list: LeaseList = client.get(api::path::LEASES, PATIENCE).unwrap();
        list.leases.is_empty()
    });
    let before = charged();
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(charged(), before);
    // Nor does it go on by its own account while the daemon stands still.
    let used = || {
        let (_, stdout, _) =
            outcome(sluice.command().args(["status", "--json", "--daemon", "none"]));
        let status: serde_json::Value = serde_json::from_str(&stdout).unwrap();
        let mut sessions = status["sessions"].as_array().unwrap().iter();
        let own = sessions.find(|own| own["session"] == found.name).unwrap();
        own["devices"][0]["compute"]["delivered_us"].as_u64().unwrap()
    };
    let by_page = used();
    assert!(by_page > 0);
    daemon.signal(Signal::STOP);
    std::thread::sleep(Duration::from_secs(1));
    let after = used();
    daemon.signal(Signal::CONT);
    assert_eq!(after, by_page);
    eventually("the daemon answers again", || client.reach(api::path::HEALTH, PATIENCE).is_ok());
    // By its name, too.
    let (code, stdout, _) = act("freeze", &found.name);
    assert!(code == 0 && stdout.contains(" is already frozen"), "{stdout}");
    let (code, stdout, _) = act("thaw", &found.name);
    assert!(code == 0 && stdout.ends_with(" is now running\n"), "{stdout}");
    eventually("it goes on", || charged() > before);
    let (code, stdout, stderr) = act("thaw", "no-such-session");
    assert_eq!((code, stdout.as_str()), (2, ""));
    assert!(stderr.contains("'no-such-session'"), "{stderr}");
}

/// A GPU with a fault is in the status, for programs too, until the operator has looked at it.
#[test]
fn a_gpu_is_unhealthy_until_it_is_declared_healthy() {
    let sluice = Sluice::new();
    let nvml = sluice.built("libfake_nvml.so", "fake-nvml");
    let options = ["--nvml".as_ref(), nvml.as_os_str()];
    let daemon = Daemon::start_with(&sluice, sluice.folder().join("d.sock"), &options);
    let run = |arguments: &[&str]| {
        outcome(sluice.command().args(arguments).arg("--daemon").arg(&daemon.socket))
    };
    let health = || {
        let (code, stdout, stderr) = run(&["status", "--json"]);
        assert_eq!(code, 0, "{stderr}");
        let status: serde_json::Value = serde_json::from_str(&stdout).unwrap();
        status["gpus"][0]["health"].as_str().map(str::to_owned)
    };
    eventually("the daemon sees its GPUs", || health().as_deref() == Some("healthy"));
    std::fs::write(sluice.folder().join("node.faults"), "xid 0 79\n").unwrap();
    eventually("the fault is seen", || health().as_deref() == Some("unhealthy"));
    let (_, table, _) = run(&["status"]);
    assert!(table.contains("UNHEALTHY: XID 79"), "{table}");
    let (code, said, stderr) = run(&["healthy", "0"]);
    assert!(code == 0 && said.contains("is healthy again"), "{said}{stderr}");
    assert_eq!(health().as_deref(), Some("healthy"));
    let (code, said, _) = run(&["healthy", "0"]);
    assert!(code == 0 && said.ends_with("was already healthy\n"), "{said}");
    let (code, _, stderr) = run(&["healthy", "9"]);
    assert!(
        code == 2 && stderr.contains("'9' does not name exactly one GPU of the daemon's"),
        "{stderr}"
    );
}
