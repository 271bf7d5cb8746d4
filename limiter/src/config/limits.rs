//! What is set for one device, and the session's limits that follow from it.

use core::fmt;
use limits::units::{Amount, PPM_ONE, Percent, Size};
use limits::uuid::DeviceUuid;
use limits::{Policy, Priority};
use session::SessionLimits;
use session::layout::NO_LIMIT;

/// A device, by all the names that a limit can be keyed with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeviceIdentity {
    /// Its UUID.
    pub(crate) uuid: DeviceUuid,
    /// Its index as NVML counts, if known.
    pub(crate) host_index: Option<u32>,
    /// Its index as the program counts, if known.
    pub(crate) visible_index: Option<u32>,
}

/// A variable that was set and does not hold, because another one does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Overruled {
    /// The one that does not hold.
    pub(crate) variable: String,
    /// The one that does.
    pub(crate) by: String,
}

impl fmt::Display for Overruled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} by {}", self.variable, self.by)
    }
}

/// A value, and the variable that it came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sourced<T> {
    /// The value.
    pub(crate) value: T,
    /// The variable, with its index or key.
    pub(crate) source: String,
}

impl<T: fmt::Display> fmt::Display for Sourced<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.value, self.source)
    }
}

/// How much of the memory limit may be on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Real {
    /// So much.
    Amount(Amount),
    /// The limit, divided by this many millionths.
    Ratio(u64),
    /// What the device has.
    Device,
}

impl fmt::Display for Real {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Amount(amount) => amount.fmt(f),
            #[allow(clippy::cast_precision_loss, reason = "for people")]
            Self::Ratio(millionths) => write!(f, "1/{}", *millionths as f64 / f64::from(PPM_ONE)),
            Self::Device => f.write_str("the device's size"),
        }
    }
}

/// The compute share of one device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Share {
    /// In parts per million of the device's time, and the variable that decided about it.
    pub(crate) ppm: Sourced<u32>,
    /// Whether idle time may be used on top.
    pub(crate) policy: Policy,
    /// What is never exceeded.
    pub(crate) soft_ppm: Option<Sourced<u32>>,
    /// Part of idle time.
    pub(crate) weight: u32,
    /// Whether others come first.
    pub(crate) priority: Priority,
}

/// The limits of one device.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(crate) struct Limits {
    /// Most memory.
    pub(crate) memory: Option<Sourced<Amount>>,
    /// How much of it may be on the device; without: all of it.
    pub(crate) real: Option<Sourced<Real>>,
    /// Share of the device's time.
    pub(crate) share: Option<Share>,
    /// The variable that lifted the share.
    pub(crate) share_lifted_by: Option<String>,
    /// Set for this device, to another value than the one that holds.
    pub(crate) overruled: Vec<Overruled>,
    /// Variables keyed by an index that is not known for this device, and that would hold if it
    /// were theirs. Not empty: the limits above may be wrong, and must not be used.
    pub(crate) unresolved: Vec<String>,
    /// Settings that cannot be meant together. Set: the limits above must not be used.
    pub(crate) conflict: Option<String>,
}

impl Limits {
    /// The limits in the form of the session's page, on a device of `total` bytes.
    ///
    /// # Errors
    /// What contradicts what, or what has to be known.
    pub(crate) fn session(&self, total: Option<u64>) -> Result<SessionLimits, String> {
        let bytes = |amount: Amount, source: &str| {
            amount.of(total).filter(|bytes| *bytes > 0).ok_or_else(|| match total {
                Some(total) => format!("{source}: {amount} of {} is nothing", Size(total)),
                None => format!("{source}: {amount} of a device whose size cannot be found out"),
            })
        };
        let mut session = SessionLimits::default();
        if let Some(memory) = &self.memory {
            session.memory = bytes(memory.value, &memory.source)?;
            session.memory_real = match &self.real {
                None => NO_LIMIT,
                Some(Sourced { value: Real::Amount(amount), source }) => {
                    let real = bytes(*amount, source)?;
                    if real > session.memory {
                        return Err(format!(
                            "{source}: {} is more than the memory limit, {} ({})",
                            Size(real),
                            Size(session.memory),
                            memory.source,
                        ));
                    }
                    real
                }
                Some(Sourced { value: Real::Ratio(millionths), .. }) => {
                    let whole = u128::from(session.memory) * u128::from(PPM_ONE);
                    let real = whole / u128::from(*millionths).max(1);
                    u64::try_from(real).unwrap_or(session.memory).clamp(1, session.memory)
                }
                Some(Sourced { value: Real::Device, source }) => total
                    .ok_or_else(|| format!("{source}: the device's size cannot be found out"))?,
            };
        }
        if let Some(share) = &self.share {
            session.share_ppm = share.ppm.value;
            session.policy = share.policy;
            session.soft_share_ppm = share.soft_ppm.as_ref().map(|soft| soft.value);
            session.weight = share.weight;
            session.priority = share.priority;
        }
        Ok(session)
    }
}

impl fmt::Display for Limits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.memory {
            Some(memory) => write!(f, "memory {memory}")?,
            None => f.write_str("memory unlimited")?,
        }
        if let Some(real) = &self.real {
            write!(f, ", on the device {real}")?;
        }
        match (&self.share, &self.share_lifted_by) {
            (Some(share), _) => share.fmt(f)?,
            (None, Some(variable)) => write!(f, ", compute unlimited ({variable})")?,
            (None, None) => f.write_str(", compute unlimited")?,
        }
        if !self.unresolved.is_empty() {
            let names = self.unresolved.join(", ");
            write!(f, ", undecided for want of the device's index: {names}")?;
        }
        match &self.conflict {
            Some(conflict) => write!(f, ", refused: {conflict}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, ", compute {} ({})", Percent(self.ppm.value), self.ppm.source)?;
        if self.policy == Policy::Balance {
            f.write_str(" guaranteed")?;
            if let Some(soft) = &self.soft_ppm {
                write!(f, ", at most {} ({})", Percent(soft.value), soft.source)?;
            }
            write!(f, ", weight {}", self.weight)?;
        }
        if self.priority == Priority::Low { f.write_str(", priority low") } else { Ok(()) }
    }
}
