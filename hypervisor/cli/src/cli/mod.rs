//! The command line of `sluice`.

mod inject;
mod inspect;
mod live;
mod program;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::builder::{OsStringValueParser, PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser, Subcommand, ValueHint};
use limits::memory::Part;
use limits::named::Names;
use limits::request::MemoryRequest;
use limits::units::{Amount, parse_amount, parse_percent, parse_weight};
use limits::{Named, Policy, Priority, Request};

use crate::completion::{profiles, sessions};
use crate::gpus::GpuRequest;
pub use inject::InjectArgs;
pub use inspect::{DoctorArgs, ExplainArgs, HealthyArgs, HooksArgs, PruneArgs, StatusArgs};
pub use live::{PlotArgs, RecordArgs, TopArgs};
pub use program::check_program;
use program::session_name;

/// What the options are called in errors.
const NAMES: Names = Names {
    memory: "--mem",
    real: "--mem-real",
    share: "--compute",
    balance: "--policy balance or --burst",
};

/// Enforces fractions of NVIDIA GPUs for unmodified programs.
#[derive(Debug, Parser)]
#[command(
    name = "sluice",
    version,
    arg_required_else_help = true,
    after_help = "'--version --verbose' also prints the build, as 'sluice version --verbose' does."
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What `sluice` can do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a program under a memory limit and a compute share.
    Run(RunArgs),
    /// List sessions, their limits and what they use.
    Status(StatusArgs),
    /// Watch GPUs and sessions live, and change limits.
    Top(TopArgs),
    /// Record samples of the node's state.
    Record(RecordArgs),
    /// Plot a recording as SVG.
    Plot(PlotArgs),
    /// Change the limits of a running session.
    Limit(LimitArguments),
    /// Suspend a running session's GPU work until it is thawed.
    Freeze(FreezeArguments),
    /// Resume a frozen session.
    Thaw(FreezeArguments),
    /// Mark a GPU healthy after a fault, so that the daemon grants leases on it.
    Healthy(HealthyArgs),
    /// Explain why a session or process waits or was refused, and what helps.
    Explain(ExplainArgs),
    /// Check this machine, and prove that limits hold on it.
    Doctor(DoctorArgs),
    /// Prepare a container's root directory so that its programs are limited.
    Inject(InjectArgs),
    /// Remove sessions that have no process left.
    Prune(PruneArgs),
    /// Demonstrate two programs sharing one GPU within their limits.
    Demo(DemoArgs),
    /// List the driver functions that Sluice handles, and which are patched.
    Hooks(HooksArgs),
    /// Check profile files.
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Generate shell completions.
    Completions(CompletionsArgs),
    /// Write the manual pages.
    Man(ManArgs),
    /// Print the version and the build.
    Version(VersionArgs),
    /// Loads NVML and ends: a part of 'hooks'.
    #[command(hide = true)]
    LoadNvml,
}

/// Arguments of `sluice version`.
#[derive(Debug, Clone, Args)]
pub struct VersionArgs {
    /// Also print commit, build, features and hook engine, for the library too.
    #[arg(long, short)]
    pub verbose: bool,
}

/// What `sluice config` can do.
#[derive(Debug, Clone, Subcommand)]
pub enum ConfigCommand {
    /// Check the files with profiles: /etc/sluice/config.toml and ~/.config/sluice/config.toml.
    #[command(after_help = "\
Exit status: 0 if nothing is wrong; 2 if something is; 70 if a file cannot be read.")]
    Check {
        /// Check this file instead.
        #[arg(value_name = "FILE")]
        file: Option<PathBuf>,
    },
}

/// Arguments of `sluice completions`.
#[derive(Debug, Clone, Args)]
pub struct CompletionsArgs {
    /// The shell.
    pub shell: clap_complete::Shell,
}

/// Arguments of `sluice man`.
#[derive(Debug, Clone, Args)]
pub struct ManArgs {
    /// Directory for the pages, created if missing.
    #[arg(value_name = "DIR")]
    pub folder: PathBuf,
}

/// Arguments of `sluice demo`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Uses the first GPU, or a simulated one if there is none. Exit status: 0 if every limit held
(shares within 4 points, memory stopped at the limit); 1 if one did not; others as for
'sluice run'.")]
pub struct DemoArgs {
    /// How many seconds both programs run side by side.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub seconds: u32,

    /// Print only the result, as one line of JSON.
    #[arg(long)]
    pub json: bool,

    /// Use the simulated GPU even if there is a real one.
    #[arg(long)]
    pub fake_gpu: bool,
}

/// Arguments of `sluice run`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Examples:
  sluice run --mem 8GiB --compute 30 -- python train.py
  sluice run --device 1 --mem 4GiB -- ./infer
  sluice run --gpus device=0,1 --name train --mem 8GiB torchrun train.py
  sluice run --mem 50% --compute 25 --burst 60 -- python serve.py
  sluice run --mem 24GiB --mem-real 16GiB -- python train.py
  sluice run --profile small -- ./infer
  sluice run --mem 1GiB -- nvidia-smi

The program and all processes it starts share the limits. Without --daemon, the daemon at the
default socket is used if it answers.

Exit status: the program's own, or the signal that killed it (128 + n in a shell); 2 wrong
usage; 3 no NVIDIA driver or GPU; 4 a part of Sluice is missing; 70 a system call failed; 126
the program cannot be run; 127 it was not found.")]
pub struct RunArgs {
    /// The program's limits.
    #[command(flatten)]
    pub limits: LimitArgs,

    /// Allow only this device, by its index in nvidia-smi or its UUID; repeat for more. CUDA shows the
    /// program these devices alone, while NVML (nvidia-smi) lists all. Without the option the program
    /// sees every device, and the limits apply to each.
    #[arg(long, value_name = "INDEX|UUID", allow_negative_numbers = true)]
    pub device: Vec<String>,

    /// Allow these devices, in docker's syntax: 'all', a number, or 'device=0,1' by index or UUID.
    #[arg(long, value_name = "all|N|device=LIST", conflicts_with = "device")]
    pub gpus: Option<GpuRequest>,

    /// Use this profile of ~/.config/sluice/config.toml or /etc/sluice/config.toml for options that are not given.
    #[arg(long, value_name = "NAME", add = profiles())]
    pub profile: Option<String>,

    /// Name of the session for 'sluice status' and other commands: letters, digits, '.', '_' and '-', starting with a
    /// letter.
    #[arg(long, value_parser = session_name)]
    pub name: Option<String>,

    /// Print memory, GPU time, share and waiting time to stderr when the program ends.
    #[arg(long)]
    pub summary: bool,

    /// Run on simulated GPUs instead of real ones.
    #[arg(long)]
    pub fake_gpu: bool,

    /// Unix socket of the daemon that shares the devices between sessions; 'none' for no daemon.
    #[arg(long, value_name = "PATH|none", value_parser = daemon())]
    pub daemon: Option<OsString>,

    /// The program and its arguments. '--' before it is needed if an argument looks like an option of 'sluice run'.
    #[arg(trailing_var_arg = true, required = true, value_name = "CMD", value_hint = ValueHint::AnyPath)]
    pub command: Vec<OsString>,
}

/// What a session may take, for `sluice run` and `sluice limit`.
#[derive(Debug, Clone, Copy, Default, Args)]
pub struct LimitArgs {
    /// Memory limit on each device, CUDA contexts included: bytes, a size with a suffix such as
    /// 512MiB, 8GiB, 1.5g (powers of 1024) or 2GB (powers of 1000), or a percentage of the device such
    /// as 50%. Sizes below 1 MiB need a suffix.
    // A hyphen is let in, here and below: its own error says more than "unexpected argument".
    #[arg(long, value_name = "SIZE|PERCENT", value_parser = parse_amount, allow_hyphen_values = true)]
    pub mem: Option<Amount>,

    /// Part of --mem that may be on the device; allocations beyond it are placed on the host. With this
    /// option, --mem may exceed the device's memory.
    #[arg(long, value_name = "SIZE|PERCENT", value_parser = parse_amount, allow_hyphen_values = true)]
    pub mem_real: Option<Amount>,

    /// Compute share: percentage of each device's time, above 0 and up to 100: 30, 12.5 or 30%.
    #[arg(long, value_name = "PERCENT", value_parser = parse_percent, allow_hyphen_values = true)]
    pub compute: Option<u32>,

    /// How the compute share is enforced: fixed = never above it; balance = guaranteed, plus idle time;
    /// none = not enforced [default: fixed, or balance with --burst]
    #[arg(long, value_name = "POLICY", value_parser = policies())]
    pub policy: Option<Policy>,

    /// Burst limit: the most of each device's time that the session gets under policy balance, in percent, at least
    /// --compute
    #[arg(long = "burst", value_name = "PERCENT", value_parser = parse_percent, allow_hyphen_values = true)]
    pub soft: Option<u32>,

    /// Weight for dividing idle time among sessions of policy balance, from 1 to 10000
    /// [default: the share in percent]
    #[arg(long, value_name = "N", value_parser = parse_weight, allow_hyphen_values = true)]
    pub weight: Option<u32>,

    /// Priority: low = uses the time that high-priority sessions leave, plus its share up to 10 % so that it
    /// never starves [default: high]
    #[arg(long, value_name = "PRIORITY", value_parser = priorities())]
    pub priority: Option<Priority>,
}

impl LimitArgs {
    /// The limits that the options ask for.
    #[must_use]
    pub fn request(&self) -> Request {
        fn named<T>(value: Option<T>, name: &'static str) -> Option<Named<T>> {
            value.map(|value| Named::new(value, name))
        }
        Request {
            memory: named(self.mem.map(MemoryRequest::Limit), NAMES.memory),
            real: named(self.mem_real.map(Part::Amount), NAMES.real),
            share: named(self.compute, NAMES.share),
            policy: self.policy.map(|policy| Named::new(policy, format!("--policy {policy}"))),
            soft: named(self.soft, "--burst"),
            weight: named(self.weight, "--weight"),
            priority: named(self.priority, "--priority"),
            ..Request::nothing(NAMES)
        }
    }
}

/// Arguments of `sluice limit`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Examples:
  sluice limit 4711 --mem 4GiB
  sluice limit train --compute 50
  sluice limit env-3f2a77e0c1d2b4a6 --compute 50 --burst 80
  sluice limit 4711 --no-mem --policy none

Changes the devices that the session has used, or all of its devices if it has used none; on other
devices the session keeps the limits it was started with. A session that was started without limits
can get some, and limits can be removed. If the new memory limit is below current use, allocations
fail until memory is freed; nothing is taken away.

Exit status: 0 if the limits were changed; 2 wrong usage; 3 an NVIDIA driver or GPU is needed, and
there is none; 70 a system call failed, or a page is damaged.")]
pub struct LimitArguments {
    /// The session: the name that it was given, a prefix of its own name or of its container's name or id, or the id of
    /// one of its processes.
    #[arg(value_name = "SESSION|CONTAINER|PID", add = sessions())]
    pub session: String,

    /// Change only this device, by its index in nvidia-smi or its UUID.
    #[arg(long, value_name = "INDEX|UUID", allow_negative_numbers = true)]
    pub device: Option<String>,

    /// The new limits; the others stay as they are.
    #[command(flatten)]
    pub limits: LimitArgs,

    /// Remove the memory limit; --policy none removes the compute share.
    #[arg(long, conflicts_with_all = ["mem", "mem_real"])]
    pub no_mem: bool,

    /// Print one JSON document: docs/api/limit.schema.json.
    #[arg(long)]
    pub json: bool,

    /// Unix socket of the daemon, which knows containers; 'none' to use the session pages alone [default: the first
    /// default socket that answers]
    #[arg(long, value_name = "PATH|none", value_parser = daemon())]
    pub daemon: Option<OsString>,
}

impl LimitArguments {
    /// The change that the options ask for.
    #[must_use]
    pub fn request(&self) -> Request {
        let mut request = self.limits.request();
        if self.no_mem {
            request.memory = Some(Named::new(MemoryRequest::NoLimit, "--no-mem"));
        }
        request
    }
}

/// Arguments of `sluice freeze` and `sluice thaw`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Examples:
  sluice freeze train
  sluice thaw 4711

The daemon grants a frozen session no more GPU time, and work that its programs launch waits. The
session needs a compute share on each of its devices. Its memory stays where it is. Once its last
process ends, a session is forgotten: a later one of that name is not frozen.

Exit status: 0 if it is now frozen or running; 2 wrong usage, or refused by the daemon; 70 no daemon
answers.")]
pub struct FreezeArguments {
    /// The session: the name that it was given, a prefix of its own name or of its container's name or id, or the id of
    /// one of its processes.
    #[arg(value_name = "SESSION|CONTAINER|PID", add = sessions())]
    pub session: String,

    /// Unix socket of the daemon [default: the first default socket that answers]
    #[arg(long, value_name = "PATH", value_parser = daemon())]
    pub daemon: Option<OsString>,
}

/// What `--daemon` takes. An empty value is a variable that was not set.
fn daemon() -> impl TypedValueParser<Value = OsString> {
    OsStringValueParser::new().try_map(|value| {
        if value.is_empty() {
            return Err("expected the path of a socket, or 'none' for no daemon");
        }
        if value.to_str().is_none() {
            return Err("expected a path in UTF-8");
        }
        Ok(value)
    })
}

/// The words of `--policy`.
fn policies() -> impl TypedValueParser<Value = Policy> {
    let words = [
        (Policy::Fixed, "Never above the share"),
        (Policy::Balance, "The share is guaranteed, and idle time comes on top"),
        (Policy::None, "The share is not enforced"),
    ];
    PossibleValuesParser::new(words.map(|(word, help)| PossibleValue::new(word.name()).help(help)))
        .try_map(|word| word.parse())
}

/// The words of `--priority`.
fn priorities() -> impl TypedValueParser<Value = Priority> {
    let words = [
        (Priority::High, "Before those of low priority"),
        (Priority::Low, "In what those of high priority leave"),
    ];
    PossibleValuesParser::new(words.map(|(word, help)| PossibleValue::new(word.name()).help(help)))
        .try_map(|word| word.parse())
}

impl RunArgs {
    /// Whether any option is given: then the program would need a session of its own.
    #[must_use]
    pub fn any_option(&self) -> bool {
        !self.limits.request().is_empty()
            || !self.device.is_empty()
            || self.gpus.is_some()
            || self.profile.is_some()
            || self.name.is_some()
            || self.summary
            || self.fake_gpu
            || self.daemon.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
