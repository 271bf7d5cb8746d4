//! Whether this process is allocating or freeing: what NVML says in such a moment cannot be compared
//! with what has been charged.

use super::waiting;
use crate::compute::clock;
use crate::device::Device;
use core::ptr;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use core::sync::atomic::{AtomicU64, AtomicUsize, fence};
use crossbeam::utils::CachePadded;
use utils::page::layout::Kind;

/// Calls that allocate or free, as they came in and as they returned.
static BEGUN: CachePadded<AtomicU64> = CachePadded::new(AtomicU64::new(0));
static ENDED: CachePadded<AtomicU64> = CachePadded::new(AtomicU64::new(0));
/// The device that is watched, as an address, and the most that this process has been charged for on
/// it meanwhile.
static WATCHED: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicU64 = AtomicU64::new(0);

/// A call that allocates or frees, while it runs.
pub(crate) struct Changing(());

/// Such a call has come in.
#[inline]
pub(crate) fn begin() -> Changing {
    BEGUN.fetch_add(1, SeqCst);
    Changing(())
}

impl Drop for Changing {
    fn drop(&mut self) {
        ENDED.fetch_add(1, SeqCst);
    }
}

/// Memory has been reserved on a device, and the driver has yet to take it.
#[inline]
pub(super) fn reserved(device: &Device) {
    // Either this thread sees the watch, or the watch begins with what was just reserved.
    fence(SeqCst);
    if WATCHED.load(Relaxed) == ptr::from_ref(device).addr() {
        PEAK.fetch_max(charged(device), Relaxed);
    }
}

/// Watches the charges of a device, one at a time, from here until it is dropped.
pub(super) struct Watch<'a>(&'a Device);

impl<'a> Watch<'a> {
    pub(super) fn new(device: &'a Device) -> Self {
        PEAK.store(0, Relaxed);
        WATCHED.store(ptr::from_ref(device).addr(), Relaxed);
        fence(SeqCst);
        PEAK.fetch_max(charged(device), Relaxed);
        Self(device)
    }

    /// No less than what the driver had taken for calls at any moment of the watch: memory is charged
    /// before the driver takes it, and until the driver has freed it.
    pub(super) fn peak(&self) -> u64 {
        PEAK.load(Relaxed).max(charged(self.0))
    }
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        WATCHED.store(0, Relaxed);
    }
}

/// What this process has been charged for on the device itself, by calls that said how much.
pub(super) fn charged(device: &Device) -> u64 {
    let Some(slot) = device.own_slot() else { return u64::MAX };
    let of_calls =
        |kind: &Kind| !matches!(kind, Kind::Driver | Kind::Oversubscribed | Kind::Headroom);
    let bytes = |kind: Kind| slot.bytes[kind as usize].load(Relaxed);
    Kind::ALL.into_iter().filter(of_calls).map(bytes).fold(0, u64::saturating_add)
}

/// In a forked child: its parent's calls do not return here.
pub(super) fn after_fork() {
    BEGUN.store(0, Relaxed);
    ENDED.store(0, Relaxed);
    WATCHED.store(0, Relaxed);
}

/// How far the counts are.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Moment {
    begun: u64,
    ended: u64,
}

impl Moment {
    pub(super) fn now() -> Self {
        // Ended first: a call that ends in between must not make the moment look quiet.
        let ended = ENDED.load(SeqCst);
        Self { begun: BEGUN.load(SeqCst), ended }
    }

    /// How many calls run.
    const fn running(&self) -> u64 {
        self.begun.wrapping_sub(self.ended)
    }
}

/// What a look leaves out of account: the call in whose midst it is taken, if any, and what that has reserved.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Own {
    pub(super) calls: u64,
    pub(super) bytes: u64,
}

impl Own {
    /// A look from outside of any call.
    pub(super) const NONE: Self = Self { calls: 0, bytes: 0 };
}

/// How a device's memory stands by what this process has been charged for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Standing {
    /// What the driver has taken for calls, where it is quiet.
    pub(super) taken: u64,
    /// Whether no call runs but the looking one, and those that wait with what they have reserved.
    pub(super) is_quiet: bool,
    ended: u64,
}

impl Standing {
    pub(super) fn now(device: &Device, own: Own) -> Self {
        let (waiting, moment) = (waiting::now(device), Moment::now());
        let charged = charged(device);
        let same = moment == Moment::now() && waiting == waiting::now(device);
        let taken = charged.saturating_sub(own.bytes).saturating_sub(waiting.bytes);
        let is_quiet = same && moment.running() == own.calls.saturating_add(waiting.calls);
        Self { taken, is_quiet, ended: moment.ended }
    }

    /// Whether the driver neither took nor gave back anything by calls from then until `self`.
    pub(super) fn is_quiet_since(&self, then: &Self) -> bool {
        self.is_quiet && self == then
    }
}

/// Waits a moment until it is quiet; whether it is.
pub(super) fn await_quiet(device: &Device, own: Own) -> bool {
    const PATIENCE: u32 = 60;
    const STEP_NS: u64 = 50_000;
    for _ in 0..PATIENCE {
        if Standing::now(device, own).is_quiet {
            return true;
        }
        clock::sleep(STEP_NS);
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_counted_while_they_run() {
        let before = Moment::now();
        let call = begin();
        let during = Moment::now();
        assert_eq!(during.running(), before.running() + 1);
        drop(call);
        let after = Moment::now();
        assert_eq!(after.running(), before.running());
        assert!(after != during && after != before);
    }
}
