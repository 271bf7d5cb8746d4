//! A process's place in a page, and the lock that opens the book.

use super::layout::Layout;
use super::{Page, PageError, alive};
use crate::ledger::Book;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use rustix::thread::Timespec;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Tries before the processor is given away, and before the owner is looked at.
const SPINS: u32 = 100;
const YIELDS: u32 = 20;
const NAP: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000 };

/// This process's slot in a page. One per process and page: see [`alive`](super::alive).
#[derive(Debug)]
pub struct Seat {
    page: Page,
    slot: usize,
    /// Process id and start time.
    identity: (u32, u64),
    /// Keeps the threads of this process apart, so that the owner in the page is always another
    /// process.
    threads: Mutex<()>,
}

/// The book while nobody else can change it. Held for the few stores of one change, never while
/// anything else is called.
#[derive(Debug)]
pub struct BookGuard<'a> {
    layout: &'a Layout,
    book: Book<'a>,
    _threads: MutexGuard<'a, ()>,
}

impl<'a> Deref for BookGuard<'a> {
    type Target = Book<'a>;
    fn deref(&self) -> &Book<'a> {
        &self.book
    }
}

impl<'a> DerefMut for BookGuard<'a> {
    fn deref_mut(&mut self) -> &mut Book<'a> {
        &mut self.book
    }
}

impl Drop for BookGuard<'_> {
    fn drop(&mut self) {
        self.layout.lock.store(0, Release);
    }
}

impl Seat {
    /// Takes a slot that no living process sits on.
    ///
    /// # Errors
    /// [`PageError::Full`], or [`PageError::Io`] where the file's locks do not work.
    pub fn claim(page: Page) -> Result<Self, PageError> {
        let pid = std::process::id();
        let start = alive::process_start(pid).unwrap_or(0);
        let count = page.layout().slots.len();
        // Start at different places, so that processes that start together do not queue.
        let first = high_water(page.layout()).min(count - 1);
        for slot in (0..count).map(|offset| (first + offset) % count) {
            match alive::sit(&page, slot) {
                Ok(true) => {}
                Ok(false) => continue,
                Err(source) => {
                    return Err(PageError::Io { path: page.path().to_owned(), source });
                }
            }
            let old = &page.layout().slots[slot];
            let (old_pid, old_start) = (old.pid.load(Relaxed), old.start_time.load(Relaxed));
            if old_pid != 0 && old_pid != pid && alive::process_start(old_pid) == Some(old_start) {
                // Alive, but it has lost its lock.
                alive::stand_up(&page, slot);
                continue;
            }
            let seat = Self { page, slot, identity: (pid, start), threads: Mutex::new(()) };
            seat.book().seat(slot, pid, start);
            // Nobody may have been left to notice who died.
            seat.reap();
            return Ok(seat);
        }
        Err(PageError::Full { path: page.path().to_owned() })
    }

    /// The slot's index.
    #[must_use]
    pub const fn slot(&self) -> usize {
        self.slot
    }

    /// The page's fields.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        self.page.layout()
    }

    /// Opens the book. Waits for whoever has it open, which is a matter of nanoseconds, unless that
    /// process died in the middle: then the sums are made again from the slots.
    #[must_use]
    pub fn book(&self) -> BookGuard<'_> {
        // A thread that panicked with the book open left nothing half done that a recount would
        // not mend.
        let threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        let layout = self.page.layout();
        let me = u32::try_from(self.slot + 1).unwrap_or(u32::MAX);
        let mut tries = 0;
        let recovered = loop {
            let owner = match layout.lock.compare_exchange_weak(0, me, Acquire, Relaxed) {
                Ok(_) => break false,
                Err(owner) => owner,
            };
            tries += 1;
            if tries <= SPINS {
                core::hint::spin_loop();
            } else if tries <= SPINS + YIELDS {
                std::thread::yield_now();
            } else {
                // Not a cancellation point, as the standard library's would be.
                let _ = rustix::thread::nanosleep(&NAP);
                if self.take_over(owner, me) {
                    break true;
                }
            }
        };
        let mut guard = BookGuard { layout, book: Book::new(layout), _threads: threads };
        if recovered {
            guard.recount();
        }
        guard
    }

    /// Takes the lock from an owner that has died with it. While this is tried the owner's slot is
    /// kept from being taken anew: a new process there would own the lock by the same number.
    fn take_over(&self, owner: u32, me: u32) -> bool {
        let Some(slot) = (owner as usize).checked_sub(1) else { return false };
        let taken = || self.layout().lock.compare_exchange(owner, me, Acquire, Relaxed).is_ok();
        if slot == self.slot {
            // Left by a former process in this slot, because the threads of this one are kept apart.
            return taken();
        }
        if self.is_alive(slot) || !matches!(alive::sit(&self.page, slot), Ok(true)) {
            return false;
        }
        let taken = taken();
        alive::stand_up(&self.page, slot);
        taken
    }

    /// Whether a process sits on a slot. What was this process before an `exec` does not count.
    fn is_alive(&self, slot: usize) -> bool {
        let Some(record) = self.layout().slots.get(slot) else { return false };
        let identity = (record.pid.load(Relaxed), record.start_time.load(Relaxed));
        if slot == self.slot || identity == self.identity {
            return slot == self.slot;
        }
        alive::is_alive(&self.page, slot, identity.0, identity.1)
    }

    /// Says that this process is alive and still waits for work of its lease, at a moment on
    /// `CLOCK_MONOTONIC` in nanoseconds.
    pub fn still_holding(&self, now_ns: u64) {
        if let Some(slot) = self.layout().slots.get(self.slot) {
            slot.lease_end_ns.fetch_max(now_ns, Relaxed);
        }
    }

    /// Gives back what dead processes left; tells how many there were.
    pub fn reap(&self) -> usize {
        let is_dead = |slot: usize| {
            let pid = self.layout().slots.get(slot).map_or(0, |record| record.pid.load(Relaxed));
            pid != 0 && !self.is_alive(slot)
        };
        let mut dead = 0;
        for slot in (0..high_water(self.layout())).filter(|&slot| is_dead(slot)) {
            // Asked again with the book open: the slot may have been cleared and taken anew since.
            let mut book = self.book();
            if is_dead(slot) {
                book.vacate(slot);
                dead += 1;
            }
        }
        dead
    }
}

fn high_water(layout: &Layout) -> usize {
    (layout.high_water.load(Relaxed) as usize).min(layout.slots.len())
}
