//! What a client is called.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The most bytes of a name.
const LONGEST: usize = 128;

/// The name of a client: 1 to 128 ASCII letters, digits, `-`, `_` and `.`
///
/// ```
/// use http_bidir_comm::ClientName;
/// let name: ClientName = "worker-17".parse()?;
/// assert_eq!(name.as_str(), "worker-17");
/// assert!("worker 17".parse::<ClientName>().is_err());
/// # Ok::<(), http_bidir_comm::NotAClientName>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ClientName(String);

/// A text that cannot be a client's name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{beginning:?} with {bytes} bytes is not a client's name: 1 to {LONGEST} ASCII letters, digits, \
     `-`, `_` and `.` are accepted"
)]
pub struct NotAClientName {
    /// Its first characters.
    pub beginning: String,
    /// Its length.
    pub bytes: usize,
}

impl ClientName {
    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for ClientName {
    type Err = NotAClientName;

    fn from_str(text: &str) -> Result<Self, NotAClientName> {
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
        if text.is_empty() || text.len() > LONGEST || !text.bytes().all(fits) {
            let beginning = text.chars().take(40).collect();
            return Err(NotAClientName { beginning, bytes: text.len() });
        }
        Ok(Self(text.to_owned()))
    }
}

impl TryFrom<String> for ClientName {
    type Error = NotAClientName;

    fn try_from(text: String) -> Result<Self, NotAClientName> {
        text.parse()
    }
}

impl From<ClientName> for String {
    fn from(name: ClientName) -> Self {
        name.0
    }
}

impl fmt::Display for ClientName {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_can_stand_in_an_address() {
        for good in ["a", "GPU-0.worker_1", &"x".repeat(128)] {
            assert_eq!(good.parse::<ClientName>().unwrap().as_str(), good);
        }
        for bad in ["", " ", "a b", "a/b", "a?b", "a&b", "a%20", "ä", "a\n", &"x".repeat(129)] {
            let error = bad.parse::<ClientName>().unwrap_err().to_string();
            assert!(error.contains("1 to 128"), "{error}");
            let json = serde_json::to_string(bad).unwrap();
            assert!(serde_json::from_str::<ClientName>(&json).is_err(), "{bad}");
        }
    }
}
