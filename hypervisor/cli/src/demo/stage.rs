//! The demo's surroundings: a device, a session for all its files, a daemon, and an environment
//! without the caller's own settings.

use std::env::var_os;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use limits::{GpuId, env};
use serde::de::DeserializeOwned;
use session::directory::OwnedSession;
use signal_hook::consts::signal::{SIGHUP, SIGINT, SIGTERM};

use super::TICK;
use super::tenant::{Measured, RunningTenant, TenantLoad, last_words};
use crate::cli::LimitArgs;
use crate::devices::{self, VisibleGpu};
use crate::environment::MemberEnvironment;
use crate::owner::Label;
use crate::parts::{self, Parts};
use crate::{Error, daemon_link, links};

/// The variables that are kept of the caller's environment: none that limits, preloads or chooses a
/// daemon.
const KEPT: [&str; 9] = [
    "PATH",
    "HOME",
    "USER",
    "LANG",
    "TMPDIR",
    "LD_LIBRARY_PATH",
    "CUDA_VISIBLE_DEVICES",
    "RUST_BACKTRACE",
    env::LOG,
];

/// How long the daemon may take to answer.
const DAEMON_START: Duration = Duration::from_secs(20);
/// How much longer than its load a tenant may take, even on a slow machine.
const GRACE: Duration = Duration::from_secs(120);
/// One allocation of the memory phase.
const CHUNK: u64 = 64 << 20;

/// The demo's surroundings. Dropping it ends the daemon and removes the session.
pub(super) struct Stage {
    // Fields are dropped in this order: the daemon before the directory with its socket.
    daemon: Option<DemoDaemon>,
    devices: Option<Vec<VisibleGpu>>,
    fake_driver: Option<PathBuf>,
    limiter: PathBuf,
    parts: Parts,
    clock: Instant,
    deadline: Instant,
    signal: Arc<AtomicUsize>,
    session: OwnedSession,
}

impl Stage {
    /// Uses a real GPU if there is one and `fake` is not set.
    pub(super) fn set(fake: bool) -> Result<Self, Error> {
        let signal = Arc::new(AtomicUsize::new(0));
        for number in [SIGINT, SIGTERM, SIGHUP] {
            let value = usize::try_from(number).unwrap_or_default();
            signal_hook::flag::register_usize(number, Arc::clone(&signal), value)
                .map_err(|e| Error::system("cannot watch for signals", e))?;
        }
        let parts = Parts::locate(var_os(parts::LIBRARY).map(PathBuf::from))?;
        let limiter = parts.limiter()?;
        for program in [parts::TENANT, parts::HYPERVISOR] {
            parts.find(program)?;
        }
        let devices = if fake { None } else { devices::list(None).ok() };
        let session = OwnedSession::create()?;
        let fake_driver =
            devices.is_none().then(|| links::fake_driver(&session, &parts)).transpose()?;
        let clock = Instant::now();
        let deadline = clock + GRACE;
        Ok(Self {
            daemon: None,
            devices,
            fake_driver,
            limiter,
            parts,
            clock,
            deadline,
            signal,
            session,
        })
    }

    /// The socket of the demo's daemon, once that runs.
    pub(super) fn daemon(&self) -> Option<&Path> {
        self.daemon.as_ref().map(|daemon| daemon.socket.as_path())
    }

    pub(super) fn is_fake(&self) -> bool {
        self.fake_driver.is_some()
    }

    /// The device's memory in bytes, if it is a real device.
    pub(super) fn device_memory(&self, uuid: GpuId) -> Option<u64> {
        let devices = self.devices.as_ref()?;
        devices.iter().find(|d| d.uuid == uuid)?.known_memory()
    }

    /// Measures the load alone, without Sluice.
    pub(super) fn measure_native(&mut self, load: &TenantLoad) -> Result<Measured, Error> {
        let mut command = self.command(parts::TENANT)?;
        if let Some(folder) = &self.fake_driver {
            command.env("LD_LIBRARY_PATH", folder);
        }
        load.give_to(&mut command);
        let mut running = self.start(command, "native", load.length)?;
        self.finish(&mut running)
    }

    /// Starts a daemon for this demo alone.
    pub(super) fn start_daemon(&mut self) -> Result<(), Error> {
        let socket = self.session.path().join("hypervisor.sock");
        let log = self.session.path().join("hypervisor.log");
        let mut command = self.command(parts::HYPERVISOR)?;
        if let Some(folder) = &self.fake_driver {
            command.env("LD_LIBRARY_PATH", folder);
        }
        command.arg("daemon").arg("--socket").arg(&socket);
        let child = spawn(command.stdout(Stdio::null()), &log)?;
        let mut daemon = DemoDaemon { child, socket };
        let start = Instant::now();
        while let Err(reason) = daemon_link::answers(&daemon.socket) {
            self.check_interrupt()?;
            let ended = daemon.child.try_wait().ok().flatten();
            if ended.is_some() || start.elapsed() > DAEMON_START {
                let state = ended.map_or(reason.to_string(), |status| status.to_string());
                let problem = format!("{state}{}", last_words(&log));
                return Err(Error::Helper { name: parts::HYPERVISOR, problem });
            }
            sleep(TICK);
        }
        self.daemon = Some(daemon);
        Ok(())
    }

    /// Starts a tenant that takes memory, up to twice as much as it may have.
    pub(super) fn start_memory(
        &mut self,
        name: &str,
        limits: &LimitArgs,
        uuid: GpuId,
    ) -> Result<RunningTenant, Error> {
        let mut command = self.member(name, limits, uuid)?;
        let cap = limits.mem.and_then(|memory| memory.of(None)).unwrap_or(CHUNK).saturating_mul(2);
        command.args(["mem", "--api", "alloc"]);
        command.args(["--chunk", &CHUNK.to_string(), "--cap", &cap.to_string()]);
        self.start(command, &format!("{name}-memory"), Duration::ZERO)
    }

    /// Starts a tenant that runs `load`.
    pub(super) fn start_load(
        &mut self,
        name: &str,
        limits: &LimitArgs,
        uuid: GpuId,
        load: &TenantLoad,
    ) -> Result<RunningTenant, Error> {
        let mut command = self.member(name, limits, uuid)?;
        load.give_to(&mut command);
        self.start(command, name, load.length)
    }

    /// Whether the tenant has ended. An error if it takes far too long.
    pub(super) fn has_ended(&self, running: &mut RunningTenant) -> Result<bool, Error> {
        let ended = running.poll()?.is_some();
        if !ended && Instant::now() > self.deadline {
            let problem = "it did not end in time".to_owned();
            return Err(Error::Helper { name: parts::TENANT, problem });
        }
        Ok(ended)
    }

    /// Waits for the tenant's result.
    pub(super) fn finish<T: DeserializeOwned>(
        &self,
        running: &mut RunningTenant,
    ) -> Result<T, Error> {
        loop {
            self.check_interrupt()?;
            if self.has_ended(running)?
                && let Some(status) = running.poll()?
            {
                return running.result(status);
            }
            sleep(TICK);
        }
    }

    /// An error if a signal has asked for the end.
    pub(super) fn check_interrupt(&self) -> Result<(), Error> {
        match u8::try_from(self.signal.load(Ordering::Relaxed)) {
            Ok(0) | Err(_) => Ok(()),
            Ok(signal) => Err(Error::Interrupted { signal }),
        }
    }

    fn start(
        &mut self,
        mut command: Command,
        name: &str,
        length: Duration,
    ) -> Result<RunningTenant, Error> {
        let errors = self.session.path().join(format!("{name}.log"));
        self.deadline = Instant::now() + length + GRACE;
        let child = spawn(command.stdout(Stdio::piped()), &errors)?;
        RunningTenant::follow(child, errors, self.clock)
    }

    /// `tenant` as a member of the session `name` under `limits`.
    fn member(&self, name: &str, limits: &LimitArgs, uuid: GpuId) -> Result<Command, Error> {
        let path = self.session.path().join(name);
        let is_new = !path.is_dir();
        // The daemon's socket, which is in the session's directory, is listed for all users.
        let session = if is_new { self.session.inner_session(name)? } else { path };
        let environment = MemberEnvironment {
            label: Label::default(),
            limiter: links::preloadable(&self.session, &session, &self.limiter)?,
            session,
            fake_driver: self.fake_driver.clone(),
            request: limits.request(),
            devices: vec![VisibleGpu { index: 0, uuid, name: String::new(), memory: 0 }],
            only_these: true,
            daemon: self.daemon.as_ref().map(|daemon| daemon.socket.clone()),
            no_other_daemon: true,
        };
        let kept = |name: &str| var_os(name).filter(|_| KEPT.contains(&name));
        if is_new {
            let current = KEPT.iter().filter_map(|name| Some((name.into(), kept(name)?)));
            environment.decide(current, Vec::new)?;
        }
        let mut command = self.command(parts::TENANT)?;
        environment.apply(&mut command, kept);
        Ok(command)
    }

    fn command(&self, program: &'static str) -> Result<Command, Error> {
        let mut command = Command::new(self.parts.find(program)?);
        command.env_clear().stdin(Stdio::null());
        command.envs(KEPT.iter().filter_map(|name| Some((name, var_os(name)?))));
        // A simulated node of its own, so that demos at the same time do not disturb each other.
        command.env(env::FAKE_NODE, self.session.path().join("fake-node"));
        Ok(command)
    }
}

fn spawn(command: &mut Command, errors: &Path) -> Result<Child, Error> {
    let file = File::create(errors)
        .map_err(|e| Error::system(format!("cannot write {}", errors.display()), e))?;
    let program = command.get_program().display().to_string();
    command.stderr(file).spawn().map_err(|source| Error::Spawn { program, source })
}

/// The daemon of this demo. It is ended on drop.
struct DemoDaemon {
    child: Child,
    socket: PathBuf,
}

impl Drop for DemoDaemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
