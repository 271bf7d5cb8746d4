//! The output of `sluice status --json`: the sessions of a node, their limits and use.

use std::path::PathBuf;

use limits::{GpuId, Policy, Priority};
use serde::{Deserialize, Serialize};

/// The output of `sluice status --json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct StatusReport {
    /// The sessions.
    pub sessions: Vec<SessionReport>,
    /// Invalid session pages.
    pub damaged: Vec<DamagedPage>,
    /// Sessions whose pages are not visible from here, such as those in containers; reported by the node's daemon.
    pub elsewhere: Vec<ElsewhereReport>,
    /// The node's GPUs, as observed by its daemon; empty without a daemon.
    pub gpus: Vec<GpuReport>,
    /// GPUs on which the sessions' shares add up to more than 100 %.
    pub overcommitted: Vec<OvercommittedGpu>,
}

/// A GPU on which the sessions' shares add up to more than 100 %.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct OvercommittedGpu {
    /// The GPU's UUID.
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub uuid: GpuId,
    /// The sum of the shares, in millionths.
    pub shares_ppm: u64,
    /// The sum in words, as `sluice status` prints it.
    pub notice: String,
}

/// A GPU of the node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct GpuReport {
    /// The GPU's UUID.
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub uuid: GpuId,
    /// Index in `nvidia-smi`, if known.
    pub index: Option<u32>,
    /// `healthy`, `unhealthy`, or `unknown` if the GPU is not observed.
    pub health: String,
    /// The GPU's faults.
    pub unhealthy: Option<String>,
    /// Why no lease is granted on the GPU: `unhealthy` or `unknown_process`.
    pub withheld: Option<String>,
    /// Whether the GPU is out of service for new pods.
    pub cordoned: bool,
    /// Number of processes on the GPU outside any session.
    pub unknown_processes: u64,
}

/// A session whose pages are not visible from here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ElsewhereReport {
    /// The session's name.
    pub session: String,
    /// The session's user id.
    pub uid: u32,
    /// The user's name, if it exists here.
    pub user: Option<String>,
    /// The session's container.
    pub container: Option<ContainerReport>,
    /// UID of the session's pod.
    pub pod: Option<String>,
    /// Whether the session is frozen.
    pub frozen: bool,
    /// Ids of the session's processes that the daemon serves, in the daemon's pid namespace.
    pub pids: Vec<i32>,
    /// Devices with a compute share of the session, or with memory of it that the daemon sees.
    pub devices: Vec<ElsewhereDevice>,
}

/// A session on a device, according to the daemon.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ElsewhereDevice {
    /// The device's UUID.
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub uuid: GpuId,
    /// Index in `nvidia-smi`, if known here.
    pub index: Option<u32>,
    /// The compute share and its use.
    pub compute: ComputeReport,
    /// The memory limit and use, if the daemon sees the session's pages; some seconds old.
    pub memory: Option<MemoryReport>,
}

/// A container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ContainerReport {
    /// `docker`, `containerd`, `cri-o`, `podman`, or `unnamed`.
    pub runtime: String,
    /// The container's id.
    pub id: String,
    /// The container's name, if this user can read the runtime's files.
    pub name: Option<String>,
}

/// A session page that is invalid or has another version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DamagedPage {
    /// The session's name.
    pub session: String,
    /// Path of the page.
    pub page: PathBuf,
    /// What is wrong with the page.
    pub problem: String,
}

/// A session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SessionReport {
    /// The session's name.
    pub session: String,
    /// The name given by `sluice run --name`.
    pub name: Option<String>,
    /// The session's user id.
    pub uid: u32,
    /// The user's name, if it exists here.
    pub user: Option<String>,
    /// The session's container, according to the node's daemon.
    pub container: Option<ContainerReport>,
    /// UID of the session's pod, according to the node's daemon.
    pub pod: Option<String>,
    /// The command that `sluice run` started, or the name of a process.
    pub command: Option<String>,
    /// Whether the session is frozen.
    pub frozen: bool,
    /// The session's directory.
    pub directory: PathBuf,
    /// The devices that the session has used.
    pub devices: Vec<DeviceReport>,
}

/// A session on one device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DeviceReport {
    /// The device's UUID.
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub uuid: GpuId,
    /// Index in `nvidia-smi`, if known here.
    pub index: Option<u32>,
    /// The memory limit and use.
    pub memory: MemoryReport,
    /// The compute share and its use.
    pub compute: ComputeReport,
    /// Time since the session first used the device, in microseconds.
    pub age_us: Option<u64>,
    /// Number of refused allocations.
    pub refusals: u64,
    /// The session's processes on the device.
    pub processes: Vec<ProcessReport>,
    /// Number of these processes that may have ended, which could not be determined in time.
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
    /// The part of the limit that may be on the device, if less.
    pub real: Option<u64>,
    /// Memory in use by living processes.
    pub used: u64,
    /// Highest use so far.
    pub peak: u64,
    /// The part of `used` that is on the device.
    pub on_device: u64,
    /// `used` by kind.
    pub by_kind: ByKind,
    /// Remaining memory within the limit.
    pub left: Option<u64>,
    /// Use above the limit.
    pub over: u64,
    /// Whether all allocations fail until use decreases.
    pub growth_refused: bool,
}

/// Memory by kind, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ByKind {
    /// Linear memory and memory of the virtual memory API.
    pub data: u64,
    /// Contexts.
    pub context: u64,
    /// Pools.
    pub pool: u64,
    /// Graphs.
    pub graph: u64,
    /// Arrays.
    pub array: u64,
    /// Overcommitted memory, placed on the host.
    #[serde(alias = "oversubscribed")]
    pub overcommitted: u64,
    /// Memory that the driver took without an allocating call.
    pub driver: u64,
    /// Memory kept free for code that the driver has yet to load.
    pub headroom: u64,
}

/// Compute share of a session on one device, and its use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ComputeReport {
    /// The meaning of the share.
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::Policy"))]
    pub policy: Policy,
    /// The share in millionths; meaningless under policy `none`.
    pub share_ppm: u32,
    /// The burst limit under policy `balance`, in millionths.
    pub soft_ppm: Option<u32>,
    /// Weight for dividing idle time among sessions.
    pub weight: u32,
    /// Whether sessions of high priority come first.
    #[cfg_attr(feature = "schema", schemars(with = "crate::schema::Priority"))]
    pub priority: Priority,
    /// Mean utilization of the session's processes, in millionths, as far as known.
    pub density_ppm: Option<u32>,
    /// Fraction of the device's time that the session used in the last ten seconds, or since its first use, in
    /// millionths.
    pub recent_ppm: Option<u32>,
    /// Fraction of the device's time that the session used since its first use, in millionths.
    pub mean_ppm: Option<u32>,
    /// Total device time used, in microseconds, whoever granted the leases.
    pub delivered_us: u64,
    /// Total time in which the session's processes had work queued and held no lease, in microseconds. Time for which
    /// the session was frozen or the GPU withheld does not count.
    pub waited_us: u64,
    /// How the session shares the device with others that want it most of the time; `null`: there are none.
    #[serde(default)]
    pub sharing: Option<SharingReport>,
}

/// The way in which sessions share a device, and what one of them gets done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SharingReport {
    /// The way that holds.
    pub way: SharingWay,
    /// Why it was chosen.
    pub reason: SharingReason,
    /// For how long it has held, in microseconds.
    pub since_us: u64,
    /// What the session completes in turns, in millionths of the better way; `null`: not measured.
    pub in_turns_ppm: Option<u32>,
    /// The same for leases held at once.
    pub at_once_ppm: Option<u32>,
}

/// A way to share a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum SharingWay {
    /// One session after the other.
    Turns,
    /// All at once; the hardware slices the device.
    Overlap,
}

/// Why a way to share a device was chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum SharingReason {
    /// The ways were not compared: not yet, or because nobody could get more.
    NotCompared,
    /// More gets done than in the other way.
    MoreDone,
    /// In the other way, a session would get less than it is guaranteed.
    Guarantee,
}

/// A process of a session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ProcessReport {
    /// Process id in the process's own pid namespace.
    pub pid: u32,
    /// Process id on the host, if known.
    pub host_pid: Option<u32>,
    /// Name of the process, if visible from here.
    pub name: Option<String>,
    /// Memory in use, in bytes.
    pub bytes: u64,
    /// `bytes` by kind.
    pub by_kind: ByKind,
    /// Whether the process holds a lease from the session's own account.
    pub holding: bool,
    /// Whether the process waits for such a lease.
    pub waiting: bool,
    /// Device time used, in microseconds, whoever granted the leases.
    pub charged_us: u64,
    /// Utilization: the fraction of its held time in which the process keeps the device busy, in millionths. `None`:
    /// unknown.
    pub density_ppm: Option<u32>,
}
