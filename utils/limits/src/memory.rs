//! The limit of a device's memory.

use core::fmt;

use crate::units::{Amount, PPM_ONE, Size};

/// What a session may take of one device's memory, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MemoryLimit {
    /// All that it may have.
    pub limit: u64,
    /// How much of it may be on the device, if that is set; the rest is placed on the host. It may
    /// be more than the limit: then it is kept for when the limit grows.
    pub real: Option<u64>,
}

impl MemoryLimit {
    /// A limit, all of which may be on the device.
    #[must_use]
    pub const fn new(limit: u64) -> Self {
        Self { limit, real: None }
    }

    /// How much may be on the device.
    #[must_use]
    pub fn on_device(&self) -> u64 {
        self.real.map_or(self.limit, |real| real.min(self.limit))
    }
}

impl fmt::Display for MemoryLimit {
    /// As in `8GiB (6GiB on the device)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Size(self.limit).fmt(f)?;
        match self.on_device() {
            all if all == self.limit => Ok(()),
            part => write!(f, " ({} on the device)", Size(part)),
        }
    }
}

/// How much of a memory limit may be on the device, as a user asks for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// This amount.
    Amount(Amount),
    /// The limit, divided by this many millionths.
    Ratio(u64),
    /// As much as the device has.
    Device,
}

impl Part {
    /// The part in bytes, of a limit on a device of `total` bytes. `None`: `total` would have to be
    /// known.
    #[must_use]
    pub fn of(self, limit: u64, total: Option<u64>) -> Option<u64> {
        match self {
            Self::Amount(amount) => amount.of(total),
            Self::Ratio(millionths) => {
                let whole = u128::from(limit) * u128::from(PPM_ONE);
                let part = whole / u128::from(millionths).max(1);
                Some(u64::try_from(part).unwrap_or(limit).clamp(1, limit.max(1)))
            }
            Self::Device => total,
        }
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Amount(amount) => amount.fmt(f),
            #[allow(clippy::cast_precision_loss, reason = "for people")]
            Self::Ratio(millionths) => write!(f, "1/{}", *millionths as f64 / f64::from(PPM_ONE)),
            Self::Device => f.write_str("the device's size"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_words() {
        let hosted = MemoryLimit { limit: 8 << 30, real: Some(6 << 30) };
        assert_eq!(hosted.to_string(), "8GiB (6GiB on the device)");
        for real in [None, Some(8 << 30), Some(9 << 30)] {
            assert_eq!(MemoryLimit { real, ..hosted }.to_string(), "8GiB");
            assert_eq!(MemoryLimit { real, ..hosted }.on_device(), 8 << 30);
        }
    }

    #[test]
    fn parts() {
        assert_eq!(Part::Ratio(2_000_000).of(24, None), Some(12));
        assert_eq!(Part::Ratio(u64::MAX).of(24, None), Some(1));
        assert_eq!(Part::Ratio(0).of(24, None), Some(24));
        assert_eq!([None, Some(5)].map(|total| Part::Device.of(24, total)), [None, Some(5)]);
        assert_eq!(Part::Amount(Amount::Ppm(500_000)).of(24, Some(10)), Some(5));
        assert_eq!(Part::Ratio(1_500_000).to_string(), "1/1.5");
    }
}
