//! Tests that compare the simulated device's time with the clock.

mod time;
mod words;
