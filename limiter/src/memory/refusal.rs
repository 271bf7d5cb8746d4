//! Reasons and messages for refused allocations.

use crate::ledger::DeviceLedger;
use crate::report;
use core::fmt;
use driver::cuda::CuResult;
use session::ledger::{Ledger, MemoryBound, MemoryRefused, Placement, RefusedFor};

const MIB: u64 = 1 << 20;

/// The reason why an allocation does not fit on the device; its `Display` is part of a message.
pub(super) enum Why {
    /// A bound of the ledger.
    Bound(MemoryRefused),
    /// The ledger has room, but NVML shows that processes of the session have more memory than it says.
    Driver { limit: u64, used: u64 },
}

impl Why {
    pub(super) fn of(opened: &Ledger<'_>, asked: u64) -> Self {
        match opened.place(asked) {
            Err(refused) => Self::Bound(refused),
            Ok(Placement::Host) => Self::Bound(MemoryRefused {
                asked,
                used: opened.on_device(),
                limit: opened.real_limit(),
                bound: MemoryBound::Real,
            }),
            Ok(Placement::Device) => Self::Driver { limit: opened.limit(), used: opened.used() },
        }
    }

    /// Whether only the real part of the limit is used up.
    pub(super) fn is_of_real_part(&self) -> bool {
        self.reason() == RefusedFor::Real
    }

    pub(super) const fn reason(&self) -> RefusedFor {
        match self {
            Self::Bound(MemoryRefused { bound: MemoryBound::Limit, .. }) => RefusedFor::Limit,
            Self::Bound(MemoryRefused { bound: MemoryBound::Real, .. }) => RefusedFor::Real,
            Self::Driver { .. } => RefusedFor::Driver,
        }
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (limit, used) = match self {
            Self::Bound(MemoryRefused { limit, used, .. }) | Self::Driver { limit, used } => {
                (limit / MIB, used.div_ceil(MIB))
            }
        };
        match self {
            Self::Bound(refused) if refused.bound == MemoryBound::Limit => {
                write!(f, "the memory limit of {limit} MiB would be exceeded ({used} MiB in use)")
            }
            Self::Bound(_) => write!(
                f,
                "the part of the memory limit that may be on the device, {limit} MiB, would be exceeded ({used} MiB in \
                 use)"
            ),
            Self::Driver { .. } => write!(
                f,
                "the memory limit of {limit} MiB would be exceeded ({used} MiB in use besides what the driver took by \
                 itself)"
            ),
        }
    }
}

/// Reports a refusal of memory that cannot be placed on the host; returns the driver's error code.
pub(super) fn refused(device: &DeviceLedger, asked: u64) -> CuResult {
    let why = device.open().map(|opened| Why::of(&opened, asked));
    if let Some(why) = why.filter(Why::is_of_real_part) {
        device.note_refusal(why.reason(), asked);
        report::once(format_args!(
            "device {}: refused {} MiB: {why}, and memory of graphs, arrays or cuMemCreate cannot be placed on the \
             host",
            device.uuid(),
            asked.div_ceil(MIB),
        ));
    }
    declined(device, asked)
}

/// Logs a refusal; returns the driver's error code.
pub(super) fn declined(device: &DeviceLedger, asked: u64) -> CuResult {
    let Some(opened) = device.open() else {
        return if device.is_denied() { CuResult::NOT_PERMITTED } else { CuResult::OUT_OF_MEMORY };
    };
    let why = Why::of(&opened, asked);
    drop(opened);
    tracing::debug!("device {}: refused {asked} bytes: {why}", device.uuid());
    CuResult::OUT_OF_MEMORY
}

/// Whether the session uses more than its limit or its real part.
pub(super) fn is_over(device: &DeviceLedger) -> bool {
    device.open().is_some_and(|opened| {
        opened.used() > opened.limit() || opened.on_device() > opened.real_limit()
    })
}
