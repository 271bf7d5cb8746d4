//! How contexts begin and end, and what they take of a device's memory.
//!
//! The driver does not say how much a context takes before it exists. So the session's first context is made
//! alone, and the size measured for it is reserved for the next one. What a context really took is read from NVML
//! afterwards. A context that turns out not to fit is destroyed again.

use super::contexts::Green;
use super::device::DeviceMemory;
use super::holdings::Holdings;
use super::images::Images;
use super::refusal::{Why, refused};
use super::reserve::Reserve;
use super::seen::Processes;
use crate::ledger::DeviceLedger;
use crate::{clock, report};
use core::sync::atomic::Ordering::Relaxed;
use driver::cuda::{self, CuResult};
use session::First;
use session::layout::MemoryKind;

/// Assumed if NVML cannot be asked: what a context takes on current devices.
const ASSUMED_BYTES: u64 = 512 << 20;
/// A measured size outside these bounds is not that of a context.
const LEAST_BYTES: u64 = 1 << 20;
const MOST_BYTES: u64 = 4 << 30;
/// How long the measurement of the session's first context is waited for. The driver takes 0.2 to 2 s.
const PATIENCE_NS: u64 = 5_000_000_000;
const STEP_NS: u64 = 1_000_000;

/// Runs a call that makes a context. After success `handle` returns it; `undo` destroys it. Must be called
/// under [`Contexts::change`](super::contexts::Contexts::change).
pub(super) fn create(
    reserve: &Reserve,
    device: &'static DeviceMemory,
    call: impl FnOnce() -> CuResult,
    handle: impl FnOnce() -> usize,
    undo: impl FnOnce(),
) -> CuResult {
    let ledger = device.ledger;
    let (known, first) = size_or_turn(ledger);
    let Some(reservation) = reserve.reserve(device, MemoryKind::Context, known) else {
        return too_small(ledger, Made::Context, known);
    };
    let before = MemoryReading::now(&reserve.holdings, device);
    let result = call();
    if !result.is_ok() {
        return result;
    }
    let after = MemoryReading::now(&reserve.holdings, device);
    match &after.processes {
        Some(processes) => processes.learn_own_pid(device, before.processes.as_ref()),
        None => report::once(format_args!(
            "device {}: {}, so a context is charged as {} MiB, and code, stacks and heap that the driver takes are \
             not charged",
            ledger.uuid(),
            crate::driver_calls::nvml::why_silent(),
            ASSUMED_BYTES >> 20
        )),
    }
    let took =
        after.since(&before, device).filter(|took| (LEAST_BYTES..=MOST_BYTES).contains(took));
    if let (Some(measured), Some(page)) = (took, ledger.page()) {
        // The smallest measurement is the nearest to the size of a context alone.
        let _ = page
            .context_bytes
            .fetch_update(Relaxed, Relaxed, |old| (old == 0 || measured < old).then_some(measured));
    }
    // Not earlier: a context that does not fit is gone before the next one is made.
    let _first = first;
    let made = if took.is_some() || known > 0 { Made::Context } else { Made::Unmeasured };
    let took = took.unwrap_or(if known > 0 { known } else { ASSUMED_BYTES });
    if took > known {
        let Some(rest) = reserve.reserve_taken(device, MemoryKind::Context, took - known) else {
            undo();
            drop(reservation);
            return too_small(ledger, made, took);
        };
        rest.keep();
    }
    reservation.keep();
    if took < known {
        ledger.release(MemoryKind::Context, known - took);
    }
    device.contexts.set(handle(), took);
    tracing::debug!("device {}: a context took {took} bytes", ledger.uuid());
    result
}

/// The size of a context; zero while it is not known. Then this process may make the first one, alone, or has
/// waited for another one in vain. Without NVML there is nothing to wait for.
fn size_or_turn(ledger: &DeviceLedger) -> (u64, Option<First<'_>>) {
    let size = || ledger.page().map_or(0, |page| page.context_bytes.load(Relaxed));
    let known = size();
    if known > 0 || Processes::now(ledger).is_none() {
        return (known, None);
    }
    let until = clock::now().saturating_add(PATIENCE_NS);
    while clock::now() < until {
        let first = ledger.membership().go_first();
        // The one before may have just come to its end.
        let known = size();
        if known > 0 || ledger.page().is_none() {
            return (known, None);
        }
        if first.is_some() {
            return (0, first);
        }
        clock::sleep(STEP_NS);
    }
    (0, None)
}

/// Runs a call that makes a green context in an existing primary context. It takes little memory. The size is
/// not known beforehand, so it is measured. Must be called under
/// [`Contexts::change`](super::contexts::Contexts::change).
pub(super) fn create_green(
    reserve: &Reserve,
    device: &'static DeviceMemory,
    ordinal: cuda::Device,
    call: impl FnOnce() -> CuResult,
    handle: impl FnOnce() -> usize,
    undo: impl FnOnce(),
) -> CuResult {
    let before = MemoryReading::now(&reserve.holdings, device);
    let result = call();
    if !result.is_ok() {
        return result;
    }
    let took = MemoryReading::now(&reserve.holdings, device)
        .since(&before, device)
        .filter(|&took| took <= MOST_BYTES)
        .unwrap_or(0);
    if took > 0 {
        let Some(reservation) = reserve.reserve_taken(device, MemoryKind::Context, took) else {
            undo();
            return too_small(device.ledger, Made::Green, took);
        };
        reservation.keep();
    }
    device.contexts.green_made(ordinal, handle(), took);
    result
}

/// A green context has ended.
pub(super) fn green_ended(device: &DeviceMemory, green: Green) {
    device.ledger.release(MemoryKind::Context, green.bytes);
}

/// The primary context has ended, and its green contexts with it.
pub(super) fn primary_ended(
    holdings: &Holdings,
    images: &Images,
    device: &'static DeviceMemory,
    handle: usize,
) {
    for Green { bytes, .. } in device.contexts.primary_ended() {
        device.ledger.release(MemoryKind::Context, bytes);
    }
    ended(holdings, images, device, handle);
}

/// A context has ended: gives back what it took, and what was allocated in it.
pub(super) fn ended(
    holdings: &Holdings,
    images: &Images,
    device: &'static DeviceMemory,
    handle: usize,
) {
    if let Some(bytes) = device.contexts.take(handle) {
        device.ledger.release(MemoryKind::Context, bytes);
    }
    for allocation in device.tracker.end_context(handle) {
        device.ledger.release(allocation.kind, allocation.bytes);
    }
    holdings.context_ended(device, handle);
    images.context_ended(device, handle);
    holdings.pools.refresh(device, true);
    // What the driver had taken for it is free as well.
    device.shared.bell.ring();
}

/// What this process uses of a device at a moment.
struct MemoryReading {
    /// The processes that NVML lists, if NVML can be asked.
    processes: Option<Processes>,
    /// What is charged to this process on the device, other than for contexts, and NVML shows for it.
    charged: u64,
}

impl MemoryReading {
    fn now(holdings: &Holdings, device: &DeviceMemory) -> Self {
        let slot = device.ledger.own_slot();
        let bytes =
            |kind: MemoryKind| slot.map_or(0, |slot| slot.bytes[kind as usize].load(Relaxed));
        let taken = |kind: &MemoryKind| {
            use MemoryKind::{Context, Headroom, Overcommitted};
            !matches!(kind, Context | Headroom | Overcommitted)
        };
        let taken = MemoryKind::ALL.into_iter().filter(taken);
        let (hidden, foreign) = holdings.physical.shown_otherwise(device);
        let charged = taken.map(bytes).fold(foreign, u64::saturating_add);
        Self { processes: Processes::now(device.ledger), charged: charged.saturating_sub(hidden) }
    }

    /// What was taken since `before` beyond the charges; `None` if that is unknown, or negative.
    fn since(&self, before: &Self, device: &DeviceMemory) -> Option<u64> {
        let seen = |usage: &Self| usage.processes.as_ref()?.own_bytes(device);
        // NVML does not list a process without a context, but it may have memory.
        let (known, had) = match seen(before).unwrap_or(0) {
            0 => (0, 0),
            seen => (seen, before.charged),
        };
        seen(self)?.checked_sub(known)?.checked_sub(self.charged.saturating_sub(had))
    }
}

/// What is about to be made, or was made and taken down again.
#[derive(Clone, Copy)]
enum Made {
    Context,
    /// NVML does not show what it takes.
    Unmeasured,
    Green,
}

fn too_small(device: &DeviceLedger, made: Made, bytes: u64) -> CuResult {
    let Some(why) = device.open().map(|opened| Why::of(&opened, bytes)) else {
        return refused(device, bytes);
    };
    let takes = match made {
        Made::Context => "a CUDA context takes",
        Made::Unmeasured => "NVML does not show the size of a CUDA context, which is assumed to be",
        Made::Green => "a green context takes",
    };
    const MIB: u64 = 1 << 20;
    report::once(format_args!(
        "device {}: {takes} {} MiB; {why} for it",
        device.uuid(),
        bytes.div_ceil(MIB),
    ));
    CuResult::OUT_OF_MEMORY
}
