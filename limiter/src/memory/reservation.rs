//! Bytes between the moment at which they are reserved in the session's ledger and the one at which the driver
//! has taken them, or has not.

use super::device::DeviceMemory;
use super::headroom;
use super::size::PAGE;
use super::tracker::{Allocation, Handle};
use crate::ledger::left;
use core::mem;
use core::sync::atomic::Ordering::Relaxed;
use driver::cuda::CuResult;
use session::layout::MemoryKind;
use session::ledger::{Damaged, Ledger, Placement};

/// Bytes that nobody else of the session can take meanwhile. They are given back when this is dropped.
#[must_use]
pub(super) struct Reservation {
    pub(super) device: &'static DeviceMemory,
    pub(super) kind: MemoryKind,
    pub(super) bytes: u64,
}

/// How much a reservation has left of the limit.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Left {
    Plenty,
    /// Less than much code may take, or so much less than when NVML was last asked that it is time to ask.
    Some,
    /// So little that what the driver has taken by itself, and nobody has seen yet, may be more.
    Little,
}

impl Left {
    /// The part of a limit that is little, or is much to allocate unseen.
    const LITTLE: u64 = 16;
    /// The part of a limit that code is left at most.
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

/// Whether the driver may take a page for an allocation that is smaller.
const fn shares_pages(kind: MemoryKind, bytes: u64) -> bool {
    matches!(kind, MemoryKind::Data | MemoryKind::Array) && !bytes.is_multiple_of(PAGE)
}

impl Reservation {
    /// Reserves; where it does not fit, gives back what dead processes left and tries once more. Tells how much is
    /// left then.
    pub(super) fn new(
        device: &'static DeviceMemory,
        kind: MemoryKind,
        bytes: u64,
    ) -> Option<(Self, Left)> {
        let ledger = device.ledger;
        let reserve = || match ledger.open() {
            Some(mut opened) => {
                // Small ones share pages; each may be the first of one.
                let needs = if shares_pages(kind, bytes) { bytes.max(PAGE) } else { bytes };
                let fits = match opened.place(needs) {
                    Ok(Placement::Device) => true,
                    Ok(Placement::Host) => kind == MemoryKind::Oversubscribed,
                    Err(_) => false,
                };
                fits.then(|| {
                    let reservation = Self::charged(device, kind, bytes, &mut opened);
                    (reservation, Left::of(&opened, device))
                })
            }
            // A page that cannot be used, and a failure that is let pass.
            None => (ledger.broken().is_some() && !ledger.is_denied())
                .then_some((Self { device, kind, bytes }, Left::Plenty)),
        };
        reserve().or_else(|| ledger.reap().then(reserve).flatten())
    }

    /// Reserves in an open ledger, whatever is left.
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

    /// Runs the driver's call. What it has taken is remembered under the `handle` that it has made; if it fails, the
    /// bytes are given back.
    pub(super) fn spend(
        self,
        call: impl FnOnce() -> CuResult,
        handle: impl FnOnce() -> Handle,
    ) -> CuResult {
        let context = self.device.current_context();
        let result = call();
        if result.is_ok() {
            let (device, kind, bytes) = (self.device, self.kind, self.keep());
            device.remember(handle(), Allocation { kind, bytes, context });
        }
        result
    }

    /// The driver has taken the bytes; giving them back is somebody else's business from now on.
    pub(super) fn keep(self) -> u64 {
        let bytes = self.bytes;
        mem::forget(self);
        bytes
    }

    /// Gives the bytes back in the ledger, which is open.
    pub(super) fn give_back_in(self, opened: &mut Ledger<'_>) -> Result<(), Damaged> {
        let (device, kind) = (self.device, self.kind);
        opened.release(device.ledger.membership().slot(), kind, self.keep())
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.device.ledger.release(self.kind, self.bytes);
    }
}

/// How much is left on a device; `None`: the ledger cannot be opened.
pub(super) fn left_on(device: &DeviceMemory) -> Option<Left> {
    device.ledger.open().map(|opened| Left::of(&opened, device))
}

/// Reserves bytes with the headroom's help; `None`: they do not fit even so, or without it.
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
