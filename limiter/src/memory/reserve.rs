//! Decides whether an allocation fits: by the session's ledger, and near the limit by NVML. Most allocating calls of
//! `memory` reserve through [`Reserve`].

use super::device::DeviceMemory;
use super::holdings::Holdings;
use super::reconcile::{Caller, Reconciliations};
use super::refusal::Why;
use super::reservation::{Left, Reservation, left_on, needed};
use session::layout::MemoryKind;

/// Whether a call has made the driver take much memory by itself.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Much {
    Perhaps,
    Surely,
}

/// The state that decides on allocations, and that can give memory back.
#[derive(Default)]
pub(crate) struct Reserve {
    pub(crate) holdings: Holdings,
    pub(super) looks: Reconciliations,
}

/// The steps taken before memory is refused, in this order.
#[derive(Clone, Copy)]
enum Effort {
    Nothing,
    /// Pools and graphs give back unused memory.
    Trim,
    /// Check by NVML: the driver's own memory may have shrunk.
    LookAgain,
}

impl Reserve {
    /// Reserves, making more and more effort. Must be called within an allocating call that is counted by
    /// [`Changes`](super::changes::Changes).
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
            // An allocation that may be placed on the host is not refused yet.
            && !why.is_of_real_part()
        {
            device.ledger.note_refusal(why.reason(), bytes);
        }
        reserved
    }

    /// Reserves without further effort.
    pub(super) fn reserve_at_once(
        &self,
        device: &'static DeviceMemory,
        kind: MemoryKind,
        bytes: u64,
    ) -> Option<Reservation> {
        self.by(&[Effort::Nothing], device, kind, bytes)
    }

    /// Reserves for memory that the driver has taken already. NVML is not queried: it shows that memory, which would
    /// then count twice.
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

    /// Reserves again after memory was given back.
    pub(super) fn reserve_again(
        &self,
        device: &'static DeviceMemory,
        kind: MemoryKind,
        bytes: u64,
    ) -> Option<Reservation> {
        self.by(&[Effort::Nothing, Effort::LookAgain], device, kind, bytes)
    }

    /// Tries to reserve after each effort. Near the limit NVML's figure decides.
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

    /// Reacts to memory that the driver may have taken by itself on a device. It is charged at once if it may be much
    /// or little is left; otherwise by the reconciler.
    pub(super) fn driver_may_have_taken(&self, device: &'static DeviceMemory, much: Much) {
        let urgent = much == Much::Surely;
        device.clearance.end();
        if left_on(device).is_some_and(|left| urgent || left == Left::Little) {
            self.looks.look_during(&self.holdings, device, Caller::Other { urgent });
        }
    }
}
