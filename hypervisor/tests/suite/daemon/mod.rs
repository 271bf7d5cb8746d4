//! The real daemon and the real client: weights, deaths, restarts and bad input.

mod bad_calls;
mod holders;
mod hostile;
mod process;
mod programs;
mod start_and_end;
mod timed;
