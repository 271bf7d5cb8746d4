//! A device that is accounted in this process.

use crate::compute::Gate;
use crate::config::Config;
use crate::memory::{Contexts, Tracker};
use crate::own;
use crate::report;
use crate::runtime::{self, Refused};
use core::ffi::c_uint;
use core::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use core::time::Duration;
use driver::nvml::Memory;
use limits::{GpuId, Limits};
use session::directory;
use session::layout::{Layout, Slot};
use session::{BookGuard, Membership, Page, PageError};
use std::ffi::CString;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// How often the dead are looked for where nothing is missing.
const REAP_PERIOD: Duration = Duration::from_millis(50);

/// What this process keeps about a device.
pub(crate) struct Device {
    uuid: GpuId,
    seat: Membership,
    /// Why the page is not believed any more.
    broken: OnceLock<Refused>,
    gate: Gate,
    /// What this process has taken.
    pub(crate) tracker: Tracker,
    /// The contexts among it.
    pub(crate) contexts: Contexts,
    /// Bytes of the images that the driver has been given, for their code to be placed.
    pub(crate) images: AtomicU64,
    /// What was left of the limit when this process last asked NVML.
    pub(crate) left_when_seen: AtomicU64,
}

impl Device {
    /// Takes a place in the session's page of the device. The limits are the page's from then on.
    pub(crate) fn new(uuid: GpuId, limits: &Limits, session_dir: &Path) -> Result<Self, Refused> {
        let refused = |error: session::PageError| Refused(error.to_string());
        let page = Page::open(session_dir, uuid, limits).map_err(refused)?;
        // Those of whoever made the page, or as they were changed since.
        let limits = page.look().map_err(refused)?.limits();
        Ok(Self {
            uuid,
            seat: Membership::claim(page).map_err(refused)?,
            broken: OnceLock::new(),
            gate: Gate::new(limits.compute.is_limit()),
            tracker: Tracker::default(),
            contexts: Contexts::default(),
            images: AtomicU64::new(0),
            left_when_seen: AtomicU64::new(0),
        })
    }

    pub(crate) const fn uuid(&self) -> GpuId {
        self.uuid
    }

    /// This process's place in the session's book.
    pub(crate) const fn seat(&self) -> &Membership {
        &self.seat
    }

    /// Opens the session's book; `None`, and a line that says so, where that cannot be done.
    pub(crate) fn book(&self) -> Option<BookGuard<'_>> {
        self.or_say(self.seat.book())
    }

    /// The page's fields, for reading without the book.
    pub(crate) fn page(&self) -> Option<&Layout> {
        self.or_say(self.seat.look())
    }

    /// What the page says of this process.
    pub(crate) fn own_slot(&self) -> Option<&Slot> {
        self.page()?.slots.get(self.seat.slot())
    }

    /// Gives back what dead processes left; `true`: there was something.
    pub(crate) fn reap(&self) -> bool {
        self.or_say(self.seat.reap()).is_some_and(|dead| dead > 0)
    }

    /// The page's fields without the dead, as far as a process of the session has looked for them a
    /// moment ago.
    pub(crate) fn page_reaped(&self) -> Option<&Layout> {
        self.or_say(self.seat.look_reaped(REAP_PERIOD))
    }

    /// Why the limits of this device cannot be kept any more.
    pub(crate) fn broken(&self) -> Option<&Refused> {
        self.broken.get()
    }

    /// Whether calls have to fail because the limits cannot be kept any more.
    pub(crate) fn is_denied(&self) -> bool {
        self.broken().is_some_and(|refused| !runtime::get().goes_on_without(refused))
    }

    fn or_say<T>(&self, result: Result<T, PageError>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(error @ PageError::Damaged { .. }) => {
                let _ = self.broken.set(Refused(format!("device {}: {error}", self.uuid)));
                None
            }
            Err(error) => {
                report::once(format_args!("device {}: {error}", self.uuid));
                None
            }
        }
    }

    /// The gate that launches pass.
    pub(crate) const fn gate(&self) -> &Gate {
        &self.gate
    }

    /// Whether the session has a limit on this device, as of now.
    pub(crate) fn is_limited(&self) -> bool {
        self.page().is_none_or(|page| page.limits().limits_anything())
    }
}

/// The directory of this process's session: the one that `sluice run` made, else one for all
/// processes of this user, pid namespace (container) and pod that carry the same limits.
pub(crate) fn session_dir(config: &Config) -> Result<PathBuf, Refused> {
    let dir = match &config.session_dir {
        Some(dir) => directory::check(dir).map(|()| dir.clone()),
        None => directory::implicit(&(&config.identity, config.limits_fingerprint())),
    };
    dir.map_err(|error| Refused(error.to_string()))
}

/// Loads NVML into this process, if it is not there, and starts it; `false` where that fails.
///
/// Threads that come at the same time each do it (both steps are counted by the libraries): waiting for
/// another thread here could wait for the loader's lock, which the caller may hold.
pub(crate) fn load_nvml() -> bool {
    const UNKNOWN: u8 = 0;
    const MISSING: u8 = 1;
    const LOADED: u8 = 2;
    static STATE: AtomicU8 = AtomicU8::new(UNKNOWN);
    match STATE.load(Ordering::Acquire) {
        MISSING => return false,
        LOADED => return true,
        _ => {}
    }
    // SAFETY: a fixed name; the handle is kept for the rest of the process.
    let handle =
        unsafe { libc::dlopen(c"libnvidia-ml.so.1".as_ptr(), libc::RTLD_LAZY | libc::RTLD_LOCAL) };
    let loaded = !handle.is_null() && own::nvml_init().is_ok();
    STATE.store(if loaded { LOADED } else { MISSING }, Ordering::Release);
    loaded
}

/// NVML's handle of a device.
pub(crate) fn nvml_handle(uuid: GpuId) -> Option<driver::nvml::NvmlDevice> {
    if !load_nvml() {
        return None;
    }
    let text = CString::new(uuid.to_string()).ok()?;
    let mut handle = core::ptr::null_mut();
    own::nvml_by_uuid(text.as_ptr(), &raw mut handle).is_ok().then_some(handle)
}

/// A device's index on the host, as `nvidia-smi` counts.
pub(crate) fn host_index(uuid: GpuId) -> Option<u32> {
    let handle = nvml_handle(uuid)?;
    let mut index: c_uint = 0;
    own::nvml_index(handle, &raw mut index).is_ok().then_some(index)
}

/// A device's memory in bytes: NVML's figure, which is the same for every process of a session and for
/// `sluice`; else the driver's. `ordinal`: as the program counts, where it is known.
pub(crate) fn total_memory(uuid: GpuId, ordinal: Option<u32>) -> Option<u64> {
    let mut memory = Memory { total: 0, free: 0, used: 0 };
    let by_nvml = |handle| own::nvml_memory(handle, &raw mut memory).is_ok();
    if nvml_handle(uuid).is_some_and(by_nvml) && memory.total > 0 {
        return Some(memory.total);
    }
    let mut bytes = 0;
    let ordinal = ordinal.and_then(|ordinal| i32::try_from(ordinal).ok())?;
    let known = own::device_total_mem(&raw mut bytes, ordinal).is_ok() && bytes > 0;
    known.then_some(bytes as u64)
}

/// Whether the program is to see only some of the host's devices, or in another order.
pub(crate) fn is_narrowed_down() -> bool {
    ["CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"]
        .iter()
        .any(|name| std::env::var_os(name).is_some_and(|value| !value.is_empty()))
}
