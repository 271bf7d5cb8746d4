//! Device health: derived by [`Model`](crate::Model) from readings and XIDs.
//!
//! A device that has shown a fault stays unhealthy even if the fault disappears, until an operator declares it healthy.

use core::fmt;

use crate::reading::{DeviceReading, Unread};
use crate::xid::{Xid, XidClass};

/// Whether a device may be given work.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Health {
    /// No fault is known.
    #[default]
    Healthy,
    /// At least one fault is known.
    Unhealthy(Vec<Ailment>),
}

impl Health {
    /// Whether no fault is known.
    #[must_use]
    pub const fn is_healthy(&self) -> bool {
        matches!(self, Self::Healthy)
    }

    /// The known faults in words; `None` if healthy.
    #[must_use]
    pub fn reason(&self) -> Option<String> {
        match self {
            Self::Healthy => None,
            Self::Unhealthy(ailments) => {
                let all: Vec<_> = ailments.iter().map(Ailment::to_string).collect();
                Some(all.join("; "))
            }
        }
    }
}

/// A device's fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ailment {
    /// The driver reported an error that no program can cause.
    Xid(Xid),
    /// Number of uncorrectable ECC errors since the daemon first saw the device, or since it was last declared healthy.
    Uncorrected(u64),
    /// The device no longer answers.
    Lost,
    /// The device answers nothing until it is reset.
    NeedsReset,
    /// The driver no longer lists the device.
    Missing,
}

impl Ailment {
    /// Whether both are the same kind of fault, possibly with different counts.
    fn is_like(self, other: Self) -> bool {
        self == other || matches!((self, other), (Self::Uncorrected(_), Self::Uncorrected(_)))
    }
}

impl fmt::Display for Ailment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Xid(xid) => write!(f, "{xid}"),
            Self::Uncorrected(1) => f.write_str("1 ECC error could not be corrected"),
            Self::Uncorrected(count) => write!(f, "{count} ECC errors could not be corrected"),
            Self::Lost => f.write_str("it does not answer: the device is lost"),
            Self::NeedsReset => f.write_str("it does not answer: the device needs a reset"),
            Self::Missing => f.write_str("the driver no longer lists the device"),
        }
    }
}

/// The known faults of one device.
#[derive(Clone, Debug, Default)]
pub(crate) struct Record {
    health: Health,
    /// Uncorrectable errors when the device was first seen, or last declared healthy.
    baseline: Option<u64>,
    /// Uncorrectable errors in the latest reading.
    last: Option<u64>,
}

impl Record {
    pub(crate) const fn health(&self) -> &Health {
        &self.health
    }

    /// Evaluates a reading. Returns a new or increased fault.
    pub(crate) fn read(&mut self, reading: &DeviceReading) -> Option<Ailment> {
        let silent = reading.does_not_answer().map(|why| match why {
            Unread::NeedsReset => Ailment::NeedsReset,
            _ => Ailment::Lost,
        });
        silent.or_else(|| self.count(reading)).and_then(|ailment| self.add(ailment))
    }

    /// Compares the count of uncorrectable errors with the baseline.
    fn count(&mut self, reading: &DeviceReading) -> Option<Ailment> {
        let count = *reading.ecc.uncorrected.as_ref().ok()?;
        // A reload of the driver resets the count.
        let baseline = self.baseline.map_or(count, |baseline| baseline.min(count));
        (self.baseline, self.last) = (Some(baseline), Some(count));
        (count > baseline).then(|| Ailment::Uncorrected(count - baseline))
    }

    /// Records an error from the driver. Returns a new fault.
    pub(crate) fn xid(&mut self, xid: Xid) -> Option<Ailment> {
        match xid.class() {
            XidClass::Application => None,
            XidClass::Critical => self.add(Ailment::Xid(xid)),
        }
    }

    /// Records that the driver no longer lists the device. Returns a new fault.
    pub(crate) fn missing(&mut self) -> Option<Ailment> {
        self.add(Ailment::Missing)
    }

    /// Clears the faults; `false` if there were none.
    pub(crate) fn heal(&mut self) -> bool {
        self.baseline = self.last;
        !core::mem::take(&mut self.health).is_healthy()
    }

    fn add(&mut self, ailment: Ailment) -> Option<Ailment> {
        match &mut self.health {
            Health::Healthy => self.health = Health::Unhealthy(vec![ailment]),
            Health::Unhealthy(known) => {
                if let Some(known) = known.iter_mut().find(|known| known.is_like(ailment)) {
                    let more = *known != ailment;
                    *known = ailment;
                    return more.then_some(ailment);
                }
                known.push(ailment);
            }
        }
        Some(ailment)
    }
}
