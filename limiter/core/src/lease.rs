//! A lease: the right to launch until a moment. The governor obtains it from the daemon or from the session's own
//! account.

use crate::tuning::{LEAST_OUTSTANDING_NS, MOST_OUTSTANDING_NS};

/// The right to launch until `end`. Times are nanoseconds of one monotonic clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// When the gate was opened, or may be opened.
    pub begun: u64,
    /// When the gate has to be closed.
    pub end: u64,
    /// The daemon's name for the lease; `None`: it is of the session's own account.
    pub id: Option<u64>,
    /// Whether another session may use the device at the same time.
    pub shared: bool,
    /// Whether the sessions that want the device hold leases at once, so nobody waits for this one.
    pub overlaps: bool,
    /// Whether the lease belongs to several devices that are held together.
    pub of_several: bool,
    /// Whether the lease only serves to launch what work on another device waits for.
    pub to_catch_up: bool,
}

impl Lease {
    /// A lease of the session's own account, `length` nanoseconds long.
    pub const fn own(begun: u64, length: u64, of_several: bool) -> Self {
        Self {
            begun,
            end: begun + length,
            id: None,
            shared: false,
            overlaps: false,
            of_several,
            to_catch_up: false,
        }
    }
}

/// How much estimated work may be outstanding (ns) if the lease has `left_ns` left and no other session uses the
/// device.
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
