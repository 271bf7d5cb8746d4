//! `tenant ahead`: launches without waiting, as most programs do, with one wait at the end. Measures how far the host
//! runs ahead of the device.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::calibrate;
use crate::cli::Ahead;
use crate::driver::{Context, DriverError, Event, Kernels, LaunchCall, Stream};
use crate::stats::Samples;
use crate::{Failure, report};

/// Work between two events, in microseconds.
const EVENT_US: f64 = 1000.0;
/// Shortest delay of a group of launches that counts as a pause, in milliseconds.
const PAUSE_MS: f64 = 1.0;

/// The result line.
#[derive(Serialize)]
struct Outcome {
    kernels: u64,
    /// From the first launch to the last completion, on the host's clock.
    seconds: f64,
    /// Completed kernels per second.
    rate: f64,
    /// Time in which the host launched.
    launch_seconds: f64,
    /// Launches that the device had not completed, sampled after each group and counted in whole groups.
    ahead: Spread,
    /// `ahead` as time: launches times the requested kernel length.
    ahead_ms: Spread,
    /// Duration of a launch call.
    launch_us: Spread,
    /// Pauses of the device between two groups, longer than a millisecond each.
    pauses: usize,
    longest_pause_ms: f64,
    iterations: u64,
    device: String,
    uuid: String,
    driver: i32,
}

/// Percentiles of samples.
#[derive(Serialize)]
struct Spread {
    p50: f64,
    p99: f64,
    most: f64,
}

impl From<Vec<f64>> for Spread {
    fn from(samples: Vec<f64>) -> Self {
        let samples = Samples::new(samples);
        let [p50, p99, most] = [50.0, 99.0, 100.0].map(|part| samples.percentile(part));
        Self { p50, p99, most }
    }
}

pub(crate) fn run(options: &Ahead) -> Result<(), Failure> {
    let context = Context::open(options.target.device, options.target.ptsz)?;
    let kernels = Kernels::load(&context)?;
    let stream = Stream::default_of(&context);
    let spin = calibrate::prepare(&context, &kernels, options.kernel_us, options.iterations)?.spin;
    let group = ((EVENT_US / options.kernel_us) as u64).max(1);
    let length = Duration::from_secs_f64(options.seconds);

    let (mut ahead, mut took, mut gaps) = (Vec::new(), Vec::new(), Gaps::new(&context, &stream)?);
    let mut outstanding = VecDeque::new();
    let start = Instant::now();
    let mut launched = 0;
    while start.elapsed() < length {
        for _ in 0..group {
            let before = Instant::now();
            kernels.launch_spin(LaunchCall::Kernel, spin, &stream)?;
            took.push(before.elapsed().as_secs_f64() * 1e6);
        }
        launched += group;
        let event = Event::create(&context)?;
        event.record(&stream)?;
        outstanding.push_back(event);
        while outstanding.front().map(Event::is_done).transpose()? == Some(true) {
            gaps.reached(outstanding.pop_front())?;
        }
        ahead.push((outstanding.len() as u64 * group) as f64);
    }
    let launch_seconds = start.elapsed().as_secs_f64();
    stream.synchronize()?;
    let seconds = start.elapsed().as_secs_f64();
    for event in outstanding {
        gaps.reached(Some(event))?;
    }
    let work_ms = group as f64 * options.kernel_us / 1e3;
    let pauses: Vec<f64> =
        gaps.ms.iter().map(|gap| gap - work_ms).filter(|&ms| ms > PAUSE_MS).collect();
    let ahead_ms = ahead.iter().map(|launches| launches * options.kernel_us / 1e3).collect();
    report::line(&Outcome {
        kernels: launched,
        seconds,
        rate: launched as f64 / seconds,
        launch_seconds,
        ahead: ahead.into(),
        ahead_ms: Vec::into(ahead_ms),
        launch_us: took.into(),
        pauses: pauses.len(),
        longest_pause_ms: pauses.iter().copied().fold(0.0, f64::max),
        iterations: spin.iterations,
        device: context.device_name()?,
        uuid: context.device_uuid()?,
        driver: context.driver_version()?,
    })
}

/// Times between events, by the device's clock.
struct Gaps<'c> {
    last: Event<'c>,
    ms: Vec<f64>,
}

impl<'c> Gaps<'c> {
    fn new(context: &'c Context, stream: &Stream<'_>) -> Result<Self, DriverError> {
        let last = Event::create(context)?;
        last.record(stream)?;
        last.synchronize()?;
        Ok(Self { last, ms: Vec::new() })
    }

    fn reached(&mut self, event: Option<Event<'c>>) -> Result<(), DriverError> {
        if let Some(event) = event {
            self.ms.push(event.ms_since(&self.last)?);
            self.last = event;
        }
        Ok(())
    }
}
