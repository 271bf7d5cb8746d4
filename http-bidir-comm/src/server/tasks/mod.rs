//! Tasks for clients, and their results.

mod error;
mod exchange;
mod pending;
mod routes;
mod settings;

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use poem::Response;
use poem::endpoint::BoxEndpoint;
use serde::Serialize;
use serde::de::DeserializeOwned;

pub use error::{SendError, TaskError};
pub use pending::Pending;
pub use settings::TaskSettings;

use super::authenticate::Authenticate;
use crate::ClientName;
use exchange::Exchange;

/// Gives tasks of one type to clients, and gets results of another type back.
///
/// Its [`routes`](Self::routes) are mounted anywhere in an application. A client exists from its
/// first request until it was silent for [`TaskSettings::forget_after`]. Copies share one server.
///
/// * A client gets its tasks in the order of [`send`](Self::send), and handles one at a time.
/// * The handler of a client gets a task at most once. [`Pending::result`] tells what became of it,
///   at the end of its time at the latest.
/// * Nothing is kept on disk. A server that is started again knows no task of the run before.
pub struct TaskServer<Task, Res> {
    exchange: Arc<Exchange>,
    types: PhantomData<fn(Task) -> Res>,
}

impl<Task, Res> Clone for TaskServer<Task, Res> {
    fn clone(&self) -> Self {
        Self { exchange: Arc::clone(&self.exchange), types: PhantomData }
    }
}

impl<Task, Res> fmt::Debug for TaskServer<Task, Res> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("TaskServer").field("clients", &self.clients()).finish_non_exhaustive()
    }
}

impl<Task, Res> TaskServer<Task, Res> {
    /// A server without clients. `authenticate` is asked about each request.
    pub fn new(authenticate: impl Authenticate) -> Self {
        Self::with_settings(authenticate, TaskSettings::default())
    }

    /// The same, with other bounds and times.
    pub fn with_settings(authenticate: impl Authenticate, settings: TaskSettings) -> Self {
        let exchange = Exchange::new(settings, Box::new(authenticate));
        Self { exchange: Arc::new(exchange), types: PhantomData }
    }

    /// What clients call: `POST /poll`, `POST /results` and `GET /stream`. For `Route::nest`.
    #[must_use]
    pub fn routes(&self) -> BoxEndpoint<'static, Response> {
        routes::routes(Arc::clone(&self.exchange))
    }

    /// The clients that are known, in the order of their names.
    #[must_use]
    pub fn clients(&self) -> Vec<ClientName> {
        self.exchange.clients()
    }

    /// Waits until `client` is known.
    pub async fn arrival(&self, client: &ClientName) {
        self.exchange.arrival(client).await;
    }

    /// Forgets a client. Its tasks end with [`TaskError::ClientGone`]. If it calls again it is known
    /// again.
    pub fn remove(&self, client: &ClientName) {
        self.exchange.remove(client);
    }
}

impl<Task: Serialize, Res: DeserializeOwned> TaskServer<Task, Res> {
    /// Gives `task` to `client`, at once or as soon as the tasks before it have results. Its time is
    /// over after `within`. Does not wait, and may be called from any thread.
    ///
    /// # Errors
    /// See [`SendError`]: the task was not taken, and never reaches the client.
    pub fn send(
        &self,
        client: &ClientName,
        task: &Task,
        within: Duration,
    ) -> Result<Pending<Res>, SendError> {
        let task = serde_json::value::to_raw_value(task)
            .map_err(|error| SendError::NotEncoded { problem: error.to_string() })?;
        let (reply, deadline) = self.exchange.send(client, task, within)?;
        Ok(Pending::new(reply, deadline, client.clone(), Arc::clone(&self.exchange)))
    }
}
