//! What is said between a client and its server, as JSON.

use serde::{Deserialize, Serialize};

use super::{ClientName, Cursor, Epoch, Refusal};

/// Asks for tasks. The answer is a list of [`Delivery`]s, empty if none came within `wait_ms`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct PollRequest {
    pub(crate) client: ClientName,
    pub(crate) client_epoch: Epoch,
    /// Everything up to here was handled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) cursor: Option<Cursor>,
    pub(crate) wait_ms: u64,
}

/// A task on its way. An event of a stream holds one, too.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Delivery<T> {
    pub(crate) epoch: Epoch,
    /// The number of the task before this one in the client's sequence: between them there is none
    /// that is to be handled.
    pub(crate) after: u64,
    pub(crate) id: u64,
    pub(crate) expires_in_ms: u64,
    pub(crate) task: T,
}

/// Brings a result.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ResultRequest<R> {
    pub(crate) client: ClientName,
    pub(crate) client_epoch: Epoch,
    pub(crate) epoch: Epoch,
    pub(crate) id: u64,
    pub(crate) answer: Answer<R>,
}

/// What became of a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Answer<R> {
    Done(R),
    Refused(Refusal),
}

/// The server has the result, or does not need it any more. The client need not keep it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ResultTaken {
    /// Nobody waited for it any more.
    pub(crate) late: bool,
}
