//! The launches of one function on grids of any size: [`limiter_core::GridModel`] behind a lock, which only slow paths try to
//! take.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use limiter_core::{GridModel, Guess};
use std::sync::RwLock;

/// See the module.
#[derive(Default)]
pub(super) struct Family {
    /// How often it has been met while nothing could be guessed, up to a few.
    met: AtomicU64,
    // In a forked child a thread that is not there may hold it: it is tried only.
    grids: RwLock<GridModel>,
}

impl Family {
    /// How long it takes on so many threads; `None`: too little is known yet.
    pub(super) fn guess(&self, threads: u64) -> Option<Guess> {
        self.grids.try_read().ok()?.guess(threads)
    }

    /// Whether the function has been launched before. What the driver loads for its first launch would be taken
    /// for that one's duration.
    pub(super) fn is_met_again(&self) -> bool {
        self.met.fetch_add(1, Relaxed) > 0
    }

    /// See [`GridModel::add`].
    pub(super) fn add(&self, threads: u64, ns: u64, trial: Option<(Guess, u64)>, alone: bool) {
        if let Ok(mut grids) = self.grids.try_write() {
            grids.add(threads, ns, trial, alone);
        }
    }
}
