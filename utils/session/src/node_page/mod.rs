//! The page of the node: what the daemon sees of the devices, for every process that may map it. Nobody but the
//! daemon writes there.
//!
//! The daemon keeps it beside its socket, under the socket's name with `.devices` behind it. It makes a new file at
//! its start, which gets its name when it is whole, and removes it at its end. A file that is not written any more
//! shows by its age.
//!
//! * `words`: what stands where, and how it is read while it is being written; no I/O;
//! * `writer`, `reader`: the file.

#[cfg(test)]
mod interleavings;
mod reader;
mod words;
mod writer;

use std::io;
use std::path::{Path, PathBuf};

use limits::GpuId;

pub use reader::NodePage;
pub use words::{LENGTH, MOST_DEVICES, VERSION};
pub use writer::NodePageWriter;

/// What the page says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeFigures {
    /// When it was written, on [`crate::clock::now_ns`].
    pub written_ns: u64,
    /// The devices, in the driver's order.
    pub devices: Vec<NodeDevice>,
}

/// The daemon writes once a second. A page that is older than this is of one that has stopped.
const STALE_NS: u64 = 5_000_000_000;

/// Where the page of a daemon is that listens there.
#[must_use]
pub fn beside(socket: &Path) -> PathBuf {
    let mut name = socket.as_os_str().to_owned();
    name.push(".devices");
    name.into()
}

/// What the page beside a daemon's socket says, if the daemon writes it now.
#[must_use]
pub fn current_beside(socket: &Path) -> Option<NodeFigures> {
    let figures = NodePage::open(&beside(socket)).ok()?.read().ok()?;
    figures.is_current(crate::clock::now_ns()).then_some(figures)
}

impl NodeFigures {
    /// Whether a daemon writes it now.
    #[must_use]
    pub const fn is_current(&self, now: u64) -> bool {
        self.age_ns(now) < STALE_NS
    }

    /// How long ago it was written, in nanoseconds, or how far ahead that moment is. A daemon that sees its devices writes once a second.
    #[must_use]
    pub const fn age_ns(&self, now: u64) -> u64 {
        now.abs_diff(self.written_ns)
    }
}

/// What the page says of a device. What the driver does not tell is `None`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeDevice {
    /// Which.
    pub uuid: GpuId,
    /// All of its memory, in bytes.
    pub memory_total: Option<u64>,
    /// What is not free of it, in bytes: what processes have, and what the driver keeps for itself.
    pub memory_used: Option<u64>,
    /// Part of the time in which a kernel ran, in percent.
    pub sm_percent: Option<u8>,
    /// Part of the time in which its memory was read or written, in percent.
    pub memory_percent: Option<u8>,
    /// Whether leases are granted on it.
    pub health: NodeHealth,
    /// When its figures were read, on [`crate::clock::now_ns`].
    pub read_ns: u64,
}

/// Whether leases are granted on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeHealth {
    /// They are.
    Healthy,
    /// They are not, because the device is unhealthy.
    Unhealthy,
}

/// Why the page cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum NodePageError {
    /// The system refused.
    #[error("page of the node: {what}: {source}")]
    Io {
        /// What was wanted.
        what: &'static str,
        /// What happened.
        source: io::Error,
    },
    /// Another user made it.
    #[error("page of the node: owned by user {found}; expected this user or root")]
    Stranger {
        /// Whose it is.
        found: u32,
    },
    /// No page.
    #[error("page of the node: wrong beginning, or truncated")]
    NoPage,
    /// Something else has the name.
    #[error("page of the node: {0} is something else, and is left alone")]
    Taken(PathBuf),
    /// A version that is not read here.
    #[error("page of the node: version {0}; expected {VERSION}")]
    Version(u64),
    /// Its numbers cannot be.
    #[error("page of the node: {0} devices; expected at most {MOST_DEVICES}")]
    Devices(u64),
    /// It was written to all the time.
    #[error("page of the node: it changed during each of {0} attempts to read it")]
    Busy(u32),
    /// The process has no room for one more mapping.
    #[error("page of the node: this process has mapped too many pages")]
    TooMany,
}

impl NodePageError {
    fn io(what: &'static str) -> impl FnOnce(rustix::io::Errno) -> Self {
        move |error| Self::Io { what, source: error.into() }
    }
}
