//! What a limiter and the daemon say to each other: bodies of the HTTP calls, one type each.
//!
//! Times are in microseconds and relative ("this long from now"): the two sides share a clock, but
//! not the moment at which a message is read. Unknown fields are ignored, so that an old reader
//! understands a newer writer.

use serde::{Deserialize, Serialize};

/// Version of this protocol; a daemon refuses a caller whose version it does not know.
pub const VERSION: u32 = 1;

/// Paths of the calls. All of them are `POST` with a JSON body.
pub mod path {
    /// [`super::Register`] -> [`super::Registered`]
    pub const REGISTER: &str = "/v1/register";
    /// [`super::Admission`] -> [`super::Decision`]: a long poll.
    pub const ADMISSION: &str = "/v1/admission";
    /// Reports the end of a lease without asking for another: [`super::Admission`] with
    /// `ask: None` -> [`super::Decision`].
    pub const REPORT: &str = "/v1/report";
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
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceQuota {
    /// Device UUID as NVML prints it, lower case: `gpu-…`.
    pub uuid: String,
    /// Share of the device's time, in millionths (250_000 = 25 %).
    pub share_ppm: u32,
    /// How the share is meant.
    pub policy: Policy,
}

/// How a compute share is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, Default)]
#[serde(rename_all = "lowercase")]
pub enum Policy {
    /// Never above the share.
    #[default]
    Fixed,
    /// No compute limit.
    None,
}

/// The daemon's answer to [`Register`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Registered {
    /// Names this process in later calls.
    pub worker: u64,
}

/// Asks for the next lease of a device, and tells at the same time how the last one was used.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Admission {
    /// From [`Registered`].
    pub worker: u64,
    /// The device, as in [`DeviceQuota::uuid`].
    pub uuid: String,
    /// The lease that has ended, if one was held.
    pub report: Option<LeaseReport>,
    /// How long the daemon may keep the call open, in microseconds; `None` asks for nothing.
    pub ask: Option<u64>,
}

/// How a lease was used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseReport {
    /// From [`Lease::id`].
    pub lease: u64,
    /// From the opening of the gate until the work launched under it was done, in microseconds.
    pub held_us: u64,
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
}
