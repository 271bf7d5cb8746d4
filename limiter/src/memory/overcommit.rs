//! Overcommitment: memory that no longer fits on the device becomes managed memory on the host, which the
//! device reaches over the bus. The limit that the program sees is never exceeded.
//!
//! Linear, pitched, managed and stream-ordered allocations can be placed there. Physical memory, arrays and
//! nodes of graphs cannot: they are refused once the real part is used up.
//!
//! Managed memory cannot be freed in the order of a stream. Such a free is put off until the stream has
//! reached it: an event shows when, and the reconciler carries it out.

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

/// `CU_MEM_ADVISE_SET_READ_MOSTLY`: the device may have a copy.
pub(crate) const ADVICE_READ_MOSTLY: c_uint = 1;
/// `CU_MEM_ADVISE_SET_PREFERRED_LOCATION`
pub(crate) const ADVICE_PREFERRED_LOCATION: c_uint = 3;
/// `CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION`
pub(crate) const ADVICE_NO_PREFERRED_LOCATION: c_uint = 4;
/// `CU_MEM_ADVISE_SET_ACCESSED_BY`
const ADVICE_ACCESSED_BY: c_uint = 5;
/// `CU_DEVICE_CPU`
const CPU: i32 = -1;
/// How long an allocation that does not fit waits for a thread that carries out frees, in steps of 0.2 ms.
const PATIENCE: u32 = 500;
const STEP_NS: u64 = 200_000;

/// A free that waits for an event.
struct Free {
    device: &'static DeviceMemory,
    address: DevicePtr,
    bytes: u64,
    event: usize,
    context: usize,
}

/// The memory that was placed on the host.
#[derive(Default)]
pub(crate) struct HostPlaced {
    /// Whether anything was placed there; until then nothing has to be looked up.
    used: AtomicBool,
    /// Frees that wait for their streams.
    put_off: Mutex<Vec<Free>>,
    /// Held by a thread that carries out such frees. A context ends when no thread holds it.
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
        // Without this advice the device still reaches it, by a fault for each page.
        let _ = driver_calls::mem_advise(address, bytes, ADVICE_ACCESSED_BY, ordinal);
    }
    result
}

impl HostPlaced {
    fn put_off(&self) -> MutexGuard<'_, Vec<Free>> {
        self.put_off.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reserves for an allocation that will be placed on the host.
    pub(super) fn reserve(&self, device: &'static DeviceMemory, bytes: u64) -> Option<Reservation> {
        let reserve = || Reservation::new(device, MemoryKind::Overcommitted, bytes);
        let reserved = reserve().or_else(|| {
            // Bytes that frees put off would release count as well.
            self.carry_out_frees(PATIENCE);
            reserve()
        });
        let (reservation, _) = reserved?;
        self.used.store(true, Relaxed);
        Some(reservation)
    }

    /// Whether an address is the start of memory that was placed on the host.
    fn starts_on_host(&self, devices: &Devices, address: DevicePtr) -> bool {
        self.used.load(Relaxed)
            && devices.kind_of(Handle::Address(address)) == Some(MemoryKind::Overcommitted)
    }

    /// Whether an address is in memory that was placed on the host.
    pub(super) fn is_on_host(&self, devices: &Devices, address: DevicePtr) -> bool {
        if self.starts_on_host(devices, address) {
            return true;
        }
        let (mut start, mut bytes) = (0, 0);
        self.used.load(Relaxed)
            && driver_calls::mem_address_range(&raw mut start, &raw mut bytes, address).is_ok()
            && self.starts_on_host(devices, start)
    }

    /// Frees memory that was placed on the host, in the order of a stream; `None`: the address is not such
    /// memory.
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

    /// Carries out the frees whose streams have reached them. Another thread that is carrying out frees may
    /// wait for the device; this waits for it for at most `patience` steps. `true`: some frees still wait.
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

    /// A context is about to end: carries out the frees that wait for its streams. Afterwards they could not
    /// be carried out.
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
    /// Frees if the stream has reached the event; otherwise returns what still waits.
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

    /// Frees; the driver waits for work that still uses the memory.
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
        // A context that no longer works has no memory either.
        self.device.ledger.release(MemoryKind::Overcommitted, self.bytes);
    }
}
