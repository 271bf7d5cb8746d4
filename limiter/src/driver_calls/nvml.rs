//! The limiter's own calls of NVML. NVML is loaded at the first of them.

use super::{
    device_total_mem, nvml_by_index, nvml_by_uuid, nvml_count, nvml_index, nvml_init, nvml_memory,
    nvml_processes, nvml_processes_v2, nvml_uuid,
};
use crate::report;
use core::cell::Cell;
use core::ffi::{CStr, c_char, c_uint};
use core::ptr;
use core::sync::atomic::{AtomicU8, Ordering};
use driver::nvml::{Memory, NvmlDevice, NvmlReturn, ProcessInfoV2};
use limits::GpuId;
use std::ffi::CString;

/// Loads NVML into this process unless it is loaded, and initialises it; returns whether that succeeded.
///
/// Concurrent threads each load and initialise it; both steps are counted. Waiting for another thread here could mean
/// waiting for the loader's lock, which the caller may hold.
pub(crate) fn load() -> bool {
    const UNKNOWN: u8 = 0;
    const MISSING: u8 = 1;
    const LOADED: u8 = 2;
    // Static, because the library stays loaded in a forked child.
    static STATE: AtomicU8 = AtomicU8::new(UNKNOWN);
    match STATE.load(Ordering::Acquire) {
        MISSING => return false,
        LOADED => return true,
        _ => {}
    }
    // SAFETY: a fixed name; the handle is kept for the rest of the process.
    let handle =
        unsafe { libc::dlopen(c"libnvidia-ml.so.1".as_ptr(), libc::RTLD_LAZY | libc::RTLD_LOCAL) };
    let loaded = !handle.is_null() && nvml_init().is_ok();
    STATE.store(if loaded { LOADED } else { MISSING }, Ordering::Release);
    loaded
}

/// Queries NVML. Initialises it again if the program has shut it down once too often.
fn asked(ask: impl Fn() -> NvmlReturn) -> NvmlReturn {
    let result = ask();
    if result != NvmlReturn::UNINITIALIZED {
        return result;
    }
    let restarted = nvml_init();
    if restarted.is_ok() {
        return ask();
    }
    report::once(format_args!(
        "the program has shut down NVML, which cannot be restarted ({restarted:?}): code, stacks and heap that the \
         driver takes are no longer charged"
    ));
    result
}

/// The reason why NVML does not list the processes on a device, for a message.
pub(crate) fn why_silent() -> &'static str {
    if load() { "NVML lists no processes" } else { "libnvidia-ml.so.1 is missing" }
}

/// NVML's handle of a device; `None` if NVML is unavailable.
pub(crate) fn handle(uuid: GpuId) -> Option<NvmlDevice> {
    if !load() {
        return None;
    }
    let text = CString::new(uuid.to_string()).ok()?;
    let mut handle = ptr::null_mut();
    let place = &raw mut handle;
    asked(|| nvml_by_uuid(text.as_ptr(), place)).is_ok().then_some(handle)
}

/// `NVML_DEVICE_UUID_V2_BUFFER_SIZE`
const UUID_SIZE: usize = 96;

/// The UUID of an NVML handle.
pub(crate) fn uuid_of(device: NvmlDevice) -> Option<GpuId> {
    let mut text: [c_char; UUID_SIZE] = [0; UUID_SIZE];
    if !nvml_uuid(device, text.as_mut_ptr(), UUID_SIZE as c_uint).is_ok() {
        return None;
    }
    text[UUID_SIZE - 1] = 0;
    // SAFETY: ends with a zero byte.
    unsafe { CStr::from_ptr(text.as_ptr()) }.to_str().ok()?.parse().ok()
}

/// Number of devices that NVML shows; `None` if NVML is unavailable.
pub(crate) fn count() -> Option<u32> {
    let mut count: c_uint = 0;
    let place = &raw mut count;
    (load() && asked(|| nvml_count(place)).is_ok()).then_some(count)
}

/// A device's index on the host, as in `nvidia-smi`.
pub(crate) fn host_index(uuid: GpuId) -> Option<u32> {
    let handle = handle(uuid)?;
    let mut index: c_uint = 0;
    nvml_index(handle, &raw mut index).is_ok().then_some(index)
}

/// A device's memory in bytes: NVML's figure, which is the same for every process of a session and for `sluice`, or
/// else the driver's. `ordinal`: the program's ordinal of the device, if known.
pub(crate) fn total_memory(uuid: GpuId, ordinal: Option<u32>) -> Option<u64> {
    let mut memory = Memory { total: 0, free: 0, used: 0 };
    let by_nvml = |handle| nvml_memory(handle, &raw mut memory).is_ok();
    if handle(uuid).is_some_and(by_nvml) && memory.total > 0 {
        return Some(memory.total);
    }
    let mut bytes = 0;
    let ordinal = ordinal.and_then(|ordinal| i32::try_from(ordinal).ok())?;
    let known = device_total_mem(&raw mut bytes, ordinal).is_ok() && bytes > 0;
    known.then_some(bytes as u64)
}

/// The devices that NVML shows. Initialises NVML only if the program has not, which may want other flags.
pub(crate) fn devices() -> impl Iterator<Item = NvmlDevice> {
    let mut shown: c_uint = 0;
    let is_started = nvml_count(&raw mut shown).is_ok();
    let shown = if is_started { shown } else { count().unwrap_or(0) };
    (0..shown).filter_map(|index| {
        let mut handle = ptr::null_mut();
        nvml_by_index(index, &raw mut handle).is_ok().then_some(handle)
    })
}

thread_local! {
    /// Whether the thread is querying for the limiter itself.
    static WANTS_ALL: Cell<bool> = const { Cell::new(false) };
}

/// Whether the calling thread queries all processes of a device, not only the session's.
pub(crate) fn wants_all() -> bool {
    WANTS_ALL.try_with(Cell::get).unwrap_or(false)
}

/// All processes that have a context on a device. Arguments and errors as for `nvmlDeviceGetComputeRunningProcesses`.
pub(crate) fn processes(
    device: NvmlDevice,
    count: &mut c_uint,
    list: *mut ProcessInfoV2,
) -> NvmlReturn {
    let set = |wants| WANTS_ALL.try_with(|all| all.set(wants));
    let _ = set(true);
    let mut result = nvml_processes(device, count, list);
    if result == NvmlReturn::NOT_FOUND {
        result = nvml_processes_v2(device, count, list);
    }
    let _ = set(false);
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    extern "C" fn asks(_: NvmlDevice, count: *mut c_uint, _: *mut ProcessInfoV2) -> NvmlReturn {
        // SAFETY: the test's own.
        unsafe { *count = wants_all().into() };
        NvmlReturn::NOT_FOUND
    }

    #[test]
    fn the_limiters_own_questions_are_for_all_processes() {
        super::super::slot::nvml_processes.set(asks as *const core::ffi::c_void);
        let mut count = 0;
        assert_eq!(processes(ptr::null_mut(), &mut count, ptr::null_mut()), NvmlReturn::NOT_FOUND);
        assert_eq!((count, wants_all()), (1, false));
        super::super::slot::nvml_processes.set(ptr::null());
    }
}
