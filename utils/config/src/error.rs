//! Errors in the configuration.

use core::fmt;
use limits::RequestError;
use limits::shown::Cut;

/// Characters of a value that an error shows.
const SHOWN: usize = 160;

/// A variable with an unusable value. Displayed on one line, whatever the value contains.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The value does not have the expected form.
    #[error("{}={}: {problem}; expected {accepted}", OneLine(variable), OneLine(value))]
    Value {
        /// Name as set, including the index.
        variable: String,
        /// The value.
        value: String,
        /// What is wrong with it.
        problem: String,
        /// What would be accepted.
        accepted: &'static str,
    },
    /// The value is not UTF-8.
    #[error("{}: the value is not UTF-8; expected {accepted}", OneLine(variable))]
    NotText {
        /// Name as set, including the index.
        variable: String,
        /// What would be accepted.
        accepted: &'static str,
    },
    /// The name continues like an indexed variable, but not with an index.
    #[error(
        "{}: '{}' is not a device index; expected {base}, {base}_0, {base}_1, ...",
        OneLine(variable),
        OneLine(index)
    )]
    Index {
        /// Name as set.
        variable: String,
        /// The text in place of the index.
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
        /// What its value would have to be.
        accepted: &'static str,
    },
    /// Values that are valid by themselves but contradict each other.
    #[error(transparent)]
    Conflict(#[from] RequestError),
    /// Two variables that require each other, with only one set.
    #[error("{set} is set, but {missing} is not; set both or neither")]
    Incomplete {
        /// The variable that is set.
        set: &'static str,
        /// The variable that is not set.
        missing: &'static str,
    },
}

/// Shows text on one line: control characters escaped, long text cut.
pub(super) struct OneLine<'a>(pub(super) &'a str);

impl fmt::Display for OneLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Cut(self.0, SHOWN).fmt(f)
    }
}
