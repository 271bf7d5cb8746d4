//! What the sessions of a node have and use: the output of `sluice status --json`.

use std::path::PathBuf;

use limits::{GpuId, Policy, Priority};
use serde::{Deserialize, Serialize};

/// The whole output.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct StatusReport {
    /// The sessions.
    pub sessions: Vec<SessionReport>,
    /// Pages that are not valid.
    pub damaged: Vec<DamagedPage>,
    /// Sessions whose pages cannot be seen from here, as those in containers. The node's daemon tells of them.
    #[serde(default)]
    pub elsewhere: Vec<ElsewhereReport>,
    /// The node's GPUs, as its daemon observes them. Without a daemon there are none.
    #[serde(default)]
    pub gpus: Vec<GpuReport>,
    /// GPUs on which the sessions' shares add up to more than 100 %.
    #[serde(default)]
    pub overcommitted: Vec<OvercommittedGpu>,
}

/// A GPU on which the sessions' shares add up to more than 100 %.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct OvercommittedGpu {
    /// Its UUID.
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub uuid: GpuId,
    /// The sum of the shares, in millionths.
    pub shares_ppm: u64,
    /// The same in words, as `sluice status` prints it.
    pub notice: String,
}

/// A GPU of the node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct GpuReport {
    /// Its UUID.
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub uuid: GpuId,
    /// Its index in `nvidia-smi`, if it is known.
    pub index: Option<u32>,
    /// `healthy`, `unhealthy`, or `unknown`: it is not observed.
    pub health: String,
    /// What is known against it.
    pub unhealthy: Option<String>,
    /// Why no lease is granted on it: `unhealthy` or `unknown_process`.
    pub withheld: Option<String>,
    /// Whether it is out of service for new pods.
    #[serde(default)]
    pub cordoned: bool,
    /// How many processes use it that no session knows.
    pub unknown_processes: u64,
}

/// A session whose pages cannot be seen from here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ElsewhereReport {
    /// Its name.
    pub session: String,
    /// The user it belongs to.
    pub uid: u32,
    /// The user's name, if there is one here.
    pub user: Option<String>,
    /// Its container.
    pub container: Option<ContainerReport>,
    /// The UID of its pod.
    pub pod: Option<String>,
    /// Whether it is kept from its devices.
    pub frozen: bool,
    /// The processes that the daemon serves, by their ids there.
    pub pids: Vec<i32>,
    /// The devices on which it has a compute share, or memory that the daemon sees.
    pub devices: Vec<ElsewhereDevice>,
}

/// A session on a device, as the daemon knows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ElsewhereDevice {
    /// The device.
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub uuid: GpuId,
    /// Its index in `nvidia-smi`, if it is known here.
    pub index: Option<u32>,
    /// Its time.
    pub compute: ComputeReport,
    /// Its memory, if the daemon sees its pages. Some seconds old.
    #[serde(default)]
    pub memory: Option<MemoryReport>,
}

/// A container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ContainerReport {
    /// `docker`, `containerd`, `cri-o`, `podman`, or `unnamed`.
    pub runtime: String,
    /// Its id.
    pub id: String,
    /// Its name, where the runtime's files tell it to this user.
    pub name: Option<String>,
}

/// A page that is not valid, or of another version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
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
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SessionReport {
    /// Its name.
    pub session: String,
    /// The name that it was given by `sluice run --name`.
    #[serde(default)]
    pub name: Option<String>,
    /// The user it belongs to.
    pub uid: u32,
    /// The user's name, if there is one here.
    #[serde(default)]
    pub user: Option<String>,
    /// Its container, as the node's daemon knows it.
    #[serde(default)]
    pub container: Option<ContainerReport>,
    /// The UID of its pod, as the node's daemon knows it.
    #[serde(default)]
    pub pod: Option<String>,
    /// What `sluice run` was told to run, or the name of a process.
    #[serde(default)]
    pub command: Option<String>,
    /// Whether the node's daemon keeps it from its devices.
    #[serde(default)]
    pub frozen: bool,
    /// Its directory.
    pub directory: PathBuf,
    /// The devices that it has used.
    pub devices: Vec<DeviceReport>,
}

/// A session on one device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DeviceReport {
    /// The device.
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub uuid: GpuId,
    /// Its index in `nvidia-smi`, if it is known here.
    #[serde(default)]
    pub index: Option<u32>,
    /// Its memory.
    pub memory: MemoryReport,
    /// Its time.
    pub compute: ComputeReport,
    /// How long ago its first process came, in microseconds.
    #[serde(default)]
    pub age_us: Option<u64>,
    /// Allocations that were refused.
    #[serde(default)]
    pub refusals: u64,
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
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MemoryReport {
    /// The limit; `None`: no limit.
    pub limit: Option<u64>,
    /// The part of it that may be on the device, if that is less.
    pub real: Option<u64>,
    /// What its living processes have.
    pub used: u64,
    /// The most that has been in use.
    #[serde(default)]
    pub peak: u64,
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
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
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
    #[serde(alias = "oversubscribed")]
    pub overcommitted: u64,
    /// Taken by the driver without a call that says so.
    pub driver: u64,
    /// Kept free for code that the driver has yet to place.
    #[serde(default)]
    pub headroom: u64,
}

/// Time of a session on one device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ComputeReport {
    /// How the share is meant.
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::Policy"))]
    pub policy: Policy,
    /// The share in millionths; without meaning under policy `none`.
    pub share_ppm: u32,
    /// The ceiling under policy `balance`.
    pub soft_ppm: Option<u32>,
    /// Its part of spare time, in relation to other sessions'.
    pub weight: u32,
    /// Whether others come first.
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::Priority"))]
    pub priority: Priority,
    /// The mean utilization of those of its processes for which it is known.
    #[serde(default)]
    pub density_ppm: Option<u32>,
    /// The share of the device's time that it got in the last ten seconds, or since its first use, in millionths.
    #[serde(default)]
    pub recent_ppm: Option<u32>,
    /// The same since its first use.
    #[serde(default)]
    pub mean_ppm: Option<u32>,
    /// Device time that it has used in all, in microseconds, whoever granted the leases.
    #[serde(default)]
    pub delivered_us: u64,
    /// For how long its processes had work queued and held no lease, added up, in microseconds. Time for which the
    /// session was frozen or the GPU withheld does not count.
    #[serde(default)]
    pub waited_us: u64,
}

/// A process of a session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
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
    /// Device time that it has used, in microseconds, whoever granted the leases.
    #[serde(default)]
    pub charged_us: u64,
    /// Its utilization: how much of the time that it holds the device it keeps it busy, in
    /// millionths. `None`: not known.
    pub density_ppm: Option<u32>,
}
