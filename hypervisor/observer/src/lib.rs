//! What the node's devices show of themselves: figures, processes, errors, and the health that follows.
//!
//! A [`Source`] shows devices; [`NvmlSource`] asks NVML. It is read by a thread of its own ([`Watch`]), because
//! a call of the driver may take long, or for ever. What it shows goes into a [`Model`], which is pure: it tells
//! what has changed, and keeps a [`View`] for those who ask. One figure that cannot be read hides no other: each
//! is a [`Reading`].

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
