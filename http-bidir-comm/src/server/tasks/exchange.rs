//! All clients of a task server: each one's outbox, and who waits for what comes into it.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use poem::http::StatusCode;
use serde_json::value::RawValue;
use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, timeout};

use super::error::{SendError, TaskError};
use super::settings::TaskSettings;
use crate::delivery::message::{Answer, Delivery, ResultRequest, ResultTaken};
use crate::delivery::outbox::{Outbox, Superseded};
use crate::delivery::{Cursor, Epoch};
use crate::server::authenticate::Authenticate;
use crate::server::json::ApiError;
use crate::{ClientName, TASK_LIMIT};

/// What became of a task.
pub(super) type Ended = Result<Box<RawValue>, TaskError>;

/// A task, and who waits for its end.
struct Job {
    task: Box<RawValue>,
    reply: oneshot::Sender<Ended>,
}

impl Job {
    fn end(self, ended: Ended) {
        // Nobody has to wait for it.
        let _ = self.reply.send(ended);
    }
}

struct Client {
    outbox: Outbox<Job>,
    /// Something changed: a task, room in the window, or another attendance.
    changed: Arc<Notify>,
    /// The newest attendance. It ends those before it.
    attendance: u64,
    attended: bool,
    seen: Duration,
}

impl Client {
    fn expire(&mut self, now: Duration) {
        let over = self.outbox.expire(now);
        if !over.is_empty() {
            self.changed.notify_waiters();
        }
        for job in over {
            job.item.end(Err(TaskError::Expired { given: job.given }));
        }
    }

    fn attend(&mut self, client_epoch: Epoch, now: Duration) -> Result<(), ApiError> {
        self.expire(now);
        let interrupted = self.outbox.attend(client_epoch).map_err(|Superseded| {
            let problem = "a later client of the same name has taken this one's place";
            ApiError::new(StatusCode::CONFLICT, problem)
        })?;
        interrupted.into_iter().for_each(|job| job.end(Err(TaskError::ClientRestarted)));
        self.seen = now;
        Ok(())
    }

    fn is_silent(&mut self, now: Duration, for_long: Duration) -> bool {
        if self.attended || now.saturating_sub(self.seen) <= for_long {
            return false;
        }
        self.expire(now);
        // It may be busy with a task.
        self.outbox.given() == 0
    }

    fn gone(self) {
        self.changed.notify_waiters();
        for (job, given) in self.outbox.into_items() {
            job.end(Err(TaskError::ClientGone { given }));
        }
    }
}

/// The state of a task server.
pub(super) struct Exchange {
    pub(super) settings: TaskSettings,
    pub(super) authenticate: Box<dyn Authenticate>,
    started: Instant,
    clients: Mutex<HashMap<ClientName, Client>>,
    arrived: Notify,
}

impl Exchange {
    pub(super) fn new(settings: TaskSettings, authenticate: Box<dyn Authenticate>) -> Self {
        Self {
            settings,
            authenticate,
            started: Instant::now(),
            clients: Mutex::default(),
            arrived: Notify::new(),
        }
    }

    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// The clients without those who were silent for too long.
    fn clients_at(&self, now: Duration) -> MutexGuard<'_, HashMap<ClientName, Client>> {
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        let for_long = self.settings.forget_after;
        let silent = clients.extract_if(|_, client| client.is_silent(now, for_long));
        silent.for_each(|(_, client)| client.gone());
        clients
    }

    pub(super) fn clients(&self) -> Vec<ClientName> {
        let mut names: Vec<_> = self.clients_at(self.now()).keys().cloned().collect();
        names.sort();
        names
    }

    pub(super) async fn arrival(&self, client: &ClientName) {
        loop {
            let mut arrived = pin!(self.arrived.notified());
            arrived.as_mut().enable();
            if self.clients_at(self.now()).contains_key(client) {
                return;
            }
            arrived.await;
        }
    }

    pub(super) fn remove(&self, name: &ClientName) {
        if let Some(client) = self.clients_at(self.now()).remove(name) {
            client.gone();
        }
    }

    pub(super) fn send(
        &self,
        name: &ClientName,
        task: Box<RawValue>,
        within: Duration,
    ) -> Result<(oneshot::Receiver<Ended>, Instant), SendError> {
        let (bytes, most) = (task.get().len(), TASK_LIMIT.min(self.settings.queued_bytes));
        if bytes > most {
            return Err(SendError::TooLarge { bytes, most });
        }
        let now = self.now();
        let mut clients = self.clients_at(now);
        let Some(client) = clients.get_mut(name) else {
            return Err(SendError::UnknownClient { client: name.clone() });
        };
        client.expire(now);
        // A time without an end would overflow the clock.
        let deadline = now + within.min(LONGEST_TIME);
        let (reply, result) = oneshot::channel();
        client.outbox.push(Job { task, reply }, bytes, deadline).map_err(|full| {
            SendError::Full {
                client: name.clone(),
                tasks: full.tasks,
                bytes: full.bytes,
                most_tasks: self.settings.queued,
                most_bytes: self.settings.queued_bytes,
            }
        })?;
        client.changed.notify_waiters();
        Ok((result, self.started + deadline))
    }

    pub(super) fn expire(&self, name: &ClientName) {
        let now = self.now();
        if let Some(client) = self.clients_at(now).get_mut(name) {
            client.expire(now);
        }
    }

    /// A result has come.
    pub(super) fn take(
        &self,
        result: ResultRequest<Box<RawValue>>,
    ) -> Result<ResultTaken, ApiError> {
        let now = self.now();
        let mut clients = self.clients_at(now);
        let Some(client) = clients.get_mut(&result.client) else {
            return Ok(ResultTaken { late: true });
        };
        client.attend(result.client_epoch, now)?;
        let Some(job) = client.outbox.settle(result.epoch, result.id) else {
            return Ok(ResultTaken { late: true });
        };
        client.changed.notify_waiters();
        job.end(match result.answer {
            Answer::Done(result) => Ok(result),
            Answer::Refused(refusal) => Err(refusal.into()),
        });
        Ok(ResultTaken { late: false })
    }

    /// A client asks for its tasks.
    pub(super) fn attend(
        self: &Arc<Self>,
        name: ClientName,
        client_epoch: Epoch,
        cursor: Option<Cursor>,
    ) -> Result<Attendance, ApiError> {
        let now = self.now();
        let mut clients = self.clients_at(now);
        if !clients.contains_key(&name) {
            if clients.len() >= self.settings.clients {
                let problem = format!("{} clients are served at most", self.settings.clients);
                return Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, problem));
            }
            let outbox = Outbox::new(self.settings.bounds(), Epoch::random());
            let changed = Arc::new(Notify::new());
            let client = Client { outbox, changed, attendance: 0, attended: false, seen: now };
            clients.insert(name.clone(), client);
            self.arrived.notify_waiters();
        }
        let Some(client) = clients.get_mut(&name) else {
            return Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "the client is gone"));
        };
        client.attend(client_epoch, now)?;
        client.attendance += 1;
        client.attended = true;
        client.changed.notify_waiters();
        Ok(Attendance {
            exchange: Arc::clone(self),
            name,
            number: client.attendance,
            changed: Arc::clone(&client.changed),
            position: client.outbox.resume(cursor),
        })
    }
}

/// The longest time of a task: a year.
const LONGEST_TIME: Duration = Duration::from_secs(365 * 24 * 3600);

/// A request of a client for its tasks, until it is dropped or a later request of the same client
/// ends it.
pub(super) struct Attendance {
    exchange: Arc<Exchange>,
    name: ClientName,
    number: u64,
    changed: Arc<Notify>,
    /// The number of the last task that this request brought, or that was handled before it.
    position: u64,
}

/// What there is for a client now.
pub(super) enum Next {
    Task(Delivery<Box<RawValue>>),
    /// Nothing until something changes, or until this time.
    Nothing(Option<Duration>),
    /// A later request of the client has taken over.
    Over,
}

impl Attendance {
    /// The next task, without waiting.
    pub(super) fn try_next(&mut self) -> Next {
        let now = self.exchange.now();
        let mut clients = self.exchange.clients_at(now);
        let client = clients.get_mut(&self.name);
        let Some(client) = client.filter(|client| client.attendance == self.number) else {
            return Next::Over;
        };
        client.expire(now);
        let Some(given) = client.outbox.next(self.position, now) else {
            return Next::Nothing(client.outbox.next_deadline());
        };
        self.position = given.id;
        Next::Task(Delivery {
            epoch: given.epoch,
            after: given.after,
            id: given.id,
            expires_in_ms: u64::try_from(given.expires_in.as_millis()).unwrap_or(u64::MAX),
            task: given.item.task.clone(),
        })
    }

    /// The next task. `None`: a later request of the client has taken over.
    pub(super) async fn next(&mut self) -> Option<Delivery<Box<RawValue>>> {
        let changed = Arc::clone(&self.changed);
        loop {
            let mut changed = pin!(changed.notified());
            changed.as_mut().enable();
            let until = match self.try_next() {
                Next::Task(delivery) => return Some(delivery),
                Next::Over => return None,
                Next::Nothing(until) => until.unwrap_or(Duration::MAX),
            };
            // A task whose time ends makes room in the window.
            let _ = timeout(until.saturating_sub(self.exchange.now()), changed).await;
        }
    }
}

impl Drop for Attendance {
    fn drop(&mut self) {
        let now = self.exchange.now();
        let mut clients = self.exchange.clients_at(now);
        let client = clients.get_mut(&self.name);
        if let Some(client) = client.filter(|client| client.attendance == self.number) {
            client.attended = false;
            client.seen = now;
        }
    }
}
