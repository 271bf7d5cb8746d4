//! Arguments of the commands that look on and on: top, record, plot.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::daemon;
use super::inspect::{duration, pause};

/// Arguments of `sluice top`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Keys: '?' shows them. A limit is changed, and a session is frozen, only after 'y'.

Figures of devices come from the daemon. Without one the sessions are shown all the same. Where the
output is no terminal, or TERM is 'dumb', it is as with --once. COLUMNS sets the width then. NO_COLOR
is heeded. In a container it shows the container's own sessions.")]
pub struct TopArgs {
    /// Show this session alone: its name or the start of it, or its container's name or id.
    #[arg(value_name = "SESSION|CONTAINER")]
    pub session: Option<String>,

    /// Show everything once, as text.
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

    /// Show what was recorded; with --once, --json and --picture as it was at its end.
    #[arg(long, value_name = "FILE")]
    pub replay: Option<PathBuf>,

    /// How often to look.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = pause)]
    pub interval: Duration,

    /// Unix socket of the daemon; 'none' for the pages alone [default: the first default socket that answers]
    #[arg(long, value_name = "PATH|none", value_parser = daemon())]
    pub daemon: Option<OsString>,
}

/// Arguments of `sluice record`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Examples:
  sluice record run.jsonl --session train
  sluice record hour.jsonl --for 1h --interval 5s
  sluice plot run.jsonl -o run.svg
  sluice top --replay run.jsonl

A line of JSON for each moment: docs/api/record.schema.json. It ends after --for, with its session, or when
it is interrupted.

Exit status: 0 when it has ended in one of these ways; 2 wrong usage, or the file exists; 70 the system
refused something.")]
pub struct RecordArgs {
    /// A file that does not exist yet.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,

    /// Record only this session, from its start to its end: its name or the start of it, or its container's name or id.
    #[arg(long, value_name = "SESSION|CONTAINER")]
    pub session: Option<String>,

    /// How often to look.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = pause)]
    pub interval: Duration,

    /// For how long, as in 90s, 10min or 2h [default: until it is interrupted]
    #[arg(long = "for", value_name = "TIME", value_parser = duration)]
    pub length: Option<Duration>,

    /// Unix socket of the daemon; 'none' for the pages alone [default: the first default socket that answers]
    #[arg(long, value_name = "PATH|none", value_parser = daemon())]
    pub daemon: Option<OsString>,
}

/// Arguments of `sluice plot`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Draws share, memory and waiting of each session over time, device by device.

Exit status: 0 when it is drawn; 2 wrong usage, or no recording; 70 the system refused something.")]
pub struct PlotArgs {
    /// What 'sluice record' or 'sluice top --record' wrote.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,

    /// The picture (SVG). A file of that name is replaced.
    #[arg(long, short, value_name = "FILE")]
    pub output: PathBuf,

    /// Draw only this session: its name or the start of it.
    #[arg(long, value_name = "SESSION")]
    pub session: Option<String>,
}
