//! Stream hold: stops a stream for the moment in which a sample is put into it. So the device executes event,
//! work and event without gaps, however long the host takes to hand them over.
//!
//! The stream waits until a word in host memory has reached a value (`cuStreamWaitValue32`). Storing that
//! value lets the stream go on, and no driver call can block a store. If the launch itself waits for the held
//! stream, the thread cannot store the value. Then the governor stores it.
//!
//! So a stream is held only while the governor is there to release it. The governor must then neither sleep
//! nor be in the driver: a thread that waits for the stream may hold the driver's locks. Thread and governor
//! each announce what they are about to do before they check what the other does ([`Gate::may_hold_back`],
//! [`Gate::inside`]).

use super::gate::Gate;
use super::{clock, driver_calls, words};
use crate::driver_calls::current_context;
use core::ptr;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64};
use driver::cuda::{STREAM_WAIT_VALUE_GEQ, Stream};
use limiter_core::Rest;

/// The longest that a stream is held back if its thread does not let go.
const LONGEST_NS: u64 = 2_000_000;

/// Whether the driver was told to wait for the work of each launch.
static LAUNCHES_WAIT: AtomicBool = AtomicBool::new(false);
/// Whether it was told to bring in a tool that may have it do so.
static HAS_TOOL: AtomicBool = AtomicBool::new(false);

/// Hardware queues of the process on each device, as far as they matter. While a stream is held with work behind its
/// wait, it takes one; where none is left, submitting blocks.
static QUEUES: AtomicU32 = AtomicU32::new(MOST_QUEUES);
const MOST_QUEUES: u32 = 8;

/// In it no stream of the process is held back.
static REST: Rest = Rest::none();

/// In a forked child nothing is held back.
pub(super) fn after_fork() {
    REST.end();
}

/// Looks at what the driver looks at when it is initialised.
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

/// Whether a launch is known to return when its work is done.
pub(super) fn launches_wait() -> bool {
    LAUNCHES_WAIT.load(Relaxed)
}

/// Whether holding streams back would gain nothing, or hold the program's threads up.
pub(super) fn is_useless() -> bool {
    launches_wait() || HAS_TOOL.load(Relaxed)
}

/// A lane's way to hold its stream back.
#[derive(Default)]
pub(super) struct Hold {
    /// Null: none yet, or none to be had.
    word: AtomicPtr<AtomicU32>,
    at: AtomicU64,
    denied: AtomicBool,
    /// What the stream waits for, and since when; zero: it does not.
    value: AtomicU32,
    since: AtomicU64,
    /// How often another thread has let the stream go.
    let_go: AtomicU32,
}

/// A stream is held back until this is dropped.
pub(super) struct HeldBack<'lane> {
    hold: &'lane Hold,
    let_go: u32,
}

impl Hold {
    /// Holds the stream back; `None` where that cannot be done. To be called by the lane's thread.
    pub(super) fn hold(&self, stream: Stream, context: usize, gate: &Gate) -> Option<HeldBack<'_>> {
        let now = clock::now();
        if is_useless() || self.denied.load(Relaxed) || !REST.is_over(now) {
            return None;
        }
        if self.word.load(Relaxed).is_null() {
            // A page becomes visible to the current context.
            if current_context() != context {
                return None;
            }
            let Some((word, at)) = words::take(context) else {
                self.denied.store(true, Relaxed);
                return None;
            };
            // Lanes before this one have left their last value in it.
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

    /// Whether the stream is held back, or about to be.
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

    /// Lets a stream go that has been held back for too long. To be called by other threads.
    pub(super) fn release_overdue(&self, now: u64) {
        if now.saturating_sub(self.since.load(Acquire)) > LONGEST_NS && self.let_go() {
            // Where launches wait for themselves it happens each time; on a busy machine it happens to any.
            REST.begin(now);
        }
    }

    /// Lets the stream go, if it is held back. To be called by other threads.
    pub(super) fn let_go(&self) -> bool {
        let since = self.since.load(Acquire);
        let value = self.value.load(Relaxed);
        // The value is that of the hold that began then; the next one is not touched.
        if since == 0 || self.since.compare_exchange(since, 0, SeqCst, Relaxed).is_err() {
            return false;
        }
        self.let_go.fetch_add(1, SeqCst);
        self.store(value);
        true
    }

    /// Gives the word back, for other lanes of the context. Nothing may be held back any more.
    pub(super) fn give_back(&self) {
        let word = self.word.swap(ptr::null_mut(), Relaxed);
        self.denied.store(true, Relaxed);
        words::give_back(word);
    }
}

/// Stores a value, unless a later one is there already: a stream that waits for that would wait for ever.
fn advance(word: &AtomicU32, value: u32) {
    let _ = word.fetch_update(Release, Relaxed, |old| {
        (value.wrapping_sub(old).cast_signed() > 0).then_some(value)
    });
}

impl HeldBack<'_> {
    /// Whether the stream is still held back.
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

    /// A word that `hold` has put into use.
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
