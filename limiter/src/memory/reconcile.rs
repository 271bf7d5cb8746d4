//! Device memory that the driver has taken without a call that says how much: code of modules, stacks,
//! heap and printf buffers of kernels, workspaces.
//!
//! It is what NVML sees this process use beyond what it has been charged for. Both change while a
//! program allocates and frees. A figure is exact if no such call ran while NVML was asked; else it is
//! no more than a bound from below, because memory is charged before the driver takes it and until
//! the driver has freed it. Managed memory is charged in full and seen by NVML as far as it is on the
//! device, so that it may hide some of what the driver has taken; it never adds to it.
//!
//! The keeper looks now and then. Near the limit that would be too late: there an allocation looks as
//! well, between its reservation and the driver's call. What such a look sees counts at once, and the
//! moment is quiet but for the allocation itself if no other thread allocates.

use super::changes::{Moment, Watch, charged};
use super::headroom::Wanted;
use super::seen::Processes;
use super::{graphs, imports, physical, pools};
use crate::device::Device;
use crate::per_process::PerProcess;
use crate::report;
use core::ptr;
use core::sync::atomic::Ordering::Relaxed;
use core::time::Duration;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::time::Instant;
use utils::page::layout::Kind;

/// Attempts to find a quiet moment, and the pause between them.
const ATTEMPTS: u32 = 4;
const PAUSE: Duration = Duration::from_millis(2);
/// Bounds from below that are looked at together before one of them counts as a decrease.
const BOUNDS: u32 = 32;
/// Looks of allocations are so many times as far apart as they take.
const SPARING: u32 = 4;
/// But no more allocations than this are made without one: the driver's own tables grow with them.
const UNSEEN: u32 = 32;
const MIB: u64 = 1 << 20;

/// What nobody has been charged for, as seen once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Sight {
    bytes: u64,
    /// Else it may be more.
    exact: bool,
}

/// What is to be charged, made of what was seen.
#[derive(Default, Debug)]
struct Estimate {
    bytes: u64,
    last: Option<u64>,
    /// Bounds from below since the last exact figure, and the highest of them.
    bounds: u32,
    highest: u64,
}

impl Estimate {
    /// Takes notice of what was seen. An increase counts when it has been seen twice, a decrease when
    /// it is certain. `true`: look again soon.
    fn notice(&mut self, sight: Sight) -> bool {
        let before = self.last.replace(sight.bytes);
        if sight.bytes > self.bytes {
            (self.bounds, self.highest) = (0, 0);
            let twice = before.unwrap_or(0).min(sight.bytes);
            self.bytes = self.bytes.max(twice);
            return self.bytes < sight.bytes;
        }
        if sight.bytes == self.bytes || sight.exact {
            *self = Self { bytes: sight.bytes, last: Some(sight.bytes), ..Self::default() };
            return false;
        }
        self.bounds += 1;
        self.highest = self.highest.max(sight.bytes);
        if self.bounds < BOUNDS {
            return true;
        }
        self.bytes = self.highest;
        (self.bounds, self.highest) = (0, 0);
        false
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
    /// Whether it has been said that the session is over its limit.
    said: bool,
    /// When an allocation last looked, how long that took, and how many did not look since.
    looked: Option<(Instant, Duration)>,
    unseen: u32,
}

type Accounts = HashMap<usize, Account>;

/// By device. Held while somebody looks; nobody waits for it.
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

/// Brings a device's charge up to date, from outside of any call. `true`: look again soon.
pub(crate) fn reconcile(device: &'static Device) -> bool {
    let Some(mut accounts) = accounts() else { return true };
    let Some(sight) = sight(device) else { return false };
    let account = accounts.entry(ptr::from_ref(device).addr()).or_default();
    let soon = account.estimate.notice(sight);
    let over = charge(device, account.estimate.bytes);
    if let Some(over) = over.as_ref().filter(|over| over.by_itself > 0 && !account.said) {
        report::once(format_args!("device {}: {over}", device.uuid()));
    }
    account.said = over.is_some();
    soon
}

/// The call in whose midst a look is taken.
#[derive(Clone, Copy)]
pub(super) enum Caller {
    /// One that allocates or frees; what it has reserved by now, as which kind.
    Allocation(Kind, u64),
    /// Another.
    Other,
}

/// Brings a device's charge up to date in the midst of a call, unless that was done a moment ago or
/// another thread is at it. `false`: with what was seen there is no room for what the call has
/// reserved, and it is given back.
pub(super) fn look_now(device: &'static Device, caller: Caller, urgent: bool) -> bool {
    let Some(mut accounts) = accounts() else { return true };
    let account = accounts.entry(ptr::from_ref(device).addr()).or_default();
    let pause = if urgent { 1 } else { SPARING };
    account.unseen += 1;
    let lately = account.looked.is_some_and(|(last, took)| last.elapsed() < took * pause);
    if lately && account.unseen < UNSEEN {
        return true;
    }
    let begun = Instant::now();
    let (calls, kind, tried) = match caller {
        Caller::Allocation(kind, tried) => (1, kind, tried),
        Caller::Other => (0, Kind::Data, 0),
    };
    let sight = measure(device, calls, tried);
    (account.looked, account.unseen) = (Some((Instant::now(), begun.elapsed())), 0);
    let Some(sight) = sight else { return true };
    account.estimate.notice_now(sight);
    let (wanted, slot) = (Wanted::by(device), device.seat().slot());
    let Some(mut book) = device.book() else { return true };
    if wanted.write(&mut book, slot, account.estimate.bytes, tried) || tried == 0 {
        return true;
    }
    if let Err(damaged) = book.release(slot, kind, tried) {
        drop(book);
        report::once(format_args!("device {}: {damaged}", device.uuid()));
    }
    false
}

/// Looks once, in a quiet moment if there is one.
fn sight(device: &'static Device) -> Option<Sight> {
    let mut bound = 0;
    for attempt in 0..ATTEMPTS {
        if attempt > 0 {
            std::thread::sleep(PAUSE);
        }
        let sight = measure(device, 0, 0)?;
        if sight.exact {
            return Some(sight);
        }
        bound = sight.bytes.max(bound);
    }
    Some(Sight { bytes: bound, exact: false })
}

/// Asks NVML once. The caller is within so many calls that allocate or free, and has reserved so many
/// bytes that the driver has not taken.
fn measure(device: &'static Device, own_calls: u64, reserved: u64) -> Option<Sight> {
    // Pools and graphs give memory back without a call that says so.
    refresh(device);
    let (before, watch) = (Moment::now(), Watch::new(device));
    let charged_before = charged(device);
    // Memory of others' that this process uses is charged to them, and seen here as well.
    let imported_before = imported_bytes(device);
    let seen = Processes::now(device)?.own_bytes(device)?;
    refresh(device);
    let peak = watch.peak();
    let imported = imported_bytes(device).max(imported_before);
    let quiet = Moment::now().is_quiet_since(&before, own_calls) && imported == imported_before;
    let taken = peak.saturating_sub(reserved);
    let bytes = seen.saturating_sub(taken).saturating_sub(imported);
    Some(Sight { bytes, exact: quiet && peak == charged_before && charged(device) == peak })
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

/// Writes the charge down. Over the limit with it nothing can grow any more, and what is idle goes.
fn charge(device: &'static Device, bytes: u64) -> Option<Over> {
    let (wanted, slot) = (Wanted::by(device), device.seat().slot());
    wanted.write(&mut *device.book()?, slot, bytes, 0);
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
        Sight { bytes, exact: true }
    }

    fn bound(bytes: u64) -> Sight {
        Sight { bytes, exact: false }
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
    fn bounds_from_below_lower_it_only_together() {
        let mut estimate = Estimate { bytes: 100, ..Estimate::default() };
        for low in [0, 0, 60, 0, 10].into_iter().chain([0; 26]) {
            assert!(estimate.notice(bound(low)));
            assert_eq!(estimate.bytes, 100);
        }
        assert!(!estimate.notice(bound(5)));
        assert_eq!(estimate.bytes, 60);
        // One that reaches the figure again says that it was right.
        for _ in 0..3 {
            for _ in 0..20 {
                estimate.notice(bound(0));
            }
            estimate.notice(bound(60));
            assert_eq!(estimate.bytes, 60);
        }
    }
}
