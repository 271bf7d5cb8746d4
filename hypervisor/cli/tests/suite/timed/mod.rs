//! What programs under `sluice run` get of the device's time.

mod demo;
mod doctor;
mod figures;
mod live_change;
