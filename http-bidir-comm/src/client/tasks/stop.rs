//! Ending a loop from another thread.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Tells a [`TaskClient`](super::TaskClient) to stop. Copies belong together.
#[derive(Clone, Debug, Default)]
pub struct Stop {
    shared: Arc<(Mutex<bool>, Condvar)>,
}

impl Stop {
    /// Not stopped yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Stops, for good. A pause ends at once, and a handler when it returns. A wait for a task ends
    /// when its time is over, and that for a stream when anything comes by it, which is
    /// [`TaskClientSettings::quiet`](super::TaskClientSettings::quiet) at the latest.
    pub fn stop(&self) {
        let (stopped, changed) = &*self.shared;
        *stopped.lock().unwrap_or_else(PoisonError::into_inner) = true;
        changed.notify_all();
    }

    /// Whether it was stopped.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        *self.shared.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for `pause`, or until it is stopped.
    pub(super) fn wait(&self, pause: Duration) {
        let (stopped, changed) = &*self.shared;
        let guard = stopped.lock().unwrap_or_else(PoisonError::into_inner);
        drop(changed.wait_timeout_while(guard, pause, |stopped| !*stopped));
    }
}
