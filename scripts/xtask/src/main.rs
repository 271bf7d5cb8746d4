//! The project's own checks and builds: `cargo xtask`.
#![forbid(unsafe_code)]

mod process;
mod tools;

use clap::{Parser, Subcommand};
use std::path::PathBuf;
use std::process::ExitCode;

/// Check and build Sluice
#[derive(Parser)]
#[command(name = "xtask", disable_version_flag = true)]
struct Arguments {
    /// Folder of the build
    #[arg(long, env = "CARGO_TARGET_DIR", default_value = "target")]
    target: PathBuf,
    #[command(subcommand)]
    command: Task,
}

#[derive(Subcommand)]
enum Task {
    #[command(flatten)]
    Tool(tools::Tool),
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match arguments.command {
        Task::Tool(tool) => tool.run(&arguments.target),
    }
}
