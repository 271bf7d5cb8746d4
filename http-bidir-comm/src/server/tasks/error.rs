//! Why a task was not taken, or has no result.

use crate::{ClientName, Refusal};

/// Why a task was not taken. It never reaches the client.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// The client never called, or was forgotten.
    #[error("there is no client {client}: one that has called before is accepted")]
    UnknownClient {
        /// Its name.
        client: ClientName,
    },
    /// The client's queue is full. What is in it stays.
    #[error(
        "the queue of client {client} has {tasks} tasks with {bytes} bytes: {most_tasks} tasks with \
         {most_bytes} bytes are accepted"
    )]
    Full {
        /// Its name.
        client: ClientName,
        /// Tasks without a result.
        tasks: usize,
        /// Their bytes.
        bytes: usize,
        /// How many tasks are accepted.
        most_tasks: usize,
        /// How many bytes are accepted.
        most_bytes: usize,
    },
    /// The task is too large.
    #[error("the task has {bytes} bytes as JSON: at most {most} are accepted")]
    TooLarge {
        /// Its size.
        bytes: usize,
        /// What is accepted.
        most: usize,
    },
    /// The task cannot be written as JSON.
    #[error("the task cannot be written as JSON: {problem}")]
    NotEncoded {
        /// Why.
        problem: String,
    },
}

/// Why a task that was taken has no result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TaskError {
    /// Its time ended. If it was not given to the client it was not handled, and never will be. If
    /// it was, the client may have handled it, or still does.
    #[error("the task's time is over, {}", if *given { "and the client may have handled it" } else { "and it was not handled" })]
    Expired {
        /// It was given to the client.
        given: bool,
    },
    /// The client was started again after the task was given to it. It may have handled the task.
    #[error("the client was started again, and may have handled the task before")]
    ClientRestarted,
    /// The client was forgotten or removed. If the task was given to it, it may have handled it.
    #[error("the client is gone, {}", if *given { "and may have handled the task" } else { "and did not handle the task" })]
    ClientGone {
        /// The task was given to the client.
        given: bool,
    },
    /// The client says that it has no result.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The client's result is not of the expected type. It handled the task.
    #[error("the task was handled, but its result is not understood: {problem}")]
    ResultNotUnderstood {
        /// Why.
        problem: String,
    },
}
