//! Building blocks shared by the limiter and the hypervisor.

pub mod clock;
pub mod driver;
pub mod env;
pub mod hook;
pub mod ledger;
pub mod loader;
pub mod page;
pub mod protocol;
pub mod quota;
pub mod units;
pub mod uuid;
