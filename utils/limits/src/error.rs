//! Errors of a [`Request`](crate::Request): impossible or contradictory settings.

use crate::named::{Name, Named};
use crate::units::{Amount, Percent, Size};

/// A setting is impossible by itself or together with others. The message uses the user's names of the settings, and
/// says what would be accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// The setting needs a compute share, and none is set.
    #[error("{name} needs {share}, the guaranteed compute share")]
    NeedsShare {
        /// The setting.
        name: Name,
        /// The setting that would set a share.
        share: &'static str,
    },
    /// Settings without effect under policy `none`.
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
    /// A burst limit under a policy without idle time.
    #[error("{soft} limits idle time, and {policy} gives none; set only one of them")]
    SoftUnderFixed {
        /// The burst limit.
        soft: Name,
        /// The policy.
        policy: Name,
    },
    /// A weight under a policy without idle time.
    #[error("{weight} divides idle time, so it needs {balance}")]
    WeightWithoutBalance {
        /// The weight.
        weight: Name,
        /// The setting that would grant idle time.
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
        /// The setting of the part.
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
    /// A percentage of a device that amounts to less than a byte.
    #[error("{name}: {amount} of {device} is 0 bytes; expected more")]
    Nothing {
        /// The setting.
        name: Name,
        /// Its value.
        amount: Amount,
        /// The device.
        device: String,
    },
    /// A part of a device whose size is unknown.
    #[error(
        "{name}: {what} needs the size of {device}, which is unknown; expected a size in bytes"
    )]
    UnknownSize {
        /// The setting.
        name: Name,
        /// The setting's value.
        what: String,
        /// The device.
        device: String,
    },
    /// The limit exceeds the device's memory, so it would limit nothing.
    #[error(
        "{} {} is more than {device} has, {}{}",
        asked.name, Size(asked.value), Size::in_mib(*total),
        host.map_or(String::new(), |real| format!("; with {real} the rest is placed on the host"))
    )]
    AboveDevice {
        /// The requested limit, in bytes.
        asked: Named<u64>,
        /// The device.
        device: String,
        /// The device's memory, in bytes.
        total: u64,
        /// The setting that would place the rest on the host.
        host: Option<&'static str>,
    },
}
