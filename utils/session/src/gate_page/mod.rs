//! The gate page: what a process whose gates are in its streams shares with the daemon. One page
//! for each process, with one block for each device. By it the daemon opens the gate for a lease and
//! ends one early, and says that nobody waits for one; the process says that a lease's work is done, or
//! that it does not use it. Messages say the same in detail, but later.
//!
//! The page is memory without a name (memfd_create(2)) that can neither be cut short nor grow. The
//! process makes it ([`GatePage`]) and registers it with the driver; the daemon maps it
//! ([`PeerGatePage`]). The daemon believes nothing in it but that others need not wait for a lease,
//! and the process nothing but "this lease ends now", which costs it no more than a daemon that grants
//! nothing. An open gate it looks after from the answer to its ask on, and where none comes it closes
//! it.
//!
//! Each module uses only those above it here:
//!
//! * [`layout`]: the fields;
//! * `protocol`: the order in which the two sides access them, without carrying it out;
//! * `block`: carries it out;
//! * `map`: the memory;
//! * `own`: the limiter's side;
//! * `peer`: the daemon's side; `reach`: how it gets hold of another process's page;
//! * `ends`: how the daemon waits for the ends of leases.

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
