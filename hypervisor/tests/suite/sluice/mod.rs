//! `sluice` as a user meets it.

mod limit;
mod run;
mod support;
mod timed;
