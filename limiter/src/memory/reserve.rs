//! Whether there is room for an allocation: what the session's ledger says, and near the limit what NVML says.

use super::device::DeviceMemory;
use super::holdings::Holdings;
use super::reconcile::{Caller, Looks};
use super::reservation::{Left, Reservation, left_on};
use session::layout::MemoryKind;

/// Whether what the driver may have taken can be much.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Much {
    Perhaps,
    Surely,
}

/// What is asked before memory is given, and what can give some back. See the module.
#[derive(Default)]
pub(crate) struct Reserve {
    pub(crate) holdings: Holdings,
    pub(super) looks: Looks,
}

/// What is tried before memory is refused, one after the other.
#[derive(Clone, Copy)]
enum Effort {
    Nothing,
    /// Pools and graphs give back what they do not use.
    Trim,
    /// What the driver has taken by itself may be less by now.
    LookAgain,
}

impl Reserve {
    /// Reserves; where it does not fit, makes more and more efforts. To be called from within a call that is counted as
    /// one that allocates ([`Changes`](super::changes::Changes)).
    pub(super) fn reserve(
        &self,
        device: &'static DeviceMemory,
        kind: MemoryKind,
        bytes: u64,
    ) -> Option<Reservation> {
        self.by(&[Effort::Nothing, Effort::Trim, Effort::LookAgain], device, kind, bytes)
    }

    /// Reserves what fits as it is.
    pub(super) fn reserve_at_once(
        &self,
        device: &'static DeviceMemory,
        kind: MemoryKind,
        bytes: u64,
    ) -> Option<Reservation> {
        self.by(&[Effort::Nothing], device, kind, bytes)
    }

    /// Reserves what did not fit a moment ago, before something was given back.
    pub(super) fn reserve_again(
        &self,
        device: &'static DeviceMemory,
        kind: MemoryKind,
        bytes: u64,
    ) -> Option<Reservation> {
        self.by(&[Effort::Nothing, Effort::LookAgain], device, kind, bytes)
    }

    /// Each effort is followed by an attempt. Near the limit that reserves only what is left by NVML's figure.
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
                    self.looks.look_during(&self.holdings, device, Caller::LimiterFailure);
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

    /// The driver may have taken memory of a device. That is charged at once if it can be much or where
    /// little is left; else the reconciler does it.
    pub(super) fn driver_may_have_taken(&self, device: &'static DeviceMemory, much: Much) {
        let urgent = much == Much::Surely;
        if left_on(device).is_some_and(|left| urgent || left == Left::Little) {
            self.looks.look_during(&self.holdings, device, Caller::Other { urgent });
        }
    }
}
