//! The project's own checks and builds: `cargo xtask`.
#![forbid(unsafe_code)]

mod process;
mod test;
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
    /// Run the checks (also: scripts/test.sh)
    Test(test::Options),
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match arguments.command {
        Task::Tool(tool) => tool.run(&arguments.target),
        Task::Test(options) => match test::run(&options, &arguments.target) {
            Ok(true) => ExitCode::SUCCESS,
            Ok(false) => ExitCode::FAILURE,
            Err(error) => {
                eprintln!("xtask test: {error}");
                ExitCode::from(2)
            }
        },
    }
}
