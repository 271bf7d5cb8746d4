//! Reserve, call, commit.

use super::reconcile::{self, Caller};
use super::size::PAGE;
use super::tracker::{Allocation, Handle};
use super::{changes, graphs, headroom, imports, oversubscribe, physical, pools};
use crate::device::Device;
use crate::process::{self, Verdict};
use crate::{driver_calls, reconciler};
use core::sync::atomic::Ordering::Relaxed;
use driver::cuda::CuResult;
use session::ledger::{Book, Place};
use session::page::layout::Kind;

/// Runs an allocating call of the driver for `bytes` of a device's memory.
///
/// The bytes are reserved first, so that no other process can take them meanwhile; no lock is held
/// while the driver works. `handle` says, after success, by what the memory will be freed.
pub(crate) fn allocate(
    device: &'static Device,
    kind: Kind,
    bytes: u64,
    call: impl FnOnce() -> CuResult,
    handle: impl FnOnce() -> Handle,
) -> CuResult {
    if !reserve(device, kind, bytes) {
        return refused(device, bytes);
    }
    let context = current_context(device);
    let result = call();
    if result.is_ok() {
        remember(device, handle(), Allocation { kind, bytes, context });
    } else {
        release(device, kind, bytes);
    }
    result
}

/// Reserves; where it does not fit, has pools give back what they do not use and tries once more. To be
/// called from within a call that is counted as one that allocates ([`changes`]).
pub(super) fn reserve(device: &'static Device, kind: Kind, bytes: u64) -> bool {
    reserve_seen(device, kind, bytes) || {
        trim(device);
        reserve_again(device, kind, bytes)
    }
}

/// Has pools and graphs give back what they do not use.
pub(super) fn trim(device: &Device) {
    pools::refresh(device, true);
    graphs::refresh(device, true);
}

/// Reserves; near the limit only what is left by NVML's figure.
pub(super) fn reserve_seen(device: &'static Device, kind: Kind, bytes: u64) -> bool {
    match try_to_reserve(device, kind, bytes) {
        None => false,
        Some(Left::Plenty) => true,
        Some(left) => {
            let is_last = left == Left::Little;
            reconcile::look_now(device, Caller::Allocation { kind, bytes, is_last })
        }
    }
}

/// Reserves what did not fit a moment ago; where it still does not, but may by NVML's figure, looks there.
pub(super) fn reserve_again(device: &'static Device, kind: Kind, bytes: u64) -> bool {
    reserve_seen(device, kind, bytes) || {
        reconcile::look_now(device, Caller::Refused);
        reserve_seen(device, kind, bytes)
    }
}

/// Reserves; where it does not fit, gives back what dead processes left and tries once more.
pub(super) fn reserve_plainly(device: &Device, kind: Kind, bytes: u64) -> bool {
    try_to_reserve(device, kind, bytes).is_some()
}

/// How much a reservation has left of the limit.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Left {
    Plenty,
    /// Less than much code may take, or so much less than when NVML was last asked that it is time to ask.
    Some,
    /// So little that what the driver has taken by itself, and nobody has seen yet, may be more.
    Little,
}

impl Left {
    /// The part of a limit that is little, or is much to allocate unseen.
    const LITTLE: u64 = 16;
    /// The part of a limit that code is left at most.
    const CODE: u64 = 2;

    fn of(book: &Book<'_>, device: &Device) -> Self {
        let unplaced = headroom::unplaced(device, book.has(device.seat().slot(), Kind::Driver));
        let seen = device.left_when_seen.load(Relaxed);
        let of = |limit: u64, used: u64| {
            let (left, little) = (limit.saturating_sub(used), limit / Self::LITTLE);
            match unplaced.min(limit / Self::CODE).max(seen.saturating_sub(little)) {
                _ if left < little => Self::Little,
                some if left < some => Self::Some,
                _ => Self::Plenty,
            }
        };
        of(book.limit(), book.used()).max(of(book.real_limit(), book.on_device()))
    }
}

/// What a session may still take on a device itself.
pub(super) fn left(book: &Book<'_>) -> u64 {
    let left = book.limit().saturating_sub(book.used());
    left.min(book.real_limit().saturating_sub(book.on_device()))
}

/// Whether the driver may take a page for an allocation that is smaller.
const fn shares_pages(kind: Kind, bytes: u64) -> bool {
    matches!(kind, Kind::Data | Kind::Array) && !bytes.is_multiple_of(PAGE)
}

fn try_to_reserve(device: &Device, kind: Kind, bytes: u64) -> Option<Left> {
    let slot = device.seat().slot();
    let reserve = || match device.book() {
        Some(mut book) => {
            // Small ones share pages; each may be the first of one.
            let needs = if shares_pages(kind, bytes) { bytes.max(PAGE) } else { bytes };
            let fits = match book.place(needs) {
                Ok(Place::Device) => true,
                Ok(Place::Host) => kind == Kind::Oversubscribed,
                Err(_) => false,
            };
            fits.then(|| {
                book.charge(slot, kind, bytes);
                changes::reserved(device, &book);
                Left::of(&book, device)
            })
        }
        // A page that cannot be used, and a failure that is let pass.
        None => (device.broken().is_some() && !device.is_denied()).then_some(Left::Plenty),
    };
    reserve().or_else(|| device.reap().then(reserve).flatten())
}

/// Whether what the driver may have taken can be much.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Much {
    Perhaps,
    Surely,
}

/// The driver may have taken memory of the current device. That is charged at once if it can be much or
/// where little is left; else the reconciler does it.
pub(crate) fn driver_may_have_taken(much: Much) {
    if let Verdict::Limited(device) = process::get().current_device()
        && let Some(left) = device.book().map(|book| Left::of(&book, device))
        && (much == Much::Surely || left == Left::Little)
    {
        reconcile::look_now(device, Caller::Other { urgent: much == Much::Surely });
    }
    reconciler::ring();
}

/// Whether a session uses more than it may.
pub(super) fn is_over(device: &Device) -> bool {
    device
        .book()
        .is_some_and(|book| book.used() > book.limit() || book.on_device() > book.real_limit())
}

/// Notes a refusal of memory that can only be on the device, and is its result.
pub(super) fn refused(device: &Device, asked: u64) -> CuResult {
    oversubscribe::say_if_real_share_is_used_up(device, asked);
    declined(device, asked)
}

/// Notes a refusal, and is its result.
pub(super) fn declined(device: &Device, asked: u64) -> CuResult {
    let Some(book) = device.book() else {
        return if device.is_denied() { CuResult::NOT_PERMITTED } else { CuResult::OUT_OF_MEMORY };
    };
    let (used, limit, real) = (book.used(), book.limit(), book.real_limit());
    drop(book);
    tracing::debug!(
        "device {}: {asked} bytes do not fit: {used} of {limit} bytes ({real} on the device itself) are in use",
        device.uuid()
    );
    CuResult::OUT_OF_MEMORY
}

/// Remembers an allocation. What had its handle before is gone, however that came about.
pub(super) fn remember(device: &Device, handle: Handle, allocation: Allocation) {
    if let Some(gone) = device.tracker.insert(handle, allocation) {
        release(device, gone.kind, gone.bytes);
    }
}

/// Gives bytes back to the session; while the book cannot be opened, as soon as it can.
pub(super) fn release(device: &Device, kind: Kind, bytes: u64) {
    let seat = device.seat();
    let released = match device.book() {
        Some(mut book) => book.release(seat.slot(), kind, bytes),
        None => {
            seat.owe(kind, bytes);
            Ok(())
        }
    };
    if let Err(damaged) = released {
        crate::report::once(format_args!("device {}: {damaged}", device.uuid()));
    }
}

/// Runs a freeing call of the driver and gives the bytes back.
///
/// The record is taken out before the call: from the moment the driver has freed it, another thread
/// may get the same address for a new allocation.
pub(crate) fn free(handle: Handle, call: impl FnOnce() -> CuResult) -> CuResult {
    let Some((device, allocation)) = super::tracker::take(handle) else {
        return free_other(handle, call);
    };
    let result = call();
    if result.is_ok() {
        release(device, allocation.kind, allocation.bytes);
    } else {
        remember(device, handle, allocation);
    }
    result
}

/// Frees what is not charged by itself: of a pool, of external memory, imported, sparse, or not known.
fn free_other(handle: Handle, call: impl FnOnce() -> CuResult) -> CuResult {
    physical::free_external(handle, || match handle {
        Handle::Address(address) => pools::free(address, || imports::close(address, call)),
        Handle::Array(array) | Handle::MipmappedArray(array) => {
            physical::destroy_array(array, call)
        }
        Handle::External(_) => call(),
    })
}

/// The context that the calling thread's allocations on a device end with, as a number; zero for none.
pub(super) fn current_context(device: &Device) -> usize {
    device.contexts.owner(driver_calls::current_context())
}
