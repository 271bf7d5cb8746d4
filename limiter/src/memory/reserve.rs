//! Whether an allocation fits: by the session's ledger, and near the limit by NVML.

use super::device::DeviceMemory;
use super::holdings::Holdings;
use super::reconcile::{Caller, Reconciliations};
use super::refusal::Why;
use super::reservation::{Left, Reservation, left_on, needed};
use session::layout::MemoryKind;

/// Whether the driver may have taken much memory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Much {
    Perhaps,
    Surely,
}

/// What decides on an allocation, and what can give memory back.
#[derive(Default)]
pub(crate) struct Reserve {
    pub(crate) holdings: Holdings,
    pub(super) looks: Reconciliations,
}

/// The efforts made before memory is refused, in this order.
#[derive(Clone, Copy)]
enum Effort {
    Nothing,
    /// Pools and graphs give back unused memory.
    Trim,
    /// The driver's own part may be smaller by now.
    LookAgain,
}

impl Reserve {
    /// Reserves; if it does not fit, makes more and more effort. Must be called within a call that is counted
    /// as allocating ([`Changes`](super::changes::Changes)).
    pub(super) fn reserve(
        &self,
        device: &'static DeviceMemory,
        kind: MemoryKind,
        bytes: u64,
    ) -> Option<Reservation> {
        let efforts = [Effort::Nothing, Effort::Trim, Effort::LookAgain];
        let reserved = self.by(&efforts, device, kind, bytes);
        if reserved.is_none()
            && let Some(why) =
                device.ledger.open().map(|opened| Why::of(&opened, needed(kind, bytes)))
            // What may yet be placed on the host is not refused.
            && !why.is_of_real_part()
        {
            device.ledger.note_refusal(why.reason(), bytes);
        }
        reserved
    }

    /// Reserves without any effort.
    pub(super) fn reserve_at_once(
        &self,
        device: &'static DeviceMemory,
        kind: MemoryKind,
        bytes: u64,
    ) -> Option<Reservation> {
        self.by(&[Effort::Nothing], device, kind, bytes)
    }

    /// Reserves for memory that the driver has taken already. NVML is not asked: it shows that memory, and so
    /// it would count twice.
    pub(super) fn reserve_taken(
        &self,
        device: &'static DeviceMemory,
        kind: MemoryKind,
        bytes: u64,
    ) -> Option<Reservation> {
        let reserve = || Reservation::new(device, kind, bytes).map(|(reservation, _)| reservation);
        reserve().or_else(|| {
            self.holdings.refresh(device, true);
            reserve()
        })
    }

    /// Reserves again after something was given back.
    pub(super) fn reserve_again(
        &self,
        device: &'static DeviceMemory,
        kind: MemoryKind,
        bytes: u64,
    ) -> Option<Reservation> {
        self.by(&[Effort::Nothing, Effort::LookAgain], device, kind, bytes)
    }

    /// Tries to reserve after each effort. Near the limit NVML's figure decides whether it fits.
    fn by(
        &self,
        efforts: &[Effort],
        device: &'static DeviceMemory,
        kind: MemoryKind,
        bytes: u64,
    ) -> Option<Reservation> {
        efforts.iter().find_map(|effort| {
            match effort {
                Effort::Nothing => {}
                Effort::Trim => self.holdings.refresh(device, true),
                Effort::LookAgain => {
                    self.looks.look_during(&self.holdings, device, Caller::Refused);
                }
            }
            let (reservation, left) = Reservation::new(device, kind, bytes)?;
            match left {
                Left::Plenty => Some(reservation),
                Left::Some => self.looks.look_before(&self.holdings, reservation, false),
                Left::Little => self.looks.look_before(&self.holdings, reservation, true),
            }
        })
    }

    /// The driver may have taken memory of a device. It is charged at once if it may be much, or if little is
    /// left. Otherwise the reconciler charges it.
    pub(super) fn driver_may_have_taken(&self, device: &'static DeviceMemory, much: Much) {
        let urgent = much == Much::Surely;
        device.clearance.end();
        if left_on(device).is_some_and(|left| urgent || left == Left::Little) {
            self.looks.look_during(&self.holdings, device, Caller::Other { urgent });
        }
    }
}
