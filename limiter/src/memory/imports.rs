//! Memory of other processes that this process has opened by address. Their exporter is charged for it.

use super::device::DeviceMemory;
use crate::driver_calls;
use core::ptr;
use core::sync::atomic::{AtomicUsize, Ordering};
use driver::cuda::CuResult;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

struct Import {
    device: &'static DeviceMemory,
    bytes: u64,
    /// How often it is open.
    opens: u32,
    /// The context that it ends with.
    context: usize,
}

/// By address.
#[derive(Default)]
pub(crate) struct Imports {
    imports: Mutex<HashMap<u64, Import>>,
    /// How many imports there are.
    count: AtomicUsize,
}

impl Imports {
    fn imports(&self) -> MutexGuard<'_, HashMap<u64, Import>> {
        self.imports.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count(&self, imports: &HashMap<u64, Import>) {
        self.count.store(imports.len(), Ordering::Relaxed);
    }

    /// The program has opened memory of a device, which it sees at `address` now.
    pub(crate) fn opened(&self, device: &'static DeviceMemory, address: u64) {
        let (mut base, mut bytes) = (0, 0);
        if !driver_calls::mem_address_range(&raw mut base, &raw mut bytes, address).is_ok() {
            bytes = 0;
        }
        let context = device.current_context();
        let mut imports = self.imports();
        let fresh = Import { device, bytes: bytes as u64, opens: 0, context };
        imports.entry(address).or_insert(fresh).opens += 1;
        self.count(&imports);
    }

    /// Runs a call that closes `address`, if it is imported memory. The record changes before the call:
    /// another thread may get the same address.
    pub(crate) fn close(&self, address: u64, call: impl FnOnce() -> CuResult) -> CuResult {
        if self.count.load(Ordering::Relaxed) == 0 {
            return call();
        }
        let taken = {
            let mut imports = self.imports();
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
            self.count(&imports);
            taken
        };
        let result = call();
        if !result.is_ok() {
            let mut imports = self.imports();
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
            self.count(&imports);
        }
        result
    }

    /// Bytes of a device's memory that are open here.
    pub(super) fn bytes(&self, device: &DeviceMemory) -> u64 {
        if self.count.load(Ordering::Relaxed) == 0 {
            return 0;
        }
        let imports = self.imports();
        let of_device = imports.values().filter(|import| ptr::eq(import.device, device));
        of_device.map(|import| import.bytes).fold(0, u64::saturating_add)
    }

    /// A context has ended, and with it what was opened in it.
    pub(super) fn context_ended(&self, context: usize) {
        let mut imports = self.imports();
        imports.retain(|_, import| import.context != context);
        self.count(&imports);
    }
}
