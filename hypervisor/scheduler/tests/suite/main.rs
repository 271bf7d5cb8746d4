//! The scheduler from outside: single calls, and tenants in virtual time.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may stop where it fails")]

mod any_tenants;
mod calls;
mod crowds;
mod densities;
mod frozen;
mod gangs;
mod greedy;
mod hours;
mod in_stream;
mod liars;
mod losses;
mod priorities;
mod processes;
mod shares;
mod simulation;
mod suspended;
mod tenants;
mod ways;
