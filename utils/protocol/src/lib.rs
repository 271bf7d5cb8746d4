//! What the parts of Sluice say to each other and to other programs, one type each: the bodies of
//! the daemon's HTTP calls (here and in [`status`]), and what `sluice status --json` prints
//! ([`sessions`]). [`socket`] says where the daemon listens.
//!
//! Times are in microseconds and relative ("this long from now"): the two sides share a clock, but
//! not the moment at which a message is read. A device's UUID is written as NVML prints it and read in
//! any case. Unknown fields are ignored, so that an old reader understands a newer writer. A field that
//! came later has a default, so that a new reader understands an older writer. `tests/golden` holds each
//! of them as it is written, and as earlier versions wrote it.

#![forbid(unsafe_code)]

pub mod sessions;
pub mod socket;
pub mod status;

use limits::{ComputeLimit, GpuId};
use serde::{Deserialize, Serialize};

/// Version of this protocol; a daemon refuses a caller whose version it does not know.
pub const VERSION: u32 = 2;

/// Devices that one registration may name. The driver itself stops at 64.
pub const MAX_DEVICES: usize = 64;

/// Paths of the calls: `POST` with a JSON body, where nothing else is said.
pub mod path {
    /// [`super::Register`] -> [`super::Registered`]
    pub const REGISTER: &str = "/v1/register";
    /// [`super::Admission`] -> [`super::Decision`]: a long poll.
    pub const ADMISSION: &str = "/v1/admission";
    /// Reports the end of a lease without asking for another: [`super::Admission`] with
    /// `ask: None` -> [`super::Decision`].
    pub const REPORT: &str = "/v1/report";
    /// `GET` -> [`super::status::NodeStatus`]
    pub const STATUS: &str = "/v1/status";
}

/// A process introduces itself. Who it is (pid, user) the daemon learns from the kernel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Register {
    /// [`VERSION`] of the caller.
    pub protocol: u32,
    /// The session whose quota the process shares, as named by `sluice run`, the pod or the
    /// limiter itself.
    pub session: String,
    /// What the session may take, per device that has a limit.
    pub devices: Vec<DeviceQuota>,
}

/// The compute quota of a session on one device.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceQuota {
    /// The device.
    pub uuid: GpuId,
    /// What it may take of the device's time.
    #[serde(flatten)]
    pub limit: ComputeLimit,
}

impl DeviceQuota {
    /// A share that is never exceeded.
    #[must_use]
    pub const fn fixed(uuid: GpuId, share_ppm: u32) -> Self {
        Self { uuid, limit: ComputeLimit::fixed(share_ppm) }
    }
}

/// The daemon's answer to [`Register`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Registered {
    /// Names this process in later calls.
    pub worker: u64,
}

/// Asks for the next lease of a device, or for more of the present one, and tells at the same time how
/// it was used.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Admission {
    /// From [`Registered`].
    pub worker: u64,
    /// The device.
    pub uuid: GpuId,
    /// How the lease that is held, or that has ended, was used since it was last told.
    pub report: Option<LeaseReport>,
    /// How long the daemon may keep the call open, in microseconds; `None` asks for nothing. With a
    /// report that is not the last one it asks for the lease to go on, and is answered at once.
    pub ask: Option<u64>,
    /// The session's quota on this device, where it has changed since the registration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota: Option<DeviceQuota>,
}

/// How a lease was used, since its grant or since the last report about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseReport {
    /// From [`Lease::id`].
    pub lease: u64,
    /// The time told of: from the opening of the gate, or the last report, until now or until the work
    /// launched under the lease was done; in microseconds.
    pub held_us: u64,
    /// Estimated time for which the process's own work kept the device busy, in microseconds.
    pub estimated_us: u64,
    /// Time for which the process always had work waiting for the device, in microseconds. Where it had
    /// the device to itself, it was busy for at least so long.
    pub backlogged_us: u64,
    /// Whether the lease is over and its work done; else it is still held.
    pub done: bool,
}

impl LeaseReport {
    /// A lease that is over and was used all the time.
    #[must_use]
    pub const fn busy(lease: u64, held_us: u64) -> Self {
        Self { lease, held_us, estimated_us: held_us, backlogged_us: held_us, done: true }
    }
}

/// The daemon's answer to [`Admission`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decision {
    /// A lease, or `None`: none was free in the time asked for, ask again.
    pub lease: Option<Lease>,
}

/// The right to use a device for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// Names the lease in its report.
    pub id: u64,
    /// From the reading of this message until launching has to stop, in microseconds.
    pub length_us: u64,
    /// Whether another session's lease runs at the same time.
    #[serde(default)]
    pub shared: bool,
    /// Whether no other worker is granted a lease before this one ends.
    #[serde(default)]
    pub exclusive: bool,
}
