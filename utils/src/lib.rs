//! Building blocks shared by the limiter and the hypervisor.

pub mod driver;
pub mod env;
pub mod hook;
pub mod loader;
pub mod protocol;
pub mod quota;
pub mod units;
