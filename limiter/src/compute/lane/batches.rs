//! The latest batches of a lane, in a ring.

use super::in_stream::Collectives;
use core::ffi::c_void;
use core::sync::atomic::Ordering::{Acquire, Release};
use core::sync::atomic::{AtomicPtr, AtomicU64};

/// Size of the ring: the batches of a lane that may not be done, and a few more.
pub(super) const BATCHES: usize = 128;

/// What is known of a batch.
#[derive(Default)]
pub(super) struct Batch {
    /// Estimated nanoseconds of all launches up to the end of the batch, and their number.
    pub(super) covered_ns: AtomicU64,
    pub(super) launches: AtomicU64,
    /// Number of collectives among them that waited for the gate in the stream.
    pub(super) collectives: AtomicU64,
    /// When the batch ended (ns).
    pub(super) at: AtomicU64,
    /// The event at the batch's end; reused by a later batch once it has happened.
    pub(super) event: AtomicPtr<c_void>,
}

/// The batches, numbered from 1.
pub(super) struct Batches {
    pub(super) collectives: Collectives,
    latest: Box<[Batch]>,
    /// The oldest batch that may still have its event.
    pub(super) spare: AtomicU64,
    /// Numbers of the last batch that has ended, and of the last one known to be done.
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

    /// One of the latest batches.
    pub(super) fn get(&self, number: u64) -> &Batch {
        &self.latest[number as usize % self.latest.len()]
    }

    /// The last batch that has ended.
    pub(super) fn recorded(&self) -> u64 {
        self.recorded.load(Acquire)
    }

    /// The last batch known to be done.
    pub(super) fn done(&self) -> u64 {
        self.done.load(Acquire)
    }

    /// Publishes the end of a batch, once its fields are stored. Called by the lane's thread.
    pub(super) fn end(&self, number: u64) {
        self.recorded.store(number, Release);
    }

    /// Records that batch `number` and those before it are done; returns the last batch that is done.
    pub(super) fn are_done_to(&self, number: u64) -> u64 {
        self.done.fetch_max(number, Release).max(number)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Batch> {
        self.latest.iter()
    }
}
