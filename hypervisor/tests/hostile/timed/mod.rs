//! Tests that measure real time.

mod liars;
