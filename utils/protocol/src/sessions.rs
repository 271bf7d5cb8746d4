//! What the sessions of a node have and use: the output of `sluice status --json`.

use std::path::PathBuf;

use limits::{GpuId, Policy, Priority};
use serde::{Deserialize, Serialize};

/// The whole output.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatusReport {
    /// The sessions.
    pub sessions: Vec<SessionReport>,
    /// Pages that are not valid.
    pub damaged: Vec<DamagedPage>,
}

/// A page that is not valid, or of another version.
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
    /// Its processes.
    pub processes: Vec<ProcessReport>,
    /// How many of these may have ended: that could not be told, or not in time.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unknown: usize,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde wants a reference")]
const fn is_zero(number: &usize) -> bool {
    *number == 0
}

/// Memory of a session on one device, in bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryReport {
    /// The limit; `None`: no limit.
    pub limit: Option<u64>,
    /// The part of it that may be on the device, if that is less.
    pub real: Option<u64>,
    /// What its living processes have.
    pub used: u64,
    /// The part of `used` that is on the device.
    pub on_device: u64,
    /// `used` by kind.
    pub by_kind: ByKind,
    /// What is left of the limit.
    pub left: Option<u64>,
    /// How much more than the limit is in use.
    pub over: u64,
    /// Whether every allocation fails until less is in use.
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
    /// Taken by the driver without a call that says so.
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
    /// The share in millionths; without meaning under policy `none`.
    pub share_ppm: u32,
    /// The ceiling under policy `balance`.
    pub soft_ppm: Option<u32>,
    /// Its part of spare time, in relation to other sessions'.
    pub weight: u32,
    /// Whether others come first.
    pub priority: Priority,
    /// The mean utilization of those of its processes for which it is known.
    #[serde(default)]
    pub density_ppm: Option<u32>,
}

/// A process of a session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessReport {
    /// Its id in its own namespace.
    pub pid: u32,
    /// Its id on the host, if it is known.
    pub host_pid: Option<u32>,
    /// Its name, if it can be seen from here.
    pub name: Option<String>,
    /// Its memory, in bytes.
    pub bytes: u64,
    /// `bytes` by kind.
    pub by_kind: ByKind,
    /// Whether it holds a lease of the session's own account.
    pub holding: bool,
    /// Whether it waits for one.
    pub waiting: bool,
    /// Device time that it has been charged by that account, in microseconds.
    #[serde(default)]
    pub charged_us: u64,
    /// Its utilization: how much of the time that it holds the device it keeps it busy, in
    /// millionths. `None`: not known.
    pub density_ppm: Option<u32>,
}
