//! Whether this process is allocating or freeing. NVML's figure from such a moment cannot be compared with
//! the charges.

use super::waiting::{WaitingCall, WaitingCalls};
use crate::clock;
use crate::ledger::DeviceLedger;
use core::ptr;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use core::sync::atomic::{AtomicU64, AtomicUsize};
use crossbeam::utils::CachePadded;
use session::layout::MemoryKind;
use session::ledger::Ledger;

/// Added to the count of calls: for one that runs, and for one that has returned.
const RUNNING: u64 = 1;
const ENDED: u64 = 1 << 20;

/// The calls of this process that allocate or free.
#[derive(Default)]
pub(crate) struct Changes {
    /// The calls that run, in the lower bits, and those that have returned.
    calls: CachePadded<AtomicU64>,
    /// When the admission pause began; zero if there is none.
    paused: CachePadded<AtomicU64>,
    waiting: WaitingCalls,
    /// The address of the watched device's ledger, and the highest charge of this process on it during the
    /// watch.
    watched: AtomicUsize,
    peak: AtomicU64,
}

/// A call that allocates or frees, while it runs.
pub(crate) struct Changing<'a>(&'a Changes);

impl Changes {
    /// Such a call begins.
    #[inline]
    pub(crate) fn begin(&self) -> Changing<'_> {
        let paused = self.paused.load(Relaxed);
        if paused != 0 {
            self.wait_for_the_end_of(paused);
        }
        self.calls.fetch_add(RUNNING, SeqCst);
        Changing(self)
    }

    /// Such a call begins to wait, with `bytes` of a device reserved.
    pub(super) fn wait(&self, device: &DeviceLedger, bytes: u64) -> WaitingCall<'_> {
        self.waiting.begin(device, bytes)
    }

    /// Begins an admission pause: new calls wait until the result is dropped, and running calls finish. In a
    /// program whose threads allocate all the time there is no quiet moment otherwise. Nothing relies on the
    /// pause: a call waits a limited time, and once. So the pause does no harm if the thread that began it is
    /// gone.
    pub(super) fn pause(&self) -> Pause<'_> {
        let since = clock::now().max(1);
        self.paused.store(since, Relaxed);
        Pause { changes: self, since }
    }

    /// Waits until the pause that began at `paused` ends.
    #[cold]
    fn wait_for_the_end_of(&self, paused: u64) {
        const LONGEST_NS: u64 = 25_000_000;
        const STEP_NS: u64 = 20_000;
        // Most pauses end before a thread could wake up.
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

    /// Memory is being reserved on a device, in its open ledger, and the driver has yet to take it.
    #[inline]
    pub(super) fn reserved(&self, device: &DeviceLedger, opened: &Ledger<'_>) {
        // A watch begins while the ledger is open. So either the watch sees this reservation here, or it
        // starts with it.
        if self.watched.load(Relaxed) == ptr::from_ref(device).addr() {
            self.peak.fetch_max(charged_in(opened, device), Relaxed);
        }
    }

    /// Watches the charges of a device until the result is dropped. One device is watched at a time. `None`:
    /// the ledger cannot be opened.
    pub(super) fn watch<'a>(&'a self, device: &'a DeviceLedger) -> Option<PeakWatch<'a>> {
        let opened = device.open()?;
        self.peak.store(charged_in(&opened, device), Relaxed);
        self.watched.store(ptr::from_ref(device).addr(), Relaxed);
        drop(opened);
        Some(PeakWatch { changes: self, device })
    }

    /// What the driver has taken on a device for this process's calls, by the charges.
    pub(super) fn standing(&self, device: &DeviceLedger, own: CallInProgress) -> Standing {
        let (waiting, moment) = (self.waiting.now(device), self.moment());
        let charged = charged(device);
        let same = moment == self.moment() && waiting == self.waiting.now(device);
        let taken = charged.saturating_sub(own.bytes).saturating_sub(waiting.bytes);
        let is_quiet = same && moment.running() == own.calls.saturating_add(waiting.calls);
        Standing { taken, is_quiet, ended: moment.ended() }
    }

    /// Waits for a quiet moment, for at most `steps` steps; returns whether it came.
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

/// New calls wait until this is dropped.
pub(super) struct Pause<'a> {
    changes: &'a Changes,
    since: u64,
}

impl Drop for Pause<'_> {
    fn drop(&mut self) {
        let _ = self.changes.paused.compare_exchange(self.since, 0, Relaxed, Relaxed);
    }
}

/// The charges of a device are watched until this is dropped.
pub(super) struct PeakWatch<'a> {
    changes: &'a Changes,
    device: &'a DeviceLedger,
}

impl PeakWatch<'_> {
    /// At least what the driver had taken for calls at any moment of the watch: memory is charged before the
    /// driver takes it, and until the driver has freed it.
    pub(super) fn peak(&self) -> u64 {
        self.changes.peak.load(Relaxed).max(charged(self.device))
    }
}

impl Drop for PeakWatch<'_> {
    fn drop(&mut self) {
        self.changes.watched.store(0, Relaxed);
    }
}

/// What calls of known size have charged to this process on the device itself.
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

/// The count of calls at a moment.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Moment(u64);

impl Moment {
    /// How many calls run.
    const fn running(self) -> u64 {
        self.0 % ENDED
    }

    /// How many have returned.
    const fn ended(self) -> u64 {
        self.0 / ENDED
    }
}

/// What a reconciliation leaves out: the call that it runs in, if any, and the bytes that the call has
/// reserved.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct CallInProgress {
    pub(super) calls: u64,
    pub(super) bytes: u64,
}

impl CallInProgress {
    /// For a reconciliation outside of any call.
    pub(super) const NONE: Self = Self { calls: 0, bytes: 0 };
}

/// See [`Changes::standing`].
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Standing {
    /// What the driver has taken for calls, if the moment is quiet.
    pub(super) taken: u64,
    /// Whether no other call runs than the one that checks, and those that wait with their reservations.
    pub(super) is_quiet: bool,
    ended: u64,
}

impl Standing {
    /// Whether no call took or gave back memory between `then` and `self`.
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
        // A call that comes later does not wait at all.
        let passed = clock::now();
        assert!(passed - pause.since >= 25_000_000);
        for _ in 0..1000 {
            changes.wait_for_the_end_of(pause.since);
        }
        assert!(clock::now() - passed < 25_000_000);
        // Nor does a call wait for the next pause.
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
