//! Tests that measure real time.

mod deaths;
mod device_time;
mod held;
mod liars;
mod threads;
