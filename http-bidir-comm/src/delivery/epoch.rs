//! Telling sequences of tasks and runs of clients apart, and a place in a sequence.

use std::collections::VecDeque;
use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::str::FromStr;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

/// A random number that tells one sequence of tasks from the next, or one run of a client.
/// Written as 16 hexadecimal digits, because not every reader of JSON knows 64 bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct Epoch(pub(crate) u64);

#[derive(Debug, thiserror::Error)]
#[error("an epoch is written as 16 hexadecimal digits")]
pub(crate) struct NotAnEpoch;

impl Epoch {
    /// A number that no other epoch has. The process and the time are part of it, because a forked
    /// child continues its parent's sequence of random numbers.
    pub(crate) fn random() -> Self {
        Self(random())
    }
}

/// A random number, without a package for it. It is no secret.
pub(crate) fn random() -> u64 {
    let mut hasher = RandomState::new().build_hasher();
    hasher.write_u32(std::process::id());
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    hasher.write_u128(since.as_nanos());
    hasher.finish()
}

impl fmt::Display for Epoch {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{:016x}", self.0)
    }
}

impl fmt::Debug for Epoch {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{self}")
    }
}

impl FromStr for Epoch {
    type Err = NotAnEpoch;

    fn from_str(text: &str) -> Result<Self, NotAnEpoch> {
        let hexadecimal = text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let number = hexadecimal.then(|| u64::from_str_radix(text, 16).ok()).flatten();
        number.map(Self).ok_or(NotAnEpoch)
    }
}

impl TryFrom<String> for Epoch {
    type Error = NotAnEpoch;

    fn try_from(text: String) -> Result<Self, NotAnEpoch> {
        text.parse()
    }
}

impl From<Epoch> for String {
    fn from(epoch: Epoch) -> Self {
        epoch.to_string()
    }
}

/// Up to which task of which sequence a client is done. Written `EPOCH-NUMBER`, which is also the id
/// of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct Cursor {
    pub(crate) epoch: Epoch,
    pub(crate) after: u64,
}

#[derive(Debug, thiserror::Error)]
#[error("a cursor is written as an epoch's 16 hexadecimal digits, `-`, and a task's number")]
pub(crate) struct NotACursor;

impl fmt::Display for Cursor {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}-{}", self.epoch, self.after)
    }
}

impl FromStr for Cursor {
    type Err = NotACursor;

    fn from_str(text: &str) -> Result<Self, NotACursor> {
        let (epoch, after) = text.split_once('-').ok_or(NotACursor)?;
        let epoch = epoch.parse().map_err(|_| NotACursor)?;
        Ok(Self { epoch, after: after.parse().map_err(|_| NotACursor)? })
    }
}

impl TryFrom<String> for Cursor {
    type Error = NotACursor;

    fn try_from(text: String) -> Result<Self, NotACursor> {
        text.parse()
    }
}

impl From<Cursor> for String {
    fn from(cursor: Cursor) -> Self {
        cursor.to_string()
    }
}

/// How many epochs that are over are remembered.
const REMEMBERED: usize = 8;

/// The epochs of the other side. The newest counts; what one before it said, and arrives late, does
/// not.
#[derive(Debug, Default)]
pub(crate) struct Epochs {
    current: Option<Epoch>,
    past: VecDeque<Epoch>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    Current,
    /// It takes the place of the one before.
    New,
    Past,
}

impl Epochs {
    #[cfg(any(feature = "client", test))]
    pub(crate) fn current(&self) -> Option<Epoch> {
        self.current
    }

    pub(crate) fn look(&self, epoch: Epoch) -> Seen {
        if self.current == Some(epoch) {
            Seen::Current
        } else if self.past.contains(&epoch) {
            Seen::Past
        } else {
            Seen::New
        }
    }

    /// The same; a new epoch becomes the current one.
    pub(crate) fn see(&mut self, epoch: Epoch) -> Seen {
        let seen = self.look(epoch);
        if seen == Seen::New {
            if let Some(before) = self.current.replace(epoch) {
                self.past.push_back(before);
            }
            if self.past.len() > REMEMBERED {
                self.past.pop_front();
            }
        }
        seen
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_epoch_that_is_over_does_not_come_back() {
        let mut epochs = Epochs::default();
        assert_eq!(epochs.see(Epoch(1)), Seen::New);
        assert_eq!(epochs.see(Epoch(1)), Seen::Current);
        assert_eq!(epochs.see(Epoch(2)), Seen::New);
        assert_eq!(epochs.see(Epoch(1)), Seen::Past);
        assert_eq!(epochs.current(), Some(Epoch(2)));
        (3..1000).for_each(|run| assert_eq!(epochs.see(Epoch(run)), Seen::New));
        assert_eq!(epochs.past.len(), REMEMBERED);
    }

    #[test]
    fn epochs_differ() {
        assert_ne!(Epoch::random(), Epoch::random());
    }

    proptest! {
        #[test]
        fn a_cursor_is_read_as_it_was_written(run in any::<u64>(), after in any::<u64>()) {
            let cursor = Cursor { epoch: Epoch(run), after };
            prop_assert_eq!(cursor.to_string().parse::<Cursor>().unwrap(), cursor);
            let json = serde_json::to_string(&cursor).unwrap();
            prop_assert_eq!(serde_json::from_str::<Cursor>(&json).unwrap(), cursor);
        }

        #[test]
        fn any_text_is_read_or_refused(text in "[0-9a-fA-F+ä]{0,18}-?[-+0-9]{0,22}") {
            if let Ok(cursor) = text.parse::<Cursor>() {
                prop_assert_eq!(cursor.epoch.to_string(), text[..16].to_lowercase());
            }
        }
    }
}
