//! The state of the limiter in this process: made at the first call into a patched function, made
//! anew in a forked child.

use crate::config::{Config, DeviceIdentity, OnFailure, ProcessEnvironment};
use crate::device::{self, Device};
use crate::{clock, compute, driver_calls, report};
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use driver::cuda;
use limits::uuid::DeviceUuid;
use session::page::{Page, SessionLimits};
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

/// Devices that one process can see. The driver itself stops at 64.
const MAX_DEVICES: usize = 64;

/// Why the limiter cannot do its work; the program's CUDA calls fail then, or pass, as configured.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Refused(pub(crate) String);

/// What a call may do.
#[derive(Clone, Copy)]
pub(crate) enum Verdict<T> {
    /// There is a limit, or one may come: `T` keeps account, and keeps the limit.
    Limited(T),
    /// There is nothing to limit, or the limiter is configured to let calls pass when it fails.
    Free,
    /// The limiter cannot do its work and is configured to let nothing pass.
    Denied,
}

/// The process-wide state.
pub(crate) struct Process {
    config: Result<Config, Refused>,
    on_failure: OnFailure,
    session_dir: Mutex<Option<PathBuf>>,
    devices: Mutex<HashMap<DeviceUuid, Result<Option<&'static Device>, Refused>>>,
    by_ordinal: [AtomicPtr<Device>; MAX_DEVICES],
    /// The devices that are accounted and have been used, null behind the last: for reading without a lock.
    used: [AtomicPtr<Device>; MAX_DEVICES],
}

static PROCESS: AtomicPtr<Process> = AtomicPtr::new(ptr::null_mut());
/// Whether a thread is making the state. Not a mutex, because a forked child has to be able to take
/// it away from a thread that it does not have.
static MAKING: AtomicBool = AtomicBool::new(false);

/// The state, made now if need be.
pub(crate) fn get() -> &'static Process {
    if let Some(runtime) = existing() {
        return runtime;
    }
    while MAKING.swap(true, Ordering::Acquire) {
        clock::sleep(100_000);
    }
    let runtime = existing().unwrap_or_else(|| {
        let runtime = Box::leak(Box::new(Process::new()));
        PROCESS.store(runtime, Ordering::Release);
        runtime
    });
    MAKING.store(false, Ordering::Release);
    runtime
}

/// The state, if it has been made.
pub(crate) fn existing() -> Option<&'static Process> {
    // SAFETY: null, or leaked and never freed.
    unsafe { PROCESS.load(Ordering::Acquire).as_ref() }
}

/// In a forked child: nothing that the parent had is ours. The memory stays allocated, because
/// threads of the parent may have been in the middle of using it.
extern "C" fn after_fork() {
    if let Some(runtime) = existing() {
        for cell in &runtime.by_ordinal {
            // SAFETY: null, or leaked and never freed.
            if let Some(device) = unsafe { cell.load(Ordering::Relaxed).as_ref() } {
                device.gate().abandon();
            }
        }
    }
    compute::after_fork();
    crate::memory::after_fork();
    crate::reconciler::after_fork();
    MAKING.store(false, Ordering::Relaxed);
    PROCESS.store(ptr::null_mut(), Ordering::Release);
}

/// Registers `after_fork`. To be called once, from the constructor.
pub(crate) fn watch_forks() {
    // SAFETY: the handler only stores to memory.
    unsafe { libc::pthread_atfork(None, None, Some(after_fork)) };
}

impl Process {
    fn new() -> Self {
        // Said by the first call that fails for it.
        let config =
            Config::from_env(&ProcessEnvironment).map_err(|error| Refused(error.to_string()));
        let on_failure = config.as_ref().map_or(OnFailure::Closed, |config| config.on_failure);
        if let Ok(config) = &config {
            report::enable_log(config.log.tracing());
            for warning in &config.warnings {
                report::once(format_args!("{warning}"));
            }
        }
        // A configuration that cannot be read is for the slow path to deny.
        compute::set_gated(Some(config.as_ref().map_or(true, |config| {
            config.limits_compute() && config.cuda_hooks && !config.control_disabled
        })));
        Self {
            config,
            on_failure,
            session_dir: Mutex::new(None),
            devices: Mutex::new(HashMap::new()),
            by_ordinal: [const { AtomicPtr::new(ptr::null_mut()) }; MAX_DEVICES],
            used: [const { AtomicPtr::new(ptr::null_mut()) }; MAX_DEVICES],
        }
    }

    /// Whether calls of the CUDA family are to be handled at all.
    pub(crate) fn cuda(&self) -> Verdict<()> {
        if let Some(failure) = crate::patch::failure()
            && self.config.as_ref().is_ok_and(|config| {
                config.limits_anything() || self.devices().any(Device::is_limited)
            })
        {
            return self.fail(&Refused(failure.to_owned()));
        }
        match &self.config {
            Ok(config) if config.cuda_hooks && !config.control_disabled => Verdict::Limited(()),
            Ok(_) => Verdict::Free,
            Err(refused) => self.fail(refused),
        }
    }

    /// Whether devices have a page. A process without limits, in which not everything could be patched,
    /// is left alone: one that is given later could not be kept.
    fn keeps_account(&self, config: &Config) -> bool {
        config.keeps_account() && (config.limits_anything() || crate::patch::failure().is_none())
    }

    /// A device's time has come to be limited, or is no more: says whether launches are looked at.
    pub(crate) fn gates_changed(&self) {
        let handled = self.config.as_ref().is_ok_and(|config| {
            config.cuda_hooks && !config.control_disabled && self.keeps_account(config)
        });
        if handled {
            let any = || self.devices().any(|device| device.gate().is_active());
            compute::set_gated_by(|| crate::patch::failure().is_none().then(any));
        }
    }

    /// Whether calls of the NVML family are to be handled at all.
    pub(crate) fn nvml(&self) -> Verdict<()> {
        match &self.config {
            Ok(config) if config.nvml_hooks && !config.control_disabled => Verdict::Limited(()),
            Ok(_) => Verdict::Free,
            Err(refused) => self.fail(refused),
        }
    }

    fn fail<T>(&self, refused: &Refused) -> Verdict<T> {
        match self.on_failure {
            OnFailure::Closed => {
                report::once(format_args!("{refused}; GPU calls of this process fail"));
                Verdict::Denied
            }
            OnFailure::Open => {
                report::once(format_args!("{refused}; GPU calls of this process are NOT limited"));
                Verdict::Free
            }
        }
    }

    /// The configuration. Only for what comes after [`Self::cuda`] said yes.
    pub(crate) fn config(&self) -> Option<&Config> {
        self.config.as_ref().ok()
    }

    /// A device by the ordinal that the program uses.
    pub(crate) fn device(&self, ordinal: cuda::Device) -> Verdict<&'static Device> {
        match self.cuda() {
            Verdict::Limited(()) => {}
            Verdict::Free => return Verdict::Free,
            Verdict::Denied => return Verdict::Denied,
        }
        let Some(cell) = usize::try_from(ordinal).ok().and_then(|i| self.by_ordinal.get(i)) else {
            // Not an ordinal: the driver says so better.
            return Verdict::Free;
        };
        // SAFETY: null, or leaked and never freed.
        if let Some(device) = unsafe { cell.load(Ordering::Acquire).as_ref() } {
            return self.verdict_on(device);
        }
        let Some(uuid) = uuid_of(ordinal) else { return Verdict::Free };
        let verdict = self.device_by_uuid(uuid, u32::try_from(ordinal).ok());
        if let Verdict::Limited(device) = verdict {
            cell.store(ptr::from_ref(device).cast_mut(), Ordering::Release);
        }
        verdict
    }

    /// A device that is accounted: whether its limits can still be kept.
    fn verdict_on(&self, device: &'static Device) -> Verdict<&'static Device> {
        match device.broken() {
            None => Verdict::Limited(device),
            Some(refused) => self.fail(refused),
        }
    }

    /// A limit turned out to be one that cannot be kept, in the middle of a call: whether the call may
    /// go on without it.
    pub(crate) fn goes_on_without(&self, refused: &Refused) -> bool {
        matches!(self.fail::<()>(refused), Verdict::Free)
    }

    /// A device by UUID. `visible_index`: the ordinal, where it is known.
    pub(crate) fn device_by_uuid(
        &self,
        uuid: DeviceUuid,
        visible_index: Option<u32>,
    ) -> Verdict<&'static Device> {
        let config = match &self.config {
            Ok(config) => config,
            Err(refused) => return self.fail(refused),
        };
        if !self.keeps_account(config) {
            return Verdict::Free;
        }
        // NVML is loaded before the lock is taken: loading runs other people's code.
        let host_index =
            config.needs_host_index().then(|| driver_calls::nvml::host_index(uuid)).flatten();
        let ordinal = visible_index;
        // Programs that are not narrowed down to some devices count them as the host does.
        let visible_index = visible_index.or_else(|| {
            driver_calls::nvml::host_index(uuid).filter(|_| !device::is_narrowed_down())
        });
        let size = config
            .needs_device_size()
            .then(|| driver_calls::nvml::total_memory(uuid, ordinal))
            .flatten();
        let mut devices = self.devices.lock().unwrap_or_else(PoisonError::into_inner);
        let made = devices.entry(uuid).or_insert_with(|| {
            let identity = DeviceIdentity { uuid, host_index, visible_index };
            let limits = config.limits_for(&identity);
            if !limits.unresolved.is_empty() {
                return Err(Refused(format!(
                    "device {uuid}: which of these limits are meant for it cannot be told, because its index is not known: {}",
                    limits.unresolved.join(", ")
                )));
            }
            if let Some(conflict) = &limits.conflict {
                return Err(Refused(format!("device {uuid}: {conflict}")));
            }
            tracing::info!("{}", config.effective_line(&[(identity, limits.clone())]));
            let limits = limits
                .session(size)
                .map_err(|problem| Refused(format!("device {uuid}: {problem}")))?;
            self.make_device(config, uuid, &limits)
        });
        match made {
            Ok(Some(device)) => self.verdict_on(device),
            Ok(None) => Verdict::Free,
            Err(refused) => self.fail(refused),
        }
    }

    /// Takes part in the session's account of a device. `None`: that cannot be done, and is not needed,
    /// because nobody can have set a limit.
    fn make_device(
        &self,
        config: &Config,
        uuid: DeviceUuid,
        limits: &SessionLimits,
    ) -> Result<Option<&'static Device>, Refused> {
        let Some(place) = self.used.iter().find(|used| used.load(Ordering::Relaxed).is_null())
        else {
            return Err(Refused(format!(
                "device {uuid}: {MAX_DEVICES} devices can be used in one process"
            )));
        };
        let dir = self.make_session_dir(config);
        let made = dir.clone().and_then(|dir| Device::new(uuid, limits, &dir));
        match made {
            Ok(device) => {
                let device = Box::leak(Box::new(device));
                place.store(device, Ordering::Release);
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

    fn make_session_dir(&self, config: &Config) -> Result<PathBuf, Refused> {
        let mut dir = self.session_dir.lock().unwrap_or_else(PoisonError::into_inner);
        match dir.as_ref() {
            Some(dir) => Ok(dir.clone()),
            None => Ok(dir.insert(device::session_dir(config)?).clone()),
        }
    }

    /// The devices that are accounted and have been used.
    pub(crate) fn devices(&self) -> impl Iterator<Item = &'static Device> {
        // SAFETY: null, or leaked and never freed.
        self.used.iter().map_while(|used| unsafe { used.load(Ordering::Acquire).as_ref() })
    }

    /// The device of the calling thread's current context; `Free` where there is none.
    pub(crate) fn current_device(&self) -> Verdict<&'static Device> {
        let mut ordinal = 0;
        if driver_calls::ctx_get_device(&raw mut ordinal).is_ok() {
            self.device(ordinal)
        } else {
            // Without a context the driver's own error is the right answer.
            Verdict::Free
        }
    }

    /// The session's name: the last part of its directory.
    pub(crate) fn session_name(&self) -> String {
        let dir = self.session_dir.lock().unwrap_or_else(PoisonError::into_inner);
        dir.as_ref()
            .and_then(|dir| dir.file_name())
            .map_or_else(String::new, |name| name.to_string_lossy().into_owned())
    }
}

/// A device's UUID by ordinal.
fn uuid_of(ordinal: cuda::Device) -> Option<DeviceUuid> {
    let mut uuid = cuda::Uuid::default();
    let found = driver_calls::device_get_uuid_v2(&raw mut uuid, ordinal).is_ok()
        || driver_calls::device_get_uuid(&raw mut uuid, ordinal).is_ok();
    found.then(|| DeviceUuid::from_bytes(uuid.bytes))
}
