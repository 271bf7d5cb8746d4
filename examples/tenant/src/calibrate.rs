//! Finds the number of iterations for a kernel of the requested length. Used by all commands that launch kernels.

use std::time::{Duration, Instant};

use crate::driver::{Context, DriverError, Event, Kernels, LaunchCall, Spin, Stream};

/// First guess, in iterations per microsecond; close on recent GPUs.
const GUESS_PER_US: f64 = 11.0;
/// Length of the work before the timed kernel, in microseconds, so that the device never waits for the host.
const BLOCKER_US: f64 = 100.0;
/// Work after which the clocks have risen from idle.
const WARM_UP: Duration = Duration::from_millis(50);
const ROUNDS: u32 = 8;
/// Accepted deviation from the requested length, as a fraction.
const TOLERANCE: f64 = 0.02;
/// More iterations than any accepted kernel length needs.
const MOST_ITERATIONS: f64 = 1e12;

/// A kernel of the requested length.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Calibrated {
    pub(crate) spin: Spin,
    /// The measured length, in microseconds.
    pub(crate) measured_us: f64,
}

/// Keeps the device busy until its clocks have risen.
pub(crate) fn warm_up(kernels: &Kernels<'_>, stream: &Stream<'_>) -> Result<(), DriverError> {
    let start = Instant::now();
    while start.elapsed() < WARM_UP {
        for _ in 0..8 {
            kernels.launch_warm_up(spin(1000.0, GUESS_PER_US * 1000.0), stream)?;
        }
        stream.synchronize()?;
    }
    Ok(())
}

/// A kernel of `us` microseconds, after the clocks have risen. Uses `iterations` from an earlier run if given, else
/// calibrates.
pub(crate) fn prepare(
    context: &Context,
    kernels: &Kernels<'_>,
    us: f64,
    iterations: Option<u64>,
) -> Result<Calibrated, DriverError> {
    let stream = Stream::default_of(context);
    warm_up(kernels, &stream)?;
    match iterations {
        Some(iterations) => Ok(Calibrated { spin: spin(us, iterations as f64), measured_us: us }),
        None => calibrate(context, kernels, &stream, us),
    }
}

/// Finds the number of iterations for kernels of `us` microseconds. Times single kernels between two events and takes
/// the shortest of several, so that waiting (for another program's time slice or a compute limit) does not count. If
/// the length does not depend on the iterations, as on the simulated GPU, ends after a bounded number of rounds.
pub(crate) fn calibrate(
    context: &Context,
    kernels: &Kernels<'_>,
    stream: &Stream<'_>,
    us: f64,
) -> Result<Calibrated, DriverError> {
    let events = (Event::create(context)?, Event::create(context)?);
    let repeats = if us < 5000.0 { 5 } else { 3 };
    let shortest_us = |timed: Option<Spin>| -> Result<f64, DriverError> {
        let mut shortest = f64::INFINITY;
        for _ in 0..repeats {
            let blocker = spin(BLOCKER_US, GUESS_PER_US * BLOCKER_US);
            kernels.launch_spin(LaunchCall::Kernel, blocker, stream)?;
            events.0.record(stream)?;
            if let Some(timed) = timed {
                kernels.launch_spin(LaunchCall::Kernel, timed, stream)?;
            }
            events.1.record(stream)?;
            events.1.synchronize()?;
            shortest = shortest.min(events.1.ms_since(&events.0)? * 1000.0);
        }
        Ok(shortest)
    };
    let pair_us = shortest_us(None)?;
    let mut iterations = (GUESS_PER_US * us).max(1.0);
    let mut best = Calibrated { spin: spin(us, iterations), measured_us: f64::INFINITY };
    for _ in 0..ROUNDS {
        let timed = spin(us, iterations);
        let measured_us = (shortest_us(Some(timed))? - pair_us).max(0.0);
        if (measured_us - us).abs() < (best.measured_us - us).abs() {
            best = Calibrated { spin: timed, measured_us };
        }
        if (measured_us - us).abs() <= us * TOLERANCE {
            break;
        }
        iterations = next_guess(iterations, measured_us, us);
    }
    Ok(best)
}

fn spin(us: f64, iterations: f64) -> Spin {
    Spin { ns: ((us * 1000.0).round() as u64).max(1), iterations: iterations.round() as u64 }
}

/// Scales the iterations by the ratio of requested and measured length, by at most a factor of ten per step.
fn next_guess(iterations: f64, measured_us: f64, wanted_us: f64) -> f64 {
    let factor = if measured_us > 0.0 { wanted_us / measured_us } else { 10.0 };
    (iterations * factor.clamp(0.1, 10.0)).clamp(1.0, MOST_ITERATIONS)
}

#[cfg(test)]
mod tests {
    use super::next_guess;

    #[test]
    fn guesses_converge_on_a_device_with_a_fixed_cost() {
        // 0.089 us per iteration, and 2 us for the kernel itself.
        let measure = |iterations: f64| 2.0 + iterations * 0.089;
        for wanted in [15.0, 130.0, 2500.0, 20_000.0] {
            let mut iterations = wanted * 11.0;
            for _ in 0..super::ROUNDS {
                iterations = next_guess(iterations, measure(iterations), wanted);
            }
            assert!((measure(iterations) - wanted).abs() < wanted * super::TOLERANCE, "{wanted}");
        }
    }

    #[test]
    fn guesses_stay_in_bounds_whatever_is_measured() {
        for measured in [0.0, 1e-9, 1e12, f64::INFINITY] {
            let mut iterations = 100.0;
            for _ in 0..100 {
                iterations = next_guess(iterations, measured, 15.0);
                assert!((1.0..=super::MOST_ITERATIONS).contains(&iterations));
            }
        }
    }
}
