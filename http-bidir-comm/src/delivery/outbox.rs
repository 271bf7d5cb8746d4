//! The server's side: the tasks of one client that have no result yet.

use std::collections::VecDeque;
use std::time::Duration;

use super::{Cursor, Epoch, Epochs, Seen};

/// How much an outbox holds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Tasks without a result.
    pub(crate) tasks: usize,
    /// Their bytes.
    pub(crate) bytes: usize,
    /// How many of them may be on their way to the client, or at it, at once.
    pub(crate) window: usize,
}

/// There is no room for one more task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Full {
    pub(crate) tasks: usize,
    pub(crate) bytes: usize,
}

/// A later run of the client has taken the place of this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Superseded;

/// A task that may be sent now.
#[derive(Debug)]
pub(crate) struct Given<'a, T> {
    pub(crate) epoch: Epoch,
    pub(crate) after: u64,
    pub(crate) id: u64,
    pub(crate) expires_in: Duration,
    pub(crate) item: &'a T,
}

/// A task whose time is over.
#[derive(Debug)]
pub(crate) struct Expired<T> {
    pub(crate) item: T,
    /// It was sent at least once, so it may have been handled.
    pub(crate) given: bool,
}

/// Tasks in the order of their numbers, each with what the caller keeps for it.
#[derive(Debug)]
pub(crate) struct Outbox<T> {
    bounds: Bounds,
    entries: VecDeque<Entry<T>>,
    bytes: usize,
    last: u64,
    clients: Epochs,
    epoch: Epoch,
}

#[derive(Debug)]
struct Entry<T> {
    id: u64,
    deadline: Duration,
    bytes: usize,
    given: bool,
    item: T,
}

fn items<T>(entries: VecDeque<Entry<T>>) -> impl Iterator<Item = T> {
    entries.into_iter().map(|entry| entry.item)
}

impl<T> Outbox<T> {
    /// An empty one, whose numbers begin at 1. No other has the same `epoch`.
    pub(crate) fn new(bounds: Bounds, epoch: Epoch) -> Self {
        Self {
            bounds,
            entries: VecDeque::new(),
            bytes: 0,
            last: 0,
            clients: Epochs::default(),
            epoch,
        }
    }

    /// Takes a task in, as the last one. A full outbox refuses it; nothing that was taken in is ever
    /// pushed out.
    pub(crate) fn push(&mut self, item: T, bytes: usize, deadline: Duration) -> Result<u64, Full> {
        let after = self.bytes.saturating_add(bytes);
        if self.entries.len() >= self.bounds.tasks || after > self.bounds.bytes {
            return Err(Full { tasks: self.entries.len(), bytes: self.bytes });
        }
        self.last += 1;
        self.bytes = after;
        self.entries.push_back(Entry { id: self.last, deadline, bytes, given: false, item });
        Ok(self.last)
    }

    /// A run of the client is there, under its own epoch. Returns the tasks that were given to the run before it, and
    /// have no result: nobody knows whether they were handled, so they are not given to another.
    pub(crate) fn attend(&mut self, client_epoch: Epoch) -> Result<Vec<T>, Superseded> {
        match self.clients.see(client_epoch) {
            Seen::Current => Ok(Vec::new()),
            Seen::Past => Err(Superseded),
            Seen::New => Ok(items(self.take_out(|entry| entry.given)).collect()),
        }
    }

    /// Where a client goes on that has handled everything up to `cursor`. What another sequence's
    /// numbers say does not hold for this one's.
    pub(crate) fn resume(&self, cursor: Option<Cursor>) -> u64 {
        cursor.filter(|cursor| cursor.epoch == self.epoch).map_or(0, |cursor| cursor.after)
    }

    /// The first task after number `after` that may be sent at `now`: a repetition, or a new one if
    /// the window has room. It counts as given from here on.
    pub(crate) fn next(&mut self, after: u64, now: Duration) -> Option<Given<'_, T>> {
        let room = self.given() < self.bounds.window;
        let entry =
            self.entries.iter_mut().find(|entry| entry.id > after && entry.deadline > now)?;
        if !entry.given && !room {
            return None;
        }
        entry.given = true;
        let expires_in = entry.deadline - now;
        Some(Given { epoch: self.epoch, after, id: entry.id, expires_in, item: &entry.item })
    }

    /// A result has come. `None`: the task had one already, its time was over, or it was another
    /// sequence's.
    pub(crate) fn settle(&mut self, epoch: Epoch, id: u64) -> Option<T> {
        if epoch != self.epoch {
            return None;
        }
        items(self.take_out(|entry| entry.id == id && entry.given)).next()
    }

    /// Takes out the tasks whose time is over at `now`.
    pub(crate) fn expire(&mut self, now: Duration) -> Vec<Expired<T>> {
        self.take_out(|entry| entry.deadline <= now)
            .into_iter()
            .map(|entry| Expired { item: entry.item, given: entry.given })
            .collect()
    }

    /// When the next task's time is over.
    pub(crate) fn next_deadline(&self) -> Option<Duration> {
        self.entries.iter().map(|entry| entry.deadline).min()
    }

    /// How many tasks have no result.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// How many of them were given to the client.
    pub(crate) fn given(&self) -> usize {
        self.entries.iter().filter(|entry| entry.given).count()
    }

    /// Gives up: everything that is left, and whether it was given to the client.
    pub(crate) fn into_items(self) -> impl Iterator<Item = (T, bool)> {
        self.entries.into_iter().map(|entry| (entry.item, entry.given))
    }

    fn take_out(&mut self, is_over: impl Fn(&Entry<T>) -> bool) -> VecDeque<Entry<T>> {
        let entries = std::mem::take(&mut self.entries);
        let (over, left): (VecDeque<_>, _) = entries.into_iter().partition(is_over);
        self.entries = left;
        self.bytes -= over.iter().map(|entry| entry.bytes).sum::<usize>();
        over
    }
}
