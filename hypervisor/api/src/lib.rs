//! Messages of the daemon's HTTP API (`/api/v1` on its socket), shared by the daemon, `sluice` and tests.
//!
//! serde reads and writes them as JSON. With the feature `description` the types describe themselves by OpenAPI.
//! Unknown or inapplicable values are omitted.
//!
//! Numbers have their unit in their name: `_us` microseconds, `_ms` milliseconds, `_bytes`, `_ppm` millionths.

#![forbid(unsafe_code)]

/// Declares a message, or a struct within one.
macro_rules! message {
    ($(#[$attribute:meta])* pub struct $name:ident { $($fields:tt)* }) => {
        #[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
        #[cfg_attr(feature = "description", derive(poem_openapi::Object))]
        #[cfg_attr(feature = "description", oai(skip_serializing_if_is_none))]
        $(#[$attribute])*
        pub struct $name { $($fields)* }
    };
}

/// Declares an enum whose variants are words in messages.
macro_rules! word {
    ($(#[$attribute:meta])* pub enum $name:ident { $($variants:tt)* }) => {
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
        )]
        #[cfg_attr(feature = "description", derive(poem_openapi::Enum))]
        #[cfg_attr(feature = "description", oai(rename_all = "snake_case"))]
        #[serde(rename_all = "snake_case")]
        $(#[$attribute])*
        pub enum $name { $($variants)* }
    };
}

mod device;
mod event;
mod health;
mod limits;
mod problem;
mod session;

pub use device::{
    Device, DeviceDeclared, DeviceHealth, DeviceList, DeviceState, Figures, Observer, Sums,
    UnknownProcess, UnknownProcesses, UnreadFigure, Withheld, XidCount,
};
pub use event::{Event, EventKind};
pub use health::{Health, Readiness, Reason, ReasonCode};
pub use limits::{
    DeviceLimits, FormerLimits, LimitChange, LimitsChanged, Policy, Priority, ProcessTook,
};
pub use problem::{Problem, ProblemCode};
pub use session::{
    Class, Container, Lease, LeaseList, Presence, Session, SessionAction, SessionDevice,
    SessionList, SessionMemory, SessionState, Sharing, SharingReason, SharingWay, Worker,
    WorkerDevice, WorkerList, WorkerState,
};

/// Version of the API in its OpenAPI description.
pub const VERSION: &str = "1.0";

/// Paths of the API.
pub mod path {
    /// The root of the API.
    pub const API: &str = "/api/v1";
    /// `GET` -> [`super::DeviceList`]
    pub const DEVICES: &str = "/api/v1/devices";
    /// `GET` -> [`super::SessionList`]
    pub const SESSIONS: &str = "/api/v1/sessions";
    /// `GET` -> [`super::WorkerList`]
    pub const WORKERS: &str = "/api/v1/workers";
    /// `GET` -> [`super::LeaseList`]
    pub const LEASES: &str = "/api/v1/leases";
    /// `GET` -> a stream of [`super::Event`]
    pub const EVENTS: &str = "/api/v1/events";
    /// `GET` -> the API's OpenAPI description
    pub const DESCRIPTION: &str = "/api/v1/openapi.json";
    /// `GET` -> [`super::Health`]
    pub const HEALTH: &str = "/healthz";
    /// `GET` -> [`super::Readiness`]
    pub const READY: &str = "/readyz";

    /// Path of a device, with an action: `""`, `"/healthy"`.
    #[must_use]
    pub fn device(uuid: &str, action: &str) -> String {
        format!("{DEVICES}/{uuid}{action}")
    }

    /// Path of a session, with an action: `""`, `"/freeze"`, `"/thaw"`, `"/limits"`.
    #[must_use]
    pub fn session(id: u64, action: &str) -> String {
        format!("{SESSIONS}/{id}{action}")
    }
}
