//! The output of `sluice limit`, `hooks`, `explain` and `doctor` with `--json`; that of `status` is in
//! [`crate::sessions`].

use std::collections::BTreeMap;

use limits::{GpuId, Limits, Policy, Priority};
use serde::{Deserialize, Serialize};

use crate::sessions::ComputeReport;

/// The output of `sluice limit --json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LimitReport {
    /// The session's name.
    pub session: String,
    /// The session's user id.
    pub uid: u32,
    /// Whether all processes of the session have applied the change.
    pub taken_by_all: bool,
    /// The devices whose limits were to be changed.
    pub devices: Vec<ChangedDevice>,
}

/// A session's limits on a device before and after a change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ChangedDevice {
    /// The device's UUID.
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub uuid: GpuId,
    /// The limits before.
    pub before: LimitsReport,
    /// The limits after the change.
    pub after: LimitsReport,
    /// Memory in use by the session's processes, in bytes.
    pub used: u64,
    /// The session's processes, and whether they have applied the change.
    pub processes: Vec<TookChange>,
}

/// Limits on a device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LimitsReport {
    /// Memory in bytes; `None`: no limit.
    pub memory: Option<u64>,
    /// The part of the memory limit that may be on the device, if less, in bytes.
    pub memory_real: Option<u64>,
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
}

impl From<&Limits> for LimitsReport {
    fn from(limits: &Limits) -> Self {
        let Limits { memory, compute } = limits;
        Self {
            memory: memory.map(|memory| memory.limit),
            memory_real: memory.and_then(|memory| memory.real),
            policy: compute.policy,
            share_ppm: compute.share_ppm,
            soft_ppm: compute.soft_ppm,
            weight: compute.weight,
            priority: compute.priority,
        }
    }
}

/// Whether a process has applied a change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TookChange {
    /// Process id in the process's own pid namespace.
    pub pid: u32,
    /// Process id on the host, if known.
    pub host_pid: Option<u32>,
    /// Whether the process has reported that it has applied the change.
    pub taken: bool,
}

/// The output of `sluice hooks --json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct HooksReport {
    /// The hook engine that patched each library, by the library's name.
    pub engines: BTreeMap<String, String>,
    /// Number of patched functions.
    pub patched: usize,
    /// Number of functions that this driver does not have.
    pub absent: usize,
    /// Number of functions that exist and could not be patched.
    pub failed: usize,
    /// All functions.
    pub functions: Vec<HookedFunction>,
}

/// A function of the driver.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct HookedFunction {
    /// The library that exports it.
    pub library: String,
    /// The function's symbol.
    pub symbol: String,
    /// Whether the function is patched.
    pub state: HookWord,
    /// Reason if `failed`.
    pub reason: Option<String>,
}

/// Whether a function is patched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum HookWord {
    /// The function is patched.
    Patched,
    /// This driver does not have the function.
    Absent,
    /// The function exists and could not be patched.
    Failed,
}

/// The output of `sluice doctor --json`, and of `hypervisor node --check --json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DoctorReport {
    /// Whether nothing is broken and everything could be judged.
    pub healthy: bool,
    /// The findings, in order of the checks.
    pub findings: Vec<Finding>,
}

/// The result of a check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Finding {
    /// The check.
    pub check: String,
    /// The severity.
    pub state: FindingState,
    /// What was found.
    pub found: String,
    /// The command that fixes the problem, if there is one.
    pub mend: Option<String>,
}

/// Severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum FindingState {
    /// As it should be.
    Ok,
    /// Sluice works, possibly with less function.
    Note,
    /// Limits do not hold, or nothing runs.
    Broken,
    /// Not checked, because an earlier finding is broken.
    Skipped,
    /// Not judged, because other programs use the GPU.
    Busy,
}

/// The output of `sluice explain --json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ExplainReport {
    /// The process that was asked about, if any.
    pub process: Option<ExplainedProcess>,
    /// The session's name, if there is a session.
    pub session: Option<String>,
    /// The session's user id.
    pub uid: Option<u32>,
    /// The session's devices.
    pub devices: Vec<ExplainedDevice>,
    /// The reasons, most important first.
    pub reasons: Vec<Explanation>,
}

/// The process that was asked about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ExplainedProcess {
    /// Process id in this pid namespace.
    pub pid: u32,
    /// The process's name.
    pub name: Option<String>,
    /// Whether the limiter is loaded in the process. `None`: its memory cannot be read.
    pub preloaded: Option<bool>,
    /// Whether the CUDA driver is loaded in the process.
    pub uses_cuda: Option<bool>,
}

/// A session's figures on a device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ExplainedDevice {
    /// The device's UUID.
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub uuid: GpuId,
    /// Memory in use, in bytes.
    pub used: u64,
    /// Memory limit, in bytes.
    pub limit: Option<u64>,
    /// The compute share and its use.
    pub compute: ComputeReport,
    /// Number of refused allocations.
    pub refusals: u64,
    /// Size of the latest refused allocation, in bytes.
    pub refused_bytes: Option<u64>,
    /// How long ago the latest allocation was refused, in microseconds.
    pub refused_ago_us: Option<u64>,
    /// Number of processes waiting for a lease.
    pub waiting: usize,
    /// Number of processes holding a lease.
    pub holding: usize,
    /// Guaranteed time left, in microseconds; negative: the session owes time. `None`: unknown.
    pub balance_us: Option<i64>,
    /// Number of other sessions waiting for the device, according to the daemon.
    pub others_asking: Option<u64>,
}

/// A reason, and its remedy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Explanation {
    /// Kind of the reason.
    pub code: ReasonWord,
    /// The reason, with figures.
    pub text: String,
    /// What would help.
    pub remedy: Option<String>,
}

/// Kinds of reasons.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ReasonWord {
    /// The limiter is not loaded in the process.
    NotPreloaded,
    /// It is unknown whether the limiter is loaded.
    Unseen,
    /// The process is in no session, or uses no GPU.
    NoSession,
    /// No process of the session has used a device.
    NotUsedYet,
    /// The session is frozen.
    Frozen,
    /// The memory limit is used up, or almost.
    Memory,
    /// The session has used its share and waits for more.
    ShareUsed,
    /// The session owes time for work that took longer than its lease.
    Debt,
    /// Other sessions use the device.
    Others,
    /// Without a daemon, no idle time is granted.
    NoDaemon,
    /// The session waits for an unknown reason.
    Waits,
    /// How the session shares the device with others.
    Sharing,
    /// Nothing holds the session up.
    Free,
}
