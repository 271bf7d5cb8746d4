//! What it takes for a task to arrive once: numbers, queues, repetitions, time limits.
//!
//! Nothing in here does I/O, reads a clock or starts a thread. Times are arguments: durations since
//! any moment that stays the same. The server's routes and the client only connect these parts.
//!
//! * The server has an [`Outbox`](outbox::Outbox) for each client. It numbers the tasks, and keeps
//!   each until its result comes or its time is over.
//! * The client has an [`Inbox`](inbox::Inbox). It knows up to which number tasks were handled, and
//!   keeps the one result that the server has not confirmed.
//! * Numbers begin at 1 again when the server starts again, or has forgotten the client. An
//!   [`Epoch`] tells one sequence of numbers from the next. A client has one, too: it tells one run
//!   of it from the next.
//!
//! Whatever is lost on the way is sent again, because the other side still has it. Whatever comes
//! twice is known by its number.

mod back_off;
mod client_name;
#[cfg(any(feature = "client", feature = "server", test))]
mod epoch;
#[cfg(any(feature = "client", test))]
pub(crate) mod inbox;
#[cfg(any(feature = "client", feature = "server"))]
pub(crate) mod message;
#[cfg(any(feature = "server", test))]
pub(crate) mod outbox;
mod refusal;
#[cfg(test)]
mod tests;

pub use back_off::BackOff;
pub use client_name::{ClientName, NotAClientName};
#[cfg(feature = "client")]
pub(crate) use epoch::random;
#[cfg(any(feature = "client", feature = "server", test))]
pub(crate) use epoch::{Cursor, Epoch, Epochs, Seen};
pub use refusal::Refusal;
