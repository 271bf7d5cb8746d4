//! Hooks that restrict NVML's lists of processes to the session's.
//!
//! The limiter queries the driver with a list of its own, and copies the session's entries into the caller's list.
//! `nvidia-smi` uses private functions instead: see [`nvml_tables`](super::nvml_tables).

use super::Call;
use super::nvml::answered;
use super::pointers::read;
use crate::device::Device;
use crate::memory::seen::{self, SessionProcess};
use crate::process::Process;
use core::ffi::{c_uint, c_void};
use core::mem::offset_of;
use core::ptr;
use driver::nvml::{
    NvmlDevice, NvmlReturn, PROCESS_DETAIL_LIST_VERSION, PROCESSES_UTILIZATION_VERSION,
    ProcessDetail, ProcessDetailList, ProcessInfoV1, ProcessInfoV2, ProcessUtilizationInfo,
    ProcessUtilizationSample, ProcessesUtilizationInfo, VALUE_NOT_AVAILABLE,
};

macros::hooks! {
    /// NVML, Device Queries / Accounting Statistics: processes of the session only.
    library Nvml;

    fn nvmlDeviceGetComputeRunningProcesses | nvmlDeviceGetGraphicsRunningProcesses | nvmlDeviceGetMPSComputeRunningProcesses
        (device: NvmlDevice, count: *mut c_uint, list: *mut ProcessInfoV1) -> NvmlReturn = running_v1;
    fn nvmlDeviceGetComputeRunningProcesses_v2 | nvmlDeviceGetComputeRunningProcesses_v3
        | nvmlDeviceGetGraphicsRunningProcesses_v2 | nvmlDeviceGetGraphicsRunningProcesses_v3
        | nvmlDeviceGetMPSComputeRunningProcesses_v2 | nvmlDeviceGetMPSComputeRunningProcesses_v3
        (device: NvmlDevice, count: *mut c_uint, list: *mut ProcessInfoV2) -> NvmlReturn = running;
    fn nvmlDeviceGetRunningProcessDetailList(device: NvmlDevice, of: *mut ProcessDetailList) -> NvmlReturn = details;
    fn nvmlDeviceGetProcessUtilization(device: NvmlDevice, list: *mut ProcessUtilizationSample, count: *mut c_uint, last_seen: u64) -> NvmlReturn = utilization;
    fn nvmlDeviceGetProcessesUtilizationInfo(device: NvmlDevice, of: *mut ProcessesUtilizationInfo) -> NvmlReturn = utilization_info;
    fn nvmlDeviceGetAccountingPids(device: NvmlDevice, count: *mut c_uint, list: *mut c_uint) -> NvmlReturn = accounting_pids;
    fn nvmlDeviceGetAccountingStats(device: NvmlDevice, pid: c_uint, stats: *mut c_void) -> NvmlReturn = accounting;
}

/// An entry of an NVML list of processes.
trait ProcessEntry: Copy + Default {
    fn pid(&self) -> c_uint;
    /// Fills in the session's own figure (bytes) if the driver has none.
    fn complete(&mut self, _own: u64) {}
}

macro_rules! entry {
    ($($type:ty $(, $memory:ident)?;)*) => {$(
        impl ProcessEntry for $type {
            fn pid(&self) -> c_uint {
                self.pid
            }
            $(fn complete(&mut self, own: u64) {
                if self.$memory == VALUE_NOT_AVAILABLE {
                    self.$memory = own;
                }
            })?
        }
    )*};
}

entry! {
    ProcessInfoV1, used_gpu_memory;
    ProcessInfoV2, used_gpu_memory;
    ProcessDetail, used_gpu_memory;
    ProcessUtilizationSample;
    ProcessUtilizationInfo;
}

impl ProcessEntry for c_uint {
    fn pid(&self) -> c_uint {
        *self
    }
}

/// Entries in the first query's list.
const ROOM: usize = 64;
/// Most entries to query.
const MOST: usize = 1 << 16;

/// Queries the driver with longer and longer lists. `ask` gets the capacity and the list, and replaces the capacity by
/// the number of entries.
fn whole<E: ProcessEntry>(
    mut ask: impl FnMut(&mut c_uint, *mut E) -> NvmlReturn,
) -> Result<Vec<E>, NvmlReturn> {
    let mut list = vec![E::default(); ROOM];
    loop {
        let mut count = c_uint::try_from(list.len()).unwrap_or(c_uint::MAX);
        match ask(&mut count, list.as_mut_ptr()) {
            NvmlReturn::SUCCESS => {
                list.truncate(count as usize);
                return Ok(list);
            }
            NvmlReturn::INSUFFICIENT_SIZE if list.len() < MOST => {
                // Processes may appear between two queries.
                let room = (count as usize).saturating_add(ROOM).max(list.len() * 2).min(MOST);
                list.resize(room, E::default());
            }
            other => return Err(other),
        }
    }
}

/// Keeps the session's entries, with the session's figures where the driver has none.
fn own_only<E: ProcessEntry>(device: &Device, list: &mut Vec<E>) {
    let members = seen::members(device.ledger);
    list.retain_mut(|entry| match members.iter().find(|member| member.pid == entry.pid()) {
        Some(&SessionProcess { bytes, .. }) => {
            entry.complete(bytes);
            true
        }
        None => false,
    });
}

/// Fills a caller's list as the driver does; a caller with too short a list gets the required length.
///
/// # Safety
/// `count` is the caller's, not null; `list` has room for `*count` entries where it is not null.
unsafe fn fill<E: ProcessEntry>(found: &[E], count: *mut c_uint, list: *mut E) -> NvmlReturn {
    // SAFETY: as promised by the caller.
    unsafe {
        let room = count.read_unaligned() as usize;
        if list.is_null() && room > 0 {
            return NvmlReturn::INVALID_ARGUMENT;
        }
        count.write_unaligned(c_uint::try_from(found.len()).unwrap_or(c_uint::MAX));
        if room < found.len() {
            return NvmlReturn::INSUFFICIENT_SIZE;
        }
        if !found.is_empty() {
            // Copied as bytes, because the caller's list may be unaligned.
            ptr::copy_nonoverlapping(found.as_ptr().cast(), list.cast::<u8>(), size_of_val(found));
        }
    }
    NvmlReturn::SUCCESS
}

/// Copies the driver's list, restricted to the session, into the caller's list.
fn filtered<E: ProcessEntry>(
    process: &'static Process,
    device: NvmlDevice,
    count: *mut c_uint,
    list: *mut E,
    original: impl Fn(*mut c_uint, *mut E) -> NvmlReturn,
) -> NvmlReturn {
    if count.is_null() {
        return original(count, list);
    }
    let of_session = |device: &'static Device| {
        match whole(|room: &mut c_uint, list| original(ptr::from_mut(room), list)) {
            Ok(mut found) => {
                own_only(device, &mut found);
                // SAFETY: the program's own arguments, as the driver would use them.
                unsafe { fill(&found, count, list) }
            }
            Err(other) => other,
        }
    };
    answered(process, device, || original(count, list), of_session)
}

fn running_v1(
    call: Call<signature::nvmlDeviceGetComputeRunningProcesses>,
    device: NvmlDevice,
    count: *mut c_uint,
    list: *mut ProcessInfoV1,
) -> NvmlReturn {
    // SAFETY: the program's own arguments, or a list of as many entries as said.
    filtered(call.process, device, count, list, |count, list| unsafe {
        (call.original)(device, count, list)
    })
}

fn running(
    call: Call<signature::nvmlDeviceGetComputeRunningProcesses_v2>,
    device: NvmlDevice,
    count: *mut c_uint,
    list: *mut ProcessInfoV2,
) -> NvmlReturn {
    // SAFETY: the program's own arguments, or a list of as many entries as said.
    filtered(call.process, device, count, list, |count, list| unsafe {
        (call.original)(device, count, list)
    })
}

fn accounting_pids(
    call: Call<signature::nvmlDeviceGetAccountingPids>,
    device: NvmlDevice,
    count: *mut c_uint,
    list: *mut c_uint,
) -> NvmlReturn {
    // SAFETY: the program's own arguments, or a list of as many entries as said.
    filtered(call.process, device, count, list, |count, list| unsafe {
        (call.original)(device, count, list)
    })
}

fn details(
    call: Call<signature::nvmlDeviceGetRunningProcessDetailList>,
    device: NvmlDevice,
    of: *mut ProcessDetailList,
) -> NvmlReturn {
    let count = of.wrapping_byte_add(offset_of!(ProcessDetailList, count)).cast();
    // SAFETY: the program's own arguments.
    let original = || unsafe { (call.original)(device, of) };
    // SAFETY: null, or the program's list.
    let Some(asked) = (unsafe { read(of) }) else { return original() };
    answered(call.process, device, original, |limited| {
        // Entries of another version would have another size.
        if asked.version != PROCESS_DETAIL_LIST_VERSION {
            return NvmlReturn::ARGUMENT_VERSION_MISMATCH;
        }
        let found = whole(|room: &mut c_uint, list| {
            let mut own = ProcessDetailList { count: *room, list, ..asked };
            // SAFETY: a list of as many entries as said; the mode is for the driver to check.
            let result = unsafe { (call.original)(device, &raw mut own) };
            *room = own.count;
            result
        });
        match found {
            Ok(mut found) => {
                own_only(limited, &mut found);
                // SAFETY: the program's own list.
                unsafe { fill(&found, count, asked.list) }
            }
            Err(other) => other,
        }
    })
}

/// Copies utilization samples of the session. Like the driver, returns `NOT_FOUND` without samples, and the length if
/// `list` is null.
fn samples<E: ProcessEntry>(
    device: &Device,
    count: *mut c_uint,
    list: *mut E,
    mut ask: impl FnMut(&mut c_uint, *mut E) -> NvmlReturn,
) -> NvmlReturn {
    let mut found = match whole(&mut ask) {
        Ok(found) => found,
        Err(other) => return other,
    };
    own_only(device, &mut found);
    if found.is_empty() {
        // SAFETY: not null, checked by the callers.
        unsafe { count.write_unaligned(0) };
        return NvmlReturn::NOT_FOUND;
    }
    if list.is_null() {
        // SAFETY: not null, checked by the callers.
        unsafe { count.write_unaligned(c_uint::try_from(found.len()).unwrap_or(c_uint::MAX)) };
        return NvmlReturn::INSUFFICIENT_SIZE;
    }
    // SAFETY: the program's own list.
    unsafe { fill(&found, count, list) }
}

fn utilization(
    call: Call<signature::nvmlDeviceGetProcessUtilization>,
    device: NvmlDevice,
    list: *mut ProcessUtilizationSample,
    count: *mut c_uint,
    last_seen: u64,
) -> NvmlReturn {
    // SAFETY: the program's own arguments.
    let original = || unsafe { (call.original)(device, list, count, last_seen) };
    if count.is_null() {
        return original();
    }
    answered(call.process, device, original, |limited| {
        samples(limited, count, list, |room, list| {
            // SAFETY: a list of as many entries as said.
            unsafe { (call.original)(device, list, ptr::from_mut(room), last_seen) }
        })
    })
}

fn utilization_info(
    call: Call<signature::nvmlDeviceGetProcessesUtilizationInfo>,
    device: NvmlDevice,
    of: *mut ProcessesUtilizationInfo,
) -> NvmlReturn {
    let count = of.wrapping_byte_add(offset_of!(ProcessesUtilizationInfo, count)).cast();
    // SAFETY: the program's own arguments.
    let original = || unsafe { (call.original)(device, of) };
    // SAFETY: null, or the program's list.
    let Some(asked) = (unsafe { read(of) }) else { return original() };
    answered(call.process, device, original, |limited| {
        let (version, last_seen) = (asked.version, asked.last_seen);
        if version != PROCESSES_UTILIZATION_VERSION {
            return NvmlReturn::ARGUMENT_VERSION_MISMATCH;
        }
        samples(limited, count, asked.list, |room, list| {
            let mut own = ProcessesUtilizationInfo { version, count: *room, last_seen, list };
            // SAFETY: a list of as many entries as said, of this version.
            let result = unsafe { (call.original)(device, &raw mut own) };
            *room = own.count;
            result
        })
    })
}

/// Treats a process outside the session as one that does not exist.
fn accounting(
    call: Call<signature::nvmlDeviceGetAccountingStats>,
    device: NvmlDevice,
    pid: c_uint,
    stats: *mut c_void,
) -> NvmlReturn {
    // SAFETY: the program's own arguments, or room for more than the 56 bytes of the structure.
    let original = |stats| unsafe { (call.original)(device, pid, stats) };
    answered(
        call.process,
        device,
        || original(stats),
        |device| {
            let ours = seen::members(device.ledger).iter().any(|member| member.pid == pid);
            if ours || stats.is_null() {
                return original(stats);
            }
            // The driver's own errors come first; figures of other processes are not passed on.
            let mut not_shown = [0_u64; 16];
            match original((&raw mut not_shown).cast()) {
                NvmlReturn::SUCCESS => NvmlReturn::NOT_FOUND,
                error => error,
            }
        },
    )
}
