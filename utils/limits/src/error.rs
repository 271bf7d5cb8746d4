//! What cannot be meant.

use crate::named::{Name, Named};
use crate::units::{Amount, Percent, Size};

/// A setting that cannot be kept, or not beside the others. It is told in the names that the user
/// used, together with what would be accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// A setting that goes with a share, without one.
    #[error("{name} needs {share}: the share of the device's time that is guaranteed")]
    NeedsShare {
        /// The setting.
        name: Name,
        /// What would set a share.
        share: &'static str,
    },
    /// Settings beside a policy under which nothing is enforced.
    #[error(
        "{policy} takes the compute limit away: beside it these would have no effect, leave them out: {}",
        others.join(", ")
    )]
    NoneBesideOthers {
        /// The policy.
        policy: Name,
        /// The settings.
        others: Vec<Name>,
    },
    /// Idle time is asked for and refused at once.
    #[error("{soft} is for idle time, and {policy} gives none: set only one of them")]
    SoftUnderFixed {
        /// The soft limit.
        soft: Name,
        /// The policy.
        policy: Name,
    },
    /// A part of idle time where none is given out.
    #[error("{weight} is for idle time: it needs {balance}")]
    WeightWithoutBalance {
        /// The weight.
        weight: Name,
        /// What would give idle time.
        balance: &'static str,
    },
    /// What is never exceeded is less than what is guaranteed.
    #[error(
        "{} {} is less than {} {}",
        soft.name, Percent(soft.value), share.name, Percent(share.value)
    )]
    SoftBelowShare {
        /// The soft limit, in millionths.
        soft: Named<u32>,
        /// The share, in millionths.
        share: Named<u32>,
    },
    /// A part of nothing.
    #[error("{real} is a part of a memory limit, and there is none: set {memory}, too")]
    RealWithoutLimit {
        /// The part.
        real: Name,
        /// What would set a limit.
        memory: &'static str,
    },
    /// A part larger than the whole.
    #[error("{} {} is more than {} {}", real.name, Size(real.value), limit.name, Size(limit.value))]
    RealAboveLimit {
        /// The part, in bytes.
        real: Named<u64>,
        /// The whole, in bytes.
        limit: Named<u64>,
    },
    /// A part of a device so small that it is nothing.
    #[error("{name}: {amount} of {device} is nothing: more than 0 bytes are accepted")]
    Nothing {
        /// The setting.
        name: Name,
        /// What it says.
        amount: Amount,
        /// The device.
        device: String,
    },
    /// A part of a device whose size cannot be found out.
    #[error(
        "{name}: {what} is asked for, and the size of {device} is not known; a size in bytes is accepted"
    )]
    UnknownSize {
        /// The setting.
        name: Name,
        /// What it says.
        what: String,
        /// The device.
        device: String,
    },
    /// More than the device has, which would be no limit.
    #[error(
        "{} {} is more than {device} has, {total} bytes ({} MiB){}",
        asked.name, Size(asked.value), total >> 20,
        host.map_or(String::new(), |real| format!("; with {real} the rest is placed on the host"))
    )]
    AboveDevice {
        /// What is asked for, in bytes.
        asked: Named<u64>,
        /// The device.
        device: String,
        /// What it has, in bytes.
        total: u64,
        /// What would place the rest on the host.
        host: Option<&'static str>,
    },
}
