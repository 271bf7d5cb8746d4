//! What contexts take of a device's memory.
//!
//! The driver does not say how much a context takes before it exists. What was learned from the first
//! one of the session is reserved for the next; what it really took is read from NVML afterwards, and
//! a context that turns out not to fit is taken down again.

use super::charge::{release, reserve};
use crate::device::{Device, nvml_handle};
use crate::{own, report};
use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering::Relaxed;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use utils::driver::cuda::CuResult;
use utils::driver::nvml::{Memory, NvmlDevice, NvmlReturn, ProcessInfoV2};
use utils::page::layout::Kind;

/// Taken for granted where NVML cannot be asked: what a context takes on current devices.
const ASSUMED_BYTES: u64 = 512 << 20;

/// The contexts of this process on a device, by handle.
#[derive(Default)]
pub(crate) struct Contexts {
    bytes: Mutex<HashMap<usize, u64>>,
    primary: AtomicUsize,
}

impl Contexts {
    fn take(&self, handle: usize) -> Option<u64> {
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner).remove(&handle)
    }

    fn set(&self, handle: usize, bytes: u64) {
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner).insert(handle, bytes);
    }

    /// Whether a context is of this device.
    pub(crate) fn has(&self, handle: usize) -> bool {
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner).contains_key(&handle)
    }

    /// Handle of the primary context, zero if this process has not seen one.
    pub(crate) fn primary(&self) -> usize {
        self.primary.load(Relaxed)
    }

    /// Remembers the primary context's handle; zero once it is gone.
    pub(crate) fn set_primary(&self, handle: usize) {
        self.primary.store(handle, Relaxed);
    }
}

/// Runs a call that makes a context; `handle` tells, after success, which one, and `undo` takes it
/// down.
pub(crate) fn create(
    device: &'static Device,
    call: impl FnOnce() -> CuResult,
    handle: impl FnOnce() -> usize,
    undo: impl FnOnce(),
) -> CuResult {
    if !device.has_memory_limit() {
        let result = call();
        if result.is_ok() {
            device.contexts.set(handle(), 0);
        }
        return result;
    }
    let known = device.seat().layout().context_bytes.load(Relaxed);
    let nvml = nvml_handle(device.uuid());
    let before = nvml.and_then(used_by_this_process);
    let device_before = nvml.and_then(used_on_device);
    if !reserve(device, Kind::Context, known) {
        return too_small(device, known);
    }
    let result = call();
    if !result.is_ok() {
        release(device, Kind::Context, known);
        return result;
    }
    let took = nvml
        .and_then(|nvml| match used_by_this_process(nvml) {
            Some(after) => after.checked_sub(before.unwrap_or(0)),
            // Inside a container NVML may not know this process by its own id.
            None => used_on_device(nvml)?.checked_sub(device_before?),
        })
        .filter(|&bytes| bytes > 0)
        .unwrap_or(if known > 0 { known } else { ASSUMED_BYTES });
    let fits = took <= known || reserve(device, Kind::Context, took - known);
    if !fits {
        undo();
        release(device, Kind::Context, known);
        return too_small(device, took);
    }
    if took < known {
        release(device, Kind::Context, known - took);
    }
    device.seat().layout().context_bytes.fetch_max(took, Relaxed);
    device.contexts.set(handle(), took);
    tracing::debug!("device {}: a context took {took} bytes", device.uuid());
    result
}

/// A context is gone: gives back what it took, and what was allocated in it.
pub(crate) fn ended(device: &'static Device, handle: usize) {
    if let Some(bytes) = device.contexts.take(handle) {
        release(device, Kind::Context, bytes);
    }
    for allocation in device.tracker.end_context(handle) {
        release(device, allocation.kind, allocation.bytes);
    }
}

fn too_small(device: &Device, context: u64) -> CuResult {
    let (limit, used) = {
        let book = device.seat().book();
        (book.limit(), book.used())
    };
    const MIB: u64 = 1 << 20;
    report::once(format_args!(
        "device {}: a CUDA context takes {} MiB; the memory limit of {} MiB, of which {} MiB are in use, has no room for it",
        device.uuid(),
        context.div_ceil(MIB),
        limit / MIB,
        used.div_ceil(MIB),
    ));
    CuResult::OUT_OF_MEMORY
}

/// Bytes that NVML sees this process use on a device.
fn used_by_this_process(nvml: NvmlDevice) -> Option<u64> {
    let pid = std::process::id();
    // Room for processes that appear while asking.
    let mut list = vec![ProcessInfoV2::default(); 64];
    loop {
        let mut count = u32::try_from(list.len()).ok()?;
        match own::nvml_processes(nvml, &raw mut count, list.as_mut_ptr()) {
            NvmlReturn::SUCCESS => {
                return list
                    .iter()
                    .take(count as usize)
                    .find(|process| process.pid == pid)
                    .map(|process| process.used_gpu_memory)
                    // NVML_VALUE_NOT_AVAILABLE
                    .filter(|&bytes| bytes != u64::MAX);
            }
            NvmlReturn::INSUFFICIENT_SIZE if list.len() < 1 << 16 => {
                list.resize(list.len() * 4, ProcessInfoV2::default());
            }
            _ => return None,
        }
    }
}

/// Bytes in use on a device by anybody.
fn used_on_device(nvml: NvmlDevice) -> Option<u64> {
    let mut memory = Memory::default();
    own::nvml_memory(nvml, &raw mut memory).is_ok().then_some(memory.used)
}
