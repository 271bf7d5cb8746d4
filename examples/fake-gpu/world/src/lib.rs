//! A node in virtual time: simulated devices, programs, limiters and the daemon on one event heap, in one process, from
//! one seed.
//!
//! The same scenario happens in the same way each time, byte for byte. After each event the promises are checked
//! ([`Promise`]). A scenario that breaks a promise is reduced ([`shrink`]).
//!
//! The product's own code that runs here:
//!
//! * the schedulers, gangs and accounts of the daemon (`scheduler`);
//! * a session's own account (`session::ledger`);
//! * the limiter's decisions about leases, checks, patience, use and a daemon that is gone (`limiter-core`);
//! * the simulated devices: streams, time slices, handovers, collectives (`fake-node`).
//!
//! Models of code that needs threads, sockets or the driver:
//!
//! * `governor`, `gate`: how the limiter's governor waits for answers and drains, and how launches pass a gate. Not
//!   modelled: samples (estimates are off by 3 % at most), the detection of work that waits for its program's next
//!   launches, leases given up before their work is done, and the account of several devices without a daemon (each
//!   device has its own).
//! * `daemon`, `calls`: how calls wait for grants, and gate pages. Not modelled: the clock that leaves out the daemon's
//!   own stalls.
//! * [`Program`]: what programs launch and when they wait.

#![forbid(unsafe_code)]

mod calls;
mod daemon;
mod dice;
mod gate;
mod governor;
mod mix;
mod node;
mod program;
mod scenario;
mod shrink;
mod troubles;
mod watch;
mod world;

pub use dice::Dice;
pub use mix::Mix;
pub use program::Program;
pub use scenario::{Scenario, Tenant, Trouble, Words};
pub use shrink::shrink;
pub use watch::{Got, Promise, Violation};
pub use world::{Outcome, run};
