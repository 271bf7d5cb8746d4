//! Faults, and the NVML events that report them.

use core::ffi::{c_uint, c_ulonglong, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use driver::nvml::{NvmlDevice, NvmlReturn};
use fake_node::faults::{self, Fault};

use crate::device::{handle, known};
use crate::ffi::{Api, Out, api};
use crate::system::node;

/// `NVML_ERROR_TIMEOUT`
const TIMEOUT: NvmlReturn = NvmlReturn(10);
/// `NVML_ERROR_GPU_IS_LOST`
const GPU_IS_LOST: NvmlReturn = NvmlReturn(15);
/// `nvmlEventTypeXidCriticalError`
const XID: c_ulonglong = 8;
/// Handles of event sets are numbers starting here, and never dereferenced.
const FIRST_SET: usize = 0x7_0000_0000;
/// How often a waiting set polls for faults.
const LOOK: Duration = Duration::from_millis(5);

/// `nvmlEventSet_t`
type EventSet = *mut c_void;

/// `nvmlEventData_t`
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct EventData {
    device: NvmlDevice,
    kind: c_ulonglong,
    data: c_ulonglong,
    gpu_instance: c_uint,
    compute_instance: c_uint,
}

#[derive(Default)]
struct Set {
    devices: Vec<u32>,
    /// Number of faults that were reported, or that happened before the set was created.
    passed: usize,
}

static SETS: Mutex<Vec<Option<Set>>> = Mutex::new(Vec::new());

fn sets() -> MutexGuard<'static, Vec<Option<Set>>> {
    SETS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn all() -> Api<Vec<Fault>> {
    // An unreadable file means a broken test.
    faults::read(node()?.path()).map_err(|_| NvmlReturn::UNKNOWN)
}

/// An error for a lost device.
pub(crate) fn check_present(device: u32) -> Api {
    if all()?.contains(&Fault::Lost { device }) { Err(GPU_IS_LOST) } else { Ok(()) }
}

/// `nvmlDeviceGetTotalEccErrors`: volatile and aggregate counts are the same here.
pub(crate) extern "C" fn ecc_errors(
    device: NvmlDevice,
    kind: c_uint,
    counter: c_uint,
    to: Out<c_ulonglong>,
) -> NvmlReturn {
    api(|| {
        let index = known(device)?;
        if kind > 1 || counter > 1 {
            return Err(NvmlReturn::INVALID_ARGUMENT);
        }
        let wanted = (index, kind == 0);
        let count = |fault: &Fault| match *fault {
            Fault::Ecc { device, corrected, count } if (device, corrected) == wanted => count,
            _ => 0,
        };
        to.put(all()?.iter().map(count).sum())
    })
}

/// `nvmlDeviceGetEccMode`: ECC is always on.
pub(crate) extern "C" fn ecc_mode(
    device: NvmlDevice,
    current: Out<c_uint>,
    pending: Out<c_uint>,
) -> NvmlReturn {
    api(|| {
        known(device)?;
        current.put(1)?;
        pending.put(1)
    })
}

pub(crate) extern "C" fn event_types(device: NvmlDevice, to: Out<c_ulonglong>) -> NvmlReturn {
    api(|| {
        known(device)?;
        to.put(XID)
    })
}

pub(crate) extern "C" fn create_set(to: Out<EventSet>) -> NvmlReturn {
    api(|| {
        let passed = all()?.len();
        let mut sets = sets();
        sets.push(Some(Set { passed, ..Set::default() }));
        to.put((FIRST_SET + sets.len()) as EventSet)
    })
}

fn place(set: EventSet) -> usize {
    (set as usize).wrapping_sub(FIRST_SET + 1)
}

pub(crate) extern "C" fn free_set(set: EventSet) -> NvmlReturn {
    api(|| {
        node()?;
        let freed = sets().get_mut(place(set)).and_then(Option::take);
        freed.map(drop).ok_or(NvmlReturn::INVALID_ARGUMENT)
    })
}

/// `nvmlDeviceRegisterEvents`: only Xid errors are supported.
pub(crate) extern "C" fn register(
    device: NvmlDevice,
    types: c_ulonglong,
    set: EventSet,
) -> NvmlReturn {
    api(|| {
        let index = known(device)?;
        if types != XID {
            return Err(NvmlReturn::NOT_SUPPORTED);
        }
        let mut sets = sets();
        let set = sets.get_mut(place(set)).and_then(Option::as_mut);
        set.ok_or(NvmlReturn::INVALID_ARGUMENT)?.devices.push(index);
        Ok(())
    })
}

pub(crate) extern "C" fn wait(set: EventSet, to: Out<EventData>, timeout_ms: c_uint) -> NvmlReturn {
    api(|| {
        let until = Instant::now() + Duration::from_millis(timeout_ms.into());
        loop {
            if let Some((device, data)) = next(set)? {
                let (device, none) = (handle(device), c_uint::MAX);
                let event = EventData {
                    device,
                    kind: XID,
                    data,
                    gpu_instance: none,
                    compute_instance: none,
                };
                return to.put(event);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(TIMEOUT);
            }
            thread::sleep(left.min(LOOK));
        }
    })
}

/// The next error that a set has to report.
fn next(set: EventSet) -> Api<Option<(u32, u64)>> {
    let faults = all()?;
    let mut sets = sets();
    let set = sets.get_mut(place(set)).and_then(Option::as_mut);
    let set = set.ok_or(NvmlReturn::INVALID_ARGUMENT)?;
    for fault in faults.get(set.passed..).unwrap_or_default() {
        set.passed += 1;
        if let Fault::Xid { device, number } = *fault
            && set.devices.contains(&device)
        {
            return Ok(Some((device, number)));
        }
    }
    Ok(None)
}
