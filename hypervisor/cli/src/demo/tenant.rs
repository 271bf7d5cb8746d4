//! A `tenant` process of the demo, and its output.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use limits::GpuId;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::track::{ProgressPoint, Track};
use crate::{Error, parts};

/// A load for the device.
#[derive(Debug, Clone, Copy)]
pub(super) struct TenantLoad {
    /// Length of a kernel in microseconds.
    pub(super) kernel_us: u32,
    /// For how long to launch kernels.
    pub(super) length: Duration,
    /// The work in a kernel as an earlier run measured it, so that all runs do the same.
    pub(super) iterations: Option<u64>,
}

impl TenantLoad {
    /// Adds it to the arguments of `tenant`.
    pub(super) fn give_to(&self, command: &mut Command) {
        command
            .arg("dense")
            .args(["--kernel-us", &self.kernel_us.to_string()])
            .args(["--seconds", &self.length.as_secs_f64().to_string()])
            .arg("--progress");
        if let Some(iterations) = self.iterations {
            command.args(["--iterations", &iterations.to_string()]);
        }
    }
}

/// The last line of `tenant dense`.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Measured {
    /// Kernels a second.
    pub(super) rate: f64,
    pub(super) iterations: u64,
    pub(super) device: String,
    pub(super) uuid: GpuId,
}

/// The last line of `tenant mem`.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct MemoryResult {
    pub(super) granted_bytes: u64,
    pub(super) stop: String,
}

/// A line before the last one.
#[derive(Debug, Clone, Copy, Deserialize)]
struct Progress {
    elapsed: f64,
    kernels: u64,
}

/// What has been read so far.
#[derive(Debug, Default)]
struct Heard {
    track: Track,
    last_line: String,
}

/// A running tenant. It is ended on drop.
#[derive(Debug)]
pub(super) struct RunningTenant {
    child: Child,
    errors: PathBuf,
    heard: Arc<Mutex<Heard>>,
    reader: Option<JoinHandle<()>>,
}

impl RunningTenant {
    /// Follows `child`, whose stdout is a pipe and whose stderr goes to the file `errors`. `clock`
    /// is the origin of time of all tracks.
    pub(super) fn follow(mut child: Child, errors: PathBuf, clock: Instant) -> Result<Self, Error> {
        let heard = Arc::new(Mutex::new(Heard::default()));
        let reader = match child.stdout.take() {
            None => None,
            Some(output) => {
                let heard = Arc::clone(&heard);
                let listen = thread::Builder::new().spawn(move || listen(output, &heard, clock));
                Some(listen.map_err(|e| Error::system("cannot start a thread", e))?)
            }
        };
        Ok(Self { child, errors, heard, reader })
    }

    /// Its exit status, if it has ended.
    pub(super) fn poll(&mut self) -> Result<Option<ExitStatus>, Error> {
        self.child.try_wait().map_err(|e| Error::system("cannot wait for a tenant", e))
    }

    /// The progress so far.
    pub(super) fn track(&self) -> Track {
        lock(&self.heard).track.clone()
    }

    /// The result of a tenant that ended with `status`.
    pub(super) fn result<T: DeserializeOwned>(&mut self, status: ExitStatus) -> Result<T, Error> {
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
        let failed = |problem: String| Error::Helper { name: parts::TENANT, problem };
        if !status.success() {
            return Err(failed(format!("{status}{}", last_words(&self.errors))));
        }
        let line = &lock(&self.heard).last_line;
        serde_json::from_str(line).map_err(|e| failed(format!("no result in '{line}': {e}")))
    }
}

impl Drop for RunningTenant {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn lock(heard: &Mutex<Heard>) -> MutexGuard<'_, Heard> {
    heard.lock().unwrap_or_else(PoisonError::into_inner)
}

fn listen(output: ChildStdout, heard: &Mutex<Heard>, clock: Instant) {
    // The earliest arrival shows when the tenant's own clock began; later lines may be delayed.
    let mut zero = f64::INFINITY;
    for line in BufReader::new(output).lines().map_while(Result::ok) {
        let arrived = clock.elapsed().as_secs_f64();
        let mut heard = lock(heard);
        if let Ok(progress) = serde_json::from_str::<Progress>(&line) {
            zero = zero.min(arrived - progress.elapsed);
            #[allow(clippy::cast_precision_loss, reason = "far below 2^52 kernels")]
            let kernels = progress.kernels as f64;
            heard.track.push(ProgressPoint { at: zero + progress.elapsed, kernels });
        }
        heard.last_line = line;
    }
}

/// The last of what a process wrote to stderr, for an error message.
pub(super) fn last_words(file: &Path) -> String {
    let mut text = String::new();
    let read = std::fs::File::open(file).and_then(|mut file| file.read_to_string(&mut text));
    match (read, text.lines().rfind(|line| !line.trim().is_empty())) {
        (Ok(_), Some(line)) => format!(": {line}"),
        _ => String::new(),
    }
}
