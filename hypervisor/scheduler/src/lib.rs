//! Decides which sessions may use a device now, and for how long. There is one [`Scheduler`] per device; the daemon's
//! core calls it, and so does the virtual world of `examples/fake-gpu`.
//!
//! It is a pure state machine: no I/O, no clock, no threads. Each call carries the time, in nanoseconds of one
//! monotonic clock, and the caller acts on the result.
//!
//! * A **session** owns a share of the device's time. Its **workers** (processes) use that share together.
//! * A worker asks and is granted a **lease**. While the lease lasts, the worker reports its use and asks to prolong
//!   it. When all its work is done, it reports the end.
//! * A session earns time continuously, and pays when use is reported (`account`, `limits::bucket`).
//! * A worker that fills the device is **dense**; one that leaves it idle part of the time is **sparse** (`density`).
//!   Dense workers exclude each other, because the hardware loses a tenth of the device when it slices two of them.
//!   Sparse workers may hold leases beside any other worker: slicing serves them well.
//! * Of the workers that ask and have earned enough, the next is the one with the earliest **virtual deadline**: the
//!   time at which its session will have had its next turn, relative to its share (`order`, `limits::turns`). Time that
//!   would then be idle is **spare**: it goes to sessions that may exceed their share (`spare`).
//! * A lease can end early if a worker's gates are in its streams and another worker should have the device now
//!   (`preempt`).
//! * A session can be **frozen**: it is granted nothing until it is thawed ([`Scheduler::freeze`]). A device can be
//!   **suspended**: nothing is granted there until it is resumed ([`Scheduler::suspend`]).
//! * Sessions that want the device most of the time take turns or hold leases at once, whichever gets more done (`way`).
//! * A worker that does not report does not stop others for long. A while after its lease has ended, the lease is
//!   **revoked** and others continue. Its session pays until the report arrives or the worker leaves.
//!
//! How far reports are trusted: for each interval a process may report any use, from nothing to all of the time
//! measured here. Most programs leave the device idle part of the time that they hold it. If a report could lower the
//! charge only a little, they would pay for the time in which their CPU works. But the report comes from inside the
//! process, whose user may have replaced the limiter. So the reports of all holders have to add up to the time that
//! passed (`audit`), and a session that is found out takes turns and pays by the clock (`trust`). Time without a report
//! (none came, the lease was revoked, the process died) is charged in full.

#![forbid(unsafe_code)]
#![deny(clippy::too_many_lines)]

mod account;
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
mod way;

pub use account::SavedBalance;
pub use density::Class;
pub use limits::turns::Handover;
pub use scheduler::Scheduler;
pub use scheduler::gang::Gangs;
pub use scheduler::view::{DeviceView, LeaseView, SessionView, WorkerState};
pub use types::{Grant, LeaseId, Paid, ScheduleError, SessionId, Told, Way, WorkerId};
pub use way::{Chosen, Rate, Reason};
