//! The shared page of a session on one device: a file that every process of the session maps.

mod error;
pub(crate) mod fault;
mod file;
mod map;
pub(crate) mod probe;
pub(crate) mod slot_lock;
mod summary;

pub use error::PageError;
pub use fault::{OwnThread, are_caught as faults_are_caught, forget as faults_may_change};
pub use file::Page;
pub use slot_lock::LimitsLock;
pub use summary::{Names, ProcessSummary, Refusals, Summary};
