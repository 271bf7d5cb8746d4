//! The daemon's state: the answer to `GET` [`crate::path::STATUS`].

use limits::{GpuId, Policy, Priority};
use serde::{Deserialize, Serialize};

/// The daemon's state. A caller other than root and the daemon's own user sees its own sessions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeStatus {
    /// The daemon's version.
    pub version: String,
    /// The time since its start, in microseconds.
    pub uptime_us: u64,
    /// Lines of its log that could not be written, or were too many.
    #[serde(default)]
    pub log_lines_lost: u64,
    /// The devices on which a session with a limit has been seen, by UUID.
    pub devices: Vec<DeviceStatus>,
}

/// One device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceStatus {
    /// Its UUID.
    pub uuid: GpuId,
    /// The sessions that may use it.
    pub sessions: Vec<SessionStatus>,
    /// The leases that are held.
    pub leases: Vec<LeaseStatus>,
}

/// One session on one device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionStatus {
    /// The user it belongs to.
    pub uid: u32,
    /// Its name.
    pub session: String,
    /// Its share of the device's time, in millionths.
    pub share_ppm: u32,
    /// How the share is meant.
    #[serde(default)]
    pub policy: Policy,
    /// Its ceiling under `balance`, in millionths; `None`: no ceiling.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub soft_ppm: Option<u32>,
    /// Its part of spare time, in relation to other sessions'.
    #[serde(default)]
    pub weight: u32,
    /// Whether others come first.
    #[serde(default)]
    pub priority: Priority,
    /// Guaranteed time that it may still use, in microseconds. Negative: it owes time.
    pub balance_us: i64,
    /// Time that it has been charged since it was first seen, in microseconds.
    pub charged_us: u64,
    /// The part of `charged_us` that was spare time.
    #[serde(default)]
    pub spare_us: u64,
    /// The utilization of its densest process while no other slows it down, in millionths. `None`:
    /// not known yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub density_ppm: Option<u64>,
    /// The class that follows from it.
    #[serde(default)]
    pub class: Class,
    /// Whether one of its processes asks for a lease.
    pub asks: bool,
    /// Its processes.
    pub pids: Vec<i32>,
}

/// Whether a session fills the device by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Class {
    /// It fills the device, or may do so. Such sessions use the device in turns.
    #[default]
    Dense,
    /// It leaves the device idle part of the time, and holds it beside others.
    Sparse,
}

/// A lease that is held.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseStatus {
    /// The session that holds it.
    pub session: String,
    /// The process that holds it.
    pub pid: i32,
    /// For how long it has been held, in microseconds.
    pub held_us: u64,
    /// Whether it is paid from spare time.
    #[serde(default)]
    pub spare: bool,
    /// Whether others no longer wait for it.
    pub revoked: bool,
}
