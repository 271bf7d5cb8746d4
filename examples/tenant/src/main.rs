//! `tenant`: a small CUDA workload for demo, tests and benchmarks. Calls the driver like a program with a static CUDA
//! runtime, on a real GPU or the simulated one. Each run ends with one JSON line on stdout.
//!
//! Exit status: 0 if the run ended as designed (a refused allocation is a result), 1 with one line on stderr if not, 2
//! for wrong usage.
#![deny(unsafe_code)]

mod ahead;
mod calibrate;
mod cli;
mod clock;
mod collective;
mod copy;
mod costs;
mod dense;
#[allow(unsafe_code, reason = "the one place that calls the driver")]
mod driver;
mod mem;
mod report;
mod requests;
mod stats;

use std::process::ExitCode;

use clap::Parser;
use driver::{DriverError, PageError};

/// Why a run failed.
#[derive(Debug, thiserror::Error)]
enum Failure {
    /// The driver or the device failed.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// The members' shared page could not be created.
    #[error("cannot share a page: {0}")]
    Page(#[from] PageError),
    /// A member's rank is out of range: each member has a slot of its own.
    #[error("rank {rank} of {ranks}: expected at most {most} ranks, and a rank below their number")]
    Ranks { rank: u64, ranks: u64, most: u64 },
    /// Stdout could not be written.
    #[error("cannot write the result: {0}")]
    Output(#[from] std::io::Error),
    /// Stdin cannot be read.
    #[error("cannot read stdin: {0}")]
    Input(std::io::Error),
    /// The system could not start a thread.
    #[error("cannot start a thread: {0}")]
    Thread(std::io::Error),
    /// Arrays consist of whole rows.
    #[error("--chunk {chunk} is too small for --api {api}: expected at least {least} bytes")]
    Chunk { chunk: u64, api: String, least: usize },
    /// Copies consist of whole rows.
    #[error("--bytes {bytes} is too small: expected at least {least} bytes")]
    Bytes { bytes: u64, least: u64 },
}

fn main() -> ExitCode {
    let outcome = match cli::Cli::parse().command {
        cli::Command::Dense(options) => dense::run(&options),
        cli::Command::Ahead(options) => ahead::run(&options),
        cli::Command::Requests(options) => requests::run(&options),
        cli::Command::Collective(options) => collective::run(&options),
        cli::Command::Copy(options) => copy::run(&options),
        cli::Command::Mem(options) => mem::run(&options),
        cli::Command::LaunchCost(options) => costs::launches(&options),
        cli::Command::AllocCost(options) => costs::allocations(&options),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("tenant: {failure}");
            ExitCode::FAILURE
        }
    }
}
