//! Decides who may use a device now, and for how long. There is one [`Scheduler`] per device.
//!
//! It is a pure state machine: no I/O, no clock, no threads. Each call carries the time, in
//! nanoseconds of one monotonic clock. The caller acts on what comes back.
//!
//! * A **session** owns a share of the device's time. Its **workers** (processes) use that share
//!   together.
//! * A worker asks and is granted a **lease**. While the lease lasts, the worker reports how it
//!   uses it and asks for it to be prolonged. When all its work is done, it reports the end.
//! * A session earns time continuously, and pays when use is reported (`account`,
//!   `limits::bucket`).
//! * A worker that fills the device is **dense**; one that leaves it idle part of the time is
//!   **sparse** (`density`). Dense workers exclude each other, because the hardware loses a tenth
//!   of the device when it slices two of them. Sparse workers may hold beside any other worker:
//!   slicing serves them well.
//! * Of the workers that ask and have earned enough, the next is the one with the earliest **virtual
//!   deadline**: when its session will have had its next turn, in relation to its share (`order`,
//!   `limits::turns`). Time that would then be idle is **spare**: it goes to sessions that may have
//!   more than their share (`spare`).
//! * A lease can end early where a worker's gates are in its streams, because another is to have the
//!   device now (`preempt`).
//! * A session can be **frozen**: it is granted nothing until it is thawed ([`Scheduler::freeze`]). A device can be
//!   **suspended**: nobody is granted anything there until it is resumed ([`Scheduler::suspend`]).
//! * A worker whose class is in doubt gets a **turn alone** (`alone`).
//! * A worker that does not report does not stop others for long. A while after its lease has
//!   ended, the lease is **revoked** and others go on. Its session goes on paying until the report
//!   comes or the worker leaves.
//!
//! How far reports are believed: for each interval a process may report any use, from nothing to
//! all of the time measured here. Most programs leave the device idle part of the time that they
//! hold it. If a report could lower the charge by a little only, they would pay for the time in
//! which their CPU works. But the report comes from inside the process, whose user may have replaced
//! the limiter. So what all holders of a moment report has to add up to it (`audit`), and a session
//! that is found out takes turns and pays by the clock (`trust`). Time without a report (none came, the
//! lease was revoked, the process died) is charged in full.

#![forbid(unsafe_code)]
#![deny(clippy::too_many_lines)]

mod account;
mod alone;
mod audit;
mod density;
mod division;
mod lease;
mod order;
mod preempt;
mod roster;
mod rounds;
mod scheduler;
mod spare;
mod trust;
mod tuning;
mod turn;
mod types;

pub use account::SavedBalance;
pub use density::Class;
pub use limits::turns::Handover;
pub use scheduler::Scheduler;
pub use scheduler::gang::Gangs;
pub use scheduler::view::{DeviceView, LeaseView, SessionView, WorkerState};
pub use types::{Grant, LeaseId, Paid, ScheduleError, SessionId, Told, WorkerId};
