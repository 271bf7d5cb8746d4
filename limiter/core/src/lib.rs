//! The decisions of the limiter: when a lease is requested, kept and given up, and what it is charged.
//!
//! Time is an argument, and so are the observations of device and program. There is no clock, thread, driver or I/O
//! here, and no `unsafe`: the governor in `libcuda_limiter.so` calls this crate with what it observes, and the virtual
//! world (`examples/fake-gpu/world`) with what a model does.
//!
//! [`Samples`] and [`GridModel`] tell how long work takes, and [`LaunchTimes`] how far off that was lately. [`Tenure`]
//! is a lease while its gate is open, [`Usage`] what of it counts as used, [`Stall`] whether work waits for what the
//! program does next. [`Rest`] is how long something is left alone after a failure, [`Absence`] when a daemon that is
//! gone is tried again.

#![forbid(unsafe_code)]
#![warn(clippy::too_many_lines)]

mod absence;
mod grids;
mod launch_times;
mod lease;
mod rest;
mod samples;
mod stall;
mod tenure;
pub mod tuning;
mod usage;

pub use absence::Absence;
pub use grids::{GridModel, Guess};
pub use launch_times::LaunchTimes;
pub use lease::{Lease, room_ns};
pub use rest::Rest;
pub use samples::Samples;
pub use stall::Stall;
pub use tenure::{LeaseUtilization, Neighbours, SPREAD, Tenure};
pub use usage::{Totals, Usage, Used};
