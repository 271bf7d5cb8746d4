//! Tests that compare the simulated device's time with the machine's.

mod time;
mod words;
