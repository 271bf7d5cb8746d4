//! The project's own checks and builds, behind `scripts/test.sh`.
#![forbid(unsafe_code)]

mod minimal_versions;
mod process;

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
    /// Compile with the oldest crates that the manifests allow (exit status 3: the registry cannot be reached)
    MinimalVersions,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match arguments.command {
        Task::MinimalVersions => match minimal_versions::check(&arguments.target) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("xtask minimal-versions: {error}");
                let unknown = matches!(error, minimal_versions::Error::Registry(_));
                ExitCode::from(if unknown { 3 } else { 1 })
            }
        },
    }
}
