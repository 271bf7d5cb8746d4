//! Handling tasks that a server gives.

mod events;
mod settings;
mod stop;
mod stream;

use std::fmt;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::{RawValue, to_raw_value};

pub use settings::{TaskClientSettings, Transport};
pub use stop::Stop;

use super::{BlockingHttpClient, ClientError};
use crate::delivery::Epoch;
use crate::delivery::inbox::{Inbox, Verdict};
use crate::delivery::message::{Answer, Delivery, PollRequest, ResultRequest, ResultTaken};
use crate::{CALL_LIMIT, ClientName, Refusal};
use stream::OpenStream;

/// Gets tasks of one type from a server, and brings results of another type back.
///
/// It works in the thread that calls [`run`](Self::run), and handles one task after the other. No
/// task is handled twice by the same `TaskClient`, however often the connection breaks. A task whose
/// time is over before its turn comes is not handled.
///
/// A server has one client of a name. A later one takes the place of an earlier one, whose `run`
/// ends with status 409.
pub struct TaskClient<Task, Res> {
    http: BlockingHttpClient,
    mount: String,
    name: ClientName,
    epoch: Epoch,
    settings: TaskClientSettings,
    inbox: Inbox<Answer<Box<RawValue>>>,
    stream: Option<OpenStream>,
    started: Instant,
    on_failure: OnFailure,
    types: PhantomData<fn(Task) -> Res>,
}

type FromStream = (Vec<Delivery<Box<RawValue>>>, Option<OpenStream>);
type OnFailure = Box<dyn FnMut(&ClientError, Duration) + Send>;

impl<Task, Res> fmt::Debug for TaskClient<Task, Res> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("TaskClient")
            .field("name", &self.name)
            .field("http", &self.http)
            .finish_non_exhaustive()
    }
}

impl<Task: DeserializeOwned, Res: Serialize> TaskClient<Task, Res> {
    /// A client of the task server whose routes are mounted at `mount` (`/tasks`). It does not
    /// connect yet.
    pub fn new(http: BlockingHttpClient, mount: &str, name: ClientName) -> Self {
        Self::with_settings(http, mount, name, TaskClientSettings::default())
    }

    /// The same, with another transport or other times.
    pub fn with_settings(
        http: BlockingHttpClient,
        mount: &str,
        name: ClientName,
        settings: TaskClientSettings,
    ) -> Self {
        Self {
            http,
            mount: mount.trim_end_matches('/').to_owned(),
            name,
            epoch: Epoch::random(),
            settings,
            inbox: Inbox::new(),
            stream: None,
            started: Instant::now(),
            on_failure: Box::new(|_, _| {}),
            types: PhantomData,
        }
    }

    /// Calls `tell` with each failure, and the pause that follows it.
    #[must_use]
    pub fn on_failure(mut self, tell: impl FnMut(&ClientError, Duration) + Send + 'static) -> Self {
        self.on_failure = Box::new(tell);
        self
    }

    /// Handles tasks until it is stopped. A failure that may pass is followed by a pause and another
    /// try. It may be called again afterwards, and goes on where it was.
    ///
    /// If `handler` panics the server is told, and the panic goes on.
    ///
    /// # Errors
    /// The server refuses this client for good: [`ClientError::is_final`].
    pub fn run(
        &mut self,
        stop: &Stop,
        mut handler: impl FnMut(Task) -> Res,
    ) -> Result<(), ClientError> {
        let mut failures = 0;
        while !stop.is_stopped() {
            let began = Instant::now();
            match self.step(stop, &mut handler) {
                Ok(something_came) => {
                    failures = 0;
                    // A server that answers at once, again and again, without a task.
                    if !something_came && began.elapsed() < self.settings.back_off.first {
                        stop.wait(self.pause(0));
                    }
                }
                Err(error) if error.is_final() => return Err(error),
                Err(error) => {
                    let pause = self.pause(failures);
                    (self.on_failure)(&error, pause);
                    stop.wait(pause);
                    failures = failures.saturating_add(1);
                }
            }
        }
        // The server sees at once that nobody reads it.
        self.stream = None;
        Ok(())
    }

    fn pause(&self, failures: u32) -> Duration {
        self.settings.back_off.pause(failures, crate::delivery::random())
    }

    /// Brings the result that waits, then handles the tasks that come by one call, or by one piece
    /// of the stream. False: nothing came.
    fn step(
        &mut self,
        stop: &Stop,
        handler: &mut impl FnMut(Task) -> Res,
    ) -> Result<bool, ClientError> {
        // The stream is put back when all that came by it is handled. In any other case, also that of
        // a panic, the next one begins behind what was handled.
        let stream = self.stream.take();
        self.bring_result()?;
        let (deliveries, stream) = match self.settings.transport {
            Transport::LongPoll => (self.poll()?, None),
            Transport::EventStream => self.read_stream(stream)?,
        };
        let something_came = !deliveries.is_empty() || stream.is_some();
        let arrived = self.started.elapsed();
        for delivery in deliveries {
            if stop.is_stopped() {
                return Ok(true);
            }
            self.take(delivery, arrived, handler)?;
        }
        self.stream = stream;
        Ok(something_came)
    }

    fn poll(&self) -> Result<Vec<Delivery<Box<RawValue>>>, ClientError> {
        let wait = self.settings.wait;
        let request = PollRequest {
            client: self.name.clone(),
            client_epoch: self.epoch,
            cursor: self.inbox.cursor(),
            wait_ms: u64::try_from(wait.as_millis()).unwrap_or(u64::MAX),
        };
        let timeout = wait.saturating_add(self.settings.timeout);
        self.http.post(&format!("{}/poll", self.mount), &request, timeout)
    }

    /// What comes next by the stream, and the stream if it goes on.
    fn read_stream(&self, stream: Option<OpenStream>) -> Result<FromStream, ClientError> {
        let Self { http, settings, mount, name, epoch, .. } = self;
        let mut stream = match stream {
            Some(stream) => stream,
            None => {
                let path = format!("{mount}/stream?client={name}&client_epoch={epoch}");
                let (cursor, quiet) = (self.inbox.cursor(), settings.quiet);
                OpenStream::open(http, &path, cursor, settings.timeout, quiet)?
            }
        };
        Ok(match stream.read(http)? {
            Some(deliveries) => (deliveries, Some(stream)),
            None => (Vec::new(), None),
        })
    }

    /// Handles a task, unless it was handled before.
    fn take(
        &mut self,
        delivery: Delivery<Box<RawValue>>,
        arrived: Duration,
        handler: &mut impl FnMut(Task) -> Res,
    ) -> Result<(), ClientError> {
        let Delivery { epoch, after, id, expires_in_ms, task } = delivery;
        let deadline = arrived.saturating_add(Duration::from_millis(expires_in_ms));
        match self.inbox.receive(epoch, after, id, deadline, self.started.elapsed()) {
            Verdict::Handle => {
                let answer = match serde_json::from_str(task.get()) {
                    Ok(task) => self.handle(task, handler),
                    Err(error) => Answer::Refused(Refusal::NotUnderstood(error.to_string())),
                };
                self.inbox.finish(answer);
            }
            Verdict::Late => self.inbox.finish(Answer::Refused(Refusal::Late)),
            Verdict::AnswerFirst | Verdict::HandledBefore => {}
            Verdict::OutOfOrder | Verdict::PastEpoch => {
                let problem = format!("task {id} of {epoch} comes after {after}, out of order");
                return Err(self.http.protocol(problem));
            }
        }
        self.bring_result()
    }

    fn handle(
        &mut self,
        task: Task,
        handler: &mut impl FnMut(Task) -> Res,
    ) -> Answer<Box<RawValue>> {
        let result = match catch_unwind(AssertUnwindSafe(|| handler(task))) {
            Ok(result) => result,
            Err(panic) => {
                self.inbox.finish(Answer::Refused(Refusal::Panicked));
                // If that fails it is brought by the next `run`.
                let _ = self.bring_result();
                resume_unwind(panic)
            }
        };
        match to_raw_value(&result) {
            Ok(result) if result.get().len() <= LARGEST_RESULT => Answer::Done(result),
            Ok(result) => {
                let bytes = result.get().len();
                let problem = format!("it has {bytes} bytes, {LARGEST_RESULT} are accepted");
                Answer::Refused(Refusal::ResultNotSent(problem))
            }
            Err(error) => Answer::Refused(Refusal::ResultNotSent(error.to_string())),
        }
    }

    /// Brings the result that the server has not confirmed, if there is one.
    fn bring_result(&mut self) -> Result<(), ClientError> {
        let Some(kept) = self.inbox.unconfirmed() else { return Ok(()) };
        let (epoch, id) = (kept.epoch, kept.id);
        let request = ResultRequest {
            client: self.name.clone(),
            client_epoch: self.epoch,
            epoch,
            id,
            answer: kept.answer.clone(),
        };
        let path = format!("{}/results", self.mount);
        let _: ResultTaken = self.http.post(&path, &request, self.settings.timeout)?;
        self.inbox.confirm(epoch, id);
        Ok(())
    }
}

/// A result has to fit into a call with what names its task: the client's name and 7 fields.
const LARGEST_RESULT: usize = CALL_LIMIT - 512;
