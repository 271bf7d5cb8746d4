//! The gate page: what a process whose gates are in its streams shares with the daemon. One page
//! for each process, with one block for each device. The daemon can end a lease early by it: the
//! device stops after the work that runs, without a message. Leases themselves are messages.
//!
//! The page is memory without a name (memfd_create(2)) that can neither be cut short nor grow. The
//! process makes it ([`GatePage`]) and registers it with the driver; the daemon maps it
//! ([`PeerGatePage`]). The daemon believes nothing in it, and the process nothing but "this lease
//! ends now", which costs it no more than a daemon that grants nothing.
//!
//! Each module uses only those above it here:
//!
//! * [`layout`]: the fields;
//! * `protocol`: the order in which the two sides access them, without carrying it out;
//! * `block`: carries it out;
//! * `map`: the memory;
//! * `own`: the limiter's side;
//! * `peer`: the daemon's side; `reach`: how it gets hold of another process's page.

mod block;
mod error;
pub mod layout;
mod map;
mod own;
mod peer;
mod protocol;
mod reach;

pub use block::Opened;
pub use error::GatePageError;
pub use layout::GateBlock;
pub use own::{BlockNumber, GatePage, Mapping};
pub use peer::PeerGatePage;
