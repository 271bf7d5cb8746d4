//! How a compute share is meant, and who makes room for whom.

use serde::{Deserialize, Serialize};

/// How a compute share is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, Default)]
#[serde(rename_all = "lowercase")]
pub enum Policy {
    /// Never above the share.
    #[default]
    Fixed,
    /// The share is guaranteed whenever it is wanted; time that nobody else wants comes on top.
    Balance,
    /// No compute limit.
    None,
}

/// Whether a session makes room for others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, Default)]
#[serde(rename_all = "lowercase")]
pub enum Priority {
    /// It does not.
    #[default]
    High,
    /// It runs in what sessions of high priority leave, apart from a small part that keeps it from
    /// starving.
    Low,
}
