//! Why there is no gate page.

use super::layout::{BLOCKS, LENGTH};
use std::io;

/// Why there is no gate page.
#[derive(Debug, thiserror::Error)]
pub enum GatePageError {
    /// The system refused. Where it has no memory without a name, this is why.
    #[error("gate page: {what}: {source}")]
    Io {
        /// What was wanted.
        what: &'static str,
        /// What happened.
        source: io::Error,
    },
    /// Every block has a device.
    #[error("gate page: all {BLOCKS} blocks are in use")]
    Full,
    /// The program has closed the descriptor, and opened another file by its number.
    #[error("gate page: its descriptor now refers to another file")]
    Replaced,
    /// No descriptor has this number.
    #[error("gate page: descriptor {0}; expected 0 to 2147483647")]
    Descriptor(i64),
    /// The process has ended, or is not the one that was meant.
    #[error("gate page: process {pid} is not a process of user {uid}")]
    OtherProcess {
        /// The process.
        pid: u32,
        /// The user that it should belong to.
        uid: u32,
    },
    /// Not a file of the kind that a page is.
    #[error("gate page: the descriptor does not refer to a memfd")]
    NotAMemfd,
    /// It could be cut short, or not be written to.
    #[error(
        "gate page: the memory has the seals {found:#x}; expected 0x7 (seal, shrink, grow) without 0x8 or 0x10"
    )]
    Seals {
        /// F_GET_SEALS
        found: u32,
    },
    /// It is not as long as a page.
    #[error("gate page: {found} bytes; expected {LENGTH}")]
    Size {
        /// Its length.
        found: u64,
    },
    /// Not a page, or one of another version.
    #[error("gate page: {field} is {found:#x}; expected {wanted:#x}")]
    Foreign {
        /// The field of the header.
        field: &'static str,
        /// What it says.
        found: u64,
        /// What a page of this version says.
        wanted: u64,
    },
    /// This process has mapped as many pages as it can keep track of.
    #[error("gate page: this process has mapped too many pages")]
    TooMany,
}

impl GatePageError {
    pub(super) fn io(what: &'static str) -> impl FnOnce(rustix::io::Errno) -> Self {
        move |source| Self::Io { what, source: source.into() }
    }
}
