//! What pods have of a namespace's quota.

use core::num::NonZeroU32;
use core::ops::Add;

use dialects::Dialect;

/// Amounts over all GPUs of a pod's containers, in the units of their dialect's resources.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Places on GPUs.
    pub number: u64,
    /// Hundredths of their time.
    pub cores: u64,
    /// Units of their memory.
    pub memory: u64,
}

impl Usage {
    /// MiB as pods of a dialect request them on nodes of this memory factor. `text`: in the units of its annotations.
    pub(crate) fn units(dialect: Dialect, text: u64, factor: NonZeroU32) -> u64 {
        let mib = text.saturating_mul(dialect.text_unit(factor));
        mib.div_ceil(factor.get().into())
    }

    pub(crate) fn max(self, other: Self) -> Self {
        Self {
            number: self.number.max(other.number),
            cores: self.cores.max(other.cores),
            memory: self.memory.max(other.memory),
        }
    }
}

impl Add for Usage {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            number: self.number.saturating_add(other.number),
            cores: self.cores.saturating_add(other.cores),
            memory: self.memory.saturating_add(other.memory),
        }
    }
}
