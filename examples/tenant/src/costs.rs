//! `tenant launch-cost` and `tenant alloc-cost`: the host-side cost of single driver calls.

use std::time::Instant;

use serde::Serialize;

use crate::cli::{AllocCost, LaunchCost};
use crate::driver::{Allocator, Context, DriverError, Kernels, MemoryApi, Stream};
use crate::stats::Samples;
use crate::{Failure, report};

/// Launches between two synchronizations: few enough that no queue fills up.
const BATCH: u64 = 16;
/// Untimed calls before the timed ones.
const WARM_UP: u64 = 1024;

/// Stride for touching memory.
const CACHE_LINE: usize = 64;

/// Cost of one call, in nanoseconds.
#[derive(Serialize)]
struct Cost {
    median_ns: f64,
    mean_ns: f64,
    /// Mean without the most expensive thousandth, in which the program was interrupted.
    trimmed_ns: f64,
    p1_ns: f64,
    p99_ns: f64,
}

impl From<Vec<f64>> for Cost {
    fn from(samples: Vec<f64>) -> Self {
        let samples = Samples::new(samples);
        Self {
            median_ns: samples.percentile(50.0),
            mean_ns: samples.mean(),
            trimmed_ns: samples.cheapest(0.999).mean(),
            p1_ns: samples.percentile(1.0),
            p99_ns: samples.percentile(99.0),
        }
    }
}

fn timed<T>(
    samples: &mut Vec<f64>,
    call: impl FnOnce() -> Result<T, DriverError>,
) -> Result<T, DriverError> {
    let start = Instant::now();
    let result = call();
    samples.push(start.elapsed().as_nanos() as f64);
    result
}

/// Times cuLaunchKernel of an empty kernel; synchronizes after each batch.
pub(crate) fn launches(options: &LaunchCost) -> Result<(), Failure> {
    #[derive(Serialize)]
    struct Launches {
        launches: u64,
        #[serde(flatten)]
        cost: Cost,
    }

    let context = Context::open(options.target.device, options.target.ptsz)?;
    let kernels = Kernels::load(&context)?;
    let stream = Stream::default_of(&context);
    let mut touched = vec![0_u8; usize::try_from(options.touch.unwrap_or(0)).unwrap_or(usize::MAX)];
    let mut measure = || -> Result<(), Failure> {
        let mut samples = Vec::new();
        for phase in [WARM_UP.max(64 * u64::from(options.kinds)), options.launches] {
            samples.clear();
            let mut grids = (1..=options.kinds).cycle();
            for i in 1..=phase {
                let blocks = grids.next().unwrap_or(1);
                for line in touched.chunks_mut(CACHE_LINE) {
                    line[0] = line[0].wrapping_add(1);
                }
                core::hint::black_box(&mut touched);
                timed(&mut samples, || kernels.launch_empty(blocks, &stream))?;
                if i % BATCH == 0 {
                    stream.synchronize()?;
                }
            }
            stream.synchronize()?;
        }
        report::line(&Launches { launches: options.launches, cost: samples.into() })
    };
    if !options.each_line {
        return measure();
    }
    for line in std::io::stdin().lines() {
        line.map_err(Failure::Input)?;
        measure()?;
    }
    Ok(())
}

/// Times cuMemAlloc with cuMemFree, and cuMemGetInfo.
pub(crate) fn allocations(options: &AllocCost) -> Result<(), Failure> {
    #[derive(Serialize)]
    struct Allocations {
        pairs: u64,
        size: u64,
        alloc_free: Cost,
        mem_get_info: Cost,
    }

    let context = Context::open(options.target.device, options.target.ptsz)?;
    let allocator = Allocator::new(&context, MemoryApi::Alloc)?;
    let size = usize::try_from(options.size).unwrap_or(usize::MAX);
    let (mut pairs, mut queries) = (Vec::new(), Vec::new());
    for phase in [WARM_UP.min(options.pairs), options.pairs] {
        pairs.clear();
        queries.clear();
        for _ in 0..phase {
            timed(&mut pairs, || allocator.allocate(size).map(drop))?;
            timed(&mut queries, || context.memory_info())?;
        }
    }
    report::line(&Allocations {
        pairs: options.pairs,
        size: options.size,
        alloc_free: pairs.into(),
        mem_get_info: queries.into(),
    })
}
