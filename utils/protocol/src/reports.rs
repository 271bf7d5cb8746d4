//! What `sluice limit`, `hooks`, `explain` and `doctor` print with `--json`. [`crate::sessions`] has that of `status`.

use std::collections::BTreeMap;

use limits::{GpuId, Limits, Policy, Priority};
use serde::{Deserialize, Serialize};

use crate::sessions::ComputeReport;

/// The output of `sluice limit --json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LimitReport {
    /// The session.
    pub session: String,
    /// The user it belongs to.
    pub uid: u32,
    /// Whether each of its processes goes by the change.
    pub taken_by_all: bool,
    /// The devices that were to be changed.
    pub devices: Vec<ChangedDevice>,
}

/// A session's limits on a device before and after a change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ChangedDevice {
    /// The device.
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub uuid: GpuId,
    /// The limits before.
    pub before: LimitsReport,
    /// The limits from now on.
    pub after: LimitsReport,
    /// What its processes have, in bytes.
    pub used: u64,
    /// Its processes, and whether they go by the change.
    pub processes: Vec<TookChange>,
}

/// Limits on a device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LimitsReport {
    /// Memory in bytes; `None`: no limit.
    pub memory: Option<u64>,
    /// The part of it that may be on the device, if that is less.
    pub memory_real: Option<u64>,
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

/// Whether a process goes by a change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TookChange {
    /// Its id in its own namespace.
    pub pid: u32,
    /// Its id on the host, if it is known.
    pub host_pid: Option<u32>,
    /// Whether it has said so.
    pub taken: bool,
}

/// The output of `sluice hooks --json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct HooksReport {
    /// The hook engine that patched each library, by the library's name.
    #[serde(default)]
    pub engines: BTreeMap<String, String>,
    /// Functions that are patched.
    pub patched: usize,
    /// Functions that this driver does not have.
    pub absent: usize,
    /// Functions that exist and could not be patched.
    pub failed: usize,
    /// All of them.
    pub functions: Vec<HookedFunction>,
}

/// A function of the driver.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct HookedFunction {
    /// The library that exports it.
    pub library: String,
    /// Its symbol.
    pub symbol: String,
    /// What became of it.
    pub state: HookWord,
    /// `failed`: why.
    pub reason: Option<String>,
}

/// What became of a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum HookWord {
    /// It is patched.
    Patched,
    /// This driver does not have it.
    Absent,
    /// It exists and could not be patched.
    Failed,
}

/// The output of `sluice doctor --json`, and of `hypervisor node --check --json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DoctorReport {
    /// Whether nothing is broken, and all could be judged.
    pub healthy: bool,
    /// What was looked at, in order.
    pub findings: Vec<Finding>,
}

/// What was found of one part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Finding {
    /// What was looked at.
    pub check: String,
    /// Whether it is as it should be.
    pub state: FindingState,
    /// What was found.
    pub found: String,
    /// The command that mends it, if it is not as it should be.
    pub mend: Option<String>,
}

/// Whether something is as it should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum FindingState {
    /// It is.
    Ok,
    /// Sluice works without it, or with less.
    Note,
    /// Limits do not hold, or nothing runs.
    Broken,
    /// It could not be looked at, because of what is broken before.
    Skipped,
    /// It could not be judged, because other programs use the GPU.
    Busy,
}

/// The output of `sluice explain --json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ExplainReport {
    /// The process that was asked about, if it was one.
    pub process: Option<ExplainedProcess>,
    /// The session, if there is one.
    pub session: Option<String>,
    /// The user it belongs to.
    pub uid: Option<u32>,
    /// Its devices.
    pub devices: Vec<ExplainedDevice>,
    /// What was found out, most important first.
    pub reasons: Vec<Explanation>,
}

/// A process that was asked about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ExplainedProcess {
    /// Its id here.
    pub pid: u32,
    /// Its name.
    pub name: Option<String>,
    /// Whether the limiter is in it. `None`: its memory may not be looked at.
    pub preloaded: Option<bool>,
    /// Whether the CUDA driver is in it.
    pub uses_cuda: Option<bool>,
}

/// A session's figures on a device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ExplainedDevice {
    /// The device.
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub uuid: GpuId,
    /// What it has in use, in bytes.
    pub used: u64,
    /// Its limit, in bytes.
    pub limit: Option<u64>,
    /// Its time.
    pub compute: ComputeReport,
    /// Allocations that were refused.
    pub refusals: u64,
    /// What the last of them asked for, in bytes.
    pub refused_bytes: Option<u64>,
    /// How long ago that was, in microseconds.
    pub refused_ago_us: Option<u64>,
    /// Processes that wait for a lease.
    pub waiting: usize,
    /// Processes that hold one.
    pub holding: usize,
    /// Guaranteed time that it may still use, in microseconds; negative: it owes time. `None`: not known.
    pub balance_us: Option<i64>,
    /// Sessions of the device that ask for it beside this one, as the daemon counts them.
    pub others_asking: Option<u64>,
}

/// A reason, and what would change it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Explanation {
    /// What kind of reason it is.
    pub code: ReasonWord,
    /// The reason, with the numbers.
    pub text: String,
    /// What would change it.
    pub remedy: Option<String>,
}

/// Kinds of reasons.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ReasonWord {
    /// The limiter is not in the process.
    NotPreloaded,
    /// Whether it is cannot be seen.
    Unseen,
    /// The process is in no session, or uses no GPU.
    NoSession,
    /// No process of the session has used a device.
    NotUsedYet,
    /// The session is frozen.
    Frozen,
    /// The memory limit is used up, or nearly.
    Memory,
    /// It has used its share, and waits for more.
    ShareUsed,
    /// It owes time for work that took longer than its lease.
    Debt,
    /// Others use the device.
    Others,
    /// No daemon hands out what others leave.
    NoDaemon,
    /// It waits, and why is not known.
    Waits,
    /// Nothing stands in its way.
    Free,
}
