//! A call (long poll) that waits for a lease.

use std::sync::Arc;

use limits::GpuId;
use scheduler::{Grant, WorkerId};
use tokio::sync::oneshot;

use super::{Core, DaemonState};

/// A grant on its way to a call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Granted {
    pub(super) grant: Grant,
    /// The gate was opened through the gate page, so the lease is already in use.
    pub(super) opened: bool,
}

/// A call that waits for a grant. On drop, when its caller has disconnected, it withdraws the request and returns a
/// grant that was on its way.
pub(super) struct PendingPoll {
    pub(super) core: Arc<Core>,
    pub(super) key: (WorkerId, GpuId),
    pub(super) ticket: u64,
    pub(super) answer: oneshot::Receiver<Granted>,
    pub(super) settled: bool,
}

impl PendingPoll {
    /// Stops waiting. Grants are sent under the state's lock, so the returned answer is final.
    pub(super) fn give_up(&mut self) -> Option<Granted> {
        self.settled = true;
        let core = Arc::clone(&self.core);
        let mut state = core.state();
        self.stop_asking(&mut state);
        self.answer.try_recv().ok()
    }

    fn stop_asking(&self, state: &mut DaemonState) {
        // A later call of the same worker may have replaced this one.
        if state.waiting.get(&self.key).is_some_and(|waiter| waiter.ticket == self.ticket) {
            let now = self.core.now(state);
            state.waiting.remove(&self.key);
            state.node.withdraw(self.key.1, self.key.0, now);
            state.node.still_waits(self.key.0, self.key.1, now);
        }
    }
}

impl Drop for PendingPoll {
    fn drop(&mut self) {
        if self.settled {
            return;
        }
        if let Some(granted) = self.give_up() {
            let core = Arc::clone(&self.core);
            let mut state = core.state();
            let now = core.now(&mut state);
            state.take_back(self.key.1, granted, now);
            core.decide(&mut state, self.key.1, now);
        }
    }
}
