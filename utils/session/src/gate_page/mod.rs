//! The gate page: memory that a process with stream gates shares with the daemon. There is one page per process, with
//! one block per device. Through it the daemon opens the gate for a lease, ends a lease early, and tells that no other
//! session waits; the process tells that a lease's work is done, or that it does not use the lease. Messages carry the
//! same, in more detail but later.
//!
//! The page is a memfd that can neither shrink nor grow. The process creates it ([`GatePage`]) and registers it with
//! the driver; the daemon maps it ([`PeerGatePage`]). The daemon trusts the page in one respect: that others need not
//! wait for a lease. The process trusts only "this lease ends now", which costs it no more than a daemon that grants
//! nothing. It watches an open gate from the answer to its request on, and closes the gate if no answer comes.
//!
//! Each module uses only those above it here:
//!
//! * [`layout`]: the fields
//! * `protocol`: the order in which the two sides access them, without I/O
//! * `block`: carries out the protocol
//! * `map`: the memory
//! * `own`: the limiter's side
//! * `peer`: the daemon's side; `reach`: how it gets hold of another process's page
//! * `ends`: how the daemon waits for the ends of leases

mod block;
mod ends;
mod error;
pub mod layout;
mod map;
mod own;
mod peer;
mod protocol;
mod reach;

pub use block::Opened;
pub use ends::{AwaitedEnd, Bell, End};
pub use error::GatePageError;
pub use layout::GateBlock;
pub use own::{BlockNumber, GatePage, Mapping};
pub use peer::PeerGatePage;
