//! Charges device memory that the driver takes without a call that says how much: code of modules, stacks, heaps and
//! printf buffers of kernels, workspaces. Called by the reconciler, and near the limit by allocations.
//!
//! That memory is what NVML shows for this process beyond the charges. Both change while a program allocates and frees.
//! A figure is exact if no such call ran while NVML was queried. Otherwise it is a lower bound, because memory is
//! charged before the driver takes it and until the driver has freed it. Managed memory is charged in full, but NVML
//! shows only the part on the device, so it may hide some of the driver's own memory and never adds to it.
//!
//! The reconciler checks once a second, which would be too late near the limit. There each allocation checks as well,
//! one at a time, between its reservation and the driver's call, and its result counts at once. Such a check finds a
//! quiet moment as soon as the running calls are done: new calls wait
//! ([`Changes::pause`](super::changes::Changes::pause)), and the allocation itself and those waiting for their turn are
//! left out. If a [quick check](super::quick_check) shows that nothing relevant can have changed, the last result is
//! used. While the session needs no more than before, checks are spread out
//! ([`Clearance`](super::clearance::Clearance)).

use super::changes::CallInProgress;
use super::clearance::{Charged, Spent};
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

/// Attempts of the reconciler to find a quiet moment, and the interval.
const ATTEMPTS: u32 = 4;
const PAUSE: Duration = Duration::from_millis(2);
/// Non-urgent checks are at least this many times a check's duration apart.
const SPARING: u64 = 4;
/// How long an allocation waits for other threads' checks, in steps.
const TURNS: u32 = 20_000;
const TURN_NS: u64 = 50_000;
/// How long an allocation's check waits for running calls, in steps.
const PATIENCE: u32 = 60;
/// A session is reported as over its limit after this many checks in a row.
const CERTAIN: u32 = 3;
/// How long NVML is not queried after it did not show this process.
const UNKNOWN: Duration = Duration::from_millis(500);
const MIB: u64 = 1 << 20;

/// The results for one device.
#[derive(Default)]
struct Record {
    estimate: DriverMemory,
    /// Checks in a row that found the session over its limit. A single one proves nothing: another process may have
    /// reserved bytes that it is about to release.
    over: u32,
    /// Start and end (ns) of the last NVML check made by a call.
    looked: Option<(u64, u64)>,
    /// The time that such checks have taken.
    spent: Spent,
    /// The result of an allocation's last exact check.
    reference: Option<Reference>,
    /// Bytes that the driver had taken for other processes, and that they had not yet charged.
    others: u64,
    /// Until then allocations do not query NVML, because it does not show this process's use.
    unknown_until: Option<Instant>,
}

/// By address of the [`DeviceMemory`].
type Records = HashMap<usize, Record>;

/// The results for all devices. Locked during a check; other threads wait for the lock for a limited time only.
#[derive(Default)]
pub(super) struct Reconciliations(Mutex<Records>);

/// Stores how much is left at a moment when the driver's own memory is known.
fn known(device: &DeviceMemory, opened: &Ledger<'_>) {
    device.left_when_seen.store(left(opened), Relaxed);
}

fn record_of<'a>(records: &'a mut Records, device: &DeviceMemory) -> &'a mut Record {
    records.entry(ptr::from_ref(device).addr()).or_default()
}

/// A call that checks but does not allocate.
#[derive(Clone, Copy)]
pub(super) enum Caller {
    /// The call is about to be refused: the charge for the driver's own memory may be too high.
    Refused,
    /// Any other call. `urgent`: the driver may have taken much.
    Other { urgent: bool },
}

impl Reconciliations {
    /// The results, unless another thread is checking.
    fn records(&self) -> Option<MutexGuard<'_, Records>> {
        match self.0.try_lock() {
            Ok(records) => Some(records),
            Err(TryLockError::Poisoned(records)) => Some(records.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// The results, for a call that has reserved `bytes`, after the checks of earlier calls. `None`: those take too
    /// long.
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

    /// Updates a device's charge from the reconciler thread. Returns whether to check again soon.
    pub(super) fn reconcile(&self, holdings: &Holdings, device: &'static DeviceMemory) -> bool {
        let mut bound = 0;
        let (mut records, sight) = 'looked: {
            for attempt in 1..=ATTEMPTS {
                // The lock is released between attempts, so that allocations can check.
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
                clock::sleep_for(PAUSE);
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

    /// Updates a device's charge within an allocating call, between its reservation and the driver's call. `None`: the
    /// reservation does not fit after this check, and was released. `is_last`: so little is left that a recent check
    /// does not suffice.
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
        // Pools and graphs give memory back unannounced, and another thread may have checked.
        holdings.refresh(device, false);
        let charged = device.ledger.open().map(|opened| Charged::of(&opened));
        if charged.is_none_or(|charged| device.clearance.covers(charged, clock::now())) {
            return Some(reservation);
        }
        let record = record_of(&mut records, device);
        let done = match record.fits(device, own) {
            Some(fits) => fits,
            None => !is_last && record.has_looked(SPARING),
        };
        if done || record.saves(device) || !record.look(holdings, device, own) {
            return Some(reservation);
        }
        let wanted = Wanted::by(device);
        let Some(mut opened) = device.ledger.open() else { return Some(reservation) };
        if record.write(&wanted, device, own, &mut opened) || own.bytes == 0 {
            if let Some(took) = record.looked {
                let spare = left(&opened).saturating_sub(record.others);
                let quick = record.reference.is_some();
                device.clearance.give(Charged::of(&opened), spare, took, quick);
            }
            return Some(reservation);
        }
        let released = reservation.give_back_in(&mut opened);
        drop(opened);
        device.ledger.say_if_damaged(released);
        None
    }

    /// Updates a device's charge within another call. A call that allocates nothing skips this if another thread is
    /// checking; every call skips it after a recent check.
    pub(super) fn look_during(
        &self,
        holdings: &Holdings,
        device: &'static DeviceMemory,
        caller: Caller,
    ) {
        let (own, records, pause) = match caller {
            Caller::Refused => {
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
    /// Whether a call's last check ended less than `pause` times its own duration ago.
    fn has_looked(&self, pause: u64) -> bool {
        let recent = |(begun, ended): (u64, u64)| {
            clock::now().saturating_sub(ended) < ended.saturating_sub(begun).saturating_mul(pause)
        };
        self.looked.is_some_and(recent)
    }

    /// Whether to skip NVML because checks have taken too much time and the session needs no more than was last
    /// cleared. Extends the clearance if so.
    fn saves(&self, device: &DeviceMemory) -> bool {
        let until = self.spent.until();
        let Some(opened) = device.ledger.open() else { return false };
        let charged = Charged::of(&opened);
        let saves = clock::now() < until && device.clearance.is_as_much(charged);
        if saves {
            device.clearance.extend(until);
        }
        saves
    }

    /// Checks by NVML within a call and records the result; `false` if NVML gave none.
    fn look(
        &mut self,
        holdings: &Holdings,
        device: &'static DeviceMemory,
        own: CallInProgress,
    ) -> bool {
        if self.unknown_until.is_some_and(|until| Instant::now() < until) {
            return false;
        }
        let begun = clock::now();
        let found = look(holdings, device, own);
        let ended = clock::now();
        self.looked = Some((begun, ended));
        self.spent.add(begun, ended);
        let Some((sight, reference)) = found else {
            self.unknown_until = Some(Instant::now() + UNKNOWN);
            return false;
        };
        self.estimate.notice_now(sight);
        (self.reference, self.others) = (reference, sight.others);
        true
    }

    /// Writes the result into the ledger; returns whether the call's reservation fits.
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

    /// Whether an allocation and its reservation fit, whatever the driver may have taken by itself since the last
    /// check; `None` if only an NVML check can tell.
    fn fits(&self, device: &'static DeviceMemory, own: CallInProgress) -> Option<bool> {
        let begun = clock::now();
        let missing = self.reference.as_ref()?.missing(device, own)?;
        let (wanted, slot) = (Wanted::by(device), device.ledger.membership().slot());
        let mut opened = device.ledger.open()?;
        let fits = wanted.write(&mut opened, slot, self.estimate.bytes, own.bytes);
        if fits && missing == 0 {
            known(device, &opened);
        }
        let (left, taken) = (left(&opened), missing.saturating_add(self.others));
        let room = left.saturating_add(opened.has(slot, MemoryKind::Headroom));
        let fits = fits && self.others <= left && taken <= room;
        if fits {
            let spare = left.min(room.saturating_sub(taken));
            device.clearance.give(Charged::of(&opened), spare, (begun, clock::now()), true);
        }
        Some(fits)
    }
}

/// Checks by NVML within a call. For an allocating call, waits for a quiet moment first, and checks anyway if none
/// comes.
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
            // No call should wait for one that the driver blocks.
            pause = None;
        }
        // Read first, so that memory taken in between counts as missing later.
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

/// Queries NVML once and compares its figure with the charges; `None` if NVML gives no figure.
fn measure(
    holdings: &Holdings,
    device: &'static DeviceMemory,
    own: CallInProgress,
) -> Option<Sight> {
    let changes = &device.shared.changes;
    // Pools and graphs give memory back unannounced.
    holdings.refresh(device, false);
    let (watch, before) = (changes.watch(device.ledger)?, changes.standing(device.ledger, own));
    // NVML shows exported memory for its exporter or, after the exporter's last reference, for the last process that
    // has it.
    let shared_before = holdings.physical.shown_otherwise(device);
    let known_of_others = seen::members_but_own(device.ledger);
    let processes = Processes::now(device.ledger)?;
    let seen = processes.own_bytes(device)?;
    let others = processes.others_beyond(&known_of_others, device.ledger);
    holdings.refresh(device, false);
    let after = changes.standing(device.ledger, own);
    let (hidden, foreign) = holdings.physical.shown_otherwise(device);
    let exact = after.is_quiet_since(&before) && (hidden, foreign) == shared_before;
    let taken = if exact { after.taken } else { watch.peak().saturating_sub(own.bytes) };
    let (seen, taken) = (
        seen.saturating_add(hidden.min(shared_before.0)),
        taken.saturating_add(foreign.max(shared_before.1)),
    );
    Some(Sight { bytes: seen.saturating_sub(taken), exact, others })
}

/// The session uses more than its limit.
#[derive(Debug, thiserror::Error)]
#[error(
    "over the {bound} of {} MiB: {} MiB are in use, of which the driver took {} MiB by itself (code, stacks, heap) \
     for this process; allocations fail until memory is freed",
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

/// Whether the session is over its limit after dead processes were reaped and pools and graphs have given back unused
/// memory. While it is, every allocation fails.
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
    // Memory of dead processes is free.
    device.ledger.reap();
    over()?;
    holdings.refresh(device, true);
    over()
}
