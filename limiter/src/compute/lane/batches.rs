//! The latest batches of a lane.

use super::in_stream::Collectives;
use core::ffi::c_void;
use core::sync::atomic::Ordering::{Acquire, Release};
use core::sync::atomic::{AtomicPtr, AtomicU64};

/// Batches of a lane that may not be done, and a few.
pub(super) const BATCHES: usize = 128;

/// What is known of a batch.
#[derive(Default)]
pub(super) struct Batch {
    /// Estimated nanoseconds of all launches up to its end, and how many these are.
    pub(super) covered_ns: AtomicU64,
    pub(super) launches: AtomicU64,
    /// How many of them are collectives that waited for the gate in the stream.
    pub(super) collectives: AtomicU64,
    /// When it ended.
    pub(super) at: AtomicU64,
    /// Its end. It moves on to a later batch once it has happened.
    pub(super) event: AtomicPtr<c_void>,
}

/// Batches have numbers, from one on.
pub(super) struct Batches {
    pub(super) collectives: Collectives,
    latest: Box<[Batch]>,
    /// The oldest one that may still have its event.
    pub(super) spare: AtomicU64,
    /// Number of the last one that has ended, and of the last one known to be done.
    recorded: AtomicU64,
    done: AtomicU64,
}

impl Batches {
    pub(super) fn new() -> Self {
        Self {
            collectives: Collectives::default(),
            latest: core::iter::repeat_with(Batch::default).take(BATCHES).collect(),
            spare: AtomicU64::new(1),
            recorded: AtomicU64::new(0),
            done: AtomicU64::new(0),
        }
    }

    /// One of the latest.
    pub(super) fn get(&self, number: u64) -> &Batch {
        &self.latest[number as usize % self.latest.len()]
    }

    /// The last one that has ended.
    pub(super) fn recorded(&self) -> u64 {
        self.recorded.load(Acquire)
    }

    /// The last one known to be done.
    pub(super) fn done(&self) -> u64 {
        self.done.load(Acquire)
    }

    /// One more has ended. To be called by the lane's thread, when all that is known of it is there.
    pub(super) fn end(&self, number: u64) {
        self.recorded.store(number, Release);
    }

    /// One is known to be done, and those before it; tells the last one that is.
    pub(super) fn are_done_to(&self, number: u64) -> u64 {
        self.done.fetch_max(number, Release).max(number)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Batch> {
        self.latest.iter()
    }
}
