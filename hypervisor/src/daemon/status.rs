//! The answer to `GET /v1/status`.

use serde::{Deserialize, Serialize};

/// The path of the call.
pub const PATH: &str = "/v1/status";

/// The daemon's state. A caller other than root and the daemon's own user sees its own sessions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// The daemon's version.
    pub version: String,
    /// Since its start, in microseconds.
    pub uptime_us: u64,
    /// The devices on which a session with a limit has been seen, by UUID.
    pub devices: Vec<DeviceStatus>,
}

/// One device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceStatus {
    /// Its UUID, in lower case.
    pub uuid: String,
    /// Who may use it.
    pub sessions: Vec<SessionStatus>,
    /// Who uses it now.
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
    /// Time that it may still hold the device, in microseconds; negative: it owes.
    pub balance_us: i64,
    /// Time that it has been charged since it was first seen, in microseconds.
    pub charged_us: u64,
    /// Whether one of its processes asks for a lease.
    pub asks: bool,
    /// Its processes.
    pub pids: Vec<i32>,
}

/// A lease that is held.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseStatus {
    /// By which session.
    pub session: String,
    /// By which process.
    pub pid: i32,
    /// For how long, in microseconds.
    pub held_us: u64,
    /// Whether others no longer wait for it.
    pub revoked: bool,
}
