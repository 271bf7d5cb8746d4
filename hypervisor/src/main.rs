//! `hypervisor`: the node's daemon.

#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use hypervisor::{Options, Sources, log};
use tracing::level_filters::LevelFilter;

/// Shares the GPUs of a node among its programs.
#[derive(Debug, Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve until a signal asks to end, such as SIGTERM or SIGINT. SIGHUP is ignored.
    Daemon {
        /// Where to listen [default: /run/sluice/hypervisor.sock for root, else
        /// $XDG_RUNTIME_DIR/sluice/hypervisor.sock or /tmp/sluice-UID/hypervisor.sock]
        #[arg(long, value_name = "PATH")]
        socket: Option<PathBuf>,
        /// What to tell on stderr: off, error, warn, info, debug or trace
        #[arg(long, value_name = "LEVEL", default_value = "info")]
        log: LevelFilter,
    },
}

fn main() -> ExitCode {
    let Command::Daemon { socket, log: level } = Cli::parse().command;
    if log::start(level).is_err() {
        return ExitCode::FAILURE;
    }
    let ended = match hypervisor::run(&Options { socket }, Sources::default()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            log::say(&format!("hypervisor: {error}"));
            ExitCode::FAILURE
        }
    };
    log::finish();
    ended
}
