//! The meaning of a compute share, and priorities.

use core::fmt;
use core::str::FromStr;

use serde::{Deserialize, Serialize};

/// The meaning of a compute share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, Default)]
#[serde(rename_all = "lowercase")]
pub enum Policy {
    /// The session never gets more than the share.
    #[default]
    Fixed,
    /// The share is guaranteed, and idle time of other sessions is added.
    Balance,
    /// No compute limit.
    None,
}

/// Whether a session gives way to others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, Default)]
#[serde(rename_all = "lowercase")]
pub enum Priority {
    /// The session does not give way.
    #[default]
    High,
    /// The session runs when no session of high priority wants the device. A small share is guaranteed, so that it does
    /// not starve.
    Low,
}

/// The word is not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected {accepted}")]
pub struct UnknownWord {
    /// The accepted words.
    pub accepted: &'static str,
}

impl Policy {
    /// The policy's word.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fixed => "fixed",
            Self::Balance => "balance",
            Self::None => "none",
        }
    }
}

impl FromStr for Policy {
    type Err = UnknownWord;

    /// Parses the word, in any case.
    fn from_str(text: &str) -> Result<Self, UnknownWord> {
        [Self::Fixed, Self::Balance, Self::None]
            .into_iter()
            .find(|policy| policy.name().eq_ignore_ascii_case(text))
            .ok_or(UnknownWord { accepted: "fixed, balance or none" })
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Priority {
    /// The priority's word.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::High => "high",
            Self::Low => "low",
        }
    }
}

impl FromStr for Priority {
    type Err = UnknownWord;

    /// Parses the word, in any case.
    fn from_str(text: &str) -> Result<Self, UnknownWord> {
        [Self::High, Self::Low]
            .into_iter()
            .find(|priority| priority.name().eq_ignore_ascii_case(text))
            .ok_or(UnknownWord { accepted: "high or low" })
    }
}

impl fmt::Display for Priority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_read_in_any_case_and_written_in_one() {
        for policy in [Policy::Fixed, Policy::Balance, Policy::None] {
            assert_eq!(policy.name().to_uppercase().parse(), Ok(policy));
            assert_eq!(policy.to_string(), policy.name());
        }
        for priority in [Priority::High, Priority::Low] {
            assert_eq!(priority.name().to_uppercase().parse(), Ok(priority));
        }
        assert!("fair".parse::<Policy>().unwrap_err().to_string().contains("balance"));
        assert!("middle".parse::<Priority>().unwrap_err().to_string().contains("low"));
    }
}
