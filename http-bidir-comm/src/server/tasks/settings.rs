//! Bounds and times of a task server.

use std::time::Duration;

use crate::delivery::outbox::Bounds;

/// Bounds and times of a [`TaskServer`](super::TaskServer).
#[derive(Clone, Debug)]
pub struct TaskSettings {
    /// How many clients may be known at once; 1,024. One more is refused with status 503.
    pub clients: usize,
    /// How many tasks without a result each client may have; 256. One more is refused:
    /// [`SendError::Full`](super::SendError::Full).
    pub queued: usize,
    /// How many bytes they may have together, as JSON; 256 KiB.
    pub queued_bytes: usize,
    /// How many of them may be on their way to the client at once; 16, and never more than 64. If
    /// the client's process ends, it is these of which nobody knows whether they were handled.
    pub window: usize,
    /// The longest that a poll without a task is left unanswered; 30 s.
    pub longest_wait: Duration,
    /// A stream without a task carries a comment this often; 10 s. Clients wait longer than that
    /// before they give a stream up.
    pub keep_alive: Duration,
    /// A stream is ended after this time, so that its client is asked who it is again; 5 min.
    pub stream_lasts: Duration,
    /// A client that makes no request for this time, and has no task to handle, is forgotten; 1 min.
    pub forget_after: Duration,
}

impl Default for TaskSettings {
    fn default() -> Self {
        Self {
            clients: 1024,
            queued: 256,
            queued_bytes: 256 * 1024,
            window: 16,
            longest_wait: Duration::from_secs(30),
            keep_alive: Duration::from_secs(10),
            stream_lasts: Duration::from_secs(300),
            forget_after: Duration::from_secs(60),
        }
    }
}

/// Their deliveries without the tasks have to fit into an answer.
pub(super) const WIDEST_WINDOW: usize = 64;

impl TaskSettings {
    pub(super) fn bounds(&self) -> Bounds {
        let window = self.window.clamp(1, WIDEST_WINDOW);
        Bounds { tasks: self.queued, bytes: self.queued_bytes, window }
    }
}
