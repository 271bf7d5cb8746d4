//! Device memory that the driver has taken without a call that says how much: code of modules, stacks,
//! heap and printf buffers of kernels, workspaces.
//!
//! It is what NVML sees this process use beyond what it has been charged for. Both change while a
//! program allocates and frees. A figure is exact if no such call ran while NVML was asked; else it is
//! no more than a bound from below, because memory is charged before the driver takes it and until
//! the driver has freed it. Managed memory is charged in full and seen by NVML as far as it is on the
//! device, so that it may hide some of what the driver has taken; it never adds to it.
//!
//! The reconciler looks now and then. Near the limit that would be too late: there each allocation looks as
//! well, between its reservation and the driver's call, one after the other. What such a look sees counts
//! at once, and the moment is quiet but for the allocation itself, and for those that wait for their turn,
//! as soon as the calls that the driver has are done: those that come in wait [at the door](Door). Where a
//! [quick look](super::quick_look) shows that nothing can have changed that would matter, the last look is
//! enough.

use super::changes::{Door, Own, Standing, Watch, await_quiet};
use super::charge::left;
use super::headroom::Wanted;
use super::quick_look::{self, Reference};
use super::seen::{self, Processes};
use super::{graphs, imports, physical, pools, waiting};
use crate::clock;
use crate::device::Device;
use crate::per_process::PerProcess;
use crate::report;
use core::ptr;
use core::sync::atomic::Ordering::Relaxed;
use core::time::Duration;
use session::ledger::Book;
use session::page::layout::Kind;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::time::Instant;

/// Attempts to find a quiet moment, and the pause between them.
const ATTEMPTS: u32 = 4;
const PAUSE: Duration = Duration::from_millis(2);
/// After so many bounds from below an exact figure is no longer looked for at once.
const BOUNDS: u32 = 32;
/// Looks that are not needed at once are so many times as far apart as they take.
const SPARING: u32 = 4;
/// How long an allocation waits for another thread's look, in steps.
const TURNS: u32 = 20_000;
const TURN_NS: u64 = 50_000;
/// How long an allocation's look waits for the calls that run, in steps.
const PATIENCE: u32 = 60;
/// Looks in a row after which a session is said to be over its limit.
const CERTAIN: u32 = 3;
/// How long NVML is not asked again when it did not know.
const UNKNOWN: Duration = Duration::from_millis(500);
const MIB: u64 = 1 << 20;

/// What nobody has been charged for, as seen once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Sight {
    bytes: u64,
    /// Else it may be more.
    exact: bool,
    /// What the driver has taken for other processes of the session, and they have yet to see.
    others: u64,
}

/// What is to be charged, made of what was seen.
#[derive(Default, Debug)]
struct Estimate {
    bytes: u64,
    last: Option<u64>,
    /// Bounds from below since the last exact figure.
    bounds: u32,
}

impl Estimate {
    /// Takes notice of what was seen. An increase counts when it has been seen twice, a decrease when
    /// it is certain. `true`: look again soon.
    fn notice(&mut self, sight: Sight) -> bool {
        let before = self.last.replace(sight.bytes);
        if sight.bytes > self.bytes {
            self.bounds = 0;
            let twice = before.unwrap_or(0).min(sight.bytes);
            self.bytes = self.bytes.max(twice);
            return self.bytes < sight.bytes;
        }
        if sight.exact || sight.bytes == self.bytes {
            (self.bytes, self.bounds) = (sight.bytes, 0);
            return false;
        }
        self.bounds = self.bounds.saturating_add(1);
        self.bounds < BOUNDS
    }

    /// Takes notice of what an allocation has seen: that counts at once, but for bounds that are lower.
    fn notice_now(&mut self, sight: Sight) {
        if sight.exact || sight.bytes > self.bytes {
            *self = Self { bytes: sight.bytes, last: Some(sight.bytes), ..Self::default() };
        }
    }
}

/// What is known of a device.
#[derive(Default)]
struct Account {
    estimate: Estimate,
    /// How many times in a row the session was over its limit: once may be what another process has reserved
    /// and is about to give back.
    over: u32,
    /// When a call last looked, and how long that took.
    looked: Option<(Instant, Duration)>,
    /// What the last exact look of an allocation has found.
    reference: Option<Reference>,
    /// What others had yet to see then.
    others: u64,
    /// Until when NVML is not asked by allocations: it does not say what this process uses.
    unknown_until: Option<Instant>,
}

type Accounts = HashMap<usize, Account>;

/// By device. Held while somebody looks; who waits for it does so for a while only.
static ACCOUNTS: PerProcess<Mutex<Accounts>> = PerProcess::new();

/// In a forked child: what the parent has seen says nothing about it.
pub(super) fn after_fork() {
    ACCOUNTS.forget();
}

/// The accounts, unless somebody looks.
fn accounts() -> Option<MutexGuard<'static, Accounts>> {
    match ACCOUNTS.get().try_lock() {
        Ok(accounts) => Some(accounts),
        Err(TryLockError::Poisoned(accounts)) => Some(accounts.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// The accounts, for a call that has reserved so many bytes: once those before it have looked. `None`: they
/// do not come to an end.
fn accounts_in_turn(device: &Device, bytes: u64) -> Option<MutexGuard<'static, Accounts>> {
    let found = accounts();
    if found.is_some() {
        return found;
    }
    let _waits = waiting::begin(device, bytes);
    (0..TURNS).find_map(|_| {
        clock::sleep(TURN_NS);
        accounts()
    })
}

/// What the driver has taken is known with so much left.
fn known(device: &Device, book: &Book<'_>) {
    device.left_when_seen.store(left(book), Relaxed);
}

fn account_of<'a>(accounts: &'a mut Accounts, device: &Device) -> &'a mut Account {
    accounts.entry(ptr::from_ref(device).addr()).or_default()
}

/// Brings a device's charge up to date, from outside of any call. `true`: look again soon.
pub(crate) fn reconcile(device: &'static Device) -> bool {
    let mut bound = 0;
    let (mut accounts, sight) = 'looked: {
        for attempt in 1..=ATTEMPTS {
            // Allocations that want to look are let in between.
            let Some(accounts) = accounts() else { return true };
            let Some(sight) = measure(device, Own::NONE) else { return false };
            bound = sight.bytes.max(bound);
            if sight.exact {
                break 'looked (accounts, sight);
            }
            if attempt == ATTEMPTS {
                break 'looked (accounts, Sight { bytes: bound, ..sight });
            }
            drop(accounts);
            std::thread::sleep(PAUSE);
        }
        return true;
    };
    let account = account_of(&mut accounts, device);
    let before = account.estimate.bytes;
    let soon = account.estimate.notice(sight);
    let bytes = account.estimate.bytes;
    if bytes != before {
        account.reference = None;
    }
    let written = device.book().map(|mut book| {
        Wanted::by(device).write(&mut book, device.seat().slot(), bytes, 0);
        known(device, &book);
    });
    drop(accounts);
    let over = written.and_then(|()| over(device, bytes));
    let Some(mut accounts) = self::accounts() else { return true };
    let account = account_of(&mut accounts, device);
    account.over = if over.is_some() { account.over.saturating_add(1) } else { 0 };
    if let Some(over) = over.filter(|over| over.by_itself > 0 && account.over == CERTAIN) {
        report::once(format_args!("device {}: {over}", device.uuid()));
    }
    soon || (1..CERTAIN).contains(&account.over)
}

/// The call in whose midst a look is taken.
#[derive(Clone, Copy)]
pub(super) enum Caller {
    /// One that allocates; what it has reserved by now, as which kind, and whether so little is left that
    /// nothing may be taken on trust.
    Allocation { kind: Kind, bytes: u64, is_last: bool },
    /// One that allocates and is about to be refused: the figure may be too high.
    Refused,
    /// Another. `urgent`: what the driver has taken can be much.
    Other { urgent: bool },
}

/// Brings a device's charge up to date in the midst of a call. `false`: with what was seen there is no room
/// for what the call has reserved, and it is given back.
///
/// Calls that do not allocate leave it out where another thread is at it, or where it was done a moment ago.
pub(super) fn look_now(device: &'static Device, caller: Caller) -> bool {
    let (own, kind) = match caller {
        Caller::Allocation { kind, bytes, .. } => (Own { calls: 1, bytes }, kind),
        Caller::Refused => (Own { calls: 1, bytes: 0 }, Kind::Data),
        Caller::Other { .. } => (Own::NONE, Kind::Data),
    };
    let accounts = match caller {
        Caller::Other { .. } => accounts(),
        _ => accounts_in_turn(device, own.bytes),
    };
    let Some(mut accounts) = accounts else { return true };
    let account = account_of(&mut accounts, device);
    let lately = |pause| account.looked.is_some_and(|(at, took)| at.elapsed() < took * pause);
    let done = match caller {
        Caller::Allocation { is_last, .. } => match account.fits(device, own) {
            Some(fits) => fits,
            None => !is_last && lately(SPARING),
        },
        Caller::Refused | Caller::Other { urgent: true } => lately(1),
        Caller::Other { urgent: false } => lately(SPARING),
    };
    if done {
        return true;
    }
    let begun = Instant::now();
    if account.unknown_until.is_some_and(|until| begun < until) {
        return true;
    }
    let found = look(device, own);
    account.looked = Some((Instant::now(), begun.elapsed()));
    let Some((sight, reference)) = found else {
        account.unknown_until = Some(Instant::now() + UNKNOWN);
        return true;
    };
    account.estimate.notice_now(sight);
    (account.reference, account.others) = (reference, sight.others);
    let (wanted, slot) = (Wanted::by(device), device.seat().slot());
    let Some(mut book) = device.book() else { return true };
    let fits = wanted.write(&mut book, slot, account.estimate.bytes, own.bytes);
    let fits = fits && sight.others <= left(&book);
    known(device, &book);
    if fits || own.bytes == 0 {
        return true;
    }
    let released = book.release(slot, kind, own.bytes);
    drop(book);
    if let Err(damaged) = released {
        report::once(format_args!("device {}: {damaged}", device.uuid()));
    }
    false
}

impl Account {
    /// Whether an allocation fits, with what it has reserved, whatever the driver may have taken by itself
    /// since the last look; `None`: that has to be looked up.
    fn fits(&self, device: &'static Device, own: Own) -> Option<bool> {
        let missing = self.reference.as_ref()?.missing(device, own)?;
        let (wanted, slot) = (Wanted::by(device), device.seat().slot());
        let mut book = device.book()?;
        let fits = wanted.write(&mut book, slot, self.estimate.bytes, own.bytes);
        if fits && missing == 0 {
            known(device, &book);
        }
        let room = left(&book).saturating_add(book.has(slot, Kind::Headroom));
        Some(fits && self.others <= left(&book) && missing.saturating_add(self.others) <= room)
    }
}

/// Looks in the midst of a call: of one that allocates when nothing else is going on, or all the same where
/// that does not come to an end.
fn look(device: &'static Device, own: Own) -> Option<(Sight, Option<Reference>)> {
    if own.calls == 0 {
        return measure(device, own).map(|sight| (sight, None));
    }
    let (mut bound, mut others) = (0, 0);
    let mut door = Some(Door::close());
    for _ in 0..ATTEMPTS {
        let is_quiet = await_quiet(device, own, PATIENCE);
        if !is_quiet {
            // Nobody is to wait for a call that the driver keeps.
            door = None;
        }
        // First, so that what is taken in between is missing later.
        let (begun, free) = (Instant::now(), quick_look::free_of(device));
        let standing = Standing::now(device, own);
        let sight = measure(device, own)?;
        if sight.exact {
            let same = Standing::now(device, own).is_quiet_since(&standing);
            let free = free.filter(|_| same);
            return Some((sight, free.map(|free| Reference::new(free, &standing, begun))));
        }
        (bound, others) = (sight.bytes.max(bound), sight.others);
        if !is_quiet {
            break;
        }
    }
    drop(door);
    Some((Sight { bytes: bound, exact: false, others }, None))
}

/// Asks NVML once.
fn measure(device: &'static Device, own: Own) -> Option<Sight> {
    // Pools and graphs give memory back without a call that says so.
    refresh(device);
    let (watch, before) = (Watch::new(device)?, Standing::now(device, own));
    // Memory of others' that this process uses is charged to them, and seen here as well.
    let imported_before = imported_bytes(device);
    let known_of_others = seen::members_but_own(device);
    let processes = Processes::now(device)?;
    let seen = processes.own_bytes(device)?;
    let others = processes.others_beyond(&known_of_others, device);
    refresh(device);
    let after = Standing::now(device, own);
    let imported = imported_bytes(device).max(imported_before);
    let exact = after.is_quiet_since(&before) && imported == imported_before;
    let taken = if exact { after.taken } else { watch.peak().saturating_sub(own.bytes) };
    Some(Sight { bytes: seen.saturating_sub(taken).saturating_sub(imported), exact, others })
}

/// Memory of others' that this process has imported. What came as a handle lives on when its exporter has
/// released it, and is its importer's then: the others pay for no more than they are charged.
fn imported_bytes(device: &Device) -> u64 {
    let by_handle = physical::imported_bytes(device).min(data_of_others(device));
    by_handle.saturating_add(imports::bytes(device))
}

/// What the other processes of the session are charged for, of the kind that can be exported.
fn data_of_others(device: &Device) -> u64 {
    let Some(page) = device.page() else { return 0 };
    let (own, seated) = (device.seat().slot(), page.high_water.load(Relaxed) as usize);
    let others = page.slots.iter().take(seated).enumerate().filter(|&(slot, _)| slot != own);
    let data = others.map(|(_, slot)| slot.bytes[Kind::Data as usize].load(Relaxed));
    data.fold(0, u64::saturating_add)
}

fn refresh(device: &Device) {
    pools::refresh(device, false);
    graphs::refresh(device, false);
}

/// The session uses more than it may.
#[derive(Debug, thiserror::Error)]
#[error(
    "over the {bound} of {} MiB: {} MiB are in use, of which the driver has taken {} MiB by itself (code, stacks, heap) for this process; allocations fail until there is less",
    limit / MIB,
    used.div_ceil(MIB),
    by_itself.div_ceil(MIB)
)]
struct Over {
    bound: &'static str,
    limit: u64,
    used: u64,
    by_itself: u64,
}

/// Whether the session is over its limit, now that this is charged. Nothing can grow any more then, and what
/// is idle goes.
fn over(device: &'static Device, bytes: u64) -> Option<Over> {
    let over = || {
        let book = device.book()?;
        [
            ("memory limit", book.limit(), book.used()),
            (
                "part of the memory limit that may be on the device",
                book.real_limit(),
                book.on_device(),
            ),
        ]
        .into_iter()
        .find(|(_, limit, used)| used > limit)
        .map(|(bound, limit, used)| Over { bound, limit, used, by_itself: bytes })
    };
    over()?;
    // What the dead held is nobody's any more.
    device.reap();
    over()?;
    pools::refresh(device, true);
    graphs::refresh(device, true);
    over()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exact(bytes: u64) -> Sight {
        Sight { bytes, exact: true, others: 0 }
    }

    fn bound(bytes: u64) -> Sight {
        Sight { bytes, exact: false, others: 0 }
    }

    #[test]
    fn an_increase_counts_when_it_is_seen_twice() {
        let mut estimate = Estimate::default();
        assert!(estimate.notice(exact(100)));
        assert_eq!(estimate.bytes, 0);
        assert!(!estimate.notice(exact(100)));
        assert_eq!(estimate.bytes, 100);
        // Seen once and then no more: it was never there.
        assert!(estimate.notice(exact(500)));
        assert!(!estimate.notice(exact(100)));
        assert_eq!(estimate.bytes, 100);
    }

    #[test]
    fn what_keeps_growing_is_followed_one_step_behind() {
        let mut estimate = Estimate::default();
        for step in 1..50 {
            assert!(estimate.notice(bound(step * 10)));
            assert_eq!(estimate.bytes, (step - 1) * 10);
        }
    }

    #[test]
    fn a_decrease_counts_at_once_when_it_is_certain() {
        let mut estimate = Estimate { bytes: 100, ..Estimate::default() };
        assert!(!estimate.notice(exact(30)));
        assert_eq!(estimate.bytes, 30);
    }

    #[test]
    fn what_an_allocation_sees_counts_at_once() {
        let mut estimate = Estimate::default();
        estimate.notice_now(bound(100));
        assert_eq!(estimate.bytes, 100);
        // A bound from below that is lower says nothing.
        estimate.notice_now(bound(30));
        assert_eq!(estimate.bytes, 100);
        estimate.notice_now(exact(30));
        assert_eq!(estimate.bytes, 30);
    }

    #[test]
    fn bounds_from_below_never_lower_it() {
        let mut estimate = Estimate { bytes: 100, ..Estimate::default() };
        for _ in 1..BOUNDS {
            assert!(estimate.notice(bound(60)));
        }
        // An exact figure is not looked for all the time.
        assert!(!estimate.notice(bound(60)));
        assert!(!estimate.notice(bound(0)));
        assert_eq!(estimate.bytes, 100);
        assert!(!estimate.notice(exact(60)));
        assert!(estimate.notice(bound(0)));
        assert_eq!(estimate.bytes, 60);
    }
}
