//! The page of the node: the daemon's observations of the devices, for every process that may map it. Only the daemon
//! writes.
//!
//! The daemon keeps the page beside its socket, under the socket's name plus `.devices`. It creates a new file when it
//! starts, names it once it is complete, and removes it when it ends. An abandoned file shows by its age.
//!
//! * `words`: the layout, and how it is read during a write; no I/O
//! * `writer`, `reader`: the file

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

/// The contents of the page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeFigures {
    /// When it was written ([`crate::clock::now_ns`]).
    pub written_ns: u64,
    /// The devices, in the driver's order.
    pub devices: Vec<NodeDevice>,
}

/// The daemon writes once a second; an older page belongs to a daemon that has stopped.
const STALE_NS: u64 = 5_000_000_000;

/// The path of the page of the daemon that listens at `socket`.
#[must_use]
pub fn beside(socket: &Path) -> PathBuf {
    let mut name = socket.as_os_str().to_owned();
    name.push(".devices");
    name.into()
}

/// The contents of the page beside a daemon's socket, if the page is fresh.
#[must_use]
pub fn current_beside(socket: &Path) -> Option<NodeFigures> {
    let figures = NodePage::open(&beside(socket)).ok()?.read().ok()?;
    figures.is_current(crate::clock::now_ns()).then_some(figures)
}

impl NodeFigures {
    /// Whether the page is fresh.
    #[must_use]
    pub const fn is_current(&self, now: u64) -> bool {
        self.age_ns(now) < STALE_NS
    }

    /// The page's age in nanoseconds, or how far ahead its time is.
    #[must_use]
    pub const fn age_ns(&self, now: u64) -> u64 {
        now.abs_diff(self.written_ns)
    }
}

/// A device in the page; `None`: the driver does not tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeDevice {
    /// The device's UUID.
    pub uuid: GpuId,
    /// Total memory, in bytes.
    pub memory_total: Option<u64>,
    /// Memory not free, in bytes: that of processes, and that which the driver keeps for itself.
    pub memory_used: Option<u64>,
    /// Time in which a kernel ran, in percent (`nvmlUtilization_t.gpu`).
    pub sm_percent: Option<u8>,
    /// Time in which memory was read or written, in percent (`nvmlUtilization_t.memory`).
    pub memory_percent: Option<u8>,
    /// Whether leases are granted on the device.
    pub health: NodeHealth,
    /// When the figures were read ([`crate::clock::now_ns`]).
    pub read_ns: u64,
}

/// Whether leases are granted on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeHealth {
    /// Leases are granted.
    Healthy,
    /// No leases, because the device is unhealthy.
    Unhealthy,
}

/// The reason why the page cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum NodePageError {
    /// The system refused.
    #[error("page of the node: {what}: {source}")]
    Io {
        /// The failed operation.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// Another user created the file.
    #[error("page of the node: owned by user {found}; expected this user or root")]
    Stranger {
        /// The file's user.
        found: u32,
    },
    /// Not a page.
    #[error("page of the node: wrong magic number, or truncated")]
    NoPage,
    /// A file of another kind has the name.
    #[error("page of the node: {0} exists and is not a page; expected a page or no file")]
    Taken(PathBuf),
    /// An unsupported version.
    #[error("page of the node: version {0}; expected {VERSION}")]
    Version(u64),
    /// An impossible number of devices.
    #[error("page of the node: {0} devices; expected at most {MOST_DEVICES}")]
    Devices(u64),
    /// The page was written during each attempt.
    #[error("page of the node: it changed during each of {0} attempts to read it")]
    Busy(u32),
    /// This process has mapped too many pages.
    #[error("page of the node: this process has mapped too many pages")]
    TooMany,
}

impl NodePageError {
    fn io(what: &'static str) -> impl FnOnce(rustix::io::Errno) -> Self {
        move |error| Self::Io { what, source: error.into() }
    }
}
