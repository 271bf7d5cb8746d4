//! Two small programs under limits: what `sluice run` promises is tried out by `sluice run`.

use std::ffi::OsStr;
use std::process::{Command, Stdio};

use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::parts::{self, Parts};
use crate::status::{Bytes, Percent};
use protocol::findings::{Checked, Wrong};

/// What the memory canary may have. A context takes about half of it.
const MEMORY: u64 = 1 << 30;
/// What the load canary may have, in percent, and what counts as held.
const SHARE: u32 = 25;
const TOLERANCE: u32 = 5;
/// With less than this the load says little.
const LEAST: u32 = 15;
/// How long the load runs alone, and under its limit.
const ALONE: &str = "1";
const LIMITED: &str = "2";
const REPORT: &str = "SLUICE_LOG=debug sluice doctor";

/// How the canaries are started.
pub(super) struct Canary<'a> {
    pub(super) fake: bool,
    pub(super) daemon: Option<&'a OsStr>,
}

#[derive(Deserialize)]
struct Memory {
    granted_bytes: u64,
    meminfo_total: u64,
    stop: String,
}

#[derive(Deserialize)]
struct Load {
    /// Kernels a second.
    rate: f64,
    iterations: u64,
    /// What a kernel takes, in microseconds, where that was measured.
    kernel_us: Option<f64>,
}

impl Load {
    /// Kernels a second where nothing is in the way. Where the machine is busy, or somebody else uses the GPU, it had
    /// fewer; under a limit of the GPU's time it may then have as many again.
    fn most(&self) -> f64 {
        self.kernel_us.filter(|&us| us > 0.0).map_or(self.rate, |us| self.rate.max(1e6 / us))
    }
}

impl Canary<'_> {
    /// Takes memory until it is refused.
    pub(super) fn memory(&self) -> Checked {
        let limit = ["--mem", &format!("{MEMORY}B")];
        let cap = (2 * MEMORY).to_string();
        let load = ["mem", "--api", "alloc", "--chunk", "16MiB", "--cap", &cap];
        judge_memory(&self.run(&limit, &load)?)
    }

    /// Keeps the GPU busy, without a limit and under one.
    pub(super) fn time(&self) -> Checked {
        let mut load = vec!["dense", "--kernel-us", "2000", "--seconds", ALONE];
        let alone: Load = self.run(&[], &load)?;
        let iterations = alone.iterations.to_string();
        load[4] = LIMITED;
        load.extend(["--iterations", &iterations]);
        let limited: Load = self.run(&["--compute", &SHARE.to_string()], &load)?;
        judge_time(alone.most(), limited.rate)
    }

    fn run<T: DeserializeOwned>(&self, limit: &[&str], load: &[&str]) -> Result<T, Wrong> {
        let broken = |text: String| Wrong::broken(text, REPORT);
        let own = std::env::current_exe().map_err(|error| broken(error.to_string()))?;
        let tenant = Parts::locate(None).and_then(|parts| parts.find(parts::TENANT));
        let tenant = tenant.map_err(|error| broken(error.to_string()))?;
        let mut command = Command::new(own);
        command.arg("run").args(["--device", "0"]).args(limit);
        if self.fake {
            command.arg("--fake-gpu");
        }
        if let Some(daemon) = self.daemon {
            command.arg("--daemon").arg(daemon);
        }
        command.arg("--").arg(tenant).args(load).stdin(Stdio::null());
        let output = command.output().map_err(|error| broken(error.to_string()))?;
        let said = String::from_utf8_lossy(&output.stdout);
        let result = said.lines().last().and_then(|line| serde_json::from_str(line).ok());
        result.filter(|_| output.status.success()).ok_or_else(|| {
            let errors = String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; ");
            broken(format!("the program failed ({}): {errors}", output.status))
        })
    }
}

fn judge_memory(memory: &Memory) -> Checked {
    let (granted, limit) = (Bytes(memory.granted_bytes), Bytes(MEMORY));
    if memory.granted_bytes > MEMORY {
        return Err(Wrong::broken(
            format!("a program got {granted}, its limit was {limit}"),
            REPORT,
        ));
    }
    if memory.meminfo_total != MEMORY {
        let seen = Bytes(memory.meminfo_total);
        return Err(Wrong::broken(format!("a program saw {seen}, its limit was {limit}"), REPORT));
    }
    if !memory.stop.contains("OUT_OF_MEMORY") {
        return Err(Wrong::broken(format!("a program was stopped by {}", memory.stop), REPORT));
    }
    Ok(format!(
        "a program got {granted} beside its context and was refused more; its limit was {limit}"
    ))
}

fn judge_time(alone: f64, limited: f64) -> Checked {
    let ratio = if alone > 0.0 { (limited / alone).clamp(0.0, 10.0) } else { 0.0 };
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "between 0 and 10 millions"
    )]
    let share = Percent((ratio * 1e6) as u32);
    let found = format!("a program got {share} of its speed alone; its limit was {SHARE} %");
    let percent = ratio * 100.0;
    if percent > f64::from(SHARE + TOLERANCE) {
        return Err(Wrong::broken(found, REPORT));
    }
    if percent < f64::from(LEAST) {
        let found = format!("{found}; something else keeps the GPU or the CPUs busy");
        return Err(Wrong::note(found, "sluice status"));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::reports::FindingState;

    fn state(checked: Checked) -> FindingState {
        checked.err().map_or(FindingState::Ok, |wrong| wrong.state())
    }

    #[test]
    fn what_is_held_and_what_is_not() {
        let memory = |granted_bytes, meminfo_total, stop: &str| {
            state(judge_memory(&Memory { granted_bytes, meminfo_total, stop: stop.to_owned() }))
        };
        let (ok, broken) = (FindingState::Ok, FindingState::Broken);
        let refused = "CUDA_ERROR_OUT_OF_MEMORY";
        assert_eq!(memory(512 << 20, MEMORY, refused), ok);
        assert_eq!(memory(2 << 30, MEMORY, "cap"), broken);
        assert_eq!(memory(512 << 20, 80 << 30, refused), broken);
        assert_eq!(memory(512 << 20, MEMORY, "CUDA_ERROR_UNKNOWN"), broken);
        let load = |rate, kernel_us| Load { rate, iterations: 1, kernel_us };
        // Kernels of 2 ms, of which the busy machine launched 200 a second.
        assert_eq!(load(200.0, Some(2000.0)).most(), 500.0);
        assert_eq!(
            [load(510.0, Some(2000.0)), load(510.0, None)].map(|one| one.most()),
            [510.0; 2]
        );
        let time = |alone, limited| state(judge_time(alone, limited));
        assert_eq!((time(400.0, 100.0), time(400.0, 119.0)), (ok, ok));
        assert_eq!((time(400.0, 121.0), time(400.0, 400.0)), (broken, broken));
        assert_eq!((time(400.0, 40.0), time(0.0, 40.0)), (FindingState::Note, FindingState::Note));
    }
}
