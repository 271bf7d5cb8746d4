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
//! as soon as the calls that the driver has are done: those that come in wait ([`Changes::pause`](super::changes::Changes::pause)). Where a
//! [quick check](super::quick_check) shows that nothing can have changed that would matter, the last look is
//! enough.

use super::changes::CallInProgress;
use super::device::DeviceMemory;
use super::estimate::{DriverMemory, Sight};
use super::headroom::Wanted;
use super::holdings::Holdings;
use super::quick_check::{self, Reference};
use super::reservation::Reservation;
use super::seen::{self, Processes};
use crate::ledger::left;
use crate::{clock, report};
use core::ptr;
use core::sync::atomic::Ordering::Relaxed;
use core::time::Duration;
use session::layout::MemoryKind;
use session::ledger::Ledger;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::time::Instant;

/// Attempts to find a quiet moment, and the pause between them.
const ATTEMPTS: u32 = 4;
const PAUSE: Duration = Duration::from_millis(2);
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

/// What is known of a device.
#[derive(Default)]
struct Record {
    estimate: DriverMemory,
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

/// By device.
type Records = HashMap<usize, Record>;

/// What is known of the devices. Held while somebody looks; who waits for it does so for a while only.
#[derive(Default)]
pub(super) struct Looks(Mutex<Records>);

/// What the driver has taken is known with so much left.
fn known(device: &DeviceMemory, opened: &Ledger<'_>) {
    device.left_when_seen.store(left(opened), Relaxed);
}

fn record_of<'a>(records: &'a mut Records, device: &DeviceMemory) -> &'a mut Record {
    records.entry(ptr::from_ref(device).addr()).or_default()
}

/// A call that does not allocate, in whose midst a look is taken.
#[derive(Clone, Copy)]
pub(super) enum Caller {
    /// It allocates nothing yet and is about to be refused: the figure may be too high.
    LimiterFailure,
    /// Another. `urgent`: what the driver has taken can be much.
    Other { urgent: bool },
}

impl Looks {
    /// The records, unless somebody looks.
    fn records(&self) -> Option<MutexGuard<'_, Records>> {
        match self.0.try_lock() {
            Ok(records) => Some(records),
            Err(TryLockError::Poisoned(records)) => Some(records.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// The records, for a call that has reserved so many bytes: once those before it have looked. `None`: they
    /// do not come to an end.
    fn records_in_turn(
        &self,
        device: &DeviceMemory,
        bytes: u64,
    ) -> Option<MutexGuard<'_, Records>> {
        let found = self.records();
        if found.is_some() {
            return found;
        }
        let _waits = device.shared.changes.wait(device.ledger, bytes);
        (0..TURNS).find_map(|_| {
            clock::sleep(TURN_NS);
            self.records()
        })
    }

    /// Brings a device's charge up to date, from outside of any call. `true`: look again soon.
    pub(super) fn reconcile(&self, holdings: &Holdings, device: &'static DeviceMemory) -> bool {
        let mut bound = 0;
        let (mut records, sight) = 'looked: {
            for attempt in 1..=ATTEMPTS {
                // Allocations that want to look are let in between.
                let Some(records) = self.records() else { return true };
                let Some(sight) = measure(holdings, device, CallInProgress::NONE) else {
                    return false;
                };
                bound = sight.bytes.max(bound);
                if sight.exact {
                    break 'looked (records, sight);
                }
                if attempt == ATTEMPTS {
                    break 'looked (records, Sight { bytes: bound, ..sight });
                }
                drop(records);
                std::thread::sleep(PAUSE);
            }
            return true;
        };
        let record = record_of(&mut records, device);
        let before = record.estimate.bytes;
        let soon = record.estimate.notice(sight);
        let bytes = record.estimate.bytes;
        if bytes != before {
            record.reference = None;
        }
        let written = device.ledger.open().map(|mut opened| {
            Wanted::by(device).write(&mut opened, device.ledger.membership().slot(), bytes, 0);
            known(device, &opened);
        });
        drop(records);
        let over = written.and_then(|()| over(holdings, device, bytes));
        let Some(mut records) = self.records() else { return true };
        let record = record_of(&mut records, device);
        record.over = if over.is_some() { record.over.saturating_add(1) } else { 0 };
        if let Some(over) = over.filter(|over| over.by_itself > 0 && record.over == CERTAIN) {
            report::once(format_args!("device {}: {over}", device.ledger.uuid()));
        }
        soon || (1..CERTAIN).contains(&record.over)
    }

    /// Brings a device's charge up to date in the midst of a call that allocates, between its reservation and the driver's
    /// call. `None`: with what was seen there is no room for the reservation, and it is given back. `is_last`: so little is
    /// left that nothing may be taken on trust.
    pub(super) fn look_before(
        &self,
        holdings: &Holdings,
        reservation: Reservation,
        is_last: bool,
    ) -> Option<Reservation> {
        let device = reservation.device;
        let own = CallInProgress { calls: 1, bytes: reservation.bytes };
        let Some(mut records) = self.records_in_turn(device, own.bytes) else {
            return Some(reservation);
        };
        let record = record_of(&mut records, device);
        let done = match record.fits(device, own) {
            Some(fits) => fits,
            None => !is_last && record.has_looked(SPARING),
        };
        if done || !record.look(holdings, device, own) {
            return Some(reservation);
        }
        let wanted = Wanted::by(device);
        let Some(mut opened) = device.ledger.open() else { return Some(reservation) };
        if record.write(&wanted, device, own, &mut opened) || own.bytes == 0 {
            return Some(reservation);
        }
        let released = reservation.give_back_in(&mut opened);
        drop(opened);
        device.ledger.say_if_damaged(released);
        None
    }

    /// Brings a device's charge up to date in the midst of another call. One that allocates nothing leaves it out
    /// where another thread is at it; each, where it was done a moment ago.
    pub(super) fn look_during(
        &self,
        holdings: &Holdings,
        device: &'static DeviceMemory,
        caller: Caller,
    ) {
        let (own, records, pause) = match caller {
            Caller::LimiterFailure => {
                (CallInProgress { calls: 1, bytes: 0 }, self.records_in_turn(device, 0), 1)
            }
            Caller::Other { urgent: true } => (CallInProgress::NONE, self.records(), 1),
            Caller::Other { urgent: false } => (CallInProgress::NONE, self.records(), SPARING),
        };
        let Some(mut records) = records else { return };
        let record = record_of(&mut records, device);
        if record.has_looked(pause) || !record.look(holdings, device, own) {
            return;
        }
        let wanted = Wanted::by(device);
        if let Some(mut opened) = device.ledger.open() {
            record.write(&wanted, device, own, &mut opened);
        }
    }
}

impl Record {
    /// Whether a call has looked so lately, in times as long as it took.
    fn has_looked(&self, pause: u32) -> bool {
        self.looked.is_some_and(|(at, took)| at.elapsed() < took * pause)
    }

    /// Looks in the midst of a call, and takes notice of what is seen. `false`: nothing could be.
    fn look(
        &mut self,
        holdings: &Holdings,
        device: &'static DeviceMemory,
        own: CallInProgress,
    ) -> bool {
        let begun = Instant::now();
        if self.unknown_until.is_some_and(|until| begun < until) {
            return false;
        }
        let found = look(holdings, device, own);
        self.looked = Some((Instant::now(), begun.elapsed()));
        let Some((sight, reference)) = found else {
            self.unknown_until = Some(Instant::now() + UNKNOWN);
            return false;
        };
        self.estimate.notice_now(sight);
        (self.reference, self.others) = (reference, sight.others);
        true
    }

    /// Writes down what is known after a look. `true`: there is room for what the call has reserved.
    fn write(
        &self,
        wanted: &Wanted,
        device: &DeviceMemory,
        own: CallInProgress,
        opened: &mut Ledger<'_>,
    ) -> bool {
        let slot = device.ledger.membership().slot();
        let fits = wanted.write(opened, slot, self.estimate.bytes, own.bytes);
        known(device, opened);
        fits && self.others <= left(opened)
    }

    /// Whether an allocation fits, with what it has reserved, whatever the driver may have taken by itself
    /// since the last look; `None`: that has to be looked up.
    fn fits(&self, device: &'static DeviceMemory, own: CallInProgress) -> Option<bool> {
        let missing = self.reference.as_ref()?.missing(device, own)?;
        let (wanted, slot) = (Wanted::by(device), device.ledger.membership().slot());
        let mut opened = device.ledger.open()?;
        let fits = wanted.write(&mut opened, slot, self.estimate.bytes, own.bytes);
        if fits && missing == 0 {
            known(device, &opened);
        }
        let room = left(&opened).saturating_add(opened.has(slot, MemoryKind::Headroom));
        Some(fits && self.others <= left(&opened) && missing.saturating_add(self.others) <= room)
    }
}

/// Looks in the midst of a call: of one that allocates when nothing else is going on, or all the same where
/// that does not come to an end.
fn look(
    holdings: &Holdings,
    device: &'static DeviceMemory,
    own: CallInProgress,
) -> Option<(Sight, Option<Reference>)> {
    if own.calls == 0 {
        return measure(holdings, device, own).map(|sight| (sight, None));
    }
    let (mut bound, mut others) = (0, 0);
    let changes = &device.shared.changes;
    let mut pause = Some(changes.pause());
    for _ in 0..ATTEMPTS {
        let is_quiet = changes.await_quiet(device.ledger, own, PATIENCE);
        if !is_quiet {
            // Nobody is to wait for a call that the driver keeps.
            pause = None;
        }
        // First, so that what is taken in between is missing later.
        let (begun, free) = (Instant::now(), quick_check::free_of(device));
        let standing = changes.standing(device.ledger, own);
        let sight = measure(holdings, device, own)?;
        if sight.exact {
            let same = changes.standing(device.ledger, own).is_quiet_since(&standing);
            let free = free.filter(|_| same);
            return Some((sight, free.map(|free| Reference::new(free, &standing, begun))));
        }
        (bound, others) = (sight.bytes.max(bound), sight.others);
        if !is_quiet {
            break;
        }
    }
    drop(pause);
    Some((Sight { bytes: bound, exact: false, others }, None))
}

/// Asks NVML once.
fn measure(
    holdings: &Holdings,
    device: &'static DeviceMemory,
    own: CallInProgress,
) -> Option<Sight> {
    let changes = &device.shared.changes;
    // Pools and graphs give memory back without a call that says so.
    holdings.refresh(device, false);
    let (watch, before) = (changes.watch(device.ledger)?, changes.standing(device.ledger, own));
    // Memory of others' that this process uses is charged to them, and seen here as well.
    let imported_before = holdings.bytes_of_others(device);
    let known_of_others = seen::members_but_own(device.ledger);
    let processes = Processes::now(device.ledger)?;
    let seen = processes.own_bytes(device)?;
    let others = processes.others_beyond(&known_of_others, device.ledger);
    holdings.refresh(device, false);
    let after = changes.standing(device.ledger, own);
    let imported = holdings.bytes_of_others(device).max(imported_before);
    let exact = after.is_quiet_since(&before) && imported == imported_before;
    let taken = if exact { after.taken } else { watch.peak().saturating_sub(own.bytes) };
    Some(Sight { bytes: seen.saturating_sub(taken).saturating_sub(imported), exact, others })
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
fn over(holdings: &Holdings, device: &'static DeviceMemory, bytes: u64) -> Option<Over> {
    let over = || {
        let opened = device.ledger.open()?;
        [
            ("memory limit", opened.limit(), opened.used()),
            (
                "part of the memory limit that may be on the device",
                opened.real_limit(),
                opened.on_device(),
            ),
        ]
        .into_iter()
        .find(|(_, limit, used)| used > limit)
        .map(|(bound, limit, used)| Over { bound, limit, used, by_itself: bytes })
    };
    over()?;
    // What the dead held is nobody's any more.
    device.ledger.reap();
    over()?;
    holdings.refresh(device, true);
    over()
}
