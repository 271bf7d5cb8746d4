//! The compute limit: a session's limit of a device's time. Part of [`Limits`](crate::Limits).

use core::fmt;

use serde::{Deserialize, Serialize};

use crate::turns::LOW_PRIORITY_PPM;
use crate::units::{MAX_WEIGHT, PPM_ONE, Percent};
use crate::{Policy, Priority};

/// A session's limit of one device's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ComputeLimit {
    /// Share of the device's time, in millionths (250_000 = 25 %). Meaningless under [`Policy::None`].
    pub share_ppm: u32,
    /// What the share means.
    pub policy: Policy,
    /// Under [`Policy::Balance`]: the burst limit, in millionths; `None`: no burst limit. A value below the share
    /// counts as the share.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub soft_ppm: Option<u32>,
    /// Under [`Policy::Balance`]: weight for dividing idle time among sessions; at least 1.
    #[serde(default = "one")]
    pub weight: u32,
    /// Whether sessions of high priority come first.
    #[serde(default)]
    pub priority: Priority,
}

const fn one() -> u32 {
    1
}

/// A value of a [`ComputeLimit`] is out of range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} {value}: expected 1 to {most}")]
pub struct OutOfRange {
    /// Name of the field in messages.
    pub field: &'static str,
    /// Its value.
    pub value: u32,
    /// Largest accepted value.
    pub most: u32,
}

impl ComputeLimit {
    /// No limit.
    pub const NONE: Self = Self { policy: Policy::None, ..Self::fixed(PPM_ONE) };

    /// A share that is never exceeded.
    #[must_use]
    pub const fn fixed(share_ppm: u32) -> Self {
        let (policy, priority) = (Policy::Fixed, Priority::High);
        Self { share_ppm, policy, soft_ppm: None, weight: 1, priority }
    }

    /// A guaranteed share, plus idle time.
    #[must_use]
    pub const fn balance(share_ppm: u32, weight: u32) -> Self {
        Self { policy: Policy::Balance, weight, ..Self::fixed(share_ppm) }
    }

    /// Whether there is a limit.
    #[must_use]
    pub fn is_limit(&self) -> bool {
        self.policy != Policy::None
    }

    /// Checks that every value is in range. Without a limit, the share is not checked.
    ///
    /// # Errors
    /// The first field that is out of range.
    pub fn check(&self) -> Result<(), OutOfRange> {
        let share = self.is_limit().then_some(("share_ppm", self.share_ppm, PPM_ONE));
        let soft = self.soft_ppm.map(|soft| ("soft_ppm", soft, PPM_ONE));
        let weight = Some(("weight", self.weight, MAX_WEIGHT));
        match [share, soft, weight]
            .into_iter()
            .flatten()
            .find(|(_, value, most)| !(1..=*most).contains(value))
        {
            Some((field, value, most)) => Err(OutOfRange { field, value, most }),
            None => Ok(()),
        }
    }

    /// The nearest limit with all values in range.
    #[must_use]
    pub fn in_range(self) -> Self {
        Self {
            share_ppm: self.share_ppm.clamp(1, PPM_ONE),
            soft_ppm: self.soft_ppm.map(|soft| soft.clamp(1, PPM_ONE)),
            weight: self.weight.clamp(1, MAX_WEIGHT),
            ..self
        }
    }

    /// The guaranteed share: at low priority at most [`LOW_PRIORITY_PPM`].
    #[must_use]
    pub fn guaranteed_ppm(&self) -> u32 {
        let share = self.share_ppm.min(PPM_ONE);
        match self.priority {
            Priority::High => share,
            Priority::Low => share.min(LOW_PRIORITY_PPM),
        }
    }

    /// The share that guaranteed and idle time together do not exceed; `None`: no bound.
    #[must_use]
    pub fn ceiling_ppm(&self) -> Option<u32> {
        let share = self.share_ppm.min(PPM_ONE);
        match (self.policy, self.priority) {
            (Policy::Balance, _) => self.soft_ppm.map(|soft| soft.clamp(share, PPM_ONE)),
            (Policy::Fixed | Policy::None, Priority::Low) => Some(share),
            // Such a session gets only guaranteed time, which needs no further bound.
            (Policy::Fixed | Policy::None, Priority::High) => None,
        }
    }

    /// Whether the session may use more than its guaranteed share.
    #[must_use]
    pub fn takes_spare(&self) -> bool {
        self.policy == Policy::Balance || self.priority == Priority::Low
    }
}

impl fmt::Display for ComputeLimit {
    /// For example `30% guaranteed, at most 60%, weight 30`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let share = Percent(self.share_ppm);
        match self.policy {
            Policy::None => return f.write_str("no limit"),
            Policy::Fixed => write!(f, "{share} fixed")?,
            Policy::Balance => {
                write!(f, "{share} guaranteed")?;
                if let Some(soft) = self.soft_ppm {
                    write!(f, ", at most {}", Percent(soft))?;
                }
                write!(f, ", weight {}", self.weight)?;
            }
        }
        if self.priority == Priority::Low { f.write_str(", priority low") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_out_of_range_is_named() {
        let balance = ComputeLimit::balance(250_000, 1);
        assert_eq!(balance.check(), Ok(()));
        let wrong = |limit: ComputeLimit| limit.check().unwrap_err();
        for ppm in [0, 1_000_001, u32::MAX] {
            let share = wrong(ComputeLimit { share_ppm: ppm, ..balance });
            assert_eq!((share.field, share.value), ("share_ppm", ppm));
            let soft = wrong(ComputeLimit { soft_ppm: Some(ppm), ..balance });
            assert_eq!(soft.to_string(), format!("soft_ppm {ppm}: expected 1 to 1000000"));
        }
        for weight in [0, 10_001, u32::MAX] {
            let weighty = wrong(ComputeLimit { weight, ..balance });
            assert_eq!(weighty.to_string(), format!("weight {weight}: expected 1 to 10000"));
        }
        assert_eq!(ComputeLimit { share_ppm: 0, ..ComputeLimit::NONE }.check(), Ok(()));
    }

    #[test]
    fn in_words() {
        assert_eq!(ComputeLimit::NONE.to_string(), "no limit");
        let limit = ComputeLimit {
            soft_ppm: Some(600_000),
            priority: Priority::Low,
            ..ComputeLimit::balance(125_000, 13)
        };
        assert_eq!(limit.to_string(), "12.5% guaranteed, at most 60%, weight 13, priority low");
        assert_eq!(ComputeLimit::fixed(125_000).to_string(), "12.5% fixed");
    }

    proptest! {
        #[test]
        fn the_nearest_limit_is_one(
            share_ppm in any::<u32>(), soft_ppm in any::<Option<u32>>(), weight in any::<u32>(),
        ) {
            let any = ComputeLimit { soft_ppm, ..ComputeLimit::balance(share_ppm, weight) };
            let near = any.in_range();
            prop_assert_eq!(near.check(), Ok(()));
            prop_assert_eq!(near.in_range(), near);
            if any.check().is_ok() {
                prop_assert_eq!(near, any);
            }
            // Bounds that the arithmetic of shares relies on, also for unchecked values.
            let least = any.guaranteed_ppm();
            prop_assert!(least <= PPM_ONE);
            let bounds = least..=PPM_ONE;
            prop_assert!(any.ceiling_ppm().is_none_or(|most| bounds.contains(&most)));
        }
    }
}
