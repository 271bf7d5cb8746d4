//! Arguments of the commands that look on and on: top, record, plot.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::daemon;
use super::inspect::{duration, pause};
use crate::completion::sessions;

/// Arguments of `sluice top`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Press '?' for the keys. Limits are changed and sessions frozen only after 'y'.

Figures of devices come from the daemon; without one, only the sessions are shown. If the output is
not a terminal, or TERM is 'dumb', top behaves as with --once and takes its width from COLUMNS.
NO_COLOR turns colors off. In a container, top shows the container's own sessions.")]
pub struct TopArgs {
    /// Show only this session, given by its name or a prefix of it, or its container's name or id.
    #[arg(value_name = "SESSION|CONTAINER", add = sessions())]
    pub session: Option<String>,

    /// Print everything once, as text.
    #[arg(long)]
    pub once: bool,

    /// Print one sample as JSON: docs/api/record.schema.json.
    #[arg(long)]
    pub json: bool,

    /// Draw a terminal of 100 columns (COLUMNS) and 24 lines (LINES) as SVG.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["once", "json"])]
    pub picture: Option<PathBuf>,

    /// Write each sample to a new file, as 'sluice record' does.
    #[arg(long, value_name = "FILE", conflicts_with = "replay")]
    pub record: Option<PathBuf>,

    /// Replay a recording; --once, --json and --picture show its last sample.
    #[arg(long, value_name = "FILE")]
    pub replay: Option<PathBuf>,

    /// Sampling interval.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = pause)]
    pub interval: Duration,

    /// Unix socket of the daemon; 'none' to use the session pages alone [default: the first default socket that answers]
    #[arg(long, value_name = "PATH|none", value_parser = daemon())]
    pub daemon: Option<OsString>,
}

/// Arguments of `sluice record`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Examples:
  sluice record run.jsonl --session train
  sluice record hour.jsonl --for 1h --interval 5s
  sluice record /var/log/sluice.jsonl --keep 24h
  sluice plot run.jsonl -o run.svg
  sluice top --replay run.jsonl

Each sample is one line of JSON: docs/api/record.schema.json. Recording ends after --for, with its
session, or when interrupted.

Exit status: 0 after any of these ends; 2 wrong usage, or the file exists; 70 a system call failed.")]
pub struct RecordArgs {
    /// The file to create; without --keep it must not exist.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,

    /// Record only this session, from its start to its end, given by its name or a prefix of it, or its container's name or id.
    #[arg(long, value_name = "SESSION|CONTAINER", add = sessions())]
    pub session: Option<String>,

    /// Sampling interval.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = pause)]
    pub interval: Duration,

    /// Duration, as in 90s, 10min or 2h [default: until interrupted]
    #[arg(long = "for", value_name = "TIME", value_parser = duration)]
    pub length: Option<Duration>,

    /// Keep the last TIME at least, as in 24h: a FILE that is that long, or was there before, becomes FILE.1, and the
    /// FILE.1 before it is deleted. 'cat FILE.1 FILE' is one recording
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub keep: Option<Duration>,

    /// Unix socket of the daemon; 'none' to use the session pages alone [default: the first default socket that answers]
    #[arg(long, value_name = "PATH|none", value_parser = daemon())]
    pub daemon: Option<OsString>,
}

/// Arguments of `sluice plot`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Plots share, memory and waiting of each session over time, device by device.

Exit status: 0 if the plot was written; 2 wrong usage, or not a recording; 70 a system call failed.")]
pub struct PlotArgs {
    /// A recording of 'sluice record' or 'sluice top --record'.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,

    /// The SVG file to write; an existing file is replaced.
    #[arg(long, short, value_name = "FILE")]
    pub output: PathBuf,

    /// Plot only this session, given by its name or a prefix of it.
    #[arg(long, value_name = "SESSION")]
    pub session: Option<String>,
}
