//! How long sessions hold the device, and how soon they come back.

mod interruptions;
mod limits;
mod turns;
