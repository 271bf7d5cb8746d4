//! Arguments of the commands that look: status, explain, doctor, hooks, prune.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::daemon;
use crate::completion::sessions;

/// Arguments of `sluice status`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
MEMORY is the memory in use, OF the memory limit. SHARE is the compute share; LAST 10 s and SO FAR are the
shares of GPU time delivered, both since the first use for a younger session. WAITED adds up how long the
session's processes had work queued but no lease. '-' means no limit, or unknown.

The page of a session is /dev/shm/sluice-UID/SESSION/GPU.page; root's are in /dev/shm/sluice-root.")]
pub struct StatusArgs {
    /// Show every detail of one session: the name that it was given, a prefix of its own name or of its container's name or
    /// id, or a process id.
    #[arg(value_name = "SESSION|CONTAINER|PID", add = sessions())]
    pub session: Option<String>,

    /// Print one JSON document: docs/api/status.schema.json.
    #[arg(long)]
    pub json: bool,

    /// Also list sessions without processes: sessions of preloaded programs keep their limits for the next
    /// program.
    #[arg(long)]
    pub all: bool,

    /// Refresh every 2 s, or at the given interval, as in --watch=500ms.
    #[arg(long, value_name = "TIME", num_args = 0..=1, require_equals = true, default_missing_value = "2s",
        value_parser = pause)]
    pub watch: Option<Duration>,

    /// Print this session page, or a copy of one, with every process that it lists.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["session", "all"])]
    pub page: Option<PathBuf>,

    /// Unix socket of the daemon; 'none' to use the session pages alone [default: the first default socket that answers]
    #[arg(long, value_name = "PATH|none", value_parser = daemon())]
    pub daemon: Option<OsString>,
}

/// Arguments of `sluice explain`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Examples:
  sluice explain train
  sluice explain 4711

Exit status: 0 if nothing holds it back; 1 if something does; 2 wrong usage; 70 a system call
failed.")]
pub struct ExplainArgs {
    /// The session: the name that it was given, a prefix of its own name or of its container's name or id, or any
    /// process id.
    #[arg(value_name = "SESSION|CONTAINER|PID", add = sessions())]
    pub session: String,

    /// Print one JSON document: docs/api/explain.schema.json.
    #[arg(long)]
    pub json: bool,

    /// Unix socket of the daemon; 'none' to use the session pages alone [default: the first default socket that answers]
    #[arg(long, value_name = "PATH|none", value_parser = daemon())]
    pub daemon: Option<OsString>,
}

/// Arguments of `sluice healthy`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Example:
  sluice healthy 0

'sluice status' names the unhealthy GPUs and the reasons. A new fault makes the GPU unhealthy again.

Exit status: 0 if it is healthy; 2 wrong usage, or neither root nor the daemon's own user asks; 70 no daemon
answers.")]
pub struct HealthyArgs {
    /// The GPU, by its index in nvidia-smi or its UUID.
    #[arg(value_name = "INDEX|UUID")]
    pub device: String,

    /// Unix socket of the daemon [default: the first default socket that answers]
    #[arg(long, value_name = "PATH", value_parser = daemon())]
    pub daemon: Option<OsString>,
}

/// Arguments of `sluice doctor`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Runs two small programs under limits: one allocates until it is refused, one keeps the GPU busy for
two seconds. Both must stay within their limits.

Exit status: 0 if nothing is broken; 1 if something is; 2 wrong usage; 75 other programs keep the GPU too
busy to judge.")]
pub struct DoctorArgs {
    /// Print one JSON document: docs/api/doctor.schema.json.
    #[arg(long)]
    pub json: bool,

    /// Check the simulated driver.
    #[arg(long)]
    pub fake_gpu: bool,

    /// Unix socket of the daemon; 'none' for no daemon [default: the first default socket that answers]
    #[arg(long, value_name = "PATH|none", value_parser = daemon())]
    pub daemon: Option<OsString>,
}

/// Arguments of `sluice hooks`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Exit status: 0 if every function that the driver has is patched; 1 if one is not; others as for
'sluice run'.")]
pub struct HooksArgs {
    /// Print one JSON document: docs/api/hooks.schema.json.
    #[arg(long)]
    pub json: bool,

    /// Check the simulated driver.
    #[arg(long)]
    pub fake_gpu: bool,
}

/// Arguments of `sluice prune`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Removes the sessions of the calling user that have neither an owner nor a process left. A session in use
is never removed. Sessions of programs that were started without 'sluice run' lose the limits that
'sluice limit' gave them, and the account of what they used.")]
pub struct PruneArgs {
    /// Remove only sessions that no process has started to use for this time, as in 90s, 10min or 2h; at least 1min.
    #[arg(long, value_name = "TIME", default_value = "10min", value_parser = age)]
    pub older_than: Duration,

    /// Print what would be removed, and remove nothing.
    #[arg(long)]
    pub dry_run: bool,
}

pub(super) fn pause(text: &str) -> Result<Duration, String> {
    let pause = duration(text)?;
    let accepted = Duration::from_millis(100)..=Duration::from_secs(3600);
    if accepted.contains(&pause) { Ok(pause) } else { Err("expected 100ms to 1h".to_owned()) }
}

/// Between execve(2) and the limiter's start a process holds nothing of its session.
fn age(text: &str) -> Result<Duration, String> {
    let age = duration(text)?;
    if age >= Duration::from_secs(60) { Ok(age) } else { Err("expected 1min or more".to_owned()) }
}

pub(super) fn duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text)
        .map_err(|error| format!("{error}; expected a duration such as 90s, 10min or 2h"))
}
