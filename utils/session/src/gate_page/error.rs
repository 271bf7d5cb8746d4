//! Errors of gate pages.

use super::layout::{BLOCKS, LENGTH};
use std::io;

/// The reason why there is no gate page.
#[derive(Debug, thiserror::Error)]
pub enum GatePageError {
    /// The system refused, possibly because it has no memfd.
    #[error("gate page: {what}: {source}")]
    Io {
        /// The failed operation.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// Every block is assigned to a device.
    #[error("gate page: all {BLOCKS} blocks are in use")]
    Full,
    /// The program has closed the descriptor and reused its number.
    #[error("gate page: its descriptor now refers to another file")]
    Replaced,
    /// A descriptor number out of range.
    #[error("gate page: descriptor {0}; expected 0 to 2147483647")]
    Descriptor(i64),
    /// The process has ended, or is another one than expected.
    #[error("gate page: process {pid} is not a process of user {uid}")]
    OtherProcess {
        /// The process.
        pid: u32,
        /// The user to whom it should belong.
        uid: u32,
    },
    /// Not a memfd.
    #[error("gate page: the descriptor does not refer to a memfd")]
    NotAMemfd,
    /// The memory could be truncated, or cannot be written.
    #[error(
        "gate page: the memory has the seals {found:#x}; expected 0x7 (seal, shrink, grow) without 0x8 or 0x10"
    )]
    Seals {
        /// F_GET_SEALS
        found: u32,
    },
    /// Not the length of a page.
    #[error("gate page: {found} bytes; expected {LENGTH}")]
    Size {
        /// The length found, in bytes.
        found: u64,
    },
    /// Not a page, or another version.
    #[error("gate page: {field} is {found:#x}; expected {wanted:#x}")]
    Foreign {
        /// The field of the header.
        field: &'static str,
        /// The value found.
        found: u64,
        /// The value of this version.
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
