//! Messages between the parts of Sluice and to other programs, one type each. The bodies of the limiter's HTTP calls to
//! the daemon are here; [`sessions`] and [`reports`] are the output of `sluice --json`, [`findings`] collects a check's
//! results, [`record`] is the format of recordings, and [`socket`] has the daemon's default sockets.
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

/// Version of this protocol; a daemon refuses callers with an unknown version.
pub const VERSION: u32 = 2;

/// Most devices in one registration. The driver itself stops at 64.
pub const MAX_DEVICES: usize = 64;

/// The longest lease, in microseconds: no daemon grants a longer one, and no limiter accepts it.
pub const LONGEST_LEASE_US: u64 = 50_000;

/// Paths of the calls. They are `POST` with a JSON body unless stated otherwise.
pub mod path {
    /// The root of the calls.
    pub const ROOT: &str = "/v1";
    /// [`super::Register`] -> [`super::Registered`]
    pub const REGISTER: &str = "/v1/register";
    /// [`super::Admission`] -> [`super::Decision`]: a long poll.
    pub const ADMISSION: &str = "/v1/admission";
    /// Reports the end of a lease without requesting another: [`super::Admission`] with `ask: None` ->
    /// [`super::Decision`].
    pub const REPORT: &str = "/v1/report";
}

/// Registers a process. The daemon gets its pid and user from the kernel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Register {
    /// [`VERSION`] of the caller.
    pub protocol: u32,
    /// Name of the session whose quota the process shares; chosen by `sluice run`, the pod or the limiter itself.
    pub session: String,
    /// The session's quota on each device with a limit.
    pub devices: Vec<DeviceQuota>,
    /// Set if the process's gates on these devices are in its streams. `None`: they are on its threads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gates: Option<GatesInStream>,
}

/// Gates that the daemon opens and closes through memory shared with the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GatesInStream {
    /// Number of the gate page's file descriptor in the calling process. Any number is accepted; one that denotes no
    /// gate page counts as none.
    pub descriptor: i64,
}

/// The compute quota of a session on one device.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceQuota {
    /// The device.
    pub uuid: GpuId,
    /// The session's compute limit on the device.
    #[serde(flatten)]
    pub limit: ComputeLimit,
}

impl DeviceQuota {
    /// A quota with policy [`Policy::Fixed`](limits::Policy::Fixed) and this share.
    #[must_use]
    pub const fn fixed(uuid: GpuId, share_ppm: u32) -> Self {
        Self { uuid, limit: ComputeLimit::fixed(share_ppm) }
    }
}

/// The daemon's answer to [`Register`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Registered {
    /// Id of this process in later calls.
    pub worker: u64,
}

/// Reports the use of a device's lease, and requests the next lease or an extension of the present one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Admission {
    /// From [`Registered`].
    pub worker: u64,
    /// The device.
    pub uuid: GpuId,
    /// Use of the present or just ended lease since its last report.
    pub report: Option<LeaseReport>,
    /// How long the daemon may hold the call, in microseconds. `None` requests nothing. With a report that is not the
    /// lease's last one, the call requests an extension of that lease and is answered at once.
    pub ask: Option<u64>,
    /// The session's quota on this device, if it has changed since the registration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota: Option<DeviceQuota>,
    /// The word of the caller's closed gate on this device in its gate page. If the word is unchanged when a lease is
    /// granted, the daemon opens the gate. `None`: the caller opens it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gate: Option<u32>,
    /// Whether the session uses this device together with others: work on one waits for work on the others.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub together: bool,
    /// Time for which the process used the device outside of leases since the last report of such time, in
    /// microseconds: work on another device waited for it. Charged to the session.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub outside_us: u64,
    /// Estimated time of the work queued behind the gate at the end of the last lease, in microseconds. With much
    /// queued work, shorter turns do not slow a program down.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub queued_us: u64,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
const fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// Use of a lease since its grant or last report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseReport {
    /// From [`Lease::id`].
    pub lease: u64,
    /// The time that the report covers, in microseconds: from the opening of the gate or the last report, until now or
    /// until the work launched under the lease was done.
    pub held_us: u64,
    /// Estimated time in which the process's own work kept the device busy, in microseconds.
    pub estimated_us: u64,
    /// Time in which the process always had work queued, in microseconds. A process alone on the device was busy for at
    /// least this long.
    pub backlogged_us: u64,
    /// The part of the held time in which the process had no work and kept the lease because no other process was
    /// waiting, in microseconds.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub idle_us: u64,
    /// Number of the process's launches that were completed since it began. So the daemon finds in which way sessions
    /// get most done.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub launches: u64,
    /// Whether the lease has ended and its work is done; otherwise it is still held.
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
    /// The last report of a lease that was used all the time.
    #[must_use]
    pub const fn busy(lease: u64, held_us: u64) -> Self {
        Self {
            lease,
            held_us,
            estimated_us: held_us,
            backlogged_us: held_us,
            idle_us: 0,
            launches: 0,
            done: true,
        }
    }
}

/// The daemon's answer to [`Admission`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decision {
    /// A lease. `None`: none was available within the requested time; ask again.
    pub lease: Option<Lease>,
    /// Why leases are withheld from the session on the device. `None`: they are not withheld.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub withheld: Option<Withheld>,
}

impl Decision {
    /// A decision without a reason.
    #[must_use]
    pub const fn of(lease: Option<Lease>) -> Self {
        Self { lease, withheld: None }
    }
}

/// Why leases on a device are withheld from a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Withheld {
    /// The session is frozen.
    Frozen,
    /// The device is unhealthy.
    Unhealthy,
    /// A process outside any session uses the device.
    UnknownProcess,
    /// A reason unknown to this version.
    #[serde(other)]
    Other,
}

/// The right to use a device for a limited time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// Id of the lease in reports.
    pub id: u64,
    /// How long work may be launched, in microseconds from reading this message; at most [`LONGEST_LEASE_US`].
    pub length_us: u64,
    /// Whether another session holds a lease at the same time.
    #[serde(default)]
    pub shared: bool,
    /// Whether the sessions that want the device hold leases at once, so nobody waits for this one.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub overlaps: bool,
}
