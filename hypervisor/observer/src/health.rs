//! Whether a device can be trusted with work.
//!
//! A device that has once shown a fault stays unhealthy, whatever it shows later: a fault that comes and goes is
//! a fault. It is healthy again when its operator says so.

use core::fmt;

use crate::reading::{DeviceReading, Unread};
use crate::xid::{Xid, XidClass};

/// Whether a device can be trusted with work.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Health {
    /// Nothing is known against it.
    #[default]
    Healthy,
    /// Something is.
    Unhealthy(Vec<Ailment>),
}

impl Health {
    /// Whether nothing is known against it.
    #[must_use]
    pub const fn is_healthy(&self) -> bool {
        matches!(self, Self::Healthy)
    }

    /// What is known against it, in words.
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

/// What is known against a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ailment {
    /// The driver reported an error that is not a program's.
    Xid(Xid),
    /// So many errors in its memory could not be corrected since the daemon first saw it.
    Uncorrected(u64),
    /// It does not answer any more.
    Lost,
    /// It answers nothing before it is reset.
    NeedsReset,
    /// The driver does not list it any more.
    Missing,
}

impl Ailment {
    /// Whether it is the same trouble, if perhaps more of it.
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
            Self::Missing => f.write_str("the driver does not list it any more"),
        }
    }
}

/// Gathers what is known against one device.
#[derive(Clone, Debug, Default)]
pub(crate) struct Record {
    health: Health,
    /// Errors that could not be corrected when it was first seen, or last declared healthy.
    baseline: Option<u64>,
    /// Those that there were last.
    last: Option<u64>,
}

impl Record {
    pub(crate) const fn health(&self) -> &Health {
        &self.health
    }

    /// Takes what the device shows. Returns what is new against it.
    pub(crate) fn read(&mut self, reading: &DeviceReading) -> Option<Ailment> {
        let silent = reading.does_not_answer().map(|why| match why {
            Unread::NeedsReset => Ailment::NeedsReset,
            _ => Ailment::Lost,
        });
        silent.or_else(|| self.count(reading)).and_then(|ailment| self.add(ailment))
    }

    /// Compares the count with the one at the beginning.
    fn count(&mut self, reading: &DeviceReading) -> Option<Ailment> {
        let count = *reading.ecc.uncorrected.as_ref().ok()?;
        // It begins anew with the driver.
        let baseline = self.baseline.map_or(count, |baseline| baseline.min(count));
        (self.baseline, self.last) = (Some(baseline), Some(count));
        (count > baseline).then(|| Ailment::Uncorrected(count - baseline))
    }

    /// The driver has reported an error. Returns what is new against the device.
    pub(crate) fn xid(&mut self, xid: Xid) -> Option<Ailment> {
        match xid.class() {
            XidClass::Application => None,
            XidClass::Critical => self.add(Ailment::Xid(xid)),
        }
    }

    /// The driver does not list it any more.
    pub(crate) fn missing(&mut self) -> Option<Ailment> {
        self.add(Ailment::Missing)
    }

    /// Forgets what is known against it. `false`: nothing was.
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
