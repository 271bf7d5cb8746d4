//! Counts this process's allocating and freeing calls. The reconciler uses the counts to tell whether NVML's
//! figure can be compared with the charges: it cannot while such a call runs.

use super::waiting::{WaitingCall, WaitingCalls};
use crate::clock;
use crate::ledger::DeviceLedger;
use core::ptr;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use core::sync::atomic::{AtomicU64, AtomicUsize};
use crossbeam::utils::CachePadded;
use session::layout::MemoryKind;
use session::ledger::Ledger;

/// Increments of `Changes::calls`: one per running call, one per call that has returned.
const RUNNING: u64 = 1;
const ENDED: u64 = 1 << 20;

/// The calls of this process that allocate or free.
#[derive(Default)]
pub(crate) struct Changes {
    /// Running calls in the lower 20 bits, returned calls above.
    calls: CachePadded<AtomicU64>,
    /// When the current admission pause began (ns, `clock::now`); 0: no pause.
    paused: CachePadded<AtomicU64>,
    waiting: WaitingCalls,
    /// Address of the ledger that a [`PeakWatch`] observes, and this process's highest charge on that device since
    /// the watch began.
    watched: AtomicUsize,
    peak: AtomicU64,
}

/// Guard of a running call that allocates or frees.
pub(crate) struct Changing<'a>(&'a Changes);

impl Changes {
    /// Counts an allocating or freeing call until the guard is dropped; waits first if an admission pause is on.
    #[inline]
    pub(crate) fn begin(&self) -> Changing<'_> {
        let paused = self.paused.load(Relaxed);
        if paused != 0 {
            self.wait_for_the_end_of(paused);
        }
        self.calls.fetch_add(RUNNING, SeqCst);
        Changing(self)
    }

    /// Marks the current call as waiting, with `bytes` of a device reserved.
    pub(super) fn wait(&self, device: &DeviceLedger, bytes: u64) -> WaitingCall<'_> {
        self.waiting.begin(device, bytes)
    }

    /// Begins an admission pause: until the guard is dropped, new calls wait and running calls finish. Otherwise a
    /// program whose threads allocate all the time has no quiet moment. Correctness does not depend on the pause: a
    /// call waits once, for at most 25 ms, so an abandoned pause does no harm.
    pub(super) fn pause(&self) -> Pause<'_> {
        let since = clock::now().max(1);
        self.paused.store(since, Relaxed);
        Pause { changes: self, since }
    }

    /// Waits until the pause that began at `paused` ends, for at most 25 ms.
    #[cold]
    fn wait_for_the_end_of(&self, paused: u64) {
        const LONGEST_NS: u64 = 25_000_000;
        const STEP_NS: u64 = 20_000;
        // Most pauses end sooner than a thread would wake up.
        const YIELDS: u32 = 10;
        let mut waited = 0;
        while self.paused.load(Relaxed) == paused
            && clock::now().saturating_sub(paused) < LONGEST_NS
        {
            if waited < YIELDS {
                std::thread::yield_now();
            } else {
                clock::sleep(STEP_NS);
            }
            waited += 1;
        }
    }

    /// Updates the peak after a reservation in the open ledger, before the driver takes the memory.
    #[inline]
    pub(super) fn reserved(&self, device: &DeviceLedger, opened: &Ledger<'_>) {
        // A watch begins while the ledger is open, so it counts this reservation either here or at its start.
        if self.watched.load(Relaxed) == ptr::from_ref(device).addr() {
            self.peak.fetch_max(charged_in(opened, device), Relaxed);
        }
    }

    /// Watches the charges of a device until the guard is dropped. Only one device is watched at a time. `None` if
    /// the ledger cannot be opened.
    pub(super) fn watch<'a>(&'a self, device: &'a DeviceLedger) -> Option<PeakWatch<'a>> {
        let opened = device.open()?;
        self.peak.store(charged_in(&opened, device), Relaxed);
        self.watched.store(ptr::from_ref(device).addr(), Relaxed);
        drop(opened);
        Some(PeakWatch { changes: self, device })
    }

    /// Bytes that the driver has taken on a device for this process's calls, according to the charges.
    pub(super) fn standing(&self, device: &DeviceLedger, own: CallInProgress) -> Standing {
        let (waiting, moment) = (self.waiting.now(device), self.moment());
        let charged = charged(device);
        let same = moment == self.moment() && waiting == self.waiting.now(device);
        let taken = charged.saturating_sub(own.bytes).saturating_sub(waiting.bytes);
        let is_quiet = same && moment.running() == own.calls.saturating_add(waiting.calls);
        Standing { taken, is_quiet, ended: moment.ended() }
    }

    /// Waits up to `steps` times 50 us for a quiet moment; returns whether there was one.
    pub(super) fn await_quiet(
        &self,
        device: &DeviceLedger,
        own: CallInProgress,
        steps: u32,
    ) -> bool {
        const STEP_NS: u64 = 50_000;
        for _ in 0..steps {
            if self.standing(device, own).is_quiet {
                return true;
            }
            clock::sleep(STEP_NS);
        }
        false
    }

    fn moment(&self) -> Moment {
        Moment(self.calls.load(SeqCst))
    }
}

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        self.0.calls.fetch_add(ENDED - RUNNING, SeqCst);
    }
}

/// Guard of an admission pause; see [`Changes::pause`].
pub(super) struct Pause<'a> {
    changes: &'a Changes,
    since: u64,
}

impl Drop for Pause<'_> {
    fn drop(&mut self) {
        let _ = self.changes.paused.compare_exchange(self.since, 0, Relaxed, Relaxed);
    }
}

/// Guard that tracks the peak charge of a device; see [`Changes::watch`].
pub(super) struct PeakWatch<'a> {
    changes: &'a Changes,
    device: &'a DeviceLedger,
}

impl PeakWatch<'_> {
    /// An upper bound for what the driver had taken for calls at any moment of the watch: memory is charged before
    /// the driver takes it, and until the driver has freed it.
    pub(super) fn peak(&self) -> u64 {
        self.changes.peak.load(Relaxed).max(charged(self.device))
    }
}

impl Drop for PeakWatch<'_> {
    fn drop(&mut self) {
        self.changes.watched.store(0, Relaxed);
    }
}

/// This process's charges on the device, without the kinds `driver`, `overcommitted` and `headroom`.
fn charged(device: &DeviceLedger) -> u64 {
    let Some(slot) = device.own_slot() else { return u64::MAX };
    by_calls(|kind| slot.bytes[kind as usize].load(Relaxed))
}

fn charged_in(opened: &Ledger<'_>, device: &DeviceLedger) -> u64 {
    by_calls(|kind| opened.has(device.membership().slot(), kind))
}

fn by_calls(bytes: impl Fn(MemoryKind) -> u64) -> u64 {
    let of_calls = |kind: &MemoryKind| {
        !matches!(kind, MemoryKind::Driver | MemoryKind::Overcommitted | MemoryKind::Headroom)
    };
    MemoryKind::ALL.into_iter().filter(of_calls).map(bytes).fold(0, u64::saturating_add)
}

/// A snapshot of `Changes::calls`.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Moment(u64);

impl Moment {
    /// Calls that are running.
    const fn running(self) -> u64 {
        self.0 % ENDED
    }

    /// Calls that have returned.
    const fn ended(self) -> u64 {
        self.0 / ENDED
    }
}

/// The call within which a reconciliation runs, if any (`calls` is 0 or 1), and the bytes that it has reserved. Both
/// are left out of the comparison.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct CallInProgress {
    pub(super) calls: u64,
    pub(super) bytes: u64,
}

impl CallInProgress {
    /// For a reconciliation outside of any call.
    pub(super) const NONE: Self = Self { calls: 0, bytes: 0 };
}

/// A comparable snapshot, made by [`Changes::standing`].
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Standing {
    /// Bytes that the driver has taken for calls; exact only if the moment is quiet.
    pub(super) taken: u64,
    /// Whether no call runs other than the checking one and those that wait with reservations.
    pub(super) is_quiet: bool,
    ended: u64,
}

impl Standing {
    /// Whether no call allocated or freed memory between `then` and `self`.
    pub(super) fn is_quiet_since(&self, then: &Self) -> bool {
        self.is_quiet && self == then
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_that_nobody_ends_stays_no_obstacle() {
        let changes = Changes::default();
        let pause = changes.pause();
        changes.wait_for_the_end_of(pause.since);
        // A later call does not wait at all.
        let passed = clock::now();
        assert!(passed - pause.since >= 25_000_000);
        for _ in 0..1000 {
            changes.wait_for_the_end_of(pause.since);
        }
        assert!(clock::now() - passed < 25_000_000);
        // A call does not wait for the following pause either.
        let next = changes.pause();
        changes.wait_for_the_end_of(pause.since);
        drop(pause);
        assert_eq!(changes.paused.load(Relaxed), next.since);
        drop(next);
        assert_eq!(changes.paused.load(Relaxed), 0);
    }

    #[test]
    fn calls_are_counted_while_they_run() {
        let changes = Changes::default();
        let before = changes.moment();
        let call = changes.begin();
        let during = changes.moment();
        assert_eq!(during.running(), before.running() + 1);
        drop(call);
        let after = changes.moment();
        assert_eq!((after.running(), after.ended()), (before.running(), before.ended() + 1));
        assert!(after != during && after != before);
    }
}
