//! Oversubscription: what does not fit on the device any more becomes managed memory that lives on the
//! host, where the device reaches it over the bus. Never beyond the limit that the program is shown.
//!
//! Linear, pitched, managed and stream-ordered allocations can be placed like that. What cannot
//! (physical memory, arrays, nodes of graphs) is refused once the real share is used up.
//!
//! Managed memory cannot be freed in the order of a stream. Such a free is put off until the stream
//! has got there: an event says when, and the reconciler does it.

use super::charge::{self, current_context};
use super::tracker::{self, Allocation, Handle};
use crate::clock;
use crate::device::Device;
use crate::driver_calls::{undisturbing, within};
use crate::per_process::PerProcess;
use crate::{driver_calls, reconciler, report};
use core::ffi::c_uint;
use core::ptr;
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::Relaxed;
use driver::cuda::{
    ATTACH_GLOBAL, CAPTURE_STATUS_NONE, CuResult, DevicePtr, EVENT_DISABLE_TIMING, Event, Stream,
};
use session::ledger::Place;
use session::page::layout::{Kind, Layout};
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
/// How long an allocation that does not fit waits for a thread that frees, in steps of 0.2 ms.
const PATIENCE: u32 = 500;
const STEP_NS: u64 = 200_000;

/// Whether anything has been placed on the host; until then nothing has to be looked up.
static USED: AtomicBool = AtomicBool::new(false);
/// Frees that wait for their streams.
static PUT_OFF: PerProcess<Mutex<Vec<Free>>> = PerProcess::new();
/// Held by whoever carries such frees out. A context ends when nobody does.
static FREEING: PerProcess<Mutex<()>> = PerProcess::new();

/// A free that waits for an event.
struct Free {
    device: &'static Device,
    address: DevicePtr,
    bytes: u64,
    event: usize,
    context: usize,
}

/// In a forked child: its parent's memory is not its own.
pub(super) fn after_fork() {
    PUT_OFF.forget();
    FREEING.forget();
    USED.store(false, Relaxed);
}

fn put_off() -> MutexGuard<'static, Vec<Free>> {
    PUT_OFF.get().lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether a session may use more of a device's memory than is on the device for it.
pub(crate) fn is_on(device: &Device) -> bool {
    device.page().is_some_and(is_allowed_by)
}

/// Whether the limits of a page say so.
pub(super) fn is_allowed_by(page: &Layout) -> bool {
    page.memory_real.load(Relaxed) < page.memory_limit.load(Relaxed)
}

/// Runs an allocating call for `bytes` of a device's memory; where the real share is used up, or the
/// device is full, runs `on_host` instead. `address` tells, after success, what either has allocated.
pub(crate) fn allocate(
    device: &'static Device,
    kind: Kind,
    bytes: u64,
    call: impl FnOnce() -> CuResult,
    on_host: impl FnOnce() -> CuResult,
    address: impl Fn() -> DevicePtr,
) -> CuResult {
    if charge::reserve(device, kind, bytes) {
        let context = current_context(device);
        let result = call();
        if result.is_ok() {
            let allocation = Allocation { kind, bytes, context };
            charge::remember(device, Handle::Address(address()), allocation);
            return result;
        }
        charge::release(device, kind, bytes);
        if result != CuResult::OUT_OF_MEMORY || !is_on(device) {
            return result;
        }
    } else if !is_on(device) {
        return charge::refused(device, bytes);
    }
    instead(device, bytes, on_host, address)
}

/// Charges and runs `on_host`, for an allocation that the device has no room for.
pub(crate) fn instead(
    device: &'static Device,
    bytes: u64,
    on_host: impl FnOnce() -> CuResult,
    address: impl Fn() -> DevicePtr,
) -> CuResult {
    let kind = Kind::Oversubscribed;
    let reserve = || charge::reserve_plainly(device, kind, bytes);
    if !reserve() {
        // Room that another thread is about to make counts as well.
        carry_out_frees(PATIENCE);
        if !reserve() {
            return charge::declined(device, bytes);
        }
    }
    USED.store(true, Relaxed);
    let result = on_host();
    if result.is_ok() {
        let allocation = Allocation { kind, bytes, context: current_context(device) };
        charge::remember(device, Handle::Address(address()), allocation);
        tracing::debug!("device {}: {bytes} bytes are placed on the host", device.uuid());
    } else {
        charge::release(device, kind, bytes);
    }
    result
}

/// Makes managed memory that stays on the host.
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

/// Has managed memory stay on the host, mapped by the current device.
pub(crate) fn keep_on_host(address: DevicePtr, bytes: usize) -> CuResult {
    let result = driver_calls::mem_advise(address, bytes, ADVICE_PREFERRED_LOCATION, CPU);
    let mut ordinal = 0;
    if result.is_ok() && driver_calls::ctx_get_device(&raw mut ordinal).is_ok() {
        // Without this the device reaches it all the same, by a fault for each page.
        let _ = driver_calls::mem_advise(address, bytes, ADVICE_ACCESSED_BY, ordinal);
    }
    result
}

/// Says that an allocation would have fitted into the limit, but cannot be placed on the host.
pub(super) fn say_if_real_share_is_used_up(device: &Device, bytes: u64) {
    let Some(book) = device.book() else { return };
    let (place, real) = (book.place(bytes), book.real_limit());
    drop(book);
    if matches!(place, Ok(Place::Host)) {
        report::once(format_args!(
            "device {}: the {} MiB of the memory limit that may be on the device are used up, and memory of graphs, arrays or cuMemCreate cannot be placed on the host; such allocations fail",
            device.uuid(),
            real >> 20,
        ));
    }
}

/// Whether an address is the start of memory that was placed on the host.
fn starts_on_host(address: DevicePtr) -> bool {
    USED.load(Relaxed) && tracker::kind_of(Handle::Address(address)) == Some(Kind::Oversubscribed)
}

/// Whether an address is in memory that was placed on the host.
pub(crate) fn is_on_host(address: DevicePtr) -> bool {
    if starts_on_host(address) {
        return true;
    }
    let (mut start, mut bytes) = (0, 0);
    USED.load(Relaxed)
        && driver_calls::mem_address_range(&raw mut start, &raw mut bytes, address).is_ok()
        && starts_on_host(start)
}

/// Frees memory that was placed on the host in the order of a stream; `None`: it is not such memory.
pub(crate) fn free_async(address: DevicePtr, stream: Stream) -> Option<CuResult> {
    if !starts_on_host(address) {
        return None;
    }
    let (device, allocation) = tracker::take(Handle::Address(address))?;
    let waiting = undisturbing(|| mark(stream));
    match waiting {
        Ok((event, context)) => {
            let bytes = allocation.bytes;
            put_off().push(Free { device, address, bytes, event: event as usize, context });
            reconciler::ring();
            Some(CuResult::SUCCESS)
        }
        Err(result) => {
            charge::remember(device, Handle::Address(address), allocation);
            Some(result)
        }
    }
}

/// Records an event into a stream; tells it, and the stream's context.
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

/// Carries out the frees whose streams have got there. Another thread that is at it may wait for the
/// device, and is waited for in so many steps at most. `true`: some frees still wait.
pub(crate) fn carry_out_frees(patience: u32) -> bool {
    if !USED.load(Relaxed) {
        return false;
    }
    let mut tries = 0;
    let _freeing = loop {
        match FREEING.get().try_lock() {
            Ok(freeing) => break freeing,
            Err(TryLockError::Poisoned(freeing)) => break freeing.into_inner(),
            Err(TryLockError::WouldBlock) if tries == patience => return true,
            Err(TryLockError::WouldBlock) => {
                tries += 1;
                clock::sleep(STEP_NS);
            }
        }
    };
    let waiting = core::mem::take(&mut *put_off());
    let waiting: Vec<Free> = waiting.into_iter().filter_map(Free::try_carry_out).collect();
    let mut put_off = put_off();
    put_off.extend(waiting);
    !put_off.is_empty()
}

/// A context is about to end: carries out what waits for streams of it. Nothing else could afterwards.
pub(crate) fn context_ends(context: usize) {
    if !USED.load(Relaxed) || context == 0 {
        return;
    }
    let _freeing = FREEING.get().lock().unwrap_or_else(PoisonError::into_inner);
    let ending: Vec<Free> = put_off().extract_if(.., |free| free.context == context).collect();
    for free in ending {
        free.carry_out();
    }
}

impl Free {
    /// Frees, if the stream has got there; else is what still waits.
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

    /// Frees; the driver waits for whoever still uses the memory.
    fn carry_out(self) {
        let freed = within(self.context, || {
            undisturbing(|| {
                let _ = driver_calls::event_destroy(self.event as Event);
                driver_calls::mem_free(self.address)
            })
        });
        if freed != Some(CuResult::SUCCESS) {
            tracing::debug!("device {}: a free failed: {freed:?}", self.device.uuid());
        }
        // A context that does not work any more has no memory either.
        charge::release(self.device, Kind::Oversubscribed, self.bytes);
    }
}
