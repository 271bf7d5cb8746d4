//! A session: the processes that share one quota. Its directory, its pages (one for each device),
//! the ledger in them, the membership of a process, and what to tell of all that.
//!
//! Each module uses only those above it here:
//!
//! * [`clock`], [`process`]: time, and which process is meant;
//! * [`layout`]: what stands where in a page, the limits among it;
//! * `lock`, [`ledger`]: decisions and arithmetic over a page's fields, without I/O;
//! * [`Page`]: the file;
//! * [`Membership`]: a process's place in a page, from which it opens the ledger;
//! * [`directory`]: where the pages of a session are, and which sessions there are;
//! * [`SessionSummary`]: what a session has and uses.

pub mod clock;
pub mod directory;
pub mod layout;
pub mod ledger;
mod limits;
mod lock;
mod membership;
mod page;
pub mod process;
mod summary;

pub use membership::{BookGuard, Membership};
pub use page::{Page, PageError, Process, Summary, faults_are_caught};
pub use summary::SessionSummary;
