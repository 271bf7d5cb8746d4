//! The format of recordings: one JSON line per sample of a node. `sluice record` and `sluice top --record` write
//! recordings, `sluice top --json` prints one line, and `sluice plot` and `sluice top --replay` read recordings.
//!
//! Each line stands by itself, so recordings may be cut and joined at line ends.

use limits::GpuId;
use serde::{Deserialize, Serialize};

use crate::sessions::StatusReport;

/// Version of this format. A reader understands its own and earlier versions.
pub const VERSION: u32 = 1;

/// A sample: one line of a recording.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Sample {
    /// Version of the format.
    pub version: u32,
    /// Time of the sample in microseconds since 1970 (UTC), by the node's wall clock.
    pub at_us: u64,
    /// Time of the sample in microseconds on a monotonic clock. Only differences are meaningful.
    pub clock_us: u64,
    /// The node's devices.
    pub devices: Vec<DeviceSample>,
    /// The sessions.
    #[serde(flatten)]
    pub status: StatusReport,
    /// Number of sessions known to the daemon that this user may not see.
    pub others: u64,
    /// Whether the daemon reported its sessions.
    pub daemon: bool,
    /// What could not be read, and why.
    pub notices: Vec<String>,
}

/// Figures of a device; `None`: unknown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DeviceSample {
    /// The device's UUID.
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub uuid: GpuId,
    /// Source of the figures.
    pub source: FigureSource,
    /// Index in `nvidia-smi`.
    pub index: Option<u32>,
    /// The product's name.
    pub name: Option<String>,
    /// The fault because of which no leases are granted.
    pub trouble: Option<String>,
    /// Number of processes on the device outside any session.
    pub unknown_processes: u64,
    /// Total memory, in bytes.
    pub memory_total_bytes: Option<u64>,
    /// Memory in use, in bytes, as in `nvidia-smi`; from the node's page: all memory that is not free.
    pub memory_used_bytes: Option<u64>,
    /// Time in which a kernel ran, in percent.
    pub sm_percent: Option<u32>,
    /// Time in which device memory was read or written, in percent.
    pub memory_percent: Option<u32>,
    /// Power draw, in milliwatts.
    pub power_mw: Option<u32>,
    /// Power limit, in milliwatts.
    pub power_limit_mw: Option<u32>,
    /// Temperature of the chip, in degrees Celsius.
    pub temperature_c: Option<u32>,
    /// Clock of the multiprocessors, in MHz.
    pub sm_clock_mhz: Option<u32>,
    /// Reasons for reduced clocks, named as in the daemon's API.
    pub throttled_by: Vec<String>,
}

impl DeviceSample {
    /// A device without figures.
    #[must_use]
    pub const fn unknown(uuid: GpuId, source: FigureSource) -> Self {
        Self {
            uuid,
            source,
            index: None,
            name: None,
            trouble: None,
            unknown_processes: 0,
            memory_total_bytes: None,
            memory_used_bytes: None,
            sm_percent: None,
            memory_percent: None,
            power_mw: None,
            power_limit_mw: None,
            temperature_c: None,
            sm_clock_mhz: None,
            throttled_by: Vec::new(),
        }
    }
}

/// Source of a device's figures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum FigureSource {
    /// The daemon's API.
    Daemon,
    /// The node's page, written by the daemon.
    NodePage,
    /// The driver, which only lists the device. Figures need a daemon.
    Driver,
    /// A session that uses the device.
    Session,
}
