//! Memory in the ledger: reserve, charge and release bytes.

use super::{Ledger, Put};
use crate::layout::{MemberSlot, MemoryKind};
use core::fmt;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

/// The placement of bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Placement {
    /// In the device's memory.
    Device,
    /// In the host's memory, because the real part is used up.
    Host,
}

/// The bound that a reservation exceeds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MemoryBound {
    /// The session's limit.
    Limit,
    /// The part of it that may be on the device.
    Real,
}

/// The reason why an allocation failed for good.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RefusedFor {
    /// Exceeds the session's limit.
    Limit = 0,
    /// Exceeds the part of the limit that may be on the device, and cannot be placed on the host.
    Real = 1,
    /// Fits by the ledger, but the driver has taken more than the ledger says.
    Driver = 2,
    /// Within the limit, but the device itself is full. Not a refusal by the session's limits.
    Device = 3,
}

impl RefusedFor {
    /// All reasons, in the order of their numbers.
    pub const ALL: [Self; 4] = [Self::Limit, Self::Real, Self::Driver, Self::Device];

    /// The name in metrics.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Limit => "limit",
            Self::Real => "real",
            Self::Driver => "driver",
            Self::Device => "device",
        }
    }
}

/// A reservation that does not fit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{asked} bytes do not fit: {used} of {limit} bytes{bound} are in use")]
pub struct MemoryRefused {
    /// Bytes asked for.
    pub asked: u64,
    /// Bytes in use by the session: all, or those on the device for [`MemoryBound::Real`].
    pub used: u64,
    /// The bound, in bytes.
    pub limit: u64,
    /// The bound that was exceeded.
    pub bound: MemoryBound,
}

impl fmt::Display for MemoryBound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Limit => "",
            Self::Real => " on the device itself",
        })
    }
}

/// An impossible value in the page.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the session's page is damaged: slot {slot} releases {asked} bytes but has only {has}")]
pub struct Damaged {
    /// The slot.
    pub slot: usize,
    /// Bytes to release.
    pub asked: u64,
    /// Bytes on record.
    pub has: u64,
}

fn add(cell: &AtomicU64, bytes: u64) {
    cell.put(cell.load(Relaxed).saturating_add(bytes));
}

fn take(cell: &AtomicU64, bytes: u64) {
    cell.put(cell.load(Relaxed).saturating_sub(bytes));
}

impl Ledger<'_> {
    /// Reserves `bytes` within the limit: on the device, or on the host if `kind` is [`MemoryKind::Overcommitted`].
    ///
    /// # Errors
    /// [`MemoryRefused`] if they do not fit; nothing has changed then.
    pub fn reserve(
        &mut self,
        slot: usize,
        kind: MemoryKind,
        bytes: u64,
    ) -> Result<(), MemoryRefused> {
        match (kind, self.place(bytes)?) {
            (MemoryKind::Overcommitted, _) | (_, Placement::Device) => {
                self.charge(slot, kind, bytes);
                Ok(())
            }
            (_, Placement::Host) => Err(self.refusal(bytes, MemoryBound::Real)),
        }
    }

    /// Reserves `bytes` on the device as `kind` or, if the real part is used up, on the host as
    /// [`MemoryKind::Overcommitted`]. Returns the placement.
    ///
    /// # Errors
    /// [`MemoryRefused`] if the limit itself is used up; nothing has changed then.
    pub fn reserve_anywhere(
        &mut self,
        slot: usize,
        kind: MemoryKind,
        bytes: u64,
    ) -> Result<Placement, MemoryRefused> {
        let place = self.place(bytes)?;
        let kind = if place == Placement::Host { MemoryKind::Overcommitted } else { kind };
        self.charge(slot, kind, bytes);
        Ok(place)
    }

    /// Where `bytes` more would fit.
    ///
    /// # Errors
    /// [`MemoryRefused`] if they fit nowhere.
    pub fn place(&self, bytes: u64) -> Result<Placement, MemoryRefused> {
        let fits = |used: u64, limit| used.checked_add(bytes).is_some_and(|sum| sum <= limit);
        if !fits(self.used(), self.limit()) {
            Err(self.refusal(bytes, MemoryBound::Limit))
        } else if fits(self.on_device(), self.real_limit()) {
            Ok(Placement::Device)
        } else {
            Ok(Placement::Host)
        }
    }

    fn refusal(&self, asked: u64, bound: MemoryBound) -> MemoryRefused {
        let (used, limit) = match bound {
            MemoryBound::Limit => (self.used(), self.limit()),
            MemoryBound::Real => (self.on_device(), self.real_limit()),
        };
        MemoryRefused { asked, used, limit, bound }
    }

    /// Records a refusal for good.
    pub fn note_refusal(&mut self, reason: RefusedFor, bytes: u64, now_ns: u64) {
        add(&self.0.refused_for[reason as usize], 1);
        if reason == RefusedFor::Device {
            return;
        }
        let refusals = self.0.refusals.load(Relaxed);
        let on_device = reason == RefusedFor::Real;
        self.0.refused_beside.put(if on_device { self.on_device() } else { self.used() });
        self.0.refused_bytes.put(bytes);
        self.0.refused_at_ns.put(now_ns);
        self.0.refusals.put(refusals.saturating_add(1));
    }

    /// Charges `bytes` even if they do not fit: for memory that the driver has taken already.
    pub fn charge(&mut self, slot: usize, kind: MemoryKind, bytes: u64) {
        if let Some(slot) = self.slot(slot) {
            add(&slot.bytes[kind as usize], bytes);
            self.sums(kind, |sum| add(sum, bytes));
        }
    }

    /// Releases `bytes`.
    ///
    /// # Errors
    /// [`Damaged`] if the slot has fewer; it has none of that kind afterwards.
    pub fn release(&mut self, slot: usize, kind: MemoryKind, bytes: u64) -> Result<(), Damaged> {
        let index = slot;
        let Some(slot) = self.slot(slot) else { return Ok(()) };
        let has = slot.bytes[kind as usize].load(Relaxed);
        let given = has.min(bytes);
        slot.bytes[kind as usize].put(has - given);
        self.sums(kind, |sum| take(sum, given));
        if given == bytes { Ok(()) } else { Err(Damaged { slot: index, asked: bytes, has }) }
    }

    /// Sets the slot's bytes of one kind, even if they do not fit.
    pub fn set(&mut self, slot: usize, kind: MemoryKind, bytes: u64) {
        let Some(slot) = self.slot(slot) else { return };
        let had = slot.bytes[kind as usize].load(Relaxed);
        slot.bytes[kind as usize].put(bytes);
        self.sums(kind, |sum| {
            let others = sum.load(Relaxed).saturating_sub(had);
            sum.put(others.saturating_add(bytes));
        });
    }

    /// Changes the sums to which a kind counts.
    fn sums(&self, kind: MemoryKind, change: impl Fn(&AtomicU64)) {
        change(&self.0.used);
        self.0.peak_bytes.fetch_max(self.used(), Relaxed);
        if kind == MemoryKind::Overcommitted {
            change(&self.0.on_host);
        }
    }

    /// The slot's bytes of one kind.
    #[must_use]
    pub fn has(&self, slot: usize, kind: MemoryKind) -> u64 {
        self.slot(slot).map_or(0, |slot: &MemberSlot| slot.bytes[kind as usize].load(Relaxed))
    }

    /// The session's limit in bytes; [`NO_LIMIT`](crate::layout::NO_LIMIT): none.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.0.memory_limit.load(Relaxed)
    }

    /// Bytes that may be on the device itself.
    #[must_use]
    pub fn real_limit(&self) -> u64 {
        self.0.memory_real.load(Relaxed).min(self.limit())
    }

    /// Bytes in use by the session, on the device and on the host.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.0.used.load(Relaxed)
    }

    /// Bytes in use by the session on the device itself.
    #[must_use]
    pub fn on_device(&self) -> u64 {
        self.used().saturating_sub(self.0.on_host.load(Relaxed))
    }
}
