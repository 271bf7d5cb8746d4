//! `tenant dense`: kernels that fill the device, back to back, for a given time.

mod commands;
mod lane;
mod plan;
mod progress;
mod timeline;

use std::sync::Barrier;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use serde::Serialize;

use crate::calibrate::{self, Calibrated};
use crate::cli::{Dense, Pattern};
use crate::driver::{Context, DriverError, Kernels, Spin};
use crate::stats::Samples;
use crate::{Failure, clock, report};
use commands::{Commands, Said};
use lane::Lane;
use plan::Plan;
use timeline::Timeline;

/// The result line for several devices.
#[derive(Serialize)]
struct Outcomes {
    /// Completed kernels per second on all devices.
    rate: f64,
    devices: Vec<Outcome>,
}

/// The result line for one device.
#[derive(Serialize)]
struct Outcome {
    pattern: String,
    /// Kernels that the device completed.
    kernels: u64,
    /// From the first launch to the last completion, on the host's clock.
    seconds: f64,
    /// Completed kernels per second.
    rate: f64,
    /// CPU time of the process from the first launch to the last completion.
    cpu_seconds: f64,
    /// Median time between completions in one stream, per kernel, by the device's clock; averaged over the few kernels
    /// between two events.
    p50_ms: f64,
    /// 99th percentile of the same times.
    p99_ms: f64,
    /// Times in which kernels were held up, other than intended pauses.
    pauses: Pauses,
    /// Kernels completed in each whole window, if windows were requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    windows: Option<Vec<f64>>,
    /// Start of the first window, in seconds of CLOCK_MONOTONIC, which all processes of the machine share.
    #[serde(skip_serializing_if = "Option::is_none")]
    windows_at: Option<f64>,
    /// Iterations per kernel, for --iterations of a later run.
    iterations: u64,
    /// Measured length of the kernel; absent if --iterations was given.
    kernel_us: Option<f64>,
    device: String,
    uuid: String,
    driver: i32,
}

/// Times of more than a millisecond in which a stream made no progress.
#[derive(Serialize)]
struct Pauses {
    count: usize,
    p50_ms: f64,
    p95_ms: f64,
    longest_ms: f64,
}

impl From<Vec<f64>> for Pauses {
    fn from(pauses: Vec<f64>) -> Self {
        let count = pauses.len();
        let pauses = Samples::new(pauses);
        let [p50_ms, p95_ms, longest_ms] = [50.0, 95.0, 100.0].map(|part| pauses.percentile(part));
        Self { count, p50_ms, p95_ms, longest_ms }
    }
}

/// Results of one thread.
struct Work {
    start: Instant,
    /// `start` in seconds of CLOCK_MONOTONIC.
    at: f64,
    end: Instant,
    /// CPU time of the process at start and end, in seconds.
    cpu: [f64; 2],
    kernels: u64,
    timeline: Timeline,
}

/// A device, and the kernel to launch on it.
struct Loaded<'c> {
    context: &'c Context,
    kernels: Kernels<'c>,
    spin: Spin,
    /// Length of the kernel in microseconds, if measured.
    kernel_us: Option<f64>,
}

impl<'c> Loaded<'c> {
    fn new(options: &Dense, context: &'c Context) -> Result<Self, DriverError> {
        context.make_current()?;
        let kernels = Kernels::load(context)?;
        let Calibrated { spin, measured_us } =
            calibrate::prepare(context, &kernels, options.kernel_us, options.iterations)?;
        let kernel_us = options.iterations.is_none().then_some(measured_us);
        Ok(Self { context, kernels, spin, kernel_us })
    }
}

pub(crate) fn run(options: &Dense) -> Result<(), Failure> {
    let indices = match options.devices {
        Some(count) => 0..count,
        None => options.target.device..options.target.device.saturating_add(1),
    };
    let contexts = indices
        .map(|index| Context::open(index, options.target.ptsz))
        .collect::<Result<Vec<_>, _>>()?;
    let devices = contexts
        .iter()
        .map(|context| Loaded::new(options, context))
        .collect::<Result<Vec<_>, _>>()?;
    let mut outcomes = devices
        .iter()
        .zip(launch_on(&devices, options)?)
        .map(|(device, works)| outcome(options, device, works))
        .collect::<Result<Vec<_>, _>>()?;
    match (options.devices, outcomes.pop()) {
        (None, Some(one)) => report::line(&one),
        (_, last) => {
            outcomes.extend(last);
            let rate = outcomes.iter().map(|one| one.rate).sum();
            report::line(&Outcomes { rate, devices: outcomes })
        }
    }
}

/// Launches on all devices at once, in separate threads. Returns the threads' results by device.
fn launch_on(devices: &[Loaded<'_>], options: &Dense) -> Result<Vec<Vec<Work>>, Failure> {
    let plan = Plan::new(options.pattern, options.kernel_us);
    let completed = AtomicU64::new(0);
    let length = Duration::from_secs_f64(options.seconds);
    let barrier = Barrier::new(plan.threads * devices.len());
    let pause = options.pause_us.map(|us| Duration::from_secs_f64(us / 1e6));
    let commands = match options.commands {
        true => Commands::from_stdin().map_err(Failure::Thread)?,
        false => Commands::none(),
    };
    // Streams on the same device complete their kernels in turn.
    let kernel_ms = options.kernel_us / 1e3 * (plan.threads * plan.lanes) as f64;
    let timeline = || Timeline::new(kernel_ms, options.windows);
    let work = |device: &Loaded<'_>| {
        let lanes = device.context.make_current().and_then(|()| {
            (0..plan.lanes)
                .map(|_| {
                    Lane::new(
                        device.context,
                        &device.kernels,
                        options.pattern,
                        options.target.ptsz,
                        device.spin,
                        plan,
                        timeline(),
                    )
                })
                .collect::<Result<Vec<_>, _>>()
        });
        // Every thread reaches the barrier, so that none waits for one that failed.
        barrier.wait();
        launch_for(length, pause, &commands, lanes?, timeline(), &completed)
    };
    std::thread::scope(|scope| {
        let reporter = match options.progress {
            Some(every) => {
                let every = Duration::from_secs_f64(every);
                Some(progress::start(scope, every, &completed).map_err(Failure::Thread)?)
            }
            None => None,
        };
        let work = &work;
        let mut threads = devices.iter().flat_map(|device| (0..plan.threads).map(move |_| device));
        // This thread is the first one.
        let own = threads.next();
        let others: Vec<_> = threads.map(|device| scope.spawn(move || work(device))).collect();
        let mut works: Vec<_> = own.map(work).into_iter().collect();
        for other in others {
            works.push(other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
        drop(reporter);
        let mut works = works.into_iter();
        let of_device = |_| works.by_ref().take(plan.threads).collect::<Result<Vec<_>, _>>();
        Ok(devices.iter().map(of_device).collect::<Result<_, _>>()?)
    })
}

/// Launches into the lanes in turn for `length` or until the command 'end', with pauses if requested; then waits for
/// the outstanding launches.
fn launch_for(
    length: Duration,
    pause: Option<Duration>,
    commands: &Commands,
    mut lanes: Vec<Lane<'_>>,
    mut timeline: Timeline,
    completed: &AtomicU64,
) -> Result<Work, DriverError> {
    for lane in &mut lanes {
        lane.mark_start()?;
    }
    let (start, at, cpu) = (Instant::now(), clock::monotonic(), clock::cpu());
    while start.elapsed() < length {
        match commands.said() {
            Said::Go => {}
            Said::Pause => {
                for lane in &mut lanes {
                    lane.drain(completed)?;
                }
                commands.wait_out_pause(length.saturating_sub(start.elapsed()));
                for lane in &mut lanes {
                    lane.resume()?;
                }
                continue;
            }
            Said::End => break,
        }
        for lane in &mut lanes {
            lane.step(completed)?;
        }
        if let Some(pause) = pause {
            for lane in &mut lanes {
                lane.drain(completed)?;
            }
            std::thread::sleep(pause);
        }
    }
    for lane in &mut lanes {
        lane.drain(completed)?;
    }
    let (end, cpu) = (Instant::now(), [cpu, clock::cpu()]);
    let kernels = lanes.iter().map(|lane| lane.kernels).sum();
    lanes.into_iter().for_each(|lane| timeline.merge(lane.timeline));
    Ok(Work { start, at, end, cpu, kernels, timeline })
}

fn outcome(options: &Dense, device: &Loaded<'_>, works: Vec<Work>) -> Result<Outcome, DriverError> {
    let start = works.iter().map(|work| work.start).min();
    let end = works.iter().map(|work| work.end).max();
    let at = works.iter().map(|work| work.at).reduce(f64::min);
    let cpu_start = works.iter().map(|work| work.cpu[0]).reduce(f64::min);
    let cpu_end = works.iter().map(|work| work.cpu[1]).reduce(f64::max);
    let seconds = match (start, end) {
        (Some(start), Some(end)) => (end - start).as_secs_f64(),
        _ => 0.0,
    };
    let kernels: u64 = works.iter().map(|work| work.kernels).sum();
    let mut timeline = Timeline::new(options.kernel_us / 1e3, options.windows);
    for work in works {
        timeline.merge(work.timeline);
    }
    let gaps = Samples::new(timeline.gaps_ms);
    let windows = options.windows.map(|length| {
        // An incomplete window is left out.
        let whole = (seconds.min(options.seconds) / length + 1e-9) as usize;
        timeline.windows.resize(whole, 0.0);
        timeline.windows
    });
    let pattern = options.pattern.to_possible_value();
    Ok(Outcome {
        pattern: pattern.map_or_else(String::new, |value| value.get_name().to_owned()),
        kernels,
        seconds,
        rate: if seconds > 0.0 { kernels as f64 / seconds } else { 0.0 },
        cpu_seconds: cpu_end.zip(cpu_start).map_or(0.0, |(end, start)| end - start),
        p50_ms: gaps.percentile(50.0),
        p99_ms: gaps.percentile(99.0),
        pauses: timeline.pauses_ms.into(),
        windows,
        windows_at: at.filter(|_| options.windows.is_some()),
        iterations: device.spin.iterations,
        kernel_us: device.kernel_us,
        device: device.context.device_name()?,
        uuid: device.context.device_uuid()?,
        driver: device.context.driver_version()?,
    })
}

/// Whether the pattern launches into the default stream, as unmodified programs do, or into its own streams.
fn uses_default_stream(pattern: Pattern, ptsz: bool) -> bool {
    match pattern {
        Pattern::Kernel | Pattern::Ex | Pattern::Coop => true,
        // The legacy stream cannot be captured.
        Pattern::Graph | Pattern::Multistream => false,
        // With _ptsz functions each thread has its own default stream.
        Pattern::Threads => ptsz,
    }
}
