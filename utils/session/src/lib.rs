//! A session: the processes that share one quota, and their pages.

pub mod clock;
pub mod ledger;
pub mod page;
