//! Messages from the server to one caller, which fetches them by long poll.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use super::waiting::wait_up_to;

/// A message and its number. Numbers of a mailbox start at 1 and have no gaps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Numbered<T> {
    /// What the receiver acknowledges by asking for what comes after it.
    pub number: u64,
    /// The message.
    pub message: T,
}

/// The mailbox's receiver does not fetch what it is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} messages wait to be fetched; no more are taken")]
pub struct MailboxFull(pub usize);

/// A queue of messages for one receiver. A message stays until the receiver asks for what comes
/// after it, so that an answer that is lost on its way is sent again.
#[derive(Debug)]
pub struct Mailbox<T> {
    queue: Mutex<Queue<T>>,
    arrived: Notify,
    capacity: usize,
}

#[derive(Debug)]
struct Queue<T> {
    messages: VecDeque<T>,
    /// The number of the first message in the queue, or of the next one if it is empty.
    first: u64,
}

impl<T: Clone> Mailbox<T> {
    /// An empty mailbox that holds at most `capacity` messages that were not acknowledged.
    pub fn new(capacity: usize) -> Self {
        let queue = Mutex::new(Queue { messages: VecDeque::new(), first: 1 });
        Self { queue, arrived: Notify::new(), capacity }
    }

    /// Puts a message in and returns its number.
    ///
    /// # Errors
    /// [`MailboxFull`] if the receiver is too far behind.
    pub fn post(&self, message: T) -> Result<u64, MailboxFull> {
        let number = {
            let mut queue = self.queue();
            if queue.messages.len() >= self.capacity {
                return Err(MailboxFull(queue.messages.len()));
            }
            queue.messages.push_back(message);
            queue.first + queue.messages.len() as u64 - 1
        };
        self.arrived.notify_waiters();
        Ok(number)
    }

    /// The message after `seen` (0: the first), waiting for it at most `asked`, at most `cap`.
    /// Everything up to `seen` is acknowledged and forgotten. If messages after `seen` were
    /// already acknowledged, the oldest that is left is the next.
    pub async fn next(&self, seen: u64, asked: Duration, cap: Duration) -> Option<Numbered<T>> {
        wait_up_to(asked, cap, async {
            loop {
                // Made before looking, so that a message posted in between wakes it.
                let arrived = self.arrived.notified();
                tokio::pin!(arrived);
                arrived.as_mut().enable();
                if let Some(found) = self.after(seen) {
                    return found;
                }
                arrived.await;
            }
        })
        .await
    }

    fn after(&self, seen: u64) -> Option<Numbered<T>> {
        let mut queue = self.queue();
        while queue.first <= seen && queue.messages.pop_front().is_some() {
            queue.first += 1;
        }
        let message = queue.messages.front()?.clone();
        Some(Numbered { number: queue.first, message })
    }

    fn queue(&self) -> MutexGuard<'_, Queue<T>> {
        // No code that can panic runs under the lock.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    const LONG: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn in_order_and_again_until_acknowledged() {
        let mailbox = Mailbox::new(8);
        assert_eq!(mailbox.post("a"), Ok(1));
        assert_eq!(mailbox.post("b"), Ok(2));
        let a = Numbered { number: 1, message: "a" };
        assert_eq!(mailbox.next(0, LONG, LONG).await, Some(a.clone()));
        assert_eq!(mailbox.next(0, LONG, LONG).await, Some(a));
        let b = Numbered { number: 2, message: "b" };
        assert_eq!(mailbox.next(1, LONG, LONG).await, Some(b.clone()));
        assert_eq!(mailbox.next(0, LONG, LONG).await, Some(b));
        assert_eq!(mailbox.next(2, Duration::ZERO, LONG).await, None);
        // A number from the future acknowledges no message that is still to come.
        assert_eq!(mailbox.next(99, Duration::ZERO, LONG).await, None);
        assert_eq!(mailbox.post("c"), Ok(3));
        assert_eq!(mailbox.next(2, LONG, LONG).await, Some(Numbered { number: 3, message: "c" }));
    }

    #[tokio::test]
    async fn a_waiting_receiver_is_woken() {
        let mailbox = Arc::new(Mailbox::new(1));
        let waiting = tokio::spawn({
            let mailbox = Arc::clone(&mailbox);
            async move { mailbox.next(0, LONG, LONG).await }
        });
        tokio::task::yield_now().await;
        mailbox.post(5).unwrap();
        assert_eq!(waiting.await.unwrap(), Some(Numbered { number: 1, message: 5 }));
    }

    #[tokio::test]
    async fn a_receiver_that_never_fetches_is_noticed() {
        let mailbox = Mailbox::new(2);
        mailbox.post(1).unwrap();
        mailbox.post(2).unwrap();
        assert_eq!(mailbox.post(3), Err(MailboxFull(2)));
        mailbox.next(1, LONG, LONG).await.unwrap();
        assert_eq!(mailbox.post(3), Ok(3));
    }
}
