//! `hypervisor`: the node's daemon.

#![forbid(unsafe_code)]

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use hypervisor::{Options, Sources};
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
    /// Serve until SIGTERM or SIGINT.
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
    let Command::Daemon { socket, log } = Cli::parse().command;
    tracing_subscriber::fmt().with_max_level(log).with_writer(io::stderr).with_ansi(false).init();
    match hypervisor::run(&Options { socket }, Sources::default()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("hypervisor: {error}");
            ExitCode::FAILURE
        }
    }
}
