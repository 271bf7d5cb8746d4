//! Whether this process is allocating or freeing: what NVML says in such a moment cannot be compared
//! with what has been charged.

use super::waiting;
use crate::clock;
use crate::device::Device;
use core::ptr;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use core::sync::atomic::{AtomicU64, AtomicUsize};
use crossbeam::utils::CachePadded;
use session::clock::now_ns;
use session::ledger::Book;
use session::page::layout::Kind;

/// Calls that allocate or free: how many run, in the lower bits, and how many have returned.
static CALLS: CachePadded<AtomicU64> = CachePadded::new(AtomicU64::new(0));
/// A call that runs, and one that has returned.
const RUNNING: u64 = 1;
const ENDED: u64 = 1 << 20;

/// The device that is watched, as an address, and the most that this process has been charged for on
/// it meanwhile.
static WATCHED: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicU64 = AtomicU64::new(0);

/// When calls that come in began to be kept at the door; zero while they are not.
static CLOSED: CachePadded<AtomicU64> = CachePadded::new(AtomicU64::new(0));

/// A call that allocates or frees, while it runs.
pub(crate) struct Changing(());

/// Such a call has come in.
#[inline]
pub(crate) fn begin() -> Changing {
    let closed = CLOSED.load(Relaxed);
    if closed != 0 {
        wait_at_the_door(closed);
    }
    CALLS.fetch_add(RUNNING, SeqCst);
    Changing(())
}

impl Drop for Changing {
    fn drop(&mut self) {
        CALLS.fetch_add(ENDED - RUNNING, SeqCst);
    }
}

/// Keeps calls that come in from beginning, until it is dropped: in a program whose threads never pause there
/// is no quiet moment else. Those that run are let end. Nothing relies on it: who waits does so for a
/// while only, and once, so that the door may be closed by a thread that is gone.
pub(super) struct Door(u64);

impl Door {
    pub(super) fn close() -> Self {
        let now = now_ns().max(1);
        CLOSED.store(now, Relaxed);
        Self(now)
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        let _ = CLOSED.compare_exchange(self.0, 0, Relaxed, Relaxed);
    }
}

/// Waits while the door is closed, as it was at that time.
#[cold]
fn wait_at_the_door(closed: u64) {
    const LONGEST_NS: u64 = 25_000_000;
    const STEP_NS: u64 = 20_000;
    // Most are closed for less than a thread needs to wake up.
    const YIELDS: u32 = 10;
    let mut waited = 0;
    while CLOSED.load(Relaxed) == closed && now_ns().saturating_sub(closed) < LONGEST_NS {
        if waited < YIELDS {
            std::thread::yield_now();
        } else {
            clock::sleep(STEP_NS);
        }
        waited += 1;
    }
}

/// Memory is being reserved on a device, in its open book, and the driver has yet to take it.
#[inline]
pub(super) fn reserved(device: &Device, book: &Book<'_>) {
    // The watch begins with the book open: either it is seen here, or it begins with what is reserved now.
    if WATCHED.load(Relaxed) == ptr::from_ref(device).addr() {
        PEAK.fetch_max(charged_in(book, device), Relaxed);
    }
}

/// Watches the charges of a device, one at a time, from here until it is dropped.
pub(super) struct Watch<'a>(&'a Device);

impl<'a> Watch<'a> {
    /// `None`: the book cannot be opened.
    pub(super) fn new(device: &'a Device) -> Option<Self> {
        let book = device.book()?;
        PEAK.store(charged_in(&book, device), Relaxed);
        WATCHED.store(ptr::from_ref(device).addr(), Relaxed);
        drop(book);
        Some(Self(device))
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
    by_calls(|kind| slot.bytes[kind as usize].load(Relaxed))
}

fn charged_in(book: &Book<'_>, device: &Device) -> u64 {
    by_calls(|kind| book.has(device.seat().slot(), kind))
}

fn by_calls(bytes: impl Fn(Kind) -> u64) -> u64 {
    let of_calls =
        |kind: &Kind| !matches!(kind, Kind::Driver | Kind::Oversubscribed | Kind::Headroom);
    Kind::ALL.into_iter().filter(of_calls).map(bytes).fold(0, u64::saturating_add)
}

/// In a forked child: its parent's calls do not return here.
pub(super) fn after_fork() {
    CALLS.store(0, Relaxed);
    CLOSED.store(0, Relaxed);
    WATCHED.store(0, Relaxed);
}

/// How far the count is.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Moment(u64);

impl Moment {
    fn now() -> Self {
        Self(CALLS.load(SeqCst))
    }

    /// How many calls run.
    const fn running(self) -> u64 {
        self.0 % ENDED
    }

    /// How many have returned.
    const fn ended(self) -> u64 {
        self.0 / ENDED
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
        Self { taken, is_quiet, ended: moment.ended() }
    }

    /// Whether the driver neither took nor gave back anything by calls from then until `self`.
    pub(super) fn is_quiet_since(&self, then: &Self) -> bool {
        self.is_quiet && self == then
    }
}

/// Waits until it is quiet, for so many steps; whether it is.
pub(super) fn await_quiet(device: &Device, own: Own, steps: u32) -> bool {
    const STEP_NS: u64 = 50_000;
    for _ in 0..steps {
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
    fn a_door_that_nobody_opens_stays_no_obstacle() {
        let door = Door::close();
        wait_at_the_door(door.0);
        // Whoever comes later does not wait at all.
        let passed = now_ns();
        assert!(passed - door.0 >= 25_000_000);
        for _ in 0..1000 {
            wait_at_the_door(door.0);
        }
        assert!(now_ns() - passed < 25_000_000);
        // Nor does one wait for the next look.
        let next = Door::close();
        wait_at_the_door(door.0);
        drop(door);
        assert_eq!(CLOSED.load(Relaxed), next.0);
        drop(next);
        assert_eq!(CLOSED.load(Relaxed), 0);
    }

    #[test]
    fn calls_are_counted_while_they_run() {
        let before = Moment::now();
        let call = begin();
        let during = Moment::now();
        assert_eq!(during.running(), before.running() + 1);
        drop(call);
        let after = Moment::now();
        assert_eq!((after.running(), after.ended()), (before.running(), before.ended() + 1));
        assert!(after != during && after != before);
    }
}
