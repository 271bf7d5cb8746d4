//! Tests that hold the simulated device's time against the machine's.

mod time;
