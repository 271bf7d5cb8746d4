//! Why a client has no result for a task.

use serde::{Deserialize, Serialize};

/// Why a client gives no result for a task that it got.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Refusal {
    /// The client's type of tasks does not fit: it was not handled.
    #[error("the client does not understand the task: {0}")]
    NotUnderstood(String),
    /// Its time was over before its turn came: it was not handled.
    #[error("the task's time was over before the client came to it")]
    Late,
    /// It was handled, and the result is too large to be sent, or cannot be written as JSON.
    #[error("the task was handled, but its result cannot be sent: {0}")]
    ResultNotSent(String),
    /// The client's handler panicked.
    #[error("the client's handler panicked")]
    Panicked,
}
