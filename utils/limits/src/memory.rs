//! The memory limit: a session's limit of a device's memory. Part of [`Limits`](crate::Limits).

use core::fmt;

use crate::units::{Amount, PPM_ONE, Size};

/// A session's limit of one device's memory, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MemoryLimit {
    /// The total limit.
    pub limit: u64,
    /// The part of the limit that may be on the device; `None`: all of it. The rest is placed on the host. A value
    /// above the limit is kept for when the limit grows.
    pub real: Option<u64>,
}

impl MemoryLimit {
    /// A limit without a part on the host.
    #[must_use]
    pub const fn new(limit: u64) -> Self {
        Self { limit, real: None }
    }

    /// Bytes that may be on the device.
    #[must_use]
    pub fn on_device(&self) -> u64 {
        self.real.map_or(self.limit, |real| real.min(self.limit))
    }
}

impl fmt::Display for MemoryLimit {
    /// For example `8GiB (6GiB on the device)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Size(self.limit).fmt(f)?;
        match self.on_device() {
            all if all == self.limit => Ok(()),
            part => write!(f, " ({} on the device)", Size(part)),
        }
    }
}

/// The part of a memory limit that may be on the device, as requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// This amount.
    Amount(Amount),
    /// The limit divided by this ratio, in millionths.
    Ratio(u64),
    /// The size of the device.
    Device,
}

impl Part {
    /// The part in bytes, of a limit on a device of `total` bytes. `None`: needs `total`.
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
