//! What contexts take of a device's memory.
//!
//! The driver does not say how much a context takes before it exists. What was learned from the first
//! one of the session is reserved for the next; what it really took is read from NVML afterwards, and
//! a context that turns out not to fit is taken down again.

use super::charge::{release, reserve};
use super::seen::Processes;
use super::{graphs, headroom, imports, physical, pools};
use crate::device::Device;
use crate::{compute, driver_calls, reconciler, report};
use core::ptr;
use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering::Relaxed;
use driver::cuda::{self, CuResult};
use session::page::layout::Kind;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Taken for granted where NVML cannot be asked: what a context takes on current devices.
const ASSUMED_BYTES: u64 = 512 << 20;
/// A measured size outside these bounds is not a context's.
const LEAST_BYTES: u64 = 16 << 20;
const MOST_BYTES: u64 = 4 << 30;

/// The contexts of this process on a device, by handle.
#[derive(Default)]
pub(crate) struct Contexts {
    bytes: Mutex<HashMap<usize, u64>>,
    /// Green contexts of the device: what each took. They live in the primary context.
    green: Mutex<HashMap<usize, Green>>,
    primary: AtomicUsize,
    /// References to the primary context that the program holds.
    references: AtomicUsize,
    /// Held while a context is made or may end: two that are made at once could not be told apart when
    /// they are measured. The driver does these things one after the other in any case.
    changing: Mutex<()>,
}

/// A green context.
#[derive(Clone, Copy)]
pub(crate) struct Green {
    ordinal: cuda::Device,
    bytes: u64,
    /// The context that stands for it, zero if it is not known.
    pub(crate) context: usize,
}

impl Green {
    fn new(ordinal: cuda::Device, bytes: u64, handle: usize) -> Self {
        let mut context = ptr::null_mut();
        let found =
            driver_calls::ctx_from_green(&raw mut context, handle as cuda::GreenContext).is_ok();
        let context = if found { context as usize } else { 0 };
        compute::context_is_made(context);
        Self { ordinal, bytes, context }
    }
}

impl Contexts {
    fn green(&self) -> MutexGuard<'_, HashMap<usize, Green>> {
        self.green.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The ordinal of the device, if a green context is of it.
    pub(crate) fn ordinal_of_green(&self, handle: usize) -> Option<cuda::Device> {
        self.green().get(&handle).map(|green| green.ordinal)
    }

    /// A green context is about to end. To be called under [`Contexts::change`].
    pub(crate) fn green_ends(&self, handle: usize) -> Option<Green> {
        self.green().remove(&handle)
    }

    /// It did not.
    pub(crate) fn green_stays(&self, handle: usize, green: Green) {
        self.green().insert(handle, green);
    }

    /// The contexts that end with the primary one: itself, and those that stand for green ones.
    pub(crate) fn of_primary(&self) -> Vec<usize> {
        let green = self.green();
        green.values().map(|green| green.context).chain([self.primary()]).collect()
    }

    /// The context that allocations end with which are made in `current`: for those that were not
    /// made by a call for contexts, which are green ones, the primary context.
    pub(crate) fn owner(&self, current: usize) -> usize {
        match self.primary() {
            primary if current == primary => current,
            primary if current == 0 || primary == 0 || self.has(current) => current,
            primary => primary,
        }
    }

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

    /// Keeps other threads from making or ending contexts. The one lock that is held across driver
    /// calls; nothing else is waited for under it.
    pub(crate) fn change(&self) -> MutexGuard<'_, ()> {
        self.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The program has retained the primary context.
    pub(crate) fn primary_retained(&self, handle: usize) {
        self.references.fetch_add(1, Relaxed);
        self.primary.store(handle, Relaxed);
    }

    /// Whether the program's next release of the primary context is its last.
    pub(crate) fn last_reference(&self) -> bool {
        self.references.load(Relaxed) <= 1
    }

    /// The program has released the primary context, which is still there.
    pub(crate) fn primary_released(&self) {
        let _ = self.references.fetch_update(Relaxed, Relaxed, |count| count.checked_sub(1));
    }
}

/// To be called before [`Contexts::change`]: loading a library under that lock could wait for a thread
/// that holds the loader's lock and waits for this one.
pub(crate) fn prepare() {
    driver_calls::nvml::load();
}

/// Runs a call that makes a context. `handle` tells, after success, which one it is, and `undo` takes
/// it down. To be called under [`Contexts::change`].
pub(crate) fn create(
    device: &'static Device,
    call: impl FnOnce() -> CuResult,
    handle: impl FnOnce() -> usize,
    undo: impl FnOnce(),
) -> CuResult {
    let known = device.page().map_or(0, |page| page.context_bytes.load(Relaxed));
    if !reserve(device, Kind::Context, known) {
        return too_small(device, known);
    }
    let before = Usage::now(device);
    let result = call();
    if !result.is_ok() {
        release(device, Kind::Context, known);
        return result;
    }
    let after = Usage::now(device);
    if let Some(processes) = &after.processes {
        processes.learn_own_pid(device, before.processes.as_ref());
    }
    let took =
        after.since(&before, device).filter(|took| (LEAST_BYTES..=MOST_BYTES).contains(took));
    if let (Some(measured), Some(page)) = (took, device.page()) {
        // The smallest seen is the nearest to what a context takes by itself.
        let _ = page
            .context_bytes
            .fetch_update(Relaxed, Relaxed, |old| (old == 0 || measured < old).then_some(measured));
    }
    let took = took.unwrap_or(if known > 0 { known } else { ASSUMED_BYTES });
    if took > known && !reserve(device, Kind::Context, took - known) {
        undo();
        release(device, Kind::Context, known);
        return too_small(device, took);
    }
    if took < known {
        release(device, Kind::Context, known - took);
    }
    let handle = handle();
    device.contexts.set(handle, took);
    compute::context_is_made(handle);
    reconciler::start();
    compute::follow_limits(device);
    tracing::debug!("device {}: a context took {took} bytes", device.uuid());
    result
}

/// Runs a call that makes a green context in a primary context that exists. What it takes is little,
/// and not known beforehand: it is measured. To be called under [`Contexts::change`].
pub(crate) fn create_green(
    device: &'static Device,
    ordinal: cuda::Device,
    call: impl FnOnce() -> CuResult,
    handle: impl FnOnce() -> usize,
    undo: impl FnOnce(),
) -> CuResult {
    let before = Usage::now(device);
    let result = call();
    if !result.is_ok() {
        return result;
    }
    let took =
        Usage::now(device).since(&before, device).filter(|&took| took <= MOST_BYTES).unwrap_or(0);
    if took > 0 && !reserve(device, Kind::Context, took) {
        undo();
        return too_small(device, took);
    }
    let handle = handle();
    let made = Green::new(ordinal, took, handle);
    device.contexts.green().insert(handle, made);
    result
}

/// A green context has been made together with the primary context, and is charged with it.
pub(crate) fn green_made(device: &Device, ordinal: cuda::Device, handle: usize) {
    let made = Green::new(ordinal, 0, handle);
    device.contexts.green().insert(handle, made);
}

/// A green context is gone.
pub(crate) fn green_ended(device: &Device, green: Green) {
    release(device, Kind::Context, green.bytes);
}

/// The primary context is gone, and the green ones with it.
pub(crate) fn primary_ended(device: &'static Device, handle: usize) {
    device.contexts.references.store(0, Relaxed);
    device.contexts.primary.store(0, Relaxed);
    let green: Vec<Green> = device.contexts.green().drain().map(|(_, green)| green).collect();
    for Green { bytes, .. } in green {
        release(device, Kind::Context, bytes);
    }
    ended(device, handle);
}

/// A context is gone: gives back what it took, and what was allocated in it.
pub(crate) fn ended(device: &'static Device, handle: usize) {
    if let Some(bytes) = device.contexts.take(handle) {
        release(device, Kind::Context, bytes);
    }
    for allocation in device.tracker.end_context(handle) {
        release(device, allocation.kind, allocation.bytes);
    }
    physical::context_ended(handle);
    imports::context_ended(handle);
    graphs::context_ended(device, handle);
    headroom::context_ended(device, handle);
    pools::refresh(device, true);
    // What the driver had taken for it is gone as well.
    reconciler::ring();
}

/// What this process uses of a device at a moment.
struct Usage {
    /// What NVML lists, where it can be asked.
    processes: Option<Processes>,
    /// Other things than contexts, as far as this process or an exporter has been charged for them.
    charged: u64,
}

impl Usage {
    fn now(device: &Device) -> Self {
        let slot = device.own_slot();
        let bytes = |kind: Kind| slot.map_or(0, |slot| slot.bytes[kind as usize].load(Relaxed));
        let taken = |kind: &Kind| !matches!(kind, Kind::Context | Kind::Headroom);
        let others = Kind::ALL.into_iter().filter(taken);
        let charged = others.map(bytes).fold(super::imported_bytes(device), u64::saturating_add);
        Self { processes: Processes::now(device), charged }
    }

    /// What came in addition since `before`, other than what was charged meanwhile; `None` where it
    /// cannot be told or cannot be.
    fn since(&self, before: &Self, device: &Device) -> Option<u64> {
        let seen = |usage: &Self| usage.processes.as_ref()?.own_bytes(device);
        let more = seen(self)?.checked_sub(seen(before).unwrap_or(0))?;
        more.checked_sub(self.charged.saturating_sub(before.charged))
    }
}

fn too_small(device: &Device, context: u64) -> CuResult {
    let Some((limit, used)) = device.book().map(|book| (book.limit(), book.used())) else {
        return super::charge::refused(device, context);
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
