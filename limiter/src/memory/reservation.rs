//! Bytes reserved in the session's ledger until the driver has taken them or the call has failed. Every allocating path
//! of `memory` goes through a [`Reservation`].

use super::clearance::Charged;
use super::device::DeviceMemory;
use super::headroom;
use super::size::PAGE;
use super::tracker::{Allocation, Handle};
use crate::clock;
use crate::ledger::left;
use core::mem;
use core::sync::atomic::Ordering::Relaxed;
use driver::cuda::CuResult;
use session::layout::MemoryKind;
use session::ledger::{Damaged, Ledger, Placement, RefusedFor};

/// Bytes that no other process of the session can take; released when dropped.
#[must_use]
pub(super) struct Reservation {
    pub(super) device: &'static DeviceMemory,
    pub(super) kind: MemoryKind,
    pub(super) bytes: u64,
}

/// How much of the limit is left after a reservation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Left {
    Plenty,
    /// Code may take more than is left, or so much less is left than at the last NVML check that a new one is due.
    Some,
    /// Memory that the driver has taken by itself and nobody has charged yet may exceed what is left.
    Little,
}

impl Left {
    /// For a new reservation: `Plenty` if a clearance covers the charges.
    fn of_new(opened: &Ledger<'_>, device: &DeviceMemory) -> Self {
        let left = Self::of(opened, device);
        let is_cleared = || device.clearance.covers(Charged::of(opened), clock::now());
        if left != Self::Plenty && is_cleared() { Self::Plenty } else { left }
    }

    /// Less than 1/16 of a limit is little, and more than that is much to allocate without a check.
    const LITTLE: u64 = 16;
    /// Code is expected to take at most 1/2 of a limit.
    const CODE: u64 = 2;

    pub(super) fn of(opened: &Ledger<'_>, device: &DeviceMemory) -> Self {
        let driver = opened.has(device.ledger.membership().slot(), MemoryKind::Driver);
        let unplaced = headroom::unplaced(device, driver);
        let seen = device.left_when_seen.load(Relaxed);
        let of = |limit: u64, used: u64| {
            let (left, little) = (limit.saturating_sub(used), limit / Self::LITTLE);
            match unplaced.min(limit / Self::CODE).max(seen.saturating_sub(little)) {
                _ if left < little => Self::Little,
                some if left < some => Self::Some,
                _ => Self::Plenty,
            }
        };
        of(opened.limit(), opened.used()).max(of(opened.real_limit(), opened.on_device()))
    }
}

/// Whether the driver may take a whole page for an allocation smaller than a page.
const fn shares_pages(kind: MemoryKind, bytes: u64) -> bool {
    matches!(kind, MemoryKind::Data | MemoryKind::Array) && !bytes.is_multiple_of(PAGE)
}

/// The bytes that have to be free for a reservation. Small allocations share pages; each may be the first of its page.
pub(super) fn needed(kind: MemoryKind, bytes: u64) -> u64 {
    if shares_pages(kind, bytes) { bytes.max(PAGE) } else { bytes }
}

impl Reservation {
    /// Reserves, after a retry without dead processes' charges if need be. Also returns how much is left.
    pub(super) fn new(
        device: &'static DeviceMemory,
        kind: MemoryKind,
        bytes: u64,
    ) -> Option<(Self, Left)> {
        let ledger = device.ledger;
        let reserve = || match ledger.open() {
            Some(mut opened) => {
                let fits = match opened.place(needed(kind, bytes)) {
                    Ok(Placement::Device) => true,
                    Ok(Placement::Host) => kind == MemoryKind::Overcommitted,
                    Err(_) => false,
                };
                fits.then(|| {
                    let reservation = Self::charged(device, kind, bytes, &mut opened);
                    (reservation, Left::of_new(&opened, device))
                })
            }
            // The page is unusable, but the process is set to fail open.
            None => (ledger.broken().is_some() && !ledger.is_denied())
                .then_some((Self { device, kind, bytes }, Left::Plenty)),
        };
        reserve().or_else(|| ledger.reap().then(reserve).flatten())
    }

    /// Charges in an open ledger, without checking what is left.
    pub(super) fn charged(
        device: &'static DeviceMemory,
        kind: MemoryKind,
        bytes: u64,
        opened: &mut Ledger<'_>,
    ) -> Self {
        opened.charge(device.ledger.membership().slot(), kind, bytes);
        device.shared.changes.reserved(device.ledger, opened);
        Self { device, kind, bytes }
    }

    /// Runs the driver's call. On success records the memory under the `handle` that the call has returned; on failure
    /// releases the bytes.
    pub(super) fn spend(
        self,
        call: impl FnOnce() -> CuResult,
        handle: impl FnOnce() -> Handle,
    ) -> CuResult {
        let (device, kind, bytes) = (self.device, self.kind, self.bytes);
        let context = device.current_context();
        let result = call();
        if result.is_ok() {
            let _ = self.keep();
            device.remember(handle(), Allocation { kind, bytes, context });
        } else if result == CuResult::OUT_OF_MEMORY {
            is_full(device, bytes);
        }
        result
    }

    /// Keeps the bytes charged after the driver has taken them; the caller has to release them.
    pub(super) fn keep(self) -> u64 {
        let bytes = self.bytes;
        mem::forget(self);
        bytes
    }

    /// Releases the bytes in the open ledger.
    pub(super) fn give_back_in(self, opened: &mut Ledger<'_>) -> Result<(), Damaged> {
        let (device, kind) = (self.device, self.kind);
        opened.release(device.ledger.membership().slot(), kind, self.keep())
    }
}

/// Notes a refusal by a full device, although the session's limit has room. An allocation that may be placed on the
/// host is not refused yet.
fn is_full(device: &DeviceMemory, bytes: u64) {
    if !device.ledger.is_overcommitted() {
        device.ledger.note_refusal(RefusedFor::Device, bytes);
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.device.ledger.release(self.kind, self.bytes);
    }
}

/// How much is left on a device; `None` if the ledger cannot be opened.
pub(super) fn left_on(device: &DeviceMemory) -> Option<Left> {
    device.ledger.open().map(|opened| Left::of(&opened, device))
}

/// Reserves bytes, lending part of the headroom; `None` if they do not fit even so, or the ledger cannot be opened.
pub(super) fn lend(
    device: &'static DeviceMemory,
    kind: MemoryKind,
    bytes: u64,
) -> Option<(Reservation, headroom::Lent)> {
    let slot = device.ledger.membership().slot();
    let mut opened = device.ledger.open()?;
    let lent = headroom::lend(device, slot, bytes.saturating_sub(left(&opened)), &mut opened)?;
    Some((Reservation::charged(device, kind, bytes, &mut opened), lent))
}
