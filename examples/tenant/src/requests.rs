//! `tenant requests`: a server whose requests arrive at random times, each a burst of kernels.

use std::time::{Duration, Instant};

use serde::Serialize;

use crate::calibrate;
use crate::cli::Requests;
use crate::driver::{Context, Kernels, LaunchCall, Stream};
use crate::stats::Samples;
use crate::{Failure, report};

/// The result line.
#[derive(Serialize)]
struct Outcome {
    requests: usize,
    /// Answered requests per second.
    rate: f64,
    /// Kernels per burst.
    kernels: u64,
    /// Median time from a request's arrival to the end of its burst, including the wait for an earlier request.
    p50_ms: f64,
    p95_ms: f64,
    p99_ms: f64,
    most_ms: f64,
    /// Median time from a burst's launch to its end.
    served_p50_ms: f64,
    served_p99_ms: f64,
    iterations: u64,
    device: String,
    uuid: String,
    driver: i32,
}

pub(crate) fn run(options: &Requests) -> Result<(), Failure> {
    let context = Context::open(options.target.device, options.target.ptsz)?;
    let kernels = Kernels::load(&context)?;
    let stream = Stream::default_of(&context);
    let spin = calibrate::prepare(&context, &kernels, options.kernel_us, options.iterations)?.spin;
    let burst = ((options.burst_ms * 1e3 / options.kernel_us).round() as u64).max(1);
    let mut arrivals = Arrivals { state: options.seed, mean: 1.0 / options.rate };

    let (mut latency, mut served) = (Vec::new(), Vec::new());
    let start = Instant::now();
    let mut due = arrivals.next_gap();
    while due < options.seconds {
        let due_at = start + Duration::from_secs_f64(due);
        if let Some(early) = due_at.checked_duration_since(Instant::now()) {
            std::thread::sleep(early);
        }
        let launched = Instant::now();
        for _ in 0..burst {
            kernels.launch_spin(LaunchCall::Kernel, spin, &stream)?;
        }
        stream.synchronize()?;
        let end = Instant::now();
        latency.push((end - due_at).as_secs_f64() * 1e3);
        served.push((end - launched).as_secs_f64() * 1e3);
        due += arrivals.next_gap();
    }
    let seconds = start.elapsed().as_secs_f64();
    let requests = latency.len();
    let (latency, served) = (Samples::new(latency), Samples::new(served));
    report::line(&Outcome {
        requests,
        rate: requests as f64 / seconds,
        kernels: burst,
        p50_ms: latency.percentile(50.0),
        p95_ms: latency.percentile(95.0),
        p99_ms: latency.percentile(99.0),
        most_ms: latency.percentile(100.0),
        served_p50_ms: served.percentile(50.0),
        served_p99_ms: served.percentile(99.0),
        iterations: spin.iterations,
        device: context.device_name()?,
        uuid: context.device_uuid()?,
        driver: context.driver_version()?,
    })
}

/// Gaps between requests, uniformly from half to one and a half times the mean. Requests seldom overlap, so the latency
/// reflects the device and not a queue inside the program.
struct Arrivals {
    state: u64,
    mean: f64,
}

impl Arrivals {
    fn next_gap(&mut self) -> f64 {
        // SplitMix64.
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        let part = (mixed >> 11) as f64 / (1_u64 << 53) as f64;
        self.mean * (0.5 + part)
    }
}

#[cfg(test)]
mod tests {
    use super::Arrivals;

    #[test]
    fn gaps_are_around_the_mean_and_the_same_for_the_same_seed() {
        let gaps = |seed| {
            let mut arrivals = Arrivals { state: seed, mean: 0.02 };
            (0..10_000).map(|_| arrivals.next_gap()).collect::<Vec<_>>()
        };
        let found = gaps(1);
        assert!(found.iter().all(|gap| (0.01..=0.03).contains(gap)));
        let mean = found.iter().sum::<f64>() / found.len() as f64;
        assert!((mean - 0.02).abs() < 3e-4, "{mean}");
        assert_eq!(found, gaps(1));
        assert_ne!(found, gaps(2));
    }
}
