//! `tenant dense`: kernels that fill the device, back to back, for a stated time.

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
use crate::driver::{Context, DriverError, Kernels, Spin, Stream};
use crate::stats::Samples;
use crate::{Failure, clock, report};
use commands::{Commands, Said};
use lane::Lane;
use plan::Plan;
use timeline::Timeline;

/// The result.
#[derive(Serialize)]
struct Outcome {
    pattern: String,
    /// Kernels that the device completed.
    kernels: u64,
    /// From the first launch to the last completion, on the host's clock.
    seconds: f64,
    /// Completed kernels a second.
    rate: f64,
    /// Time between completions in one stream, by the device's clock, for each kernel; averaged
    /// over the few kernels between two events. Half of the time it was not longer.
    p50_ms: f64,
    /// As `p50_ms`, for 99 % of the time between completions.
    p99_ms: f64,
    /// When kernels were held up, for whatever reason but a pause that was wanted.
    pauses: Pauses,
    /// Kernels completed in each whole window, where windows were asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    windows: Option<Vec<f64>>,
    /// When the first of them began, on the clock that all programs of the machine share
    /// (CLOCK_MONOTONIC), in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    windows_at: Option<f64>,
    /// Rounds of arithmetic in a kernel; for --iterations of a later run.
    iterations: u64,
    /// The kernel's length as measured, none where --iterations was given.
    kernel_us: Option<f64>,
    device: String,
    uuid: String,
    driver: i32,
}

/// Times for which a stream stood still, of more than a millisecond.
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

/// What one thread did.
struct Work {
    start: Instant,
    /// The same moment on the machine's clock, in seconds.
    at: f64,
    end: Instant,
    kernels: u64,
    timeline: Timeline,
}

pub(crate) fn run(options: &Dense) -> Result<(), Failure> {
    let context = Context::open(options.target.device, options.target.ptsz)?;
    let kernels = Kernels::load(&context)?;
    let (spin, kernel_us) = prepare(options, &context, &kernels)?;
    let plan = Plan::new(options.pattern, options.kernel_us);
    let completed = AtomicU64::new(0);
    let (barrier, length) = (Barrier::new(plan.threads), Duration::from_secs_f64(options.seconds));
    let pause = options.pause_us.map(|us| Duration::from_secs_f64(us / 1e6));
    let commands = match options.commands {
        true => Commands::from_stdin().map_err(Failure::Thread)?,
        false => Commands::none(),
    };
    // Streams that share the device complete their kernels in turn.
    let kernel_ms = options.kernel_us / 1e3 * (plan.threads * plan.lanes) as f64;
    let timeline = || Timeline::new(kernel_ms, options.windows);
    let work = || {
        let lanes = context.make_current().and_then(|()| {
            (0..plan.lanes)
                .map(|_| {
                    Lane::new(
                        &context,
                        &kernels,
                        options.pattern,
                        options.target.ptsz,
                        spin,
                        plan,
                        timeline(),
                    )
                })
                .collect::<Result<Vec<_>, _>>()
        });
        // Every thread gets here, so that none waits for one that failed.
        barrier.wait();
        launch_for(length, pause, &commands, lanes?, timeline(), &completed)
    };
    let works = std::thread::scope(|scope| -> Result<Vec<Work>, Failure> {
        let reporter = match options.progress {
            Some(every) => {
                let every = Duration::from_secs_f64(every);
                Some(progress::start(scope, every, &completed).map_err(Failure::Thread)?)
            }
            None => None,
        };
        let others: Vec<_> = (1..plan.threads).map(|_| scope.spawn(work)).collect();
        let mut works = vec![work()];
        for other in others {
            works.push(other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
        drop(reporter);
        Ok(works.into_iter().collect::<Result<_, _>>()?)
    })?;
    report::line(&outcome(options, &context, works, spin, kernel_us)?)
}

/// The kernel to launch, and its length in microseconds if it was measured.
fn prepare(
    options: &Dense,
    context: &Context,
    kernels: &Kernels<'_>,
) -> Result<(Spin, Option<f64>), DriverError> {
    let stream = Stream::default_of(context);
    calibrate::warm_up(kernels, &stream)?;
    if let Some(iterations) = options.iterations {
        let ns = ((options.kernel_us * 1000.0).round() as u64).max(1);
        return Ok((Spin { ns, iterations }, None));
    }
    let Calibrated { spin, measured_us } =
        calibrate::calibrate(context, kernels, &stream, options.kernel_us)?;
    Ok((spin, Some(measured_us)))
}

/// Launches into the lanes in turn until `length` is over or the end is said, with pauses if asked for,
/// then waits for what is outstanding.
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
    let (start, at) = (Instant::now(), clock::monotonic());
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
    let end = Instant::now();
    let kernels = lanes.iter().map(|lane| lane.kernels).sum();
    lanes.into_iter().for_each(|lane| timeline.merge(lane.timeline));
    Ok(Work { start, at, end, kernels, timeline })
}

fn outcome(
    options: &Dense,
    context: &Context,
    works: Vec<Work>,
    spin: Spin,
    kernel_us: Option<f64>,
) -> Result<Outcome, DriverError> {
    let start = works.iter().map(|work| work.start).min();
    let end = works.iter().map(|work| work.end).max();
    let at = works.iter().map(|work| work.at).reduce(f64::min);
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
        // A window that was not run to its end tells nothing.
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
        p50_ms: gaps.percentile(50.0),
        p99_ms: gaps.percentile(99.0),
        pauses: timeline.pauses_ms.into(),
        windows,
        windows_at: at.filter(|_| options.windows.is_some()),
        iterations: spin.iterations,
        kernel_us,
        device: context.device_name()?,
        uuid: context.device_uuid()?,
        driver: context.driver_version()?,
    })
}

/// Whether the pattern launches into the default stream, as unchanged programs do, or into
/// streams that it makes.
fn uses_default_stream(pattern: Pattern, ptsz: bool) -> bool {
    match pattern {
        Pattern::Kernel | Pattern::Ex | Pattern::Coop => true,
        // The legacy stream can not be captured.
        Pattern::Graph | Pattern::Multistream => false,
        // With _ptsz functions each thread's default stream is its own.
        Pattern::Threads => ptsz,
    }
}
