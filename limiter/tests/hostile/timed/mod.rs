//! Tests that measure real time.

mod deaths;
mod threads;
