//! Overcommitment: allocations that do not fit on the device become managed memory on the host, which the device
//! accesses over the bus. The limit that the program sees is never exceeded.
//!
//! Linear, pitched, managed and stream-ordered allocations can be placed on the host. Physical memory, arrays and graph
//! nodes cannot; they are refused once the real part is used up.
//!
//! Managed memory cannot be freed in stream order. Such a free is deferred: an event shows when the stream has reached
//! it, and the reconciler then carries it out.

use super::device::{DeviceMemory, Devices};
use super::reservation::Reservation;
use super::tracker::Handle;
use crate::driver_calls::{self, undisturbing, within};
use crate::{clock, report};
use core::ffi::c_uint;
use core::ptr;
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::Relaxed;
use driver::cuda::{
    ATTACH_GLOBAL, CAPTURE_STATUS_NONE, CuResult, DevicePtr, EVENT_DISABLE_TIMING, Event, Stream,
};
use session::layout::MemoryKind;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

/// `CU_MEM_ADVISE_SET_READ_MOSTLY`: the device may keep a copy.
pub(crate) const ADVICE_READ_MOSTLY: c_uint = 1;
/// `CU_MEM_ADVISE_SET_PREFERRED_LOCATION`
pub(crate) const ADVICE_PREFERRED_LOCATION: c_uint = 3;
/// `CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION`
pub(crate) const ADVICE_NO_PREFERRED_LOCATION: c_uint = 4;
/// `CU_MEM_ADVISE_SET_ACCESSED_BY`
const ADVICE_ACCESSED_BY: c_uint = 5;
/// `CU_DEVICE_CPU`
const CPU: i32 = -1;
/// How often an allocation that does not fit retries while another thread carries out frees, and the interval.
const PATIENCE: u32 = 500;
const STEP_NS: u64 = 200_000;

/// A deferred free: carried out when its stream has reached the event.
struct Free {
    device: &'static DeviceMemory,
    address: DevicePtr,
    bytes: u64,
    event: usize,
    context: usize,
}

/// The memory placed on the host, and its pending frees.
#[derive(Default)]
pub(crate) struct HostPlaced {
    /// Whether anything was ever placed on the host; until then lookups are skipped.
    used: AtomicBool,
    /// Frees whose streams have not reached them.
    put_off: Mutex<Vec<Free>>,
    /// Held by a thread that carries out frees; a context may end only when no thread holds the lock.
    freeing: Mutex<()>,
}

/// Allocates managed memory that stays on the host.
pub(crate) fn place(bytes: usize) -> Result<DevicePtr, CuResult> {
    let mut address = 0;
    match driver_calls::mem_alloc_managed(&raw mut address, bytes, ATTACH_GLOBAL) {
        CuResult::SUCCESS => {}
        other => return Err(other),
    }
    match keep_on_host(address, bytes) {
        CuResult::SUCCESS => Ok(address),
        other => {
            let _ = driver_calls::mem_free(address);
            Err(other)
        }
    }
}

/// Keeps managed memory on the host, mapped by the current device.
pub(crate) fn keep_on_host(address: DevicePtr, bytes: usize) -> CuResult {
    let result = driver_calls::mem_advise(address, bytes, ADVICE_PREFERRED_LOCATION, CPU);
    let mut ordinal = 0;
    if result.is_ok() && driver_calls::ctx_get_device(&raw mut ordinal).is_ok() {
        // Without this advice, each page costs the device a fault.
        let _ = driver_calls::mem_advise(address, bytes, ADVICE_ACCESSED_BY, ordinal);
    }
    result
}

impl HostPlaced {
    fn put_off(&self) -> MutexGuard<'_, Vec<Free>> {
        self.put_off.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reserves bytes for an allocation that will be placed on the host.
    pub(super) fn reserve(&self, device: &'static DeviceMemory, bytes: u64) -> Option<Reservation> {
        let reserve = || Reservation::new(device, MemoryKind::Overcommitted, bytes);
        let reserved = reserve().or_else(|| {
            // Deferred frees may release enough bytes.
            self.carry_out_frees(PATIENCE);
            reserve()
        });
        let (reservation, _) = reserved?;
        self.used.store(true, Relaxed);
        Some(reservation)
    }

    /// Whether an address is the start of managed memory that was placed on the host.
    fn starts_on_host(&self, devices: &Devices, address: DevicePtr) -> bool {
        self.used.load(Relaxed)
            && devices.kind_of(Handle::Address(address)) == Some(MemoryKind::Overcommitted)
    }

    /// Whether an address is in managed memory that was placed on the host.
    pub(super) fn is_on_host(&self, devices: &Devices, address: DevicePtr) -> bool {
        if self.starts_on_host(devices, address) {
            return true;
        }
        let (mut start, mut bytes) = (0, 0);
        self.used.load(Relaxed)
            && driver_calls::mem_address_range(&raw mut start, &raw mut bytes, address).is_ok()
            && self.starts_on_host(devices, start)
    }

    /// Frees memory on the host in stream order; `None` if the address is not such memory.
    pub(super) fn free_async(
        &self,
        devices: &Devices,
        address: DevicePtr,
        stream: Stream,
    ) -> Option<CuResult> {
        if !self.starts_on_host(devices, address) {
            return None;
        }
        let (device, allocation) = devices.take(Handle::Address(address))?;
        let waiting = undisturbing(|| mark(stream));
        match waiting {
            Ok((event, context)) => {
                let bytes = allocation.bytes;
                self.put_off().push(Free {
                    device,
                    address,
                    bytes,
                    event: event as usize,
                    context,
                });
                device.shared.bell.ring();
                Some(CuResult::SUCCESS)
            }
            Err(result) => {
                device.remember(Handle::Address(address), allocation);
                Some(result)
            }
        }
    }

    /// Carries out the frees that their streams have reached. If another thread is carrying out frees, waits for that
    /// thread for at most `patience` steps. Returns whether frees are still pending.
    pub(super) fn carry_out_frees(&self, patience: u32) -> bool {
        if !self.used.load(Relaxed) {
            return false;
        }
        let mut tries = 0;
        let _freeing = loop {
            match self.freeing.try_lock() {
                Ok(freeing) => break freeing,
                Err(TryLockError::Poisoned(freeing)) => break freeing.into_inner(),
                Err(TryLockError::WouldBlock) if tries == patience => return true,
                Err(TryLockError::WouldBlock) => {
                    tries += 1;
                    clock::sleep(STEP_NS);
                }
            }
        };
        let waiting = core::mem::take(&mut *self.put_off());
        let waiting: Vec<Free> = waiting.into_iter().filter_map(Free::try_carry_out).collect();
        let mut put_off = self.put_off();
        put_off.extend(waiting);
        !put_off.is_empty()
    }

    /// Carries out the frees of a context that is about to end; afterwards they could not be carried out.
    pub(super) fn context_ends(&self, context: usize) {
        if !self.used.load(Relaxed) || context == 0 {
            return;
        }
        let _freeing = self.freeing.lock().unwrap_or_else(PoisonError::into_inner);
        let ending: Vec<Free> =
            self.put_off().extract_if(.., |free| free.context == context).collect();
        for free in ending {
            free.carry_out();
        }
    }
}

/// Records an event into a stream; returns the event and the stream's context.
fn mark(stream: Stream) -> Result<(Event, usize), CuResult> {
    fn fine(result: CuResult) -> Result<(), CuResult> {
        if result.is_ok() { Ok(()) } else { Err(result) }
    }
    let mut status: c_uint = CAPTURE_STATUS_NONE;
    fine(driver_calls::stream_is_capturing(stream, &raw mut status))?;
    if status != CAPTURE_STATUS_NONE {
        report::once(format_args!(
            "memory that was placed on the host cannot be freed by a graph; such calls fail"
        ));
        return Err(CuResult::NOT_SUPPORTED);
    }
    let mut context = ptr::null_mut();
    fine(driver_calls::stream_get_ctx(stream, &raw mut context))?;
    within(context as usize, || {
        let mut event = ptr::null_mut();
        fine(driver_calls::event_create(&raw mut event, EVENT_DISABLE_TIMING))?;
        let recorded = driver_calls::event_record(event, stream);
        if !recorded.is_ok() {
            let _ = driver_calls::event_destroy(event);
        }
        fine(recorded).map(|()| (event, context as usize))
    })
    .unwrap_or(Err(CuResult::INVALID_CONTEXT))
}

impl Free {
    /// Frees if the stream has reached the event; otherwise returns the pending free.
    fn try_carry_out(self) -> Option<Self> {
        let query = || driver_calls::event_query(self.event as Event);
        match within(self.context, || undisturbing(query)) {
            Some(CuResult::NOT_READY) => Some(self),
            _ => {
                self.carry_out();
                None
            }
        }
    }

    /// Frees now; the driver waits for work that still uses the memory.
    fn carry_out(self) {
        let freed = within(self.context, || {
            undisturbing(|| {
                let _ = driver_calls::event_destroy(self.event as Event);
                driver_calls::mem_free(self.address)
            })
        });
        if freed != Some(CuResult::SUCCESS) {
            tracing::debug!("device {}: a free failed: {freed:?}", self.device.ledger.uuid());
        }
        // If the context no longer works, its memory is gone as well.
        self.device.ledger.release(MemoryKind::Overcommitted, self.bytes);
    }
}
