//! Times of a task client.

use std::time::Duration;

use crate::BackOff;

/// How tasks reach a client. Both ways carry the same tasks, and it may change between them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transport {
    /// A call that the server answers when it has a task. Each answer is one call.
    #[default]
    LongPoll,
    /// One answer without an end (server-sent events). A task arrives without a call for it. Its time
    /// counts from when the client reads it: behind a task that takes long it may be handled late.
    EventStream,
}

/// How a [`TaskClient`](super::TaskClient) behaves.
#[derive(Clone, Debug)]
pub struct TaskClientSettings {
    /// How tasks reach it.
    pub transport: Transport,
    /// How long a call for tasks waits for one; 20 s. It bounds how long the client takes to stop.
    pub wait: Duration,
    /// How long a server may take to answer, beyond that; 5 s.
    pub timeout: Duration,
    /// A stream of which nothing comes for this long is given up; 30 s. The server sends a comment
    /// more often than that.
    pub quiet: Duration,
    /// The pauses after failures.
    pub back_off: BackOff,
}

impl Default for TaskClientSettings {
    fn default() -> Self {
        Self {
            transport: Transport::LongPoll,
            wait: Duration::from_secs(20),
            timeout: Duration::from_secs(5),
            quiet: Duration::from_secs(30),
            back_off: BackOff::default(),
        }
    }
}
