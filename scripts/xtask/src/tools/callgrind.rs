//! `xtask callgrind`: instructions that the limiter spends on a call, on the simulated driver.

use super::Error;
use crate::process::{command, output, run};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Counts by two runs of different lengths, so that the start cancels out. Needs valgrind and the release build.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    call: Call,
    /// How many calls the shorter run makes
    #[arg(default_value_t = 20_000)]
    count: u32,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Call {
    /// A cuMemAlloc with its cuMemFree
    Pairs,
    /// A cuLaunchKernel, in the thread that launches: with a memory limit only, and at an open gate (99 %)
    Launches,
}

/// Numbers by the function that they are of.
type Counts = BTreeMap<String, f64>;

/// Counts them.
///
/// # Errors
/// A program is missing or failed.
pub(crate) fn count(arguments: &Arguments, target: &Path) -> Result<(), Error> {
    let release = target.join("release");
    let work = tempfile::Builder::new().prefix("sluice-callgrind-").tempdir_in("/dev/shm")?;
    symlink(release.join("libfake_cuda.so"), work.path().join("libcuda.so.1"))?;
    symlink(release.join("libfake_nvml.so"), work.path().join("libnvidia-ml.so.1"))?;
    let memory = ("TENSOR_FUSION_CUDA_MEM_LIMIT", r#"{"0": "8GiB"}"#);
    let each = |limit: (&str, &str), program: &dyn Fn(u32) -> Vec<String>, file: &str| {
        let one = |run| counts(&release, work.path(), limit, &program(arguments.count * run), file);
        let ((functions, calls), (more_functions, more_calls)) = (one(1)?, one(2)?);
        let count = f64::from(arguments.count);
        Ok::<_, Error>((
            differences(&functions, more_functions, count),
            differences(&calls, more_calls, count),
        ))
    };
    match arguments.call {
        Call::Pairs => {
            let bench = benchmark()?;
            let program =
                |count: u32| vec![bench.clone(), count.to_string(), "only-pairs".to_owned()];
            let (functions, _) = each(memory, &program, "out")?;
            print_most(&functions, 20.0);
            let all: f64 = functions.values().sum();
            let own = sum(&functions, "libcuda_limiter.so");
            println!(
                "{own:.0} instructions per cuMemAlloc + cuMemFree in the limiter, {all:.0} in all"
            );
        }
        Call::Launches => {
            let tenant = release.join("tenant").display().to_string();
            let program = |count: u32| {
                vec![
                    tenant.clone(),
                    "launch-cost".to_owned(),
                    "--launches".to_owned(),
                    count.to_string(),
                ]
            };
            for limit in [memory, ("TENSOR_FUSION_CUDA_UP_LIMIT", r#"{"0": 99}"#)] {
                println!("{}={}:", limit.0, limit.1);
                let (functions, mut calls) = each(limit, &program, "out-01")?;
                let own = sum(&functions, "cuda_limiter::");
                println!(
                    "{own:.0} instructions per cuLaunchKernel in the limiter; other calls of a thousand launches:"
                );
                calls.retain(|name, _| {
                    !name.contains("Launch") && !name.contains("StreamSynchronize")
                });
                calls.values_mut().for_each(|calls| *calls *= 1000.0);
                print_most(&calls, 0.05);
            }
        }
    }
    Ok(())
}

/// The benchmark of cuMemAlloc.
fn benchmark() -> Result<String, Error> {
    let line = "cargo bench -q -p cuda-limiter --bench alloc --no-run --message-format=json";
    let made = output(&mut command(line))?;
    let mut programs =
        made.lines().filter_map(|line| line.split_once(r#""executable":""#)?.1.split('"').next());
    let program = programs.rfind(|program| program.contains("alloc-"));
    program.map(str::to_owned).ok_or_else(|| Error::Wrong("cargo made no benchmark".to_owned()))
}

/// Runs a program under the limiter and callgrind: the instructions of each function, and the calls of the driver's.
fn counts(
    release: &Path,
    work: &Path,
    limit: (&str, &str),
    program: &[String],
    file: &str,
) -> Result<(Counts, Counts), Error> {
    let session = work.join("session");
    fs::create_dir(&session)?;
    let mut run_it = Command::new("env");
    let preload = release.join("libcuda_limiter.so");
    run_it
        .arg(format!("LD_PRELOAD={}", preload.display()))
        .args("valgrind -q --smc-check=all --tool=callgrind".split(' '));
    run_it
        .arg("--separate-threads=yes")
        .arg(format!("--callgrind-out-file={}/out", work.display()));
    run_it.args(program).stdin(Stdio::null()).stdout(Stdio::null());
    run_it.envs([
        ("LD_LIBRARY_PATH", work),
        ("SLUICE_SESSION_DIR", &session),
        ("SLUICE_FAKE_NODE", &work.join("node")),
    ]);
    run(run_it.envs([limit, ("SLUICE_FAKE_DEVICES", "1"), ("SLUICE_BENCH_WORKER", "1")]))?;
    fs::remove_dir_all(session)?;
    let file: PathBuf = work.join(file);
    let mut functions = Counts::new();
    for line in output(command("callgrind_annotate --threshold=100").arg(&file))?.lines() {
        // 1,234 (5.67%)  file:function [library]
        let Some((number, rest)) = line.trim().split_once(" (") else { continue };
        let Ok(number) = number.replace(',', "").parse::<f64>() else { continue };
        let name = rest.split_once(')').map_or("", |(_, name)| name.trim());
        if name != "PROGRAM TOTALS" {
            *functions.entry(name.to_owned()).or_default() += number;
        }
    }
    Ok((functions, calls(&fs::read_to_string(file)?)))
}

/// How often functions of the driver were called. A name stands behind its number once: `cfn=(12) cuInit`.
fn calls(profile: &str) -> Counts {
    let (mut names, mut calls, mut called) = (BTreeMap::new(), Counts::new(), "");
    for line in profile.lines() {
        if let Some(function) = line.strip_prefix("cfn=").or_else(|| line.strip_prefix("fn=")) {
            let (id, name) = function.split_once(' ').unwrap_or((function, ""));
            if !name.is_empty() {
                names.insert(id, name.split('\'').next().unwrap_or(name));
            }
            if line.starts_with('c') {
                called = id;
            }
        } else if let Some(times) = line.strip_prefix("calls=") {
            let times: f64 =
                times.split(' ').next().and_then(|times| times.parse().ok()).unwrap_or(0.0);
            *calls.entry(called.to_owned()).or_default() += times;
        }
    }
    let mut of_driver = Counts::new();
    for (id, times) in calls {
        let name = names.get(id.as_str()).copied().unwrap_or_default();
        if name
            .strip_prefix("cu")
            .is_some_and(|rest| rest.starts_with(|first: char| first.is_ascii_uppercase()))
        {
            *of_driver.entry(name.to_owned()).or_default() += times;
        }
    }
    of_driver
}

/// What the longer run has more, for each call.
fn differences(before: &Counts, mut after: Counts, count: f64) -> Counts {
    for (name, number) in &mut after {
        *number = (*number - before.get(name).copied().unwrap_or(0.0)) / count;
    }
    after
}

fn sum(counts: &Counts, part: &str) -> f64 {
    counts.iter().filter(|(name, _)| name.contains(part)).map(|(_, number)| number).sum()
}

fn print_most(counts: &Counts, least: f64) {
    let mut most: Vec<_> = counts.iter().filter(|(_, number)| **number >= least).collect();
    most.sort_by(|one, other| other.1.total_cmp(one.1));
    most.iter().take(25).for_each(|(name, number)| println!("{number:8.1}  {name}"));
}
