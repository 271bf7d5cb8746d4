//! Memory of other processes that this one has opened by address. Their exporter is charged for it.

use super::charge::current_context;
use crate::device::Device;
use crate::driver_calls;
use crate::per_process::PerProcess;
use core::ptr;
use core::sync::atomic::{AtomicUsize, Ordering};
use driver::cuda::CuResult;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

struct Import {
    device: &'static Device,
    bytes: u64,
    /// Opened so many times.
    opens: u32,
    /// The context that it ends with.
    context: usize,
}

/// By address.
static IMPORTS: PerProcess<Mutex<HashMap<u64, Import>>> = PerProcess::new();
/// How many there are.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// In a forked child: the parent's memory is not the child's.
pub(super) fn after_fork() {
    IMPORTS.forget();
    COUNT.store(0, Ordering::Relaxed);
}

fn imports() -> MutexGuard<'static, HashMap<u64, Import>> {
    IMPORTS.get().lock().unwrap_or_else(PoisonError::into_inner)
}

fn count(imports: &HashMap<u64, Import>) {
    COUNT.store(imports.len(), Ordering::Relaxed);
}

/// The program has opened memory of a device, which it sees at `address` now.
pub(crate) fn opened(device: &'static Device, address: u64) {
    let (mut base, mut bytes) = (0, 0);
    if !driver_calls::mem_address_range(&raw mut base, &raw mut bytes, address).is_ok() {
        bytes = 0;
    }
    let context = current_context(device);
    let mut imports = imports();
    let fresh = Import { device, bytes: bytes as u64, opens: 0, context };
    imports.entry(address).or_insert(fresh).opens += 1;
    count(&imports);
}

/// Runs a call that closes `address`, if it is imported memory. The record changes first: another
/// thread may get the same address.
pub(crate) fn close(address: u64, call: impl FnOnce() -> CuResult) -> CuResult {
    if COUNT.load(Ordering::Relaxed) == 0 {
        return call();
    }
    let taken = {
        let mut imports = imports();
        let last = match imports.get_mut(&address) {
            Some(import) if import.opens > 1 => {
                import.opens -= 1;
                false
            }
            Some(_) => true,
            None => {
                drop(imports);
                return call();
            }
        };
        let taken = if last { imports.remove(&address) } else { None };
        count(&imports);
        taken
    };
    let result = call();
    if !result.is_ok() {
        let mut imports = imports();
        match taken {
            Some(import) => {
                imports.insert(address, import);
            }
            None => {
                if let Some(import) = imports.get_mut(&address) {
                    import.opens += 1;
                }
            }
        }
        count(&imports);
    }
    result
}

/// Bytes of a device's memory that are open.
pub(super) fn bytes(device: &Device) -> u64 {
    if COUNT.load(Ordering::Relaxed) == 0 {
        return 0;
    }
    let imports = imports();
    let of_device = imports.values().filter(|import| ptr::eq(import.device, device));
    of_device.map(|import| import.bytes).fold(0, u64::saturating_add)
}

/// A context is gone, and with it what was opened in it.
pub(super) fn context_ended(context: usize) {
    let mut imports = imports();
    imports.retain(|_, import| import.context != context);
    count(&imports);
}
