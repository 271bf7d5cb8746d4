//! The command line.

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::driver::{CopyApi, MemoryApi};

/// A small CUDA workload: keeps a GPU busy, or takes its memory, and tells how that went.
#[derive(Parser, Debug)]
#[command(version)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Launch kernels that fill the device, back to back, and report how many were completed
    Dense(Dense),
    /// Launch far ahead of the device and wait once, at the end; report how far the host got ahead
    Ahead(Ahead),
    /// Serve requests that come at random times, each a burst of kernels, and report how long they took
    Requests(Requests),
    /// Run data-parallel steps: kernels, then one that waits for those of all other members
    Collective(Collective),
    /// Copy or fill memory, back to back, and report how many copies were completed
    Copy(Copy),
    /// Allocate until refused, and report how much was granted
    Mem(Mem),
    /// Measure the host-side cost of launching an empty kernel into an idle queue
    LaunchCost(LaunchCost),
    /// Measure the cost of cuMemAlloc with cuMemFree, and of cuMemGetInfo
    AllocCost(AllocCost),
}

/// The device, and the variant of the driver's functions.
#[derive(Args, Debug, Clone, Copy)]
pub(crate) struct Target {
    /// Device number, as CUDA counts in this process
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub(crate) device: u32,
    /// Use the per-thread default stream: the driver's _ptsz functions
    #[arg(long)]
    pub(crate) ptsz: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Dense {
    /// How long one kernel takes, in microseconds
    #[arg(long, value_name = "U", value_parser = kernel_us)]
    pub(crate) kernel_us: f64,
    /// How long to launch, in seconds
    #[arg(long, value_name = "S", value_parser = seconds)]
    pub(crate) seconds: f64,
    /// How the kernels are launched
    #[arg(long, value_enum, default_value = "kernel")]
    pub(crate) pattern: Pattern,
    /// Iterations per kernel, from the result of an earlier run; measured if not given
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) iterations: Option<u64>,
    /// Wait for each group of launches, then idle this long, in microseconds: a load that leaves the device partly idle
    #[arg(long, value_name = "U", value_parser = kernel_us)]
    pub(crate) pause_us: Option<f64>,
    /// Print the number of completed kernels as a JSON line at this interval, in seconds
    #[arg(long, value_name = "S", value_parser = interval, num_args = 0..=1, require_equals = true,
          default_missing_value = "0.25")]
    pub(crate) progress: Option<f64>,
    /// Report the kernels completed in each window of this length, in seconds of the device's clock
    #[arg(long, value_name = "S", value_parser = window)]
    pub(crate) windows: Option<f64>,
    /// Read commands from stdin: 'pause', 'go', 'end'; end of file ends the run
    #[arg(long)]
    pub(crate) commands: bool,
    /// Use the first N devices at once, each with its own context and threads; --progress reports the sum
    #[arg(long, value_name = "N", conflicts_with = "device", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) devices: Option<u32>,
    #[command(flatten)]
    pub(crate) target: Target,
}

/// How kernels are launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Pattern {
    /// cuLaunchKernel into the default stream
    Kernel,
    /// cuLaunchKernelEx into the default stream
    Ex,
    /// cuLaunchCooperativeKernel into the default stream
    Coop,
    /// cuGraphLaunch of a captured graph of eight kernels
    Graph,
    /// cuLaunchKernel into four streams in turn
    Multistream,
    /// cuLaunchKernel from four threads, each with its own stream
    Threads,
}

#[derive(Args, Debug)]
pub(crate) struct Ahead {
    /// How long one kernel takes, in microseconds
    #[arg(long, value_name = "U", value_parser = kernel_us)]
    pub(crate) kernel_us: f64,
    /// How long to launch, in seconds
    #[arg(long, value_name = "S", value_parser = seconds)]
    pub(crate) seconds: f64,
    /// Iterations per kernel, from the result of an earlier run; measured if not given
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) iterations: Option<u64>,
    #[command(flatten)]
    pub(crate) target: Target,
}

#[derive(Args, Debug)]
pub(crate) struct Requests {
    /// How long the kernels of one request take together, in milliseconds
    #[arg(long, value_name = "MS", value_parser = burst_ms)]
    pub(crate) burst_ms: f64,
    /// Requests per second; gaps vary from half to one and a half times the mean
    #[arg(long, value_name = "R", value_parser = rate)]
    pub(crate) rate: f64,
    /// How long to serve, in seconds
    #[arg(long, value_name = "S", value_parser = seconds)]
    pub(crate) seconds: f64,
    /// How long one kernel takes, in microseconds
    #[arg(long, value_name = "U", value_parser = kernel_us, default_value = "100")]
    pub(crate) kernel_us: f64,
    /// Seed of the request times
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Iterations per kernel, from the result of an earlier run; measured if not given
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) iterations: Option<u64>,
    #[command(flatten)]
    pub(crate) target: Target,
}

#[derive(Args, Debug)]
pub(crate) struct Collective {
    /// Number of steps
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    pub(crate) steps: u64,
    /// Members in this process: the first D devices from --device on
    #[arg(long, value_name = "D", default_value_t = 1, conflicts_with = "rank", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) devices: u32,
    /// Be member I among several processes; all need equal --ranks, --page, --group and --steps
    #[arg(long, value_name = "I", requires = "ranks", requires = "page")]
    pub(crate) rank: Option<u64>,
    /// Number of members in all processes
    #[arg(long, value_name = "N", requires = "rank", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) ranks: Option<u64>,
    /// File shared by the members; new for each run
    #[arg(long, value_name = "PATH")]
    pub(crate) page: Option<std::path::PathBuf>,
    /// Number that distinguishes this run from others on the simulated GPU
    #[arg(long, value_name = "N", default_value_t = std::process::id().into(), value_parser = clap::value_parser!(u64).range(..1 << 32))]
    pub(crate) group: u64,
    /// How long one kernel takes, in microseconds
    #[arg(long, value_name = "U", value_parser = kernel_us)]
    pub(crate) kernel_us: f64,
    /// Kernels per step
    #[arg(long, value_name = "N", default_value_t = 8)]
    pub(crate) kernels: u64,
    /// Collectives per step, in their own stream beside the kernels, as in data-parallel training; 0: one collective,
    /// after the kernels
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u64).range(..=256))]
    pub(crate) buckets: u64,
    /// Collectives per step that the first member runs alone, so that members launch different numbers
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) alone_on_first: u64,
    /// Length of the collective once all members have begun it, in microseconds
    #[arg(long, value_name = "U", value_parser = kernel_us, default_value = "100")]
    pub(crate) collective_us: f64,
    /// Wait for the device after every Nth step
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) wait_every: u64,
    /// How long the host then rests, in microseconds
    #[arg(long, value_name = "U", default_value_t = 0)]
    pub(crate) rest_us: u64,
    /// Iterations per kernel, from the result of an earlier run; measured if not given
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) iterations: Option<u64>,
    #[command(flatten)]
    pub(crate) target: Target,
}

#[derive(Args, Debug)]
pub(crate) struct Copy {
    /// Call that copies
    #[arg(long, value_enum)]
    pub(crate) api: CopyApi,
    /// Size of one copy, such as 4MiB; rounded down to a multiple of 64
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub(crate) bytes: u64,
    /// How long to copy, in seconds
    #[arg(long, value_name = "S", value_parser = seconds)]
    pub(crate) seconds: f64,
    #[command(flatten)]
    pub(crate) target: Target,
}

#[derive(Args, Debug)]
pub(crate) struct Mem {
    /// Calls that allocate
    #[arg(long, value_enum)]
    pub(crate) api: MemoryApi,
    /// Size of one allocation, such as 64MiB
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub(crate) chunk: u64,
    /// Stop once this much is granted
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub(crate) cap: u64,
    /// Hold all memory for this long after the result is printed, in seconds
    #[arg(long, value_name = "S", value_parser = seconds)]
    pub(crate) hold: Option<f64>,
    #[command(flatten)]
    pub(crate) target: Target,
}

#[derive(Args, Debug)]
pub(crate) struct LaunchCost {
    /// Number of launches to time
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    pub(crate) launches: u64,
    /// Number of different grids to launch in turn
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=60_000))]
    pub(crate) kinds: u32,
    /// Memory to touch before each launch, as programs do, to evict the caches
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub(crate) touch: Option<u64>,
    /// Measure once per line on stdin, until end of file
    #[arg(long)]
    pub(crate) each_line: bool,
    #[command(flatten)]
    pub(crate) target: Target,
}

#[derive(Args, Debug)]
pub(crate) struct AllocCost {
    /// Number of allocations to time
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    pub(crate) pairs: u64,
    /// Size of one allocation
    #[arg(long, default_value = "4MiB", value_name = "SIZE", value_parser = size)]
    pub(crate) size: u64,
    #[command(flatten)]
    pub(crate) target: Target,
}

fn size(text: &str) -> Result<u64, String> {
    match limits::units::parse_size(text) {
        Ok(0) => Err("expected a size above 0".to_owned()),
        Ok(bytes) => Ok(bytes),
        Err(error) => Err(error.to_string()),
    }
}

fn kernel_us(text: &str) -> Result<f64, String> {
    number(text, 1e7)
}

fn burst_ms(text: &str) -> Result<f64, String> {
    number(text, 1e4)
}

fn rate(text: &str) -> Result<f64, String> {
    number(text, 1e5)
}

fn seconds(text: &str) -> Result<f64, String> {
    number(text, 86_400.0)
}

/// Short enough to be useful, long enough that counting is free.
fn interval(text: &str) -> Result<f64, String> {
    at_least(0.01, text)
}

/// A window takes memory: one number each.
fn window(text: &str) -> Result<f64, String> {
    at_least(0.001, text)
}

fn at_least(least: f64, text: &str) -> Result<f64, String> {
    match number(text, 86_400.0) {
        Ok(value) if value < least => Err(format!("expected at least {least}")),
        other => other,
    }
}

fn number(text: &str, most: f64) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value > 0.0 && value <= most => Ok(value),
        _ => Err(format!("expected a number above 0 and up to {most}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }

    #[test]
    fn wrong_values_are_refused() {
        for text in ["0", "-1", "nan", "inf", "ten", ""] {
            assert!(kernel_us(text).is_err(), "{text}");
        }
        assert_eq!(kernel_us("2500"), Ok(2500.0));
        for text in ["0", "0.009", "nan", "1e9"] {
            assert!(interval(text).is_err(), "{text}");
        }
        assert_eq!(interval("0.01"), Ok(0.01));
        assert_eq!(window("0.001"), Ok(0.001));
        assert_eq!(window("0.0009"), Err("expected at least 0.001".to_owned()));
        assert!(size("0").is_err());
        assert_eq!(size("64MiB"), Ok(64 << 20));
    }
}
