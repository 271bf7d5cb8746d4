//! The open batch of a stream with its gate in it. Threads that launch into one stream have a lane each, but only one
//! batch is open per stream: the thread that begins a batch first ends the previous one. Otherwise the mark of one
//! lane's batch would be queued behind another lane's held wait.

use super::super::behind::Behind;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use core::sync::atomic::{AtomicU32, AtomicU64};
use driver::cuda::DevicePtr;
use std::sync::Mutex;

/// No batch is open. No word has this address.
const NOBODYS: DevicePtr = 0;
/// A thread is ending or beginning a batch. No word has this address either.
const BUSY: DevicePtr = DevicePtr::MAX;

/// The state shared by all lanes of a stream.
#[derive(Debug, Default)]
pub(in crate::compute) struct Turnstile {
    /// The address of the open batch's mark, and its number.
    open: AtomicU64,
    number: AtomicU32,
    /// The gate that the next launch into the stream will be behind.
    behind: Mutex<Option<Behind>>,
}

/// The exclusive right to end and begin a batch, until this is dropped.
pub(super) struct Passing<'turnstile> {
    turnstile: &'turnstile Turnstile,
    before: DevicePtr,
    after: DevicePtr,
}

impl Turnstile {
    /// Whether the open batch has its mark at `mark_at`. Another thread may end it at the same moment.
    pub(super) fn has_open(&self, mark_at: DevicePtr) -> bool {
        self.open.load(SeqCst) == mark_at
    }

    /// The gate that the next launch into the stream will be behind. Never blocks; `None` if another thread holds the
    /// lock.
    pub(in crate::compute) fn is_behind(&self) -> Option<Behind> {
        self.behind.try_lock().ok().and_then(|behind| *behind)
    }

    /// Sets the gate that the next launch will be behind. Never blocks.
    pub(in crate::compute) fn comes_behind(&self, gate: Behind) {
        if let Ok(mut behind) = self.behind.try_lock() {
            *behind = Some(gate);
        }
    }

    /// Takes the right to end and begin a batch. `None`: another thread has it.
    pub(super) fn pass(&self) -> Option<Passing<'_>> {
        // In one order with the later request to the batch's thread.
        let take = |open| (open != BUSY).then_some(BUSY);
        let before = self.open.fetch_update(SeqCst, Relaxed, take).ok()?;
        Some(Passing { turnstile: self, before, after: NOBODYS })
    }

    /// Like [`Self::pass`], if the open batch has its mark at `mark_at`. `None`: another thread has ended that batch,
    /// or is ending it.
    pub(super) fn pass_after(&self, mark_at: DevicePtr) -> Option<Passing<'_>> {
        let before = self.open.compare_exchange(mark_at, BUSY, Acquire, Relaxed).ok()?;
        Some(Passing { turnstile: self, before, after: NOBODYS })
    }
}

impl Passing<'_> {
    /// The batch that was open and has no mark yet: address of the mark, and number.
    pub(super) fn unmarked(&self) -> Option<(DevicePtr, u32)> {
        (self.before != NOBODYS).then(|| (self.before, self.turnstile.number.load(Relaxed)))
    }

    /// Opens a batch when this is dropped.
    pub(super) fn begin(&mut self, mark_at: DevicePtr, number: u32) {
        self.turnstile.number.store(number, Relaxed);
        self.after = mark_at;
    }
}

impl Drop for Passing<'_> {
    fn drop(&mut self) {
        self.turnstile.open.store(self.after, Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begun(mark_at: DevicePtr, number: u32) -> Turnstile {
        let turnstile = Turnstile::default();
        turnstile.pass().unwrap().begin(mark_at, number);
        turnstile
    }

    #[test]
    fn one_thread_at_a_time_sees_whose_batch_is_open() {
        let turnstile = begun(64, 3);
        assert!(turnstile.has_open(64) && !turnstile.has_open(128));
        let passing = turnstile.pass().unwrap();
        assert_eq!(passing.unmarked(), Some((64, 3)));
        assert!(turnstile.pass().is_none() && !turnstile.has_open(64));
        drop(passing);
        assert_eq!(turnstile.pass().unwrap().unmarked(), None);
    }

    /// Otherwise the batch's own thread would take the batch for ended, and nobody would write its mark.
    #[test]
    fn who_ends_another_batch_is_in_nobodys_way() {
        let turnstile = begun(64, 3);
        assert!(turnstile.pass_after(128).is_none());
        let passing = turnstile.pass_after(64).unwrap();
        assert!(turnstile.pass_after(64).is_none() && turnstile.pass().is_none());
        drop(passing);
        assert!(turnstile.pass_after(64).is_none());
    }

    /// The mark could not be enqueued.
    #[test]
    fn a_batch_may_stay_open() {
        let turnstile = begun(64, 3);
        turnstile.pass_after(64).unwrap().begin(64, 3);
        assert_eq!(turnstile.pass().unwrap().unmarked(), Some((64, 3)));
    }
}
