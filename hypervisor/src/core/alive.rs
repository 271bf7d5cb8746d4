//! Whether the daemon's core really answers.

use std::fmt;
use std::sync::TryLockError;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use super::Core;
use crate::node::Node;

/// The timer comes round every 5 s, if nothing else is to be done.
pub(super) const ROUND_WITHIN: Duration = Duration::from_secs(15);
/// How long the state may be in use by others.
pub(super) const STATE_WITHIN: Duration = Duration::from_secs(1);
pub(super) const STEP: Duration = Duration::from_millis(10);

/// The core answers: what it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Alive {
    pub(crate) sessions: usize,
    pub(crate) processes: usize,
}

/// Why the daemon cannot serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stuck {
    /// Somebody keeps the state.
    State,
    /// The timer has stood still for so long.
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
    /// Looks at the state, by a thread that may wait for it.
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

    /// Whether the timer comes round.
    pub(super) fn came_round(&self) -> Result<(), Stuck> {
        let since = self.milliseconds().saturating_sub(self.came_round.load(Ordering::Relaxed));
        let since = Duration::from_millis(since);
        if since > ROUND_WITHIN { Err(Stuck::Timer(since)) } else { Ok(()) }
    }

    /// `None`: somebody else has the state now.
    pub(super) fn look_at<T>(&self, look: impl FnOnce(&Node) -> T) -> Option<T> {
        match self.state.try_lock() {
            Ok(state) => Some(look(&state.node)),
            Err(TryLockError::Poisoned(state)) => Some(look(&state.get_ref().node)),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}
