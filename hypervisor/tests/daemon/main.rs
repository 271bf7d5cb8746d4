//! The real daemon and the real client: weights, deaths, restarts and bad input.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may stop where it fails")]

mod bad_calls;
mod holders;
mod hostile;
mod interruptions;
mod limits;
mod process;
mod programs;
mod start_and_end;
mod turns;
