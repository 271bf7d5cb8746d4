//! Two small programs under limits: what `sluice run` promises is tried out by `sluice run`.

use std::ffi::OsStr;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nvml_wrapper::Nvml;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::devices;
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
/// The speeds without a limit, before and after the limited run, may differ by so much, in percent.
const DRIFT: f64 = 15.0;
/// Up to this utilization, in percent, nothing uses the GPU but a desktop.
const IDLE: u32 = 5;
/// So many readings in a row have to show an idle GPU. NVML measures over up to a second.
const READINGS: u32 = 5;
const INTERVAL: Duration = Duration::from_millis(100);
/// How long the utilization of the doctor's own programs may take to fade.
const FADES: Duration = Duration::from_secs(3);
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

    /// Keeps the GPU busy without a limit, under one, and again without. Judges only if nothing else used the GPU.
    pub(super) fn time(&self) -> Checked {
        let meter = self.nvml();
        let mut load = vec!["dense", "--kernel-us", "2000", "--seconds", ALONE];
        check_idle(meter.as_ref())?;
        let before: Load = self.run(&[], &load)?;
        check_idle(meter.as_ref())?;
        let iterations = before.iterations.to_string();
        load.extend(["--iterations", &iterations]);
        load[4] = LIMITED;
        let limited: Load = self.run(&["--compute", &SHARE.to_string()], &load)?;
        check_idle(meter.as_ref())?;
        load[4] = ALONE;
        let after: Load = self.run(&[], &load)?;
        check_idle(meter.as_ref())?;
        judge_time(&before, limited.rate, after.rate)
    }

    /// The NVML that reads the GPU's utilization, where there is one.
    fn nvml(&self) -> Option<Nvml> {
        let simulated =
            || Parts::locate(None).and_then(|parts| parts.find(parts::FAKE_NVML.0)).ok();
        let library = if self.fake { Some(simulated()?) } else { None };
        devices::open(library.as_deref()).ok()
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
            format!("a program got {granted}, above its limit of {limit}"),
            REPORT,
        ));
    }
    if memory.meminfo_total != MEMORY {
        let seen = Bytes(memory.meminfo_total);
        return Err(Wrong::broken(
            format!("a program saw {seen} of memory instead of its limit of {limit}"),
            REPORT,
        ));
    }
    if !memory.stop.contains("OUT_OF_MEMORY") {
        return Err(Wrong::broken(
            format!("a program was stopped by {} instead of CUDA_ERROR_OUT_OF_MEMORY", memory.stop),
            REPORT,
        ));
    }
    Ok(format!("a program got {granted} besides its context, and no more; its limit was {limit}"))
}

/// Waits until the GPU is idle. A GPU whose utilization cannot be read is judged by the speeds alone.
fn check_idle(meter: Option<&Nvml>) -> Result<(), Wrong> {
    let Some(gpu) = meter.and_then(|nvml| nvml.device_by_index(0).ok()) else { return Ok(()) };
    let (start, mut idle) = (Instant::now(), 0);
    while idle < READINGS {
        let Ok(rates) = gpu.utilization_rates() else { return Ok(()) };
        idle = if rates.gpu <= IDLE { idle + 1 } else { 0 };
        if idle == 0 && start.elapsed() > FADES {
            return Err(busy(&format!("other programs use {} % of its time", rates.gpu)));
        }
        sleep(INTERVAL);
    }
    Ok(())
}

fn busy(seen: &str) -> Wrong {
    Wrong::busy(
        format!("the GPU is too busy to judge ({seen})"),
        "sluice doctor  # when nothing else uses the GPU",
    )
}

fn judge_time(before: &Load, limited: f64, after: f64) -> Checked {
    let (slower, faster) = (before.rate.min(after), before.rate.max(after));
    if slower < faster * (1.0 - DRIFT / 100.0) {
        return Err(busy(&format!(
            "without a limit a program ran {:.0} kernels/s, and later {after:.0}",
            before.rate
        )));
    }
    let alone = before.most().max(after);
    let ratio = if alone > 0.0 { (limited / alone).clamp(0.0, 10.0) } else { 0.0 };
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "between 0 and 10 millions"
    )]
    let share = Percent((ratio * 1e6) as u32);
    let found = format!("a program got {share} of its solo speed; its share was {SHARE} %");
    let percent = ratio * 100.0;
    if percent > f64::from(SHARE + TOLERANCE) {
        return Err(Wrong::broken(found, REPORT));
    }
    if percent < f64::from(LEAST) {
        return Err(busy(&found));
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
        let time = |before, limited, after| state(judge_time(&load(before, None), limited, after));
        assert_eq!((time(400.0, 100.0, 400.0), time(400.0, 119.0, 380.0)), (ok, ok));
        assert_eq!((time(400.0, 121.0, 400.0), time(380.0, 400.0, 400.0)), (broken, broken));
        let busy = FindingState::Busy;
        assert_eq!((time(400.0, 40.0, 400.0), time(0.0, 40.0, 0.0)), (busy, busy));
        // A neighbour that ended, and one that began.
        assert_eq!((time(200.0, 100.0, 400.0), time(400.0, 100.0, 200.0)), (busy, busy));
    }
}
