//! Tests that measure real time.

mod deaths;
mod device_time;
mod liars;
mod threads;
