//! Creation and end of contexts, and their charges. The context hooks call this.
//!
//! The driver does not say how much memory a context takes before it exists. So the session's first context is
//! created alone, and its measured size is reserved for each later one. NVML then tells each context's real size; a
//! context that does not fit is destroyed again.

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

/// Charged for a context if NVML is unavailable; about the size on current devices.
const ASSUMED_BYTES: u64 = 512 << 20;
/// A measurement outside these bounds is not the size of a context.
const LEAST_BYTES: u64 = 1 << 20;
const MOST_BYTES: u64 = 4 << 30;
/// How long to wait for the measurement of the session's first context. The driver takes 0.2 to 2 s.
const PATIENCE_NS: u64 = 5_000_000_000;
const STEP_NS: u64 = 1_000_000;

/// Runs a call that creates a context. `handle` is evaluated after success and returns the context; `undo` destroys
/// it. Must be called under [`Contexts::change`](super::contexts::Contexts::change).
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
        // The smallest measurement is nearest to the size of a context alone.
        let _ = page
            .context_bytes
            .fetch_update(Relaxed, Relaxed, |old| (old == 0 || measured < old).then_some(measured));
    }
    // Held until here: a context that does not fit is gone before the next one is created.
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

/// The known size of a context in bytes, or 0 if unknown. With 0 and a guard, this process creates the session's first
/// context, alone; with 0 and no guard, NVML is unavailable or another process's measurement did not come in time.
fn size_or_turn(ledger: &DeviceLedger) -> (u64, Option<First<'_>>) {
    let size = || ledger.page().map_or(0, |page| page.context_bytes.load(Relaxed));
    let known = size();
    if known > 0 || Processes::now(ledger).is_none() {
        return (known, None);
    }
    let until = clock::now().saturating_add(PATIENCE_NS);
    while clock::now() < until {
        let first = ledger.membership().go_first();
        // Another process may have just measured its context.
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

/// Runs a call that creates a green context in an existing primary context. Its size is small and unknown beforehand,
/// so it is measured. Must be called under [`Contexts::change`](super::contexts::Contexts::change).
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

/// Releases the charge of a green context that has ended.
pub(super) fn green_ended(device: &DeviceMemory, green: Green) {
    device.ledger.release(MemoryKind::Context, green.bytes);
}

/// Releases what the primary context and its green contexts took, after they have ended.
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

/// Releases what a context took and what was allocated in it, after it has ended.
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
    // Memory that the driver took for the context is free as well.
    device.shared.bell.ring();
}

/// This process's memory on a device at one moment.
struct MemoryReading {
    /// The processes that NVML lists; `None` if NVML is unavailable.
    processes: Option<Processes>,
    /// Bytes charged to this process, except for contexts, as far as NVML attributes them to this process.
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

    /// Bytes taken since `before` beyond the charges; `None` if unknown or negative.
    fn since(&self, before: &Self, device: &DeviceMemory) -> Option<u64> {
        let seen = |usage: &Self| usage.processes.as_ref()?.own_bytes(device);
        // NVML does not list a process without a context, even if it has memory.
        let (known, had) = match seen(before).unwrap_or(0) {
            0 => (0, 0),
            seen => (seen, before.charged),
        };
        seen(self)?.checked_sub(known)?.checked_sub(self.charged.saturating_sub(had))
    }
}

/// What a refused call was creating; chooses the message.
#[derive(Clone, Copy)]
enum Made {
    Context,
    /// A context whose size NVML does not show.
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
        "device {}: {takes} {} MiB; {why}",
        device.uuid(),
        bytes.div_ceil(MIB),
    ));
    CuResult::OUT_OF_MEMORY
}
