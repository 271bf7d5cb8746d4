//! Requests that are impossible or contradictory.

use crate::named::{Name, Named};
use crate::units::{Amount, Percent, Size};

/// A setting that is impossible, by itself or with the others. The message has the names that the
/// user used, and says what would be accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// A setting that needs a share, without a share.
    #[error("{name} needs {share}, the guaranteed compute share")]
    NeedsShare {
        /// The setting.
        name: Name,
        /// The setting that would set a share.
        share: &'static str,
    },
    /// Settings for a policy that enforces nothing.
    #[error(
        "{policy} removes the compute limit, so these would have no effect; leave them out: {}",
        others.join(", ")
    )]
    NoneBesideOthers {
        /// The policy.
        policy: Name,
        /// The settings.
        others: Vec<Name>,
    },
    /// A burst limit under a policy that gives no idle time.
    #[error("{soft} limits idle time, and {policy} gives none; set only one of them")]
    SoftUnderFixed {
        /// The burst limit.
        soft: Name,
        /// The policy.
        policy: Name,
    },
    /// A part of spare time under a policy that gives none.
    #[error("{weight} divides idle time, so it needs {balance}")]
    WeightWithoutBalance {
        /// The weight.
        weight: Name,
        /// The setting that would give spare time.
        balance: &'static str,
    },
    /// The burst limit is less than the guaranteed share.
    #[error(
        "{} {} is less than {} {}",
        soft.name, Percent(soft.value), share.name, Percent(share.value)
    )]
    SoftBelowShare {
        /// The burst limit, in millionths.
        soft: Named<u32>,
        /// The share, in millionths.
        share: Named<u32>,
    },
    /// A real part without a memory limit.
    #[error("{real} is part of a memory limit, and none is set; set {memory} too")]
    RealWithoutLimit {
        /// The part.
        real: Name,
        /// The setting that would set a limit.
        memory: &'static str,
    },
    /// A real part larger than the limit.
    #[error("{} {} is more than {} {}", real.name, Size(real.value), limit.name, Size(limit.value))]
    RealAboveLimit {
        /// The part, in bytes.
        real: Named<u64>,
        /// The limit, in bytes.
        limit: Named<u64>,
    },
    /// A percentage of a device that is less than a byte.
    #[error("{name}: {amount} of {device} is 0 bytes; expected more")]
    Nothing {
        /// The setting.
        name: Name,
        /// Its value.
        amount: Amount,
        /// The device.
        device: String,
    },
    /// A part of a device whose size is not known.
    #[error(
        "{name}: {what} needs the size of {device}, which is unknown; expected a size in bytes"
    )]
    UnknownSize {
        /// The setting.
        name: Name,
        /// Its value.
        what: String,
        /// The device.
        device: String,
    },
    /// More memory than the device has, which would be no limit.
    #[error(
        "{} {} is more than {device} has, {}{}",
        asked.name, Size(asked.value), Size::in_mib(*total),
        host.map_or(String::new(), |real| format!("; with {real} the rest is placed on the host"))
    )]
    AboveDevice {
        /// What is asked for, in bytes.
        asked: Named<u64>,
        /// The device.
        device: String,
        /// What it has, in bytes.
        total: u64,
        /// The setting that would place the rest on the host.
        host: Option<&'static str>,
    },
}
