//! Hooks that report the session's limit as a device's memory, and the check that hooks are reached.

use super::Call;
use super::pointers::read;
use crate::memory::DeviceMemory;
use crate::process::Process;
use crate::verdict::Verdict;
use core::ffi::{c_int, c_uint, c_void};
use core::ptr;
use core::sync::atomic::{AtomicBool, Ordering};
use driver::cuda::{CuResult, Device};

macros::hooks! {
    /// CUDA driver API, Memory Management / Device Management: sizes within the session's limit.
    library Cuda;

    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> CuResult = mem_get_info;
    /// The 32-bit form of CUDA 3.1.
    fn cuMemGetInfo(free: *mut c_uint, total: *mut c_uint) -> CuResult = mem_get_info_32;
    fn cuDeviceTotalMem_v2(bytes: *mut usize, device: Device) -> CuResult = total_mem;
    /// The limiter calls it once itself, to check that calls reach their hooks.
    fn cuDriverGetVersion(version: *mut c_int) -> CuResult = version;
    /// The 32-bit form of CUDA 3.1.
    fn cuDeviceTotalMem(bytes: *mut c_uint, device: Device) -> CuResult = total_mem_32;
}

/// Whether a call of `cuDriverGetVersion` has arrived here. Static, because the patched code is the same in a forked
/// child.
static ARRIVED: AtomicBool = AtomicBool::new(false);

fn version(call: Call<signature::cuDriverGetVersion>, version: *mut c_int) -> CuResult {
    ARRIVED.store(true, Ordering::Relaxed);
    // SAFETY: the program's own arguments.
    unsafe { (call.original)(version) }
}

/// Whether calls into the driver reach their hooks; makes a call unless that is known. True if the driver lacks the
/// function. Must be called during a driver call, so that the driver stays loaded.
pub(super) fn calls_arrive() -> bool {
    let address = PATCH_cuDriverGetVersion.address();
    if address.is_null() || ARRIVED.load(Ordering::Relaxed) {
        return true;
    }
    let mut number = 0;
    // SAFETY: the function of this name, of this signature.
    let called = unsafe {
        core::mem::transmute::<*const c_void, signature::cuDriverGetVersion>(address)(
            &raw mut number,
        )
    };
    called.is_ok() && ARRIVED.load(Ordering::Relaxed)
}

/// A size of an interface's width. Larger sizes saturate.
trait ReportedSize: Copy {
    fn widen(self) -> u64;
    fn narrow(bytes: u64) -> Self;
}

impl ReportedSize for usize {
    fn widen(self) -> u64 {
        self as u64
    }
    fn narrow(bytes: u64) -> Self {
        Self::try_from(bytes).unwrap_or(Self::MAX)
    }
}

impl ReportedSize for c_uint {
    fn widen(self) -> u64 {
        u64::from(self)
    }
    fn narrow(bytes: u64) -> Self {
        Self::try_from(bytes).unwrap_or(Self::MAX)
    }
}

/// Rewrites the driver's answer about `device`; `free` and `total` may each be null.
fn rewrite<S: ReportedSize>(
    process: &Process,
    result: CuResult,
    device: impl FnOnce() -> Verdict<&'static DeviceMemory>,
    free: *mut S,
    total: *mut S,
) -> CuResult {
    if !result.is_ok() {
        return result;
    }
    let device = match device() {
        Verdict::Limited(device) => device,
        Verdict::Free => return result,
        Verdict::Denied => return CuResult::NOT_PERMITTED,
    };
    // SAFETY: the call succeeded, so the driver has just written through these pointers.
    let [real_free, real_total] =
        [free, total].map(|at| unsafe { read(at) }.map_or(u64::MAX, ReportedSize::widen));
    if let Some(view) = process.memory.view(device, real_free, real_total) {
        for (at, bytes) in [(free, view.free), (total, view.total)] {
            if !at.is_null() {
                // SAFETY: as above.
                unsafe { at.write_unaligned(S::narrow(bytes)) };
            }
        }
    } else if device.ledger.is_denied() {
        return CuResult::NOT_PERMITTED;
    }
    result
}

fn mem_get_info(
    call: Call<signature::cuMemGetInfo_v2>,
    free: *mut usize,
    total: *mut usize,
) -> CuResult {
    let process = call.process;
    // SAFETY: the program's own arguments.
    let result = unsafe { (call.original)(free, total) };
    rewrite(process, result, || process.current_memory(), free, total)
}

fn mem_get_info_32(
    call: Call<signature::cuMemGetInfo>,
    free: *mut c_uint,
    total: *mut c_uint,
) -> CuResult {
    let process = call.process;
    // SAFETY: the program's own arguments.
    let result = unsafe { (call.original)(free, total) };
    rewrite(process, result, || process.current_memory(), free, total)
}

fn total_mem(
    call: Call<signature::cuDeviceTotalMem_v2>,
    bytes: *mut usize,
    device: Device,
) -> CuResult {
    let process = call.process;
    // SAFETY: the program's own arguments.
    let result = unsafe { (call.original)(bytes, device) };
    rewrite(
        process,
        result,
        || process.device(device).map(|device| &device.memory),
        ptr::null_mut(),
        bytes,
    )
}

fn total_mem_32(
    call: Call<signature::cuDeviceTotalMem>,
    bytes: *mut c_uint,
    device: Device,
) -> CuResult {
    let process = call.process;
    // SAFETY: the program's own arguments.
    let result = unsafe { (call.original)(bytes, device) };
    rewrite(
        process,
        result,
        || process.device(device).map(|device| &device.memory),
        ptr::null_mut(),
        bytes,
    )
}
