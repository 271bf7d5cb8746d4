//! A task that was sent.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use tokio::sync::oneshot::Receiver;
use tokio::time::{Instant, timeout_at};

use super::error::TaskError;
use super::exchange::{Ended, Exchange};
use crate::ClientName;

/// A task that was taken for a client. Dropping it does not take the task back.
#[must_use = "only its result tells whether the task was handled"]
pub struct Pending<Res> {
    reply: Receiver<Ended>,
    deadline: Instant,
    client: ClientName,
    exchange: Arc<Exchange>,
    types: PhantomData<fn() -> Res>,
}

impl<Res> fmt::Debug for Pending<Res> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Pending").field("client", &self.client).finish_non_exhaustive()
    }
}

impl<Res: DeserializeOwned> Pending<Res> {
    pub(super) fn new(
        reply: Receiver<Ended>,
        deadline: Instant,
        client: ClientName,
        exchange: Arc<Exchange>,
    ) -> Self {
        Self { reply, deadline, client, exchange, types: PhantomData }
    }

    /// Waits for the result, until the task's time is over.
    ///
    /// # Errors
    /// See [`TaskError`].
    pub async fn result(mut self) -> Result<Res, TaskError> {
        let ended = match timeout_at(self.deadline, &mut self.reply).await {
            Ok(ended) => ended.ok(),
            Err(_) => {
                self.exchange.expire(&self.client);
                self.reply.try_recv().ok()
            }
        };
        // Whoever takes a task out says why.
        let result: Box<RawValue> = ended.unwrap_or(Err(TaskError::ClientGone { given: true }))?;
        serde_json::from_str(result.get())
            .map_err(|error| TaskError::ResultNotUnderstood { problem: error.to_string() })
    }
}
