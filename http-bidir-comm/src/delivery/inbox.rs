//! The client's side: what was handled, and the result that is not confirmed.
//!
//! A client handles one task after the other, in the order of their numbers, and the next one only
//! when the server has the result of the one before. So two numbers and one result tell every
//! repetition from a new task:
//!
//! * The server repeats a task only until it has the result. That is at most one task that was
//!   handled, and its result is kept.
//! * A number that is not above the highest handled one is a repetition that was under way for long.
//!
//! A sequence that was not heard of before takes the place of the one before. So whoever feeds an inbox reads one
//! connection at a time: what an earlier run of the server has sent does not come after what a later one has.

use std::time::Duration;

use super::{Cursor, Epoch, Epochs, Seen};

/// What to do with a task that arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It is new: handle it, then call [`Inbox::finish`].
    Handle,
    /// It is new, and its time is over: [`Inbox::finish`] it without handling it.
    Late,
    /// A result waits to be sent, perhaps this task's. Send it, and ask again.
    AnswerFirst,
    /// It was handled, and the server has the result.
    HandledBefore,
    /// Another task comes before it. Ask again.
    OutOfOrder,
    /// It comes from a sequence that is over.
    PastEpoch,
}

/// A result that the server has not confirmed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unconfirmed<R> {
    pub(crate) epoch: Epoch,
    pub(crate) id: u64,
    pub(crate) answer: R,
}

/// Tells new tasks from repetitions.
#[derive(Debug)]
pub(crate) struct Inbox<R> {
    servers: Epochs,
    /// The highest number of the current sequence that was handled, or is being handled.
    handled: u64,
    unconfirmed: Option<Unconfirmed<R>>,
}

impl<R> Inbox<R> {
    pub(crate) fn new() -> Self {
        Self { servers: Epochs::default(), handled: 0, unconfirmed: None }
    }

    /// Where to go on. `None`: from the beginning.
    pub(crate) fn cursor(&self) -> Option<Cursor> {
        let epoch = self.servers.current()?;
        Some(Cursor { epoch, after: self.handled })
    }

    /// A task has arrived: number `id` of a sequence, which comes after number `after`.
    pub(crate) fn receive(
        &mut self,
        epoch: Epoch,
        after: u64,
        id: u64,
        deadline: Duration,
        now: Duration,
    ) -> Verdict {
        if self.unconfirmed.is_some() {
            return Verdict::AnswerFirst;
        }
        match self.servers.look(epoch) {
            Seen::Past => return Verdict::PastEpoch,
            // Its numbers begin anew.
            Seen::New => self.handled = 0,
            Seen::Current => {}
        }
        self.servers.see(epoch);
        if id <= self.handled {
            return Verdict::HandledBefore;
        }
        if after > self.handled {
            return Verdict::OutOfOrder;
        }
        // From here on it is not handled again, whatever becomes of it.
        self.handled = id;
        if deadline <= now { Verdict::Late } else { Verdict::Handle }
    }

    /// The task that arrived last has a result. It is kept until it is confirmed.
    pub(crate) fn finish(&mut self, answer: R) {
        if let Some(epoch) = self.servers.current() {
            self.unconfirmed = Some(Unconfirmed { epoch, id: self.handled, answer });
        }
    }

    /// The result that has to be sent, again and again.
    pub(crate) fn unconfirmed(&self) -> Option<&Unconfirmed<R>> {
        self.unconfirmed.as_ref()
    }

    /// The server has the result of task `id`.
    pub(crate) fn confirm(&mut self, epoch: Epoch, id: u64) {
        self.unconfirmed.take_if(|kept| (kept.epoch, kept.id) == (epoch, id));
    }
}
