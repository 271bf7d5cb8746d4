//! Odd circumstances in which `sluice run` starts.
