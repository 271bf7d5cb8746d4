//! `sluice`: runs programs under limits on the GPU.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    sluice::main(sluice::cli::Cli::parse())
}
