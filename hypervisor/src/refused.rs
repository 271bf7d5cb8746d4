//! Refused calls: the reasons, and their counters. The limiter's routes and the API answer with them.

use std::sync::atomic::{AtomicU64, Ordering};

use http_bidir_comm::server::ApiError;
use limits::GpuId;
use limits::compute::OutOfRange;
use poem::http::StatusCode;

/// Why the daemon refuses a call. The text is sent to the caller.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallRefused {
    /// The caller uses another protocol version.
    #[error("protocol {0}: expected {known}", known = protocol::VERSION)]
    Protocol(u32),
    /// Invalid session name.
    #[error("session name {0:?}: expected 1 to 253 bytes without control characters")]
    SessionName(String),
    /// Quota out of range.
    #[error("device {uuid}: {problem}")]
    Quota {
        /// The device.
        uuid: GpuId,
        /// The value out of range.
        problem: OutOfRange,
    },
    /// The call is for one device and carries the quota of another.
    #[error("device {asked}: the call carries the quota of device {quota}")]
    QuotaOfAnother {
        /// The device of the call.
        asked: GpuId,
        /// The device of the quota.
        quota: GpuId,
    },
    /// A device is named twice in one registration.
    #[error("device {0} is named twice; expected once")]
    NamedTwice(GpuId),
    /// No device, or too many, in a registration.
    #[error("{0} devices; expected 1 to {limit}", limit = protocol::MAX_DEVICES)]
    DeviceCount(usize),
    /// Too many devices in a session.
    #[error(
        "session {session:?} has {own} devices and asks for {more} more; expected at most {limit}",
        limit = protocol::MAX_DEVICES
    )]
    SessionDevices {
        /// The session.
        session: String,
        /// Devices that the session has named.
        own: usize,
        /// Devices that the call adds.
        more: usize,
    },
    /// The node has no such device.
    #[error("device {uuid} is not on this node; available: {}", listed(present))]
    NoSuchDevice {
        /// The device.
        uuid: GpuId,
        /// The node's devices.
        present: Vec<GpuId>,
    },
    /// Too many answers about the state are unread.
    #[error("user {uid} has {own} unread answers about the state; read one before asking again")]
    StatusNotRead {
        /// The user.
        uid: u32,
        /// Unread answers.
        own: usize,
    },
    /// The user holds as many items as are left for all others.
    #[error(
        "user {uid} has {own} {what}, as many as are left for all other users; close some first"
    )]
    TooMany {
        /// The kind of items.
        what: &'static str,
        /// The user.
        uid: u32,
        /// Items that the user holds.
        own: usize,
    },
    /// Nearly all items belong to other users.
    #[error("user {uid} has {own} {what} and asks for {more} more, but other users hold the rest")]
    TakenByOthers {
        /// The kind of items.
        what: &'static str,
        /// The user.
        uid: u32,
        /// Items that the user holds.
        own: usize,
        /// Items that the call adds.
        more: usize,
    },
    /// Unknown worker: it never existed, has ended, predates a restart of the daemon, or belongs to another process,
    /// which the text does not reveal.
    #[error("worker {0} is unknown; register first")]
    UnknownWorker(u64),
    /// The worker did not name the device at registration.
    #[error("device {0} was not named when this worker was registered")]
    UnknownDevice(GpuId),
    /// The session has no compute limit on the device, so no lease is needed.
    #[error("device {0}: the session has no compute limit there, so no lease is needed")]
    NoLimit(GpuId),
    /// Unknown session, or one of another user, which the text does not reveal.
    #[error("session {0} is unknown")]
    UnknownSession(u64),
    /// Only an operator may do this.
    #[error("only root and the daemon's own user may declare a device healthy")]
    NotOperator,
    /// The device was never observed.
    #[error("the daemon does not observe device {0}")]
    NotObserved(GpuId),
    /// The session has no compute share on the device, so leases cannot hold it back.
    #[error("session {session:?} has no compute share on device {device}, so it cannot be frozen")]
    NoTimeLimit {
        /// The session.
        session: String,
        /// The device.
        device: GpuId,
    },
    /// Like [`Self::NoTimeLimit`], but the session's pages do limit it: its processes have not reported the limit to the daemon
    /// yet.
    #[error(
        "session {session:?} cannot be frozen yet: none of its programs has used device {device} since the compute \
         share was set, so the daemon does not know of it"
    )]
    LimitNotTold {
        /// The session.
        session: String,
        /// The device.
        device: GpuId,
    },
    /// The process has ended, or cannot be watched.
    #[error("process {pid} cannot be watched: {reason}")]
    Unwatchable {
        /// The caller's process.
        pid: i32,
        /// The system's reason.
        reason: String,
    },
}

fn listed(devices: &[GpuId]) -> String {
    devices.iter().map(GpuId::to_string).collect::<Vec<_>>().join(", ")
}

impl CallRefused {
    pub(crate) fn status(&self) -> StatusCode {
        match self {
            Self::Protocol(_)
            | Self::SessionName(_)
            | Self::Quota { .. }
            | Self::QuotaOfAnother { .. }
            | Self::NamedTwice(_)
            | Self::DeviceCount(_)
            | Self::SessionDevices { .. }
            | Self::NoLimit(_) => StatusCode::BAD_REQUEST,
            Self::TooMany { .. } | Self::TakenByOthers { .. } | Self::StatusNotRead { .. } => {
                StatusCode::TOO_MANY_REQUESTS
            }
            Self::UnknownWorker(_)
            | Self::UnknownDevice(_)
            | Self::NoSuchDevice { .. }
            | Self::NotObserved(_)
            | Self::UnknownSession(_) => StatusCode::NOT_FOUND,
            Self::NotOperator | Self::Unwatchable { .. } => StatusCode::FORBIDDEN,
            Self::NoTimeLimit { .. } | Self::LimitNotTold { .. } => StatusCode::CONFLICT,
        }
    }
}

/// Labels under which refusals are counted.
const REASONS: [&str; 8] = [
    "bad_request",
    "protocol",
    "too_many",
    "unknown_worker",
    "unknown_device",
    "unknown_session",
    "forbidden",
    "conflict",
];

/// Refusals since the daemon's start, by reason.
#[derive(Debug, Default)]
pub(crate) struct Refusals([AtomicU64; REASONS.len()]);

impl Refusals {
    pub(crate) fn count(&self, refused: &CallRefused) {
        let index = match (refused, refused.status()) {
            (CallRefused::Protocol(_), _) => 1,
            (_, StatusCode::TOO_MANY_REQUESTS) => 2,
            (CallRefused::UnknownWorker(_), _) => 3,
            (CallRefused::UnknownDevice(_) | CallRefused::NoSuchDevice { .. }, _) => 4,
            (_, StatusCode::NOT_FOUND) => 5,
            (_, StatusCode::FORBIDDEN) => 6,
            (_, StatusCode::CONFLICT) => 7,
            _ => 0,
        };
        self.0[index].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = (&'static str, u64)> {
        REASONS.into_iter().zip(self.0.iter().map(|count| count.load(Ordering::Relaxed)))
    }
}

impl From<CallRefused> for ApiError {
    fn from(refused: CallRefused) -> Self {
        ApiError::new(refused.status(), refused.to_string())
    }
}
