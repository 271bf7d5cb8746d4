//! The right to launch until a moment.

use crate::tuning::{LEAST_OUTSTANDING_NS, MOST_OUTSTANDING_NS};

/// The right to launch until a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// When the gate was opened, or may be.
    pub begun: u64,
    /// When it is to be closed.
    pub end: u64,
    /// The daemon's name for it; `None`: of the own account.
    pub id: Option<u64>,
    /// Whether another session may use the device at the same time.
    pub shared: bool,
    /// Whether no other session gets one before this one ends.
    pub exclusive: bool,
    /// Whether it is one of several devices that are held together.
    pub of_several: bool,
    /// Whether it is only for what work on another device waits for.
    pub to_catch_up: bool,
}

impl Lease {
    /// Of the own account.
    pub const fn own(begun: u64, length: u64, of_several: bool) -> Self {
        let (shared, exclusive, to_catch_up) = (false, false, false);
        Self { begun, end: begun + length, id: None, shared, exclusive, of_several, to_catch_up }
    }
}

/// What may be outstanding where the lease has so much time left and no other session uses the device.
#[inline]
pub fn room_ns(left_ns: u64) -> u64 {
    left_ns.clamp(LEAST_OUTSTANDING_NS, MOST_OUTSTANDING_NS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_much_may_be_outstanding_as_the_lease_has_left() {
        assert_eq!(room_ns(0), LEAST_OUTSTANDING_NS);
        assert_eq!(room_ns(20_000_000), 20_000_000);
        assert_eq!(room_ns(u64::MAX), MOST_OUTSTANDING_NS);
    }
}
