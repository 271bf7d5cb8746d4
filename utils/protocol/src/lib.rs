//! The messages between the parts of Sluice, and to other programs; each has one type. Here and in
//! [`status`] are the bodies of the daemon's HTTP calls; in [`sessions`] and [`reports`] is what
//! `sluice` prints with `--json`; [`findings`] are gathered by checks; in [`record`] is what it records.
//! [`socket`] knows where the daemon listens.
//!
//! Times are in microseconds and relative ("this long from now"). The two sides share a clock, but
//! do not know when the other reads a message. A device's UUID is written as NVML prints it, and
//! read in any case. Unknown fields are ignored, so that an old reader understands a newer writer.
//! A field that was added later has a default, so that a new reader understands an older writer.
//! `tests/golden` holds each message as it is written.

#![forbid(unsafe_code)]

pub mod findings;
pub mod record;
pub mod reports;
#[cfg(feature = "schema")]
pub mod schema;
pub mod sessions;
pub mod socket;

use limits::{ComputeLimit, GpuId};
use serde::{Deserialize, Serialize};

/// Version of this protocol; a daemon refuses a caller whose version it does not know.
pub const VERSION: u32 = 2;

/// Devices that one registration may name. The driver itself stops at 64.
pub const MAX_DEVICES: usize = 64;

/// The longest lease, in microseconds: no daemon grants more, and no limiter believes more.
pub const LONGEST_LEASE_US: u64 = 50_000;

/// The paths of the calls. They are `POST` with a JSON body unless stated otherwise.
pub mod path {
    /// The root of the calls.
    pub const ROOT: &str = "/v1";
    /// [`super::Register`] -> [`super::Registered`]
    pub const REGISTER: &str = "/v1/register";
    /// [`super::Admission`] -> [`super::Decision`]: a long poll.
    pub const ADMISSION: &str = "/v1/admission";
    /// Reports the end of a lease without asking for another: [`super::Admission`] with
    /// `ask: None` -> [`super::Decision`].
    pub const REPORT: &str = "/v1/report";
}

/// Registers a process. The daemon learns its pid and user from the kernel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Register {
    /// [`VERSION`] of the caller.
    pub protocol: u32,
    /// The session whose quota the process shares, as named by `sluice run`, the pod or the limiter
    /// itself.
    pub session: String,
    /// What the session may take, per device that has a limit.
    pub devices: Vec<DeviceQuota>,
    /// The process's gates on these devices are in its streams. `None`: they are on its threads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gates: Option<GatesInStream>,
}

/// Gates that the daemon can open and close, by memory that the process shares with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GatesInStream {
    /// The number of the gate page's descriptor in the calling process. Any number is read: one
    /// that leads to no page counts as none.
    pub descriptor: i64,
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
    /// A quota of policy [`Policy::Fixed`](limits::Policy::Fixed) with this share.
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

/// Reports how a device's lease was used, and asks for the next one, or for more of the present
/// one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Admission {
    /// From [`Registered`].
    pub worker: u64,
    /// The device.
    pub uuid: GpuId,
    /// How the present lease, or the one that has ended, was used since its last report.
    pub report: Option<LeaseReport>,
    /// How long the daemon may keep the call open, in microseconds. `None` asks for nothing. With a
    /// report that is not the lease's last one, the call asks for that lease to go on, and is
    /// answered at once.
    pub ask: Option<u64>,
    /// The session's quota on this device, if it has changed since the registration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota: Option<DeviceQuota>,
    /// The word of the caller's closed gate on this device, in its gate page. If a lease is granted
    /// while it is still the same, the daemon opens the gate. `None`: the caller opens it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gate: Option<u32>,
    /// The session uses the device together with its others that say so: work on one waits for work on
    /// the others.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub together: bool,
    /// For how long, in microseconds, the process used the device outside of leases since it last said so: work on
    /// another one waited for it. The session pays for it.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub outside_us: u64,
    /// The estimated time, in microseconds, of what was queued behind the gate when the last lease ended. Who has much
    /// queued does not notice how its turns are cut.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub queued_us: u64,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
const fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// How a lease was used since its grant or since its last report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseReport {
    /// From [`Lease::id`].
    pub lease: u64,
    /// The time that the report covers, in microseconds. It begins with the opening of the gate or
    /// the last report. It ends now, or when the work launched under the lease was done.
    pub held_us: u64,
    /// Estimated time for which the process's own work kept the device busy, in microseconds.
    pub estimated_us: u64,
    /// Time for which the process always had work queued, in microseconds. If it had the device to
    /// itself, it was busy for at least this long.
    pub backlogged_us: u64,
    /// The part of the time held, in microseconds, in which the process had no work and kept the lease because nobody
    /// waited for it.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub idle_us: u64,
    /// Whether the lease is over and its work done; otherwise it is still held.
    pub done: bool,
}

impl Admission {
    /// Reports nothing, asks for nothing and changes nothing.
    #[must_use]
    pub const fn of(worker: u64, uuid: GpuId) -> Self {
        let (report, ask, quota, gate) = (None, None, None, None);
        let (together, outside_us, queued_us) = (false, 0, 0);
        Self { worker, uuid, report, ask, quota, gate, together, outside_us, queued_us }
    }
}

impl LeaseReport {
    /// A lease that has ended and was used all the time.
    #[must_use]
    pub const fn busy(lease: u64, held_us: u64) -> Self {
        Self {
            lease,
            held_us,
            estimated_us: held_us,
            backlogged_us: held_us,
            idle_us: 0,
            done: true,
        }
    }
}

/// The daemon's answer to [`Admission`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decision {
    /// A lease. `None`: none was free in the time asked for; ask again.
    pub lease: Option<Lease>,
    /// Why the session is granted no lease on the device for now. `None`: it is a matter of turns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub withheld: Option<Withheld>,
}

impl Decision {
    /// Without a reason.
    #[must_use]
    pub const fn of(lease: Option<Lease>) -> Self {
        Self { lease, withheld: None }
    }
}

/// Why a session is granted no lease on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Withheld {
    /// The session is frozen.
    Frozen,
    /// The device is unhealthy.
    Unhealthy,
    /// A process uses the device that no session knows.
    UnknownProcess,
    /// A reason that this version does not know.
    #[serde(other)]
    Other,
}

/// The right to use a device for a limited time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// The lease's name in reports.
    pub id: u64,
    /// How long work may be launched, in microseconds after this message was read; at most
    /// [`LONGEST_LEASE_US`].
    pub length_us: u64,
    /// Whether another session's lease runs at the same time.
    #[serde(default)]
    pub shared: bool,
    /// Whether no other worker will be granted a lease before this one ends.
    #[serde(default)]
    pub exclusive: bool,
}
