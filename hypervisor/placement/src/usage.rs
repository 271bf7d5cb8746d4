//! A pod's use of its namespace's quota.

use core::num::NonZeroU32;
use core::ops::Add;

use dialects::Dialect;

/// Amounts over all GPUs of a pod's containers, in the units of their dialect's resources.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Places on GPUs.
    pub number: u64,
    /// Cores: percent of a GPU's compute.
    pub cores: u64,
    /// Memory units.
    pub memory: u64,
}

impl Usage {
    /// The memory units that pods of a dialect would request. `text`: the amount in the dialect's annotations.
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
