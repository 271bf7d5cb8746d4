//! Bounded waits for long polls, and cleanup after an abandoned wait.

use std::time::Duration;

/// Waits for `what`, for at most `asked` (the caller's timeout) and at most `cap`. `None`: timed out.
pub async fn wait_up_to<F: Future>(asked: Duration, cap: Duration, what: F) -> Option<F::Output> {
    tokio::time::timeout(asked.min(cap), what).await.ok()
}

/// Calls a function on drop unless disarmed: cleans up after a waiting handler that is dropped because its caller
/// disconnected.
#[derive(Debug)]
#[must_use = "does its work at once if it is not kept"]
pub struct OnDrop<F: FnOnce()> {
    undo: Option<F>,
}

impl<F: FnOnce()> OnDrop<F> {
    /// `undo` must not wait.
    pub fn new(undo: F) -> Self {
        Self { undo: Some(undo) }
    }

    /// Cancels the cleanup.
    pub fn disarm(mut self) {
        self.undo = None;
    }
}

impl<F: FnOnce()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        if let Some(undo) = self.undo.take() {
            undo();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn undoes_once_unless_disarmed() {
        let count = Cell::new(0);
        drop(OnDrop::new(|| count.set(count.get() + 1)));
        assert_eq!(count.get(), 1);
        OnDrop::new(|| count.set(count.get() + 1)).disarm();
        assert_eq!(count.get(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn waits_no_longer_than_asked_nor_than_the_cap() {
        let start = tokio::time::Instant::now();
        let never = std::future::pending::<()>;
        assert!(
            wait_up_to(Duration::from_secs(3), Duration::from_secs(10), never()).await.is_none()
        );
        assert_eq!(start.elapsed().as_secs(), 3);
        assert!(wait_up_to(Duration::MAX, Duration::from_secs(10), never()).await.is_none());
        assert_eq!(start.elapsed().as_secs(), 13);
        assert_eq!(wait_up_to(Duration::ZERO, Duration::ZERO, async { 7 }).await, Some(7));
    }
}
