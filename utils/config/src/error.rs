//! What can be wrong with the configuration.

use core::fmt;
use limits::RequestError;
use limits::shown::Cut;

/// Characters of a value that an error shows.
const SHOWN: usize = 160;

/// A variable whose value cannot be used. It is displayed on one line, whatever the value contains.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The value does not have the variable's form.
    #[error("{}={}: {problem}; expected {accepted}", OneLine(variable), OneLine(value))]
    Value {
        /// Name as set, index included.
        variable: String,
        /// The value.
        value: String,
        /// What is wrong with it.
        problem: String,
        /// What would be right.
        accepted: &'static str,
    },
    /// The value is not UTF-8.
    #[error("{}: the value is not UTF-8; expected {accepted}", OneLine(variable))]
    NotText {
        /// Name as set, index included.
        variable: String,
        /// What would be right.
        accepted: &'static str,
    },
    /// A name that starts like an indexed variable but does not end in an index.
    #[error(
        "{}: '{}' is not a device index; expected {base}, {base}_0, {base}_1, ...",
        OneLine(variable),
        OneLine(index)
    )]
    Index {
        /// Name as set.
        variable: String,
        /// What follows the base.
        index: String,
        /// Name without index.
        base: &'static str,
    },
    /// A name with an index, of a variable that takes none.
    #[error(
        "{}: {base} takes no index; expected {base} itself, set to {accepted}",
        OneLine(variable)
    )]
    NoIndex {
        /// Name as set.
        variable: String,
        /// Name without index.
        base: &'static str,
        /// What its value would be.
        accepted: &'static str,
    },
    /// Values that are valid alone but contradict each other.
    #[error(transparent)]
    Conflict(#[from] RequestError),
    /// One of two variables that need each other.
    #[error("{set} is set, but {missing} is not; set both or neither")]
    Incomplete {
        /// The one that is set.
        set: &'static str,
        /// The one that is not.
        missing: &'static str,
    },
}

/// Shows a text on one line: control characters escaped, long texts cut.
pub(super) struct OneLine<'a>(pub(super) &'a str);

impl fmt::Display for OneLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Cut(self.0, SHOWN).fmt(f)
    }
}
