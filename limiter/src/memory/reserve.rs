//! Whether there is room for an allocation: what the session's book says, and near the limit what NVML says.

use super::device::DeviceMemory;
use super::holdings::Holdings;
use super::reconcile::{Caller, Looks};
use super::reservation::{Left, Reservation, left_on};
use session::page::layout::Kind;

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

impl Reserve {
    /// Reserves; where it does not fit, has pools give back what they do not use and tries once more. To be
    /// called from within a call that is counted as one that allocates ([`Changes`](super::changes::Changes)).
    pub(super) fn reserve(
        &self,
        device: &'static DeviceMemory,
        kind: Kind,
        bytes: u64,
    ) -> Option<Reservation> {
        self.seen(device, kind, bytes).or_else(|| {
            self.holdings.refresh(device, true);
            self.again(device, kind, bytes)
        })
    }

    /// Reserves; near the limit only what is left by NVML's figure.
    pub(super) fn seen(
        &self,
        device: &'static DeviceMemory,
        kind: Kind,
        bytes: u64,
    ) -> Option<Reservation> {
        let (reservation, left) = Reservation::new(device, kind, bytes)?;
        match left {
            Left::Plenty => Some(reservation),
            Left::Some => self.looks.look_before(&self.holdings, reservation, false),
            Left::Little => self.looks.look_before(&self.holdings, reservation, true),
        }
    }

    /// Reserves what did not fit a moment ago; where it still does not, but may by NVML's figure, looks there.
    pub(super) fn again(
        &self,
        device: &'static DeviceMemory,
        kind: Kind,
        bytes: u64,
    ) -> Option<Reservation> {
        self.seen(device, kind, bytes).or_else(|| {
            self.looks.look_during(&self.holdings, device, Caller::Refused);
            self.seen(device, kind, bytes)
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
