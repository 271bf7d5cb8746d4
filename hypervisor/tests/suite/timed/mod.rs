//! How long sessions hold the device, and how soon they get it back.

mod gates;
mod handover;
mod interruptions;
mod limits;
mod turns;
