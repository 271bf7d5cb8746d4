//! A recording: what was seen of a node, moment by moment. `sluice record` and `sluice top --record` write it, a line
//! of JSON for each moment; `sluice top --json` prints one. `sluice plot` and `sluice top --replay` read it.
//!
//! Each line is whole by itself: recordings may be cut and joined at the ends of lines.

use limits::GpuId;
use serde::{Deserialize, Serialize};

use crate::sessions::StatusReport;

/// Version of this format. A reader understands its own and earlier ones.
pub const VERSION: u32 = 1;

/// What was seen at one moment: a line of a recording.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Sample {
    /// [`VERSION`] of the writer.
    pub version: u32,
    /// When, in microseconds since 1970 (UTC), by the node's calendar.
    pub at_us: u64,
    /// When, in microseconds, on a clock that never jumps. Only differences mean something.
    pub clock_us: u64,
    /// The node's devices.
    pub devices: Vec<DeviceSample>,
    /// The sessions.
    #[serde(flatten)]
    pub status: StatusReport,
    /// How many sessions the daemon knows that this user may not see.
    #[serde(default)]
    pub others: u64,
    /// Whether a daemon told of its sessions.
    #[serde(default)]
    pub daemon: bool,
    /// What could not be looked at, and why.
    #[serde(default)]
    pub notices: Vec<String>,
}

/// What a device showed. What is not known is `None`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DeviceSample {
    /// The device.
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub uuid: GpuId,
    /// Who told.
    pub source: FigureSource,
    /// Its index in `nvidia-smi`.
    pub index: Option<u32>,
    /// The product's name.
    pub name: Option<String>,
    /// What is wrong with it, so that no leases are granted.
    pub trouble: Option<String>,
    /// Processes on it that no session knows.
    pub unknown_processes: u64,
    /// All of its memory, in bytes.
    pub memory_total_bytes: Option<u64>,
    /// What is in use of it, in bytes, as `nvidia-smi` has it. From the page of the node: what is not free.
    pub memory_used_bytes: Option<u64>,
    /// Part of the time in which a kernel ran, in percent.
    pub sm_percent: Option<u32>,
    /// Part of the time in which its memory was read or written, in percent.
    pub memory_percent: Option<u32>,
    /// What it draws, in milliwatts.
    pub power_mw: Option<u32>,
    /// What it may draw, in milliwatts.
    pub power_limit_mw: Option<u32>,
    /// Temperature of the chip, in degrees Celsius.
    pub temperature_c: Option<u32>,
    /// Clock of the multiprocessors, in MHz.
    pub sm_clock_mhz: Option<u32>,
    /// What keeps it from running faster, in the words of the daemon's API.
    pub throttled_by: Vec<String>,
}

impl DeviceSample {
    /// A device of which nothing is known.
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

/// Who told a device's figures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum FigureSource {
    /// The daemon, by its API.
    Daemon,
    /// The page of the node, which the daemon writes.
    NodePage,
    /// The driver: it exists. Figures need a daemon.
    Driver,
    /// A session that uses it.
    Session,
}
