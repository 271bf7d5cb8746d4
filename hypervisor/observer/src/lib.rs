//! Observes the node's devices for the daemon: figures, processes, errors, and the resulting health.
//!
//! A thread of its own ([`Watch`]) reads a [`Source`], because a driver call may take long or never return;
//! [`NvmlSource`] queries NVML. The readings go to a [`Model`], which is pure: it returns the changes and keeps a
//! [`View`] for the API and metrics. Each figure is a [`Reading`], so one unreadable figure hides no other.

#![forbid(unsafe_code)]

pub mod cordon;
mod health;
mod model;
mod nvml;
mod reading;
mod source;
mod unknown;
mod xid;

pub use health::{Ailment, Health};
pub use model::{Change, DeviceView, Model, View};
pub use nvml::NvmlSource;
pub use reading::{
    AllReadings, Clocks, DeviceReading, Ecc, GpuProcess, Hardware, Link, Memory, Reading,
    ThrottleReason, Unread, Utilization,
};
pub use source::{Blind, Seen, Source, Watch};
pub use unknown::UnknownProcess;
pub use xid::{Xid, XidClass};
