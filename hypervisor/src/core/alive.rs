//! Liveness of the daemon: whether its timer runs and its state can be locked. `/healthz`, `/readyz` and the watchdog
//! ask.

use std::fmt;
use std::sync::TryLockError;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use super::Core;
use crate::node::Node;

/// Longest time between two runs of the timer, which runs at least every 5 s.
pub(super) const ROUND_WITHIN: Duration = Duration::from_secs(15);
/// Longest time to wait for the state's lock.
pub(super) const STATE_WITHIN: Duration = Duration::from_secs(1);
pub(super) const STEP: Duration = Duration::from_millis(10);

/// What a live daemon reports: the sessions and processes that it serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Alive {
    pub(crate) sessions: usize,
    pub(crate) processes: usize,
}

/// Why the daemon cannot serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stuck {
    /// The state stays locked.
    State,
    /// The timer has not run for this long.
    Timer(Duration),
}

impl fmt::Display for Stuck {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::State => write!(to, "the state has been locked for {STATE_WITHIN:?}"),
            Self::Timer(for_how_long) => {
                write!(to, "the timer has not run for {} s", for_how_long.as_secs())
            }
        }
    }
}

impl Core {
    /// Locks the state, waiting if necessary: call from a thread that may block.
    pub(crate) fn alive(&self) -> Result<Alive, Stuck> {
        let start = Instant::now();
        let look =
            |node: &Node| Alive { sessions: node.session_count(), processes: node.process_count() };
        let alive = loop {
            match self.look_at(look) {
                Some(alive) => break alive,
                None if start.elapsed() >= STATE_WITHIN => return Err(Stuck::State),
                None => thread::sleep(STEP),
            }
        };
        self.came_round().map(|()| alive)
    }

    /// Whether the timer has run recently.
    pub(super) fn came_round(&self) -> Result<(), Stuck> {
        let since = self.milliseconds().saturating_sub(self.came_round.load(Ordering::Relaxed));
        let since = Duration::from_millis(since);
        if since > ROUND_WITHIN { Err(Stuck::Timer(since)) } else { Ok(()) }
    }

    /// Reads the state if its lock is free; `None`: the lock is held.
    pub(super) fn look_at<T>(&self, look: impl FnOnce(&Node) -> T) -> Option<T> {
        match self.state.try_lock() {
            Ok(state) => Some(look(&state.node)),
            Err(TryLockError::Poisoned(state)) => Some(look(&state.get_ref().node)),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}
