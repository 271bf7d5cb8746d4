//! Device faults injected by tests: lines in a file beside the node's.
//!
//! ```text
//! xid DEVICE NUMBER
//! ecc DEVICE corrected|uncorrected COUNT
//! lost DEVICE
//! ```
//!
//! Each line is one occurrence; a test appends further ones. A lost device stays lost until its line is removed.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::str::SplitAsciiWhitespace;

/// A fault of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The driver reports an XID.
    Xid {
        /// Device ordinal.
        device: u32,
        /// Number of the XID.
        number: u64,
    },
    /// ECC errors.
    Ecc {
        /// Device ordinal.
        device: u32,
        /// Whether the errors were corrected.
        corrected: bool,
        /// Number of errors.
        count: u64,
    },
    /// The device does not answer.
    Lost {
        /// Device ordinal.
        device: u32,
    },
}

/// Path of a node's file of faults.
#[must_use]
pub fn file_of(node: &Path) -> PathBuf {
    let mut name = node.as_os_str().to_owned();
    name.push(".faults");
    name.into()
}

/// Reads a node's faults. An unterminated last line is ignored as incomplete.
///
/// # Errors
/// The file cannot be read, or a line is invalid.
pub fn read(node: &Path) -> io::Result<Vec<Fault>> {
    let text = match fs::read_to_string(file_of(node)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other?,
    };
    let complete = text.rfind('\n').map_or("", |end| &text[..end]);
    let one = |line: &str| {
        let wrong = || io::Error::new(io::ErrorKind::InvalidData, format!("no fault: {line:?}"));
        parse(line).ok_or_else(wrong)
    };
    complete.lines().filter(|line| !line.trim().is_empty()).map(one).collect()
}

fn parse(line: &str) -> Option<Fault> {
    let mut words = line.split_ascii_whitespace();
    let kind = words.next()?;
    let device: u32 = number(&mut words)?;
    let fault = match kind {
        "xid" => Fault::Xid { device, number: number(&mut words)? },
        "ecc" => {
            let corrected = match words.next()? {
                "corrected" => true,
                "uncorrected" => false,
                _ => return None,
            };
            Fault::Ecc { device, corrected, count: number(&mut words)? }
        }
        "lost" => Fault::Lost { device },
        _ => return None,
    };
    words.next().is_none().then_some(fault)
}

fn number<T: std::str::FromStr>(words: &mut SplitAsciiWhitespace<'_>) -> Option<T> {
    words.next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_faults_and_nonsense_is_an_error() {
        let folder = std::env::temp_dir().join(format!("fake-node-faults-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let node = folder.join("node");
        assert_eq!(read(&node).unwrap(), []);
        fs::write(file_of(&node), "xid 0 79\n\necc 1 uncorrected 2\nlost 1\nxid 0 4").unwrap();
        let all = [
            Fault::Xid { device: 0, number: 79 },
            Fault::Ecc { device: 1, corrected: false, count: 2 },
            Fault::Lost { device: 1 },
        ];
        assert_eq!(read(&node).unwrap(), all);
        for wrong in ["xid 0", "ecc 0 some 1", "lost x", "xid 0 1 2", "hot 0"] {
            fs::write(file_of(&node), format!("{wrong}\n")).unwrap();
            assert!(read(&node).unwrap_err().to_string().contains(wrong));
        }
        fs::remove_dir_all(&folder).unwrap();
    }
}
