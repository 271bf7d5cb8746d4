//! The limiter's state in this process: one value, made at the first call into a patched function and handed to all
//! code that needs it. A forked child makes a new one.

use crate::compute::{self, Gate, Launched, Source};
use crate::device::{self, Device};
use crate::device_list::{DeviceList, MAX_DEVICES};
use crate::driver_calls::library::Start;
use crate::driver_calls::{self, nvml};
use crate::environment::{self, Decided};
use crate::exit_guard::ExitGuard;
use crate::ledger::DeviceLedger;
use crate::memory::{DeviceMemory, Memory, Much, marks};
use crate::verdict::{LimiterFailure, Verdict};
use crate::{build, clock, report, unpatched};
use config::{Config, DaemonAddress, DeviceIdentity, OnFailure, Snapshot};
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use core::time::Duration;
use driver::cuda::{self, CuResult, Stream};
use limits::GpuId;
use limits::Limits;
use protocol::socket::default_sockets;
use session::{Page, directory, node_page};
use std::collections::HashMap;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};

/// How long the process's exit waits for the governors, and for the reconciler, to leave the driver.
const GOVERNORS_LEAVE: Duration = Duration::from_millis(100);
const RECONCILER_LEAVES: Duration = Duration::from_millis(500);

/// A device with its page; `None`: it has no page and needs none.
type Joined = Result<Option<&'static Device>, LimiterFailure>;

/// The limiter's state in this process.
pub(crate) struct Process {
    config: Result<Config, LimiterFailure>,
    on_failure: OnFailure,
    /// The variables that apply.
    decided: Snapshot,
    /// The only devices that the session may use; `None`: all.
    only: Option<Vec<GpuId>>,
    /// The variables that the driver saw in `cuInit`.
    seen_by_driver: Mutex<Option<Snapshot>>,
    /// Evaluated when something could not be patched.
    is_limited: OnceLock<bool>,
    session_dir: Mutex<Option<PathBuf>>,
    known: Mutex<HashMap<GpuId, Joined>>,
    by_ordinal: [AtomicPtr<Device>; MAX_DEVICES],
    /// The used devices that have a ledger.
    devices: DeviceList<Device>,
    pub(crate) memory: Memory,
    pub(crate) guard: ExitGuard,
}

static PROCESS: AtomicPtr<Process> = AtomicPtr::new(ptr::null_mut());
/// Whether a thread is making the state. Not a mutex: a forked child must be able to reset it when the thread that set
/// it does not exist in the child.
static MAKING: AtomicBool = AtomicBool::new(false);

/// The state; makes it if needed. Only hooks call this; they hand the state on.
#[inline]
pub(crate) fn get() -> &'static Process {
    existing().unwrap_or_else(make)
}

#[cold]
fn make() -> &'static Process {
    /// Lets the next thread try, even after a panic.
    struct Turn;
    impl Drop for Turn {
        fn drop(&mut self) {
            MAKING.store(false, Ordering::Release);
        }
    }
    while MAKING.swap(true, Ordering::Acquire) {
        clock::sleep(100_000);
    }
    let _turn = Turn;
    existing().unwrap_or_else(|| {
        let process = Box::leak(Box::new(Process::new()));
        PROCESS.store(process, Ordering::Release);
        process
    })
}

#[inline]
fn existing() -> Option<&'static Process> {
    // SAFETY: null, or leaked and never freed.
    unsafe { PROCESS.load(Ordering::Acquire).as_ref() }
}

/// Forgets the parent's state in a forked child. Its memory stays allocated, because the parent's threads may have been
/// using it at the fork.
extern "C" fn after_fork() {
    session::clock::forget_namespace();
    compute::after_fork(existing().into_iter().flat_map(Process::gates));
    marks::after_fork();
    MAKING.store(false, Ordering::Relaxed);
    PROCESS.store(ptr::null_mut(), Ordering::Release);
}

/// Keeps this process's session from being removed while the program runs. Must be called from the constructor.
pub(crate) fn hold_session() {
    if let Some(dir) = environment::session() {
        directory::hold(&dir);
    }
    session::descriptors::make_room();
}

/// Registers `after_fork`. Must be called once, from the constructor.
pub(crate) fn watch_forks() {
    // SAFETY: the handler only stores to memory, and closes descriptors.
    unsafe { libc::pthread_atfork(None, None, Some(after_fork)) };
}

/// Makes the limiter's threads leave the driver before it shuts down.
extern "C" fn at_exit() {
    let Some(process) = existing().filter(|process| process.guard.is_of_this_process()) else {
        return;
    };
    process.gates().for_each(compute::settle);
    process.guard.governors.keep_out(GOVERNORS_LEAVE);
    process.gates().for_each(Gate::leave_unattended);
    process.guard.reconciler.keep_out(RECONCILER_LEAVES);
}

impl Process {
    fn new() -> Self {
        // An error is reported by the first call that it makes fail.
        let read = environment::decided().map_err(|error| LimiterFailure(error.to_string()));
        if let Ok(Decided { config, in_vain, .. }) = &read {
            if let Some(file) = &config.log_file {
                report::write_to(file);
            }
            report::enable_log(config.log.tracing());
            tracing::debug!("this is {}", build::line());
            for line in in_vain.iter().chain(&config.warnings) {
                report::each_once(format_args!("{line}"));
            }
        }
        let (config, decided, only) = match read {
            Ok(Decided { config, variables, only, .. }) => (Ok(config), variables, only),
            Err(failure) => (Err(failure), Snapshot::default(), None),
        };
        let on_failure = config.as_ref().map_or(OnFailure::Closed, |config| config.on_failure);
        // If the configuration is unreadable, the slow path denies the launch.
        compute::set_gated(Some(config.as_ref().map_or(true, |config| {
            config.limits_compute() && config.cuda_hooks && !config.control_disabled
        })));
        Self {
            config,
            on_failure,
            decided,
            only,
            seen_by_driver: Mutex::new(None),
            is_limited: OnceLock::new(),
            session_dir: Mutex::new(None),
            known: Mutex::new(HashMap::new()),
            by_ordinal: [const { AtomicPtr::new(ptr::null_mut()) }; MAX_DEVICES],
            devices: DeviceList::new(),
            memory: Memory::new(),
            guard: ExitGuard::new(at_exit),
        }
    }

    /// Whether CUDA calls are to be handled.
    pub(crate) fn cuda(&self) -> Verdict<()> {
        if let Some(failure) = unpatched::failure()
            && self.config.as_ref().is_ok_and(|config| {
                self.is_limited(config) || self.devices().any(|device| device.ledger.is_limited())
            })
        {
            return self.fail(&LimiterFailure(failure.to_owned()));
        }
        match &self.config {
            Ok(config) if config.cuda_hooks && !config.control_disabled => Verdict::Limited(()),
            Ok(_) => Verdict::Free,
            Err(refused) => self.fail(refused),
        }
    }

    /// Whether any limit applies to this process: one of its own, or one of its session.
    fn is_limited(&self, config: &Config) -> bool {
        *self.is_limited.get_or_init(|| device::is_limited(config))
    }

    /// Whether devices get a page. A process without limits in which some function could not be patched is left alone:
    /// a later limit could not be enforced.
    fn keeps_account(&self, config: &Config) -> bool {
        config.keeps_account() && (unpatched::failure().is_none() || self.is_limited(config))
    }

    /// Decides anew whether launches are checked, after a device's compute share was set or lifted.
    pub(crate) fn gates_changed(&self) {
        let handled = self.config.as_ref().is_ok_and(|config| {
            config.cuda_hooks && !config.control_disabled && self.keeps_account(config)
        });
        if handled {
            let any = || self.devices().any(|device| device.gate.is_active());
            compute::set_gated_by(|| unpatched::failure().is_none().then(any));
        }
    }

    /// Whether NVML calls are to be handled.
    pub(crate) fn nvml(&self) -> Verdict<()> {
        match &self.config {
            Ok(config) if config.nvml_hooks && !config.control_disabled => Verdict::Limited(()),
            Ok(_) => Verdict::Free,
            Err(refused) => self.fail(refused),
        }
    }

    fn fail<T>(&self, refused: &LimiterFailure) -> Verdict<T> {
        refused.verdict(self.on_failure)
    }

    /// A device by the program's ordinal.
    pub(crate) fn device(&'static self, ordinal: cuda::Device) -> Verdict<&'static Device> {
        match self.cuda() {
            Verdict::Limited(()) => {}
            Verdict::Free => return Verdict::Free,
            Verdict::Denied => return Verdict::Denied,
        }
        let Some(cell) = usize::try_from(ordinal).ok().and_then(|i| self.by_ordinal.get(i)) else {
            // Not an ordinal: the driver returns the error.
            return Verdict::Free;
        };
        // SAFETY: null, or leaked and never freed.
        if let Some(device) = unsafe { cell.load(Ordering::Acquire).as_ref() } {
            return self.verdict_on(device);
        }
        let Some(uuid) = uuid_of(ordinal) else { return Verdict::Free };
        let verdict = self.device_by_uuid(uuid, u32::try_from(ordinal).ok());
        if let Verdict::Limited(device) = verdict {
            device.memory.is_called(ordinal);
            cell.store(ptr::from_ref(device).cast_mut(), Ordering::Release);
        }
        verdict
    }

    /// The verdict on a device with a ledger: whether its limits can still be enforced.
    fn verdict_on(&self, device: &'static Device) -> Verdict<&'static Device> {
        match device.ledger.broken() {
            None => Verdict::Limited(device),
            Some(refused) => self.fail(refused),
        }
    }

    /// Whether the session may use a device.
    pub(crate) fn may_use(&self, uuid: GpuId) -> bool {
        let is = |device: &GpuId| device.bytes() == uuid.bytes();
        self.only.as_ref().is_none_or(|only| only.iter().any(is))
    }

    /// Runs `cuInit`. Keeps the environment of the first successful one, which determines the driver's ordinals.
    pub(crate) fn driver_starts(&self, init: impl FnOnce() -> CuResult) -> CuResult {
        let seen = || self.seen_by_driver.lock().unwrap_or_else(PoisonError::into_inner);
        seen().get_or_insert_with(Snapshot::take);
        driver_calls::library::starts(Start::Begun);
        let result = init();
        driver_calls::library::starts(if result.is_ok() { Start::Done } else { Start::Not });
        if !result.is_ok() {
            *seen() = None;
        }
        result
    }

    fn seen_by_driver(&self) -> Snapshot {
        let seen = self.seen_by_driver.lock().unwrap_or_else(PoisonError::into_inner);
        seen.clone().unwrap_or_else(Snapshot::take)
    }

    /// A device by UUID, for a CUDA call. `ordinal`: the program's ordinal, if known.
    fn device_by_uuid(
        &'static self,
        uuid: GpuId,
        ordinal: Option<u32>,
    ) -> Verdict<&'static Device> {
        let config = match &self.config {
            Ok(config) => config,
            Err(refused) => return self.fail(refused),
        };
        if !self.may_use(uuid) {
            // Always refused: not a failure of the limiter.
            let refused = format!(
                "device {uuid} does not belong to this session, which was started for other devices"
            );
            return LimiterFailure(refused).verdict(OnFailure::Closed);
        }
        if !self.keeps_account(config) {
            return Verdict::Free;
        }
        match self.joined(config, uuid, ordinal) {
            Ok(Some(device)) => self.verdict_on(device),
            Ok(None) => Verdict::Free,
            Err(refused) => self.fail(&refused),
        }
    }

    /// A device by UUID, for a query. A device that the program cannot use, or whose limits are unknown, is free: calls
    /// that use it are refused.
    pub(crate) fn device_to_look_at(&'static self, uuid: GpuId) -> Verdict<&'static Device> {
        match &self.config {
            Ok(config) if self.may_use(uuid) && self.keeps_account(config) => {
                match self.joined(config, uuid, None) {
                    Ok(Some(device)) => self.verdict_on(device),
                    Ok(None) | Err(_) => Verdict::Free,
                }
            }
            _ => Verdict::Free,
        }
    }

    /// A device with the session's page, joined at the first use.
    fn joined(&'static self, config: &Config, uuid: GpuId, ordinal: Option<u32>) -> Joined {
        let known = || self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(made) = known().get(&uuid) {
            return made.clone();
        }
        // Loads NVML before the lock is taken: loading a library runs foreign code.
        let limits = self.limits_of(config, uuid, ordinal);
        let dir = limits.is_ok().then(|| self.make_session_dir(config));
        let mut known = known();
        if let Some(made) = known.get(&uuid) {
            return made.clone();
        }
        let made = match (limits, dir) {
            (Ok(limits), Some(dir)) => self.make_device(config, uuid, &limits, dir),
            (Err(refused), _) => Err(refused),
            (Ok(_), None) => Ok(None),
        };
        // A query without an ordinal may fail where a later call with one does not.
        if made.is_ok() || ordinal.is_some() {
            known.insert(uuid, made.clone());
        }
        made
    }

    /// The limits that the process's settings ask for on a device.
    fn limits_of(
        &self,
        config: &Config,
        uuid: GpuId,
        ordinal: Option<u32>,
    ) -> Result<Limits, LimiterFailure> {
        let identity = self.identity(uuid, ordinal);
        let settings = config.limits_for(&identity);
        if !settings.unresolved.is_empty() {
            return Err(LimiterFailure(format!(
                "device {uuid}: cannot tell which of these limits apply, because its index is not known{}: {}",
                if nvml::load() { "" } else { " without libnvidia-ml.so.1" },
                settings.unresolved.join(", ")
            )));
        }
        if let Some(conflict) = &settings.conflict {
            return Err(LimiterFailure(format!("device {uuid}: {conflict}")));
        }
        if config.names_devices() {
            self.check_fit(config, uuid)?;
        }
        tracing::info!("{}", config.effective_line(&[(identity, settings.clone())]));
        let size = || size_on_page(config, uuid).or_else(|| nvml::total_memory(uuid, ordinal));
        let size = config.needs_device_size().then(size).flatten();
        let limits = settings.session(size);
        limits.map_err(|problem| LimiterFailure(format!("device {uuid}: {problem}")))
    }

    /// A device that is known already, by the bytes of its UUID. Queries neither the driver nor NVML.
    pub(crate) fn known_device(&self, uuid: [u8; 16]) -> Verdict<&'static Device> {
        let devices = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        match devices.get(&GpuId::from_bytes(uuid)) {
            Some(Ok(Some(device))) => self.verdict_on(device),
            _ => Verdict::Free,
        }
    }

    /// A device with all its names. `ordinal`: the program's ordinal, if known.
    fn identity(&self, uuid: GpuId, ordinal: Option<u32>) -> DeviceIdentity {
        let is_named = self.config.as_ref().is_ok_and(Config::names_devices);
        let seen = self.seen_by_driver();
        let by_driver = || {
            let is_only = ordinal.is_some() && count_of_driver() == 1 && nvml::count().is_none();
            is_only.then(|| config::only_index(&seen)).flatten()
        };
        let host_index = is_named.then(|| nvml::host_index(uuid).or_else(by_driver)).flatten();
        let visible_index =
            config::visible_index(uuid, ordinal, || host_index, &self.decided, &seen);
        DeviceIdentity { uuid, host_index, visible_index }
    }

    /// The devices that the driver shows this process and the session may use; none before `cuInit`.
    fn visible(&self) -> Vec<DeviceIdentity> {
        let uuids = (0..count_of_driver()).filter_map(|ordinal| Some((uuid_of(ordinal)?, ordinal)));
        uuids
            .filter(|(uuid, _)| self.may_use(*uuid))
            .map(|(uuid, ordinal)| self.identity(uuid, u32::try_from(ordinal).ok()))
            .collect()
    }

    /// The node's devices: those that NVML lists, and others that the driver shows.
    fn all_devices(&self) -> Vec<DeviceIdentity> {
        let mut shown = self.visible();
        let mut all: Vec<DeviceIdentity> = Vec::new();
        for uuid in nvml::devices().filter_map(nvml::uuid_of) {
            let found = shown.iter().position(|device| device.uuid == uuid);
            all.push(found.map_or_else(|| self.identity(uuid, None), |at| shown.remove(at)));
        }
        all.extend(shown);
        all
    }

    /// Refuses limits that name only devices which the process does not see, because they would limit nothing. Reports
    /// limits for devices that the node does not have. Without NVML, only the used device is known to exist.
    fn check_fit(&self, config: &Config, used: GpuId) -> Result<(), LimiterFailure> {
        let visible = self.visible();
        let unfit = if visible.is_empty() { Vec::new() } else { config.for_none_of(&visible) };
        if !unfit.is_empty() {
            let name = |device: &DeviceIdentity| match device.host_index {
                Some(index) => format!("{index} ({})", device.uuid),
                None => device.uuid.to_string(),
            };
            let seen: Vec<String> = visible.iter().map(name).collect();
            return Err(LimiterFailure(format!(
                "{}: no such device here, so nothing would be limited; this process sees {} (indices as in nvidia-smi)",
                unfit.join(", "),
                seen.join(", ")
            )));
        }
        let count = nvml::count();
        let is_there = |uuid| uuid == used || nvml::handle(uuid).is_some();
        let absent = config.absent(count.unwrap_or(u32::MAX), is_there);
        if !absent.is_empty() {
            report::each_once(format_args!("{}: no such device here", absent.join(", ")));
        }
        Ok(())
    }

    /// Joins the session's page of a device. `None`: the page cannot be joined, and need not be, because no limit can
    /// have been set.
    fn make_device(
        &'static self,
        config: &Config,
        uuid: GpuId,
        limits: &Limits,
        dir: Result<PathBuf, LimiterFailure>,
    ) -> Joined {
        if self.devices.is_full() {
            return Err(LimiterFailure(format!(
                "device {uuid}: too many devices; a process can use at most {MAX_DEVICES}"
            )));
        }
        if let (Some(_), Err(refused)) = (&config.session_dir, &dir) {
            // The session's limits are unknown.
            return Err(refused.clone());
        }
        let joined =
            dir.clone().and_then(|dir| DeviceLedger::join(uuid, limits, &dir, self.on_failure));
        match joined {
            Ok((ledger, limits)) => {
                let device = self.compose(config, Box::leak(Box::new(ledger)), &limits);
                let device = Box::leak(Box::new(device));
                self.memory.add(&device.memory);
                self.devices.push(device);
                self.gates_changed();
                Ok(Some(device))
            }
            Err(refused)
                if !limits.limits_anything() && !dir.is_ok_and(|dir| Page::exists(&dir, uuid)) =>
            {
                report::once(format_args!(
                    "{refused}; device {uuid} has no limit in this process and cannot be given one"
                ));
                Ok(None)
            }
            Err(refused) => Err(refused),
        }
    }

    fn compose(
        &'static self,
        config: &Config,
        ledger: &'static DeviceLedger,
        limits: &Limits,
    ) -> Device {
        let is_scheduled = limits.compute.is_limit();
        let socket = daemon_socket(config);
        if let (Some(port), None, true) = (&config.daemon, &socket, is_scheduled) {
            report::once(format_args!(
                "daemon at {port}: not used, because leases are granted over a Unix socket only; name it with \
                 SLUICE_DAEMON, and mount /run/sluice into a container; this session keeps its own account"
            ));
        }
        let daemon = socket.map(|socket| Source { socket, session: self.session_name() });
        Device {
            ledger,
            memory: self.memory.device(ledger),
            gate: Gate::new(ledger, &self.guard, daemon, config.gates, is_scheduled),
        }
    }

    /// The session's directory. Must be called without a lock, because it may query NVML.
    fn make_session_dir(&self, config: &Config) -> Result<PathBuf, LimiterFailure> {
        let known = || self.session_dir.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(dir) = known().as_ref() {
            return Ok(dir.clone());
        }
        let named = config.session_dir.is_none() && config.names_devices();
        let devices = if named { self.all_devices() } else { Vec::new() };
        let dir = device::session_dir(config, &devices)?;
        Ok(known().get_or_insert(dir).clone())
    }

    /// The used devices that have a ledger.
    pub(crate) fn devices(&self) -> impl Iterator<Item = &'static Device> {
        self.devices.iter()
    }

    /// The gates of the used devices.
    pub(crate) fn gates(&self) -> impl Iterator<Item = &'static Gate> {
        self.devices().map(|device| &device.gate)
    }

    /// The device of the calling thread's context; `Free` without a context.
    pub(crate) fn current_device(&'static self) -> Verdict<&'static Device> {
        let mut ordinal = 0;
        if driver_calls::ctx_get_device(&raw mut ordinal).is_ok() {
            self.device(ordinal)
        } else {
            // Without a context, the driver returns the error.
            Verdict::Free
        }
    }

    /// The memory of the calling thread's current device.
    pub(crate) fn current_memory(&'static self) -> Verdict<&'static DeviceMemory> {
        self.current_device().map(|device| &device.memory)
    }

    /// Runs a call that gives work to a stream, once the device's gate lets it pass.
    #[inline]
    pub(crate) fn launch(
        &'static self,
        launched: impl Into<Launched>,
        stream: Stream,
        per_thread: bool,
        call: impl FnOnce() -> CuResult,
    ) -> CuResult {
        compute::launch(launched, stream, per_thread, || self.current_gate(), call)
    }

    /// The gate of the current device; few launches need it.
    #[cold]
    fn current_gate(&'static self) -> Verdict<&'static Gate> {
        self.current_device().map(|device| &device.gate)
    }

    /// See [`Memory::driver_may_have_taken`].
    pub(crate) fn driver_may_have_taken(&'static self, much: Much) {
        self.memory.driver_may_have_taken(self.current_memory().limited(), much);
    }

    /// Starts the reconciler and the governor's watch of the limits when a context is created on a device.
    pub(crate) fn context_is_made(&'static self, device: &'static Device, context: usize) {
        compute::context_is_made(context);
        self.memory.start_reconciler(&self.guard);
        compute::follow_limits(&device.gate, |is_other| {
            if is_other {
                self.gates_changed();
            }
            // The bell: memory above a new limit that the session does not use can be released.
            self.memory.ring();
        });
    }

    /// The session's name: the last component of its directory.
    fn session_name(&self) -> String {
        let dir = self.session_dir.lock().unwrap_or_else(PoisonError::into_inner);
        dir.as_ref()
            .and_then(|dir| dir.file_name())
            .map_or_else(String::new, |name| directory::shown_name(Path::new(name)))
    }
}

/// The socket of the daemon that grants leases: the configured one, or else that of the node's or the user's daemon, if
/// it exists. A container gets it mounted. No daemon grants leases over TCP.
fn daemon_socket(config: &Config) -> Option<PathBuf> {
    if let Some(DaemonAddress::Unix(socket)) = &config.daemon {
        return Some(socket.clone());
    }
    let is_socket =
        |path: &PathBuf| std::fs::metadata(path).is_ok_and(|found| found.file_type().is_socket());
    let mut sockets = default_sockets().into_iter().filter(|_| config.finds_daemon);
    sockets.find(is_socket)
}

/// A device's memory in bytes according to the node's daemon, if its page is fresh; NVML is then not queried.
fn size_on_page(config: &Config, uuid: GpuId) -> Option<u64> {
    let figures = node_page::current_beside(&daemon_socket(config)?)?;
    let device = figures.devices.iter().find(|device| device.uuid == uuid)?;
    device.memory_total.filter(|&bytes| bytes > 0)
}

/// Number of devices that the driver shows; 0 before `cuInit`.
fn count_of_driver() -> cuda::Device {
    let mut count = 0;
    if driver_calls::device_get_count(&raw mut count).is_ok() { count } else { 0 }
}

/// A device's UUID by the program's ordinal.
fn uuid_of(ordinal: cuda::Device) -> Option<GpuId> {
    let mut uuid = cuda::Uuid::default();
    let found = driver_calls::device_get_uuid_v2(&raw mut uuid, ordinal).is_ok()
        || driver_calls::device_get_uuid(&raw mut uuid, ordinal).is_ok();
    found.then(|| GpuId::from_bytes(uuid.bytes))
}
