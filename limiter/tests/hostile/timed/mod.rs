//! Tests that measure real time.

mod deaths;
mod liars;
mod threads;
