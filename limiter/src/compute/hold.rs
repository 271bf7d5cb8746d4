//! Stream hold: stops a stream while a sample's event, work and event are put into it, so that the device executes the
//! three without gaps, however long the host takes. [`super::sampler`] holds streams; the governor releases overdue
//! ones.
//!
//! The stream waits until a word in host memory reaches a value (`cuStreamWaitValue32`). Storing that value releases
//! the stream, and no driver call can block a store. If the launch itself waits for the held stream, the thread cannot
//! store the value, so the governor stores it.
//!
//! A stream is therefore held only while the governor can release it: it must neither sleep nor be in the driver,
//! because a thread that waits for the stream may hold the driver's locks. Thread and governor each announce what they
//! are about to do before they check the other ([`Gate::may_hold_back`], [`Gate::inside`]).

use super::gate::Gate;
use super::{clock, driver_calls, words};
use crate::driver_calls::current_context;
use core::ptr;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64};
use driver::cuda::{STREAM_WAIT_VALUE_GEQ, Stream};
use limiter_core::Rest;

/// The longest time that a stream is held if its thread does not release it.
const LONGEST_NS: u64 = 2_000_000;

/// Whether the environment makes each launch wait for its work.
static LAUNCHES_WAIT: AtomicBool = AtomicBool::new(false);
/// Whether the environment makes the driver load a tool, which may make launches wait for their work.
static HAS_TOOL: AtomicBool = AtomicBool::new(false);

/// Hardware queues of the process on each device, up to [`MOST_QUEUES`]. A held stream with work behind its wait
/// occupies one; if none is free, submitting work blocks.
static QUEUES: AtomicU32 = AtomicU32::new(MOST_QUEUES);
const MOST_QUEUES: u32 = 8;

/// While this rests, no stream of the process is held.
static REST: Rest = Rest::none();

/// In a forked child no stream is held.
pub(super) fn after_fork() {
    REST.end();
}

/// Reads the environment variables that the driver reads when it is initialized.
pub(crate) fn driver_starts() {
    let is_set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    if is_set("CUDA_LAUNCH_BLOCKING").is_some_and(|value| value != "0") {
        LAUNCHES_WAIT.store(true, Relaxed);
    }
    if is_set("CUDA_INJECTION64_PATH").is_some() {
        HAS_TOOL.store(true, Relaxed);
    }
    let connections = std::env::var("CUDA_DEVICE_MAX_CONNECTIONS").ok();
    if let Some(queues) = connections.and_then(|text| text.trim().parse::<u32>().ok()) {
        QUEUES.store(queues.clamp(1, MOST_QUEUES), Relaxed);
    }
}

/// How many streams of a device may be held.
pub(super) fn queues() -> u32 {
    QUEUES.load(Relaxed)
}

/// Whether launches return only when their work is done.
pub(super) fn launches_wait() -> bool {
    LAUNCHES_WAIT.load(Relaxed)
}

/// Whether holding streams would gain nothing, or would block the program's threads.
pub(super) fn is_useless() -> bool {
    launches_wait() || HAS_TOOL.load(Relaxed)
}

/// A lane's means to hold its stream.
#[derive(Default)]
pub(super) struct Hold {
    /// Null: not allocated yet, or not available.
    word: AtomicPtr<AtomicU32>,
    at: AtomicU64,
    denied: AtomicBool,
    /// The value that the stream waits for, and since when (ns); 0: it does not wait.
    value: AtomicU32,
    since: AtomicU64,
    /// How often another thread has released the stream.
    let_go: AtomicU32,
}

/// Guard of a held stream; dropping it releases the stream.
pub(super) struct HeldBack<'lane> {
    hold: &'lane Hold,
    let_go: u32,
}

impl Hold {
    /// Holds the stream; `None` if that is not possible. Called by the lane's thread.
    pub(super) fn hold(&self, stream: Stream, context: usize, gate: &Gate) -> Option<HeldBack<'_>> {
        let now = clock::now();
        if is_useless() || self.denied.load(Relaxed) || !REST.is_over(now) {
            return None;
        }
        if self.word.load(Relaxed).is_null() {
            // A page becomes visible to the current context, so that has to be the stream's.
            if current_context() != context {
                return None;
            }
            let Some((word, at)) = words::take(context) else {
                self.denied.store(true, Relaxed);
                return None;
            };
            // Earlier lanes have left their last value in the word.
            self.value.store(word.load(Relaxed), Relaxed);
            self.at.store(at, Relaxed);
            self.word.store(ptr::from_ref(word).cast_mut(), Release);
        }
        let value = self.value.load(Relaxed).wrapping_add(1);
        self.value.store(value, Relaxed);
        let held = HeldBack { hold: self, let_go: self.let_go.load(Relaxed) };
        self.since.store(clock::now(), SeqCst);
        if !gate.may_hold_back() {
            return None;
        }
        let at = self.at.load(Relaxed);
        if driver_calls::stream_wait_value(stream, at, value, STREAM_WAIT_VALUE_GEQ).is_ok() {
            return Some(held);
        }
        self.denied.store(true, Relaxed);
        None
    }

    /// Whether the stream is held, or about to be.
    pub(super) fn is_under_way(&self) -> bool {
        self.since.load(SeqCst) != 0
    }

    fn release(&self) {
        self.store(self.value.load(Relaxed));
        self.since.store(0, Release);
    }

    fn store(&self, value: u32) {
        // SAFETY: null, or a word that stays mapped as long as the process lives.
        if let Some(word) = unsafe { self.word.load(Acquire).as_ref() } {
            advance(word, value);
        }
    }

    /// Releases a stream that has been held for too long. Called by other threads.
    pub(super) fn release_overdue(&self, now: u64) {
        if now.saturating_sub(self.since.load(Acquire)) > LONGEST_NS && self.let_go() {
            // If launches wait for their work, this happens at each launch; on a busy machine it happens occasionally.
            REST.begin(now);
        }
    }

    /// Releases the stream if it is held. Called by other threads.
    pub(super) fn let_go(&self) -> bool {
        let since = self.since.load(Acquire);
        let value = self.value.load(Relaxed);
        // Only the hold that began at `since` is released, not a later one.
        if since == 0 || self.since.compare_exchange(since, 0, SeqCst, Relaxed).is_err() {
            return false;
        }
        self.let_go.fetch_add(1, SeqCst);
        self.store(value);
        true
    }

    /// Returns the word for use by other lanes of the context. No stream may be held by it any more.
    pub(super) fn give_back(&self) {
        let word = self.word.swap(ptr::null_mut(), Relaxed);
        self.denied.store(true, Relaxed);
        words::give_back(word);
    }
}

/// Stores a value, unless the word already has a later one: a stream that waits for the later value would wait for
/// ever.
fn advance(word: &AtomicU32, value: u32) {
    let _ = word.fetch_update(Release, Relaxed, |old| {
        (value.wrapping_sub(old).cast_signed() > 0).then_some(value)
    });
}

impl HeldBack<'_> {
    /// Whether no other thread has released the stream.
    pub(super) fn is_intact(&self) -> bool {
        self.hold.let_go.load(SeqCst) == self.let_go
    }
}

impl Drop for HeldBack<'_> {
    fn drop(&mut self) {
        self.hold.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A hold in use, without a driver.
    fn held(word: &AtomicU32, since: u64) -> Hold {
        let hold = Hold::default();
        hold.word.store(ptr::from_ref(word).cast_mut(), Relaxed);
        hold.value.store(word.load(Relaxed).wrapping_add(1), Relaxed);
        hold.since.store(since, Relaxed);
        hold
    }

    #[test]
    fn a_word_never_goes_back() {
        let word = AtomicU32::new(u32::MAX - 1);
        for (value, expected) in [(u32::MAX, u32::MAX), (1, 1), (u32::MAX, 1), (0, 1), (7, 7)] {
            advance(&word, value);
            assert_eq!(word.load(Relaxed), expected);
        }
    }

    #[test]
    fn a_stream_is_let_go_once_it_is_overdue() {
        let word = AtomicU32::new(u32::MAX);
        let hold = held(&word, 5);
        let held = HeldBack { hold: &hold, let_go: 0 };
        hold.release_overdue(5 + LONGEST_NS);
        assert!(hold.is_under_way() && held.is_intact());
        hold.release_overdue(6 + LONGEST_NS);
        assert!(!hold.is_under_way() && !held.is_intact());
        assert_eq!(word.load(Relaxed), 0);
        assert!(!hold.let_go());
    }
}
