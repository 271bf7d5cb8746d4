//! A process's slot in a page, through which it opens the ledger.

mod claim;

use crate::layout::{MemberSlot, MemoryKind, PageLayout, SLOTS};
use crate::ledger::Ledger;
use crate::lock::{Attempt, Step, StepResult, number};
use crate::page::slot_lock::{self, SlotLock};
use crate::process::ProcessIdentity;
use crate::{Page, PageError, clock};
use core::ops::{Deref, DerefMut};
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicU64};
use core::time::Duration;
use rustix::thread::Timespec;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Attempts by spinning, then by yielding the processor, before the owner is checked.
const SPINS: u32 = 100;
const YIELDS: u32 = 20;
const NAP: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000 };
/// How long to wait for a living owner, and how long for the same owner the next time.
const PATIENCE: Duration = Duration::from_millis(500);
const IMPATIENCE: Duration = Duration::from_millis(10);
/// The sums are recomputed once in `AUDIT + AUDIT_PER_SLOT * slots` openings, so the mean cost of an opening does not
/// grow with the session.
const AUDIT: usize = 64;
const AUDIT_PER_SLOT: usize = 4;

/// This process's slot in a page, which makes it a member of the session. One per process and page; in the page of
/// devices used together, one per device: see `slot_lock`.
#[derive(Debug)]
pub struct Membership {
    page: Page,
    slot: usize,
    identity: ProcessIdentity,
    /// Lets one thread of this process in at a time, so that the owner in the page is always another process.
    threads: Mutex<KnownHoldings>,
    owed: Owed,
    /// Shows other processes that this process is alive.
    lock: SlotLock,
}

/// Guard: other processes wait while this process creates the session's first context.
#[derive(Debug)]
pub struct First<'a>(&'a Page);

impl Drop for First<'_> {
    fn drop(&mut self) {
        slot_lock::unlock(self.0, slot_lock::FIRST_CONTEXT);
    }
}

/// Bytes to release that could not be recorded yet, by kind.
#[derive(Debug, Default)]
struct Owed {
    any: AtomicBool,
    bytes: [AtomicU64; 8],
}

/// This process's knowledge, independent of the page.
#[derive(Debug, Default)]
struct KnownHoldings {
    /// The slot's bytes when the ledger was last closed.
    bytes: [u64; 8],
    /// Openings since the sums were last recomputed.
    openings: usize,
    /// The number of the owner last waited for in vain.
    kept_open_by: Option<u32>,
    /// The reason why the page is no longer trusted.
    damaged: Option<String>,
}

/// The open ledger, which no other process can change. Held for the few stores of one change, never while anything else
/// is called.
#[derive(Debug)]
pub struct LedgerGuard<'a> {
    layout: &'a PageLayout,
    slot: &'a MemberSlot,
    ledger: Ledger<'a>,
    own: MutexGuard<'a, KnownHoldings>,
}

impl<'a> Deref for LedgerGuard<'a> {
    type Target = Ledger<'a>;
    fn deref(&self) -> &Ledger<'a> {
        &self.ledger
    }
}

impl<'a> DerefMut for LedgerGuard<'a> {
    fn deref_mut(&mut self) -> &mut Ledger<'a> {
        &mut self.ledger
    }
}

impl Drop for LedgerGuard<'_> {
    fn drop(&mut self) {
        for (own, cell) in self.own.bytes.iter_mut().zip(&self.slot.bytes) {
            *own = cell.load(Relaxed);
        }
        self.layout.lock.store(0, Release);
    }
}

impl Membership {
    /// Takes a slot without a living process.
    ///
    /// # Errors
    /// [`PageError::Full`]; [`PageError::Io`] if the file's locks do not work; and the errors of [`Membership::open`].
    pub fn claim(page: Page) -> Result<Self, PageError> {
        let identity = ProcessIdentity::own();
        let (slot, lock) = claim::find_slot(&page, identity)?;
        let threads = Mutex::default();
        let membership = Self { page, slot, identity, threads, owed: Owed::default(), lock };
        let mut ledger = membership.enter(Purpose::Joining)?;
        membership.enroll(&mut ledger);
        drop(ledger);
        Ok(membership)
    }

    /// Writes this process into its slot.
    fn enroll(&self, ledger: &mut Ledger<'_>) {
        let ProcessIdentity { pid, start_time } = self.identity;
        ledger.enroll(self.slot, pid, self.lock.marked(start_time), clock::now_ns());
    }

    /// The slot's index.
    #[must_use]
    pub const fn slot(&self) -> usize {
        self.slot
    }

    /// The session's directory.
    #[must_use]
    pub fn folder(&self) -> Option<&std::path::Path> {
        self.page.folder()
    }

    /// The page's fields, for reading without the lock.
    ///
    /// # Errors
    /// [`PageError::Damaged`]
    pub fn look(&self) -> Result<&PageLayout, PageError> {
        self.page.look()
    }

    /// Opens the ledger. Waits for another process that has it open, normally for some nanoseconds. If that process has
    /// died, the sums are recomputed from the slots.
    ///
    /// # Errors
    /// [`PageError::Damaged`] if the page has been damaged, and at each later call. [`PageError::Busy`] if a living
    /// process keeps the ledger open.
    pub fn open(&self) -> Result<LedgerGuard<'_>, PageError> {
        self.enter(Purpose::Working)
    }

    /// Releases bytes at the next opening of the ledger, because it cannot be opened now.
    pub fn owe(&self, kind: MemoryKind, bytes: u64) {
        self.owed.bytes[kind as usize].fetch_add(bytes, Relaxed);
        self.owed.any.store(true, Release);
    }

    /// Records the bytes owed from earlier releases.
    fn pay(&self, ledger: &mut Ledger<'_>) {
        if !self.owed.any.load(Relaxed) || !self.owed.any.swap(false, AcqRel) {
            return;
        }
        for kind in MemoryKind::ALL {
            let bytes = self.owed.bytes[kind as usize].swap(0, Relaxed);
            // If the slot has fewer bytes, it has none afterwards.
            let _ = ledger.release(self.slot, kind, bytes);
        }
    }

    fn enter(&self, purpose: Purpose) -> Result<LedgerGuard<'_>, PageError> {
        // If a thread panicked with the ledger open, a recount repairs the sums.
        let mut own = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(reason) = &own.damaged {
            return Err(self.damaged(reason.clone()));
        }
        let lost = |own: &mut KnownHoldings, error: PageError| {
            if let PageError::Damaged { reason, .. } = &error {
                own.damaged = Some(reason.clone());
            }
            error
        };
        let layout = self.page.look().map_err(|error| lost(&mut own, error))?;
        let Some(slot) = layout.slots.get(self.slot) else {
            return Err(self.damaged(format!("it has no slot {}", self.slot)));
        };
        let recount = self.lock(layout, &mut own).map_err(|error| lost(&mut own, error))?;
        own.kept_open_by = None;
        own.openings += 1;
        let audit = own.openings >= AUDIT + AUDIT_PER_SLOT * high_water(layout);
        // The guard closes the ledger on each way out.
        let mut guard = LedgerGuard { layout, slot, ledger: Ledger::new(layout), own };
        if let Purpose::Working = purpose
            && let Err(reason) = self.own_slot(&mut guard)
        {
            guard.own.damaged = Some(reason.clone());
            return Err(self.damaged(reason));
        }
        if recount || audit {
            guard.recount();
            guard.own.openings = 0;
        }
        self.pay(&mut guard);
        Ok(guard)
    }

    fn damaged(&self, reason: String) -> PageError {
        PageError::Damaged { path: self.page.path().to_owned(), reason }
    }

    /// Checks the fields that only this process writes.
    fn own_slot(&self, guard: &mut LedgerGuard<'_>) -> Result<(), String> {
        let slot = guard.slot;
        let found = slot_lock::process_of(slot);
        // Each value is compared on its own, as each was written on its own.
        let pairs = slot.bytes.iter().zip(&guard.own.bytes);
        let (same, sum) = pairs.fold((true, 0_u64), |(same, sum), (cell, &own)| {
            (same & (cell.load(Relaxed) == own), sum.saturating_add(own))
        });
        if found != self.identity || !same {
            return self.own_slot_again(guard, found);
        }
        if guard.used() < sum {
            guard.recount();
        }
        Ok(())
    }

    /// Handles a slot whose contents differ from what this process wrote.
    #[cold]
    fn own_slot_again(
        &self,
        guard: &mut LedgerGuard<'_>,
        found: ProcessIdentity,
    ) -> Result<(), String> {
        let (slot, own) = (guard.slot, guard.own.bytes);
        let has = slot.bytes.each_ref().map(|cell| cell.load(Relaxed));
        if found.pid != 0 || has != [0; 8] {
            return Err(format!(
                "slot {} says process {} with {has:?} bytes, process {} wrote {own:?}",
                self.slot, found.pid, self.identity.pid
            ));
        }
        // Another process took this one for dead and released the slot's contents.
        self.enroll(guard);
        for (cell, value) in slot.bytes.iter().zip(own) {
            cell.store(value, Relaxed);
        }
        guard.recount();
        Ok(())
    }

    /// Takes the lock. Returns whether the sums have to be recomputed.
    fn lock(&self, layout: &PageLayout, own: &mut KnownHoldings) -> Result<bool, PageError> {
        let me = number(self.slot);
        let replace = |old| layout.lock.compare_exchange(old, me, Acquire, Relaxed);
        for tries in 0..SPINS + YIELDS {
            match replace(0) {
                Ok(_) => return Ok(false),
                Err(_) if tries < SPINS => core::hint::spin_loop(),
                Err(_) => std::thread::yield_now(),
            }
        }
        let mut attempt = Attempt::new(self.slot, SLOTS);
        let (mut waits_for, mut since) = (0, clock::now_ns());
        loop {
            let seen = match attempt.next() {
                Step::Taken { recount } => return Ok(recount),
                Step::Impossible(owner) => {
                    return Err(self.damaged(format!(
                        "its lock is held by number {owner}, it has {SLOTS} slots"
                    )));
                }
                Step::Replace(old) => match replace(old) {
                    Ok(_) => StepResult::Replaced,
                    Err(owner) => StepResult::Owner(owner),
                },
                Step::IsAlive(slot) => StepResult::Answer(self.is_alive(slot)),
                Step::LockSlot(slot) => {
                    StepResult::Answer(matches!(slot_lock::lock(&self.page, slot), Ok(true)))
                }
                Step::UnlockSlot(slot) => {
                    slot_lock::unlock(&self.page, slot);
                    StepResult::Done
                }
            };
            let Some(owner) = attempt.saw(seen) else { continue };
            if owner != waits_for {
                (waits_for, since) = (owner, clock::now_ns());
            }
            let again = own.kept_open_by == Some(owner);
            let patience = if again { IMPATIENCE } else { PATIENCE };
            if clock::now_ns().saturating_sub(since) > nanoseconds(patience) {
                own.kept_open_by = Some(owner);
                let slot = (owner as usize).saturating_sub(1);
                let pid = layout.slots.get(slot).map_or(0, |slot| slot.pid.load(Relaxed));
                return Err(PageError::Busy { path: self.page.path().to_owned(), pid, slot });
            }
            // Not a cancellation point, unlike the standard library's function.
            let _ = rustix::thread::nanosleep(&NAP);
            // The file may have been truncated meanwhile.
            self.page.look()?;
        }
    }

    /// Whether a slot's process is alive. This process before an `execve` is not.
    fn is_alive(&self, slot: usize) -> bool {
        let Some(record) = self.page.layout().slots.get(slot) else { return false };
        slot == self.slot || slot_lock::is_alive(&self.page, slot, record, self.identity)
    }

    /// Records that at `now_ns` (`CLOCK_MONOTONIC`) this process is alive and still waits for its lease's work.
    pub fn still_holding(&self, now_ns: u64) {
        if let Some(slot) = self.look().ok().and_then(|layout| layout.slots.get(self.slot)) {
            slot.lease_end_ns.fetch_max(now_ns, Relaxed);
        }
    }

    /// Lets this process create the session's first context, until the guard is dropped or the process ends. `None`:
    /// another process does, or waiting is impossible.
    #[must_use]
    pub fn go_first(&self) -> Option<First<'_>> {
        let locked = slot_lock::lock(&self.page, slot_lock::FIRST_CONTEXT);
        matches!(locked, Ok(true)).then_some(First(&self.page))
    }

    /// Releases what dead processes left; returns how many there were.
    ///
    /// # Errors
    /// As for [`Membership::ledger`].
    pub fn reap(&self) -> Result<usize, PageError> {
        let layout = self.look()?;
        layout.reaped_at_ns.store(clock::tick_ns(), Relaxed);
        let is_dead = |slot: usize| {
            let pid = layout.slots.get(slot).map_or(0, |record| record.pid.load(Relaxed));
            pid != 0 && !self.is_alive(slot)
        };
        let mut dead = 0;
        for slot in (0..high_water(layout)).filter(|&slot| is_dead(slot)) {
            // Checked again with the ledger open, because the slot may have been cleared and reused since.
            let mut ledger = self.open()?;
            if is_dead(slot) {
                ledger.vacate(slot, clock::now_ns());
                dead += 1;
            }
        }
        Ok(dead)
    }

    /// Runs [`Membership::reap`] unless a process of the session did so within `period`; returns the page's fields.
    ///
    /// # Errors
    /// As for [`Membership::ledger`].
    pub fn look_reaped(&self, period: Duration) -> Result<&PageLayout, PageError> {
        let layout = self.look()?;
        // A time far in the future is invalid; one slightly ahead may come from another CPU's clock.
        let since = layout.reaped_at_ns.load(Relaxed).abs_diff(clock::tick_ns());
        if since >= nanoseconds(period) {
            self.reap()?;
        }
        Ok(layout)
    }
}

/// Whether the ledger is opened by a member, or to become one.
#[derive(Clone, Copy)]
enum Purpose {
    Working,
    Joining,
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn high_water(layout: &PageLayout) -> usize {
    (layout.high_water.load(Relaxed) as usize).min(layout.slots.len())
}
