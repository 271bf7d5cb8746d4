//! Prints the number of completed kernels at intervals.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{Builder, Scope};
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::{clock, report};

#[derive(Serialize)]
struct Progress {
    /// Seconds since just before the first launch.
    elapsed: f64,
    /// Kernels completed since then.
    kernels: u64,
    /// Time of the report in seconds of CLOCK_MONOTONIC, which all processes of the machine share.
    at: f64,
}

/// The running reporter; ends on drop.
pub(super) struct Reporter {
    _running: Sender<()>,
}

/// Starts the printing thread.
pub(super) fn start<'scope>(
    scope: &'scope Scope<'scope, '_>,
    every: Duration,
    completed: &'scope AtomicU64,
) -> std::io::Result<Reporter> {
    let (running, ended) = channel();
    let start = Instant::now();
    let print = move || {
        for tick in 1.. {
            let wait = (every * tick).saturating_sub(start.elapsed());
            if ended.recv_timeout(wait) != Err(RecvTimeoutError::Timeout) {
                return;
            }
            let elapsed = start.elapsed().as_secs_f64();
            let kernels = completed.load(Ordering::Relaxed);
            let at = clock::monotonic();
            // The reader may leave early. The final result reports that failure.
            if report::line(&Progress { elapsed, kernels, at }).is_err() {
                return;
            }
        }
    };
    Builder::new().name("progress".into()).spawn_scoped(scope, print)?;
    Ok(Reporter { _running: running })
}
