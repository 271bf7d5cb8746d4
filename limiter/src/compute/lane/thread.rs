//! A thread's shortcuts: its lanes by stream, and the estimates of what it launches. The launch paths look here first.

use super::super::estimate::Estimate;
use super::super::fast_path::FAST_PATH;
use super::super::kinds::Seen;
use super::super::work::SPREAD;
use super::super::{Gate, Launched, Work, clock, driver_calls, within};
use super::Lane;
use crate::verdict::Verdict;
use core::cell::{Cell, RefCell};
use core::ptr;
use core::sync::atomic::Ordering::Relaxed;
use driver::cuda::{Context, STREAM_LEGACY, STREAM_PER_THREAD, Stream};
use std::sync::Arc;

/// Streams that a thread finds without a search.
const SHORTCUTS: usize = 32;

/// A thread's record of a stream that it launches into, in one cache line.
#[repr(align(64))]
struct Shortcut {
    stream: Cell<usize>,
    lease: Cell<u32>,
    /// `None`: unused, and `lane` may be invalid.
    gate: Cell<Option<&'static Gate>>,
    lane: Cell<*const Lane>,
}

impl Shortcut {
    const fn new() -> Self {
        Self {
            stream: Cell::new(0),
            lease: Cell::new(0),
            gate: Cell::new(None),
            lane: Cell::new(ptr::null()),
        }
    }
}

impl Shortcut {
    /// The lane. Only called while the shortcut is in use.
    fn lane(&self) -> Arc<Lane> {
        let lane = self.lane.get();
        // SAFETY: the pointer is that of an `Arc` of this thread's list.
        unsafe {
            Arc::increment_strong_count(lane);
            Arc::from_raw(lane)
        }
    }

    /// Whether the shortcut is valid in the current context. The shortcut of a default stream is valid only in the
    /// lane's own context.
    #[cold]
    fn leads_from_here(&self) -> bool {
        let stream = self.stream.get();
        // SAFETY: the lane is held by this thread's list as long as a shortcut leads to it.
        let lane = unsafe { &*self.lane.get() };
        !is_default(stream) || context_of(stream) == Some(lane.context)
    }
}

/// The state that a launch reads.
struct Fast {
    shortcuts: [Shortcut; SHORTCUTS],
    kinds: Seen,
}

thread_local! {
    static FAST: Fast =
        const { Fast { shortcuts: [const { Shortcut::new() }; SHORTCUTS], kinds: Seen::new() } };
    static LANES_OF_THREAD: RefCell<Lanes> = const { RefCell::new(Lanes(Vec::new())) };
}

/// The lanes of a thread. They stay allocated as long as a shortcut may point to them: the governor drops a lane, and
/// only after its thread has ended.
struct Lanes(Vec<(*const Gate, Arc<Lane>)>);

impl Drop for Lanes {
    fn drop(&mut self) {
        let _ = FAST.try_with(|fast| {
            for shortcut in &fast.shortcuts {
                shortcut.gate.set(None);
            }
        });
        for (gate, lane) in &self.0 {
            // SAFETY: gates are never freed.
            lane.ends(unsafe { &**gate });
        }
    }
}

impl Lane {
    /// Marks the lane as abandoned.
    fn ends(&self, gate: &Gate) {
        self.count.most_ns.store(0, Relaxed);
        self.keep_needed(&gate.budget);
        self.life.abandon();
    }
}

impl Lanes {
    /// Removes the lanes whose stream or context is gone, and the shortcuts to them.
    fn forget_closed(&mut self) {
        self.0.retain(|(gate, lane)| {
            let open = !lane.pace.is_closed();
            if !open {
                let _ = with_shortcut(lane.stream, |shortcut| {
                    if ptr::eq(shortcut.lane.get(), Arc::as_ptr(lane)) {
                        shortcut.gate.set(None);
                    }
                });
                // SAFETY: gates are never freed.
                lane.ends(unsafe { &**gate });
            }
            open
        });
    }
}

fn with_shortcut<R>(stream: usize, body: impl FnOnce(&Shortcut) -> R) -> Option<R> {
    FAST.try_with(|fast| body(fast.shortcut(stream))).ok()
}

impl Fast {
    #[inline]
    fn shortcut(&self, stream: usize) -> &Shortcut {
        &self.shortcuts[(stream.wrapping_mul(SPREAD as usize) >> 40) % SHORTCUTS]
    }

    /// The gate and lane of the calling thread's launches into a stream, if they are known and the gate is open.
    #[inline]
    fn way(&self, stream: usize) -> Option<(&'static Gate, *const Lane)> {
        let shortcut = self.shortcut(stream);
        let gate = shortcut.gate.get()?;
        let is_known = shortcut.stream.get() == stream
            && gate.admits(shortcut.lease.get())
            && (FAST_PATH.has_one_place() || shortcut.leads_from_here());
        is_known.then(|| (gate, shortcut.lane.get()))
    }
}

/// The estimate of some work, made if its kind is new.
pub(in crate::compute) fn estimate_of(launched: &Launched) -> Option<&'static Estimate> {
    FAST.try_with(|fast| fast.kinds.meet(launched)).ok().flatten()
}

/// Whether the calling thread may launch `work` into `stream` right away; counts the launch if so.
#[inline]
pub(in crate::compute) fn pass(stream: usize, work: Work) -> bool {
    if work.may_block() {
        return false;
    }
    FAST.try_with(|fast| {
        let Some((_, lane)) = fast.way(stream) else { return false };
        // SAFETY: the lane is held by this thread's list as long as a shortcut leads to it.
        let lane = unsafe { &*lane };
        fast.kinds.find(work).and_then(Estimate::quick_ns).is_some_and(|ns| lane.count_launch(ns))
    })
    .unwrap_or(false)
}

/// The gate and the lane of the calling thread's launches into a stream under the current lease; `None`: they have to
/// be looked up.
pub(in crate::compute) fn known_way(stream: usize) -> Option<(&'static Gate, Arc<Lane>)> {
    FAST.try_with(|fast| {
        let (gate, _) = fast.way(stream)?;
        let lane = fast.shortcut(stream).lane();
        // A lane whose stream is gone is replaced.
        (!lane.pace.is_closed()).then_some((gate, lane))
    })
    .ok()
    .flatten()
}

/// The lane of the calling thread's launches into a stream, under whatever lease; `None`: there were none.
pub(in crate::compute) fn known(stream: usize) -> Option<Arc<Lane>> {
    let context = context_of(stream)?;
    LANES_OF_THREAD
        .try_with(|lanes| {
            let lanes = lanes.try_borrow().ok()?;
            let is_it = |lane: &Lane| lane.stream == stream && lane.context == context;
            let (_, lane) = lanes.0.iter().find(|(_, lane)| is_it(lane))?;
            (!lane.pace.is_closed()).then(|| Arc::clone(lane))
        })
        .ok()
        .flatten()
}

/// Like [`known`], trying the shortcut first.
pub(in crate::compute) fn known_by_any_way(stream: usize) -> Option<Arc<Lane>> {
    known_way(stream).map(|(_, lane)| lane).or_else(|| known(stream))
}

/// Returns whether the gate is open; if so, remembers the lane in a shortcut.
pub(in crate::compute) fn enter(
    gate: &'static Gate,
    stream: usize,
    lane: Option<&Arc<Lane>>,
) -> bool {
    let Some(lease) = gate.lease() else { return false };
    let Some(lane) = lane else { return true };
    let _ = with_shortcut(stream, |shortcut| {
        // Stored as the address of the `Arc`'s contents, which is converted back to an `Arc`.
        let address = Arc::as_ptr(lane);
        let known = shortcut.gate.get().is_some() && ptr::eq(shortcut.lane.get(), address);
        if !known || shortcut.lease.get() != lease {
            if lane.calls.entered.swap(lease, Relaxed) != lease {
                lane.pace.mark.store(clock::now(), Relaxed);
            }
            shortcut.stream.set(stream);
            shortcut.lease.set(lease);
            shortcut.gate.set(Some(gate));
            shortcut.lane.set(address);
        }
    });
    true
}

/// The gate of the device that a stream's work runs on: that of the stream's context, or for a default stream the one
/// that `current` returns for the current context.
pub(in crate::compute) fn gate_of(
    stream: usize,
    current: impl Fn() -> Verdict<&'static Gate>,
) -> Verdict<&'static Gate> {
    let context = if is_default(stream) { None } else { context_of(stream) };
    context.and_then(|context| within(context, &current)).unwrap_or_else(current)
}

/// The calling thread's lane for a stream, made if necessary. `None` if there can be no lane; the launch then passes
/// the gate without being tracked.
pub(in crate::compute) fn of_this_thread(gate: &'static Gate, stream: usize) -> Option<Arc<Lane>> {
    let context = context_of(stream)?;
    LANES_OF_THREAD
        .try_with(|lanes| {
            let mut lanes = lanes.try_borrow_mut().ok()?;
            lanes.forget_closed();
            let known = lanes.0.iter().find(|(of, lane)| {
                ptr::eq(*of, gate) && lane.stream == stream && lane.context == context
            });
            if let Some((_, lane)) = known {
                return Some(Arc::clone(lane));
            }
            let lane = Arc::new(within(context, || Lane::new(stream, context, gate))?);
            gate.device_lanes.add(Arc::clone(&lane));
            lanes.0.push((ptr::from_ref(gate), Arc::clone(&lane)));
            Some(lane)
        })
        .ok()
        .flatten()
}

/// Whether a handle means a different stream in each context.
pub(in crate::compute) fn is_default(stream: usize) -> bool {
    matches!(stream, STREAM_LEGACY | STREAM_PER_THREAD)
}

/// The context of a stream: its own, or the current one for default streams.
pub(in crate::compute) fn context_of(stream: usize) -> Option<usize> {
    let mut context: Context = ptr::null_mut();
    let found = if is_default(stream) {
        driver_calls::ctx_get_current(&raw mut context)
    } else {
        driver_calls::stream_get_ctx(stream as Stream, &raw mut context)
    };
    (found.is_ok() && !context.is_null()).then_some(context as usize)
}
