//! What the sessions of a node have and use: the output of `sluice status --json`.

use std::path::PathBuf;

use limits::{GpuId, Policy, Priority};
use serde::{Deserialize, Serialize};

/// All that `sluice status` knows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatusReport {
    /// The sessions.
    pub sessions: Vec<SessionReport>,
    /// Pages that cannot be believed.
    pub damaged: Vec<DamagedPage>,
}

/// A page that is none, or of another version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DamagedPage {
    /// The session that it belongs to.
    pub session: String,
    /// The file.
    pub page: PathBuf,
    /// What is wrong with it.
    pub problem: String,
}

/// One session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionReport {
    /// Its name.
    pub session: String,
    /// The user it belongs to.
    pub uid: u32,
    /// Its directory.
    pub directory: PathBuf,
    /// The devices that it has used.
    pub devices: Vec<DeviceReport>,
}

/// A session on one device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceReport {
    /// The device.
    pub uuid: GpuId,
    /// Its memory.
    pub memory: MemoryReport,
    /// Its time.
    pub compute: ComputeReport,
    /// Who is in it.
    pub processes: Vec<ProcessReport>,
}

/// Memory of a session on one device, in bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryReport {
    /// The limit, if there is one.
    pub limit: Option<u64>,
    /// What of it may be on the device, if that is less.
    pub real: Option<u64>,
    /// What its living processes have.
    pub used: u64,
    /// What of it is on the device.
    pub on_device: u64,
    /// The same by kind.
    pub by_kind: ByKind,
    /// What is left of the limit.
    pub left: Option<u64>,
    /// How much more is in use than the limit allows.
    pub over: u64,
    /// Whether no allocation succeeds until it has shrunk.
    pub growth_refused: bool,
}

/// Bytes by what they are used for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ByKind {
    /// Linear memory and the virtual memory API.
    pub data: u64,
    /// Contexts.
    pub context: u64,
    /// Pools.
    pub pool: u64,
    /// Graphs.
    pub graph: u64,
    /// Arrays.
    pub array: u64,
    /// Placed on the host.
    pub oversubscribed: u64,
    /// Taken by the driver without being asked.
    pub driver: u64,
    /// Kept free for code that the driver has yet to place.
    #[serde(default)]
    pub headroom: u64,
}

/// Time of a session on one device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ComputeReport {
    /// How the share is meant.
    pub policy: Policy,
    /// The share in millionths; of no meaning with policy `none`.
    pub share_ppm: u32,
    /// What is never exceeded.
    pub soft_ppm: Option<u32>,
    /// Part of idle time.
    pub weight: u32,
    /// Whether others come first.
    pub priority: Priority,
    /// The mean of what is known of its processes.
    #[serde(default)]
    pub density_ppm: Option<u32>,
}

/// A process of a session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessReport {
    /// Its id in its own namespace.
    pub pid: u32,
    /// Its id on the host, where it is known.
    pub host_pid: Option<u32>,
    /// Its name, where it can be seen from here.
    pub name: Option<String>,
    /// What it has, in bytes.
    pub bytes: u64,
    /// The same by kind.
    pub by_kind: ByKind,
    /// Whether it holds a lease of the session's own account.
    pub holding: bool,
    /// Whether it waits for one.
    pub waiting: bool,
    /// Device time that it has been charged by that account, in microseconds.
    #[serde(default)]
    pub charged_us: u64,
    /// How much of the time that it holds the device it keeps it busy, in millionths, where that is
    /// known.
    pub density_ppm: Option<u32>,
}
