//! The command line of `sluice`.

use std::ffi::OsString;

use clap::{Args, Parser, Subcommand, ValueEnum};
use utils::units::{UnitError, parse_percent, parse_size};

/// Cuts NVIDIA GPUs into enforced fractions, for programs that are not changed and do not know it.
#[derive(Debug, Parser)]
#[command(name = "sluice", version, arg_required_else_help = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What `sluice` can do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a program under a memory limit and a share of GPU time.
    Run(RunArgs),
    /// Show two programs sharing one GPU, each held to its memory and its share of GPU time.
    Demo(DemoArgs),
    /// List every function of the driver that Sluice names, and whether it is patched.
    Hooks(HooksArgs),
    /// Loads NVML and ends: a part of 'hooks'.
    #[command(hide = true)]
    LoadNvml,
}

/// Arguments of `sluice hooks`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Exit status: 0 when every function that the driver has is patched, 1 when one is not; others as for
'sluice run'.")]
pub struct HooksArgs {
    /// Look at the driver simulated in software.
    #[arg(long)]
    pub fake_gpu: bool,
}

/// Arguments of `sluice demo`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Uses the first GPU, or one simulated in software where there is none. Exit status: 0 when every
limit held (shares within 3 points, memory stopped at the limit), 1 when one did not; others as for
'sluice run'.")]
pub struct DemoArgs {
    /// How long both programs run side by side, in seconds.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub seconds: u32,

    /// Print nothing but the result, as one line of JSON.
    #[arg(long)]
    pub json: bool,

    /// Use a GPU simulated in software even where there is a real one.
    #[arg(long)]
    pub fake_gpu: bool,
}

/// Arguments of `sluice run`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Examples:
  sluice run --mem 8GiB --compute 30 -- python train.py
  sluice run --device 1 --mem 4GiB -- ./infer
  sluice run --mem 1GiB -- nvidia-smi

The program and all processes it starts share the limits. Without --daemon the daemon at the
default socket is used if one answers.

Exit status: the program's own; 128 + n when signal n killed it; 2 wrong usage; 3 no NVIDIA
driver or GPU; 4 a part of Sluice is missing; 70 the system refused something; 126 the program
cannot be run; 127 it was not found.")]
pub struct RunArgs {
    /// Device memory on each device, the CUDA contexts included: bytes, or with a suffix as in
    /// 512MiB, 8GiB, 1.5g (powers of 1024) or 2GB (powers of 1000).
    #[arg(long, value_name = "SIZE", value_parser = memory)]
    pub mem: Option<u64>,

    /// Share of each device's time in percent, above 0 and up to 100: 30, 12.5 or 30%.
    #[arg(long, value_name = "PERCENT", value_parser = parse_percent)]
    pub compute: Option<u32>,

    /// How the share is meant: fixed = never above it; none = not enforced [default: fixed]
    #[arg(long, value_name = "POLICY")]
    pub policy: Option<PolicyArg>,

    /// A device the program may see, by its index in nvidia-smi or its UUID; repeat for more.
    /// Without it the program sees every device, and the limits apply to each.
    #[arg(long, value_name = "INDEX|UUID")]
    pub device: Vec<String>,

    /// Run on GPUs simulated in software instead of real ones.
    #[arg(long)]
    pub fake_gpu: bool,

    /// Unix socket of the daemon that shares the devices between sessions; 'none' for no daemon.
    #[arg(long, value_name = "PATH|none")]
    pub daemon: Option<OsString>,

    /// The program and its arguments, after '--'.
    #[arg(last = true, required = true, value_name = "CMD")]
    pub command: Vec<OsString>,
}

/// `--policy`
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PolicyArg {
    /// Never above the share.
    Fixed,
    /// The share is not enforced.
    None,
}

impl PolicyArg {
    /// As the limiter reads it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fixed => "fixed",
            Self::None => "none",
        }
    }
}

/// A size above zero: a program with no memory at all could not even create a context.
fn memory(text: &str) -> Result<u64, UnitError> {
    match parse_size(text) {
        Ok(0) => Err(UnitError::Size(text.to_owned())),
        other => other,
    }
}

impl RunArgs {
    /// Whether any option is given, that is whether the session would be more than the program.
    #[must_use]
    pub fn any_option(&self) -> bool {
        self.mem.is_some()
            || self.compute.is_some()
            || self.policy.is_some()
            || !self.device.is_empty()
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

    #[test]
    fn everything_after_the_dashes_is_the_program() {
        let cli = Cli::try_parse_from(["sluice", "run", "--mem", "1g", "--", "ls", "--mem", "2g"])
            .unwrap();
        let Command::Run(arguments) = cli.command else { unreachable!() };
        assert_eq!(arguments.mem, Some(1 << 30));
        assert_eq!(arguments.command, ["ls", "--mem", "2g"]);
    }

    #[test]
    fn wrong_values_are_refused() {
        for wrong in [
            ["--mem", "0"],
            ["--mem", "lots"],
            ["--mem", "-1"],
            ["--compute", "0"],
            ["--compute", "101"],
            ["--compute", "-5"],
            ["--policy", "fair"],
        ] {
            let line = ["sluice", "run", wrong[0], wrong[1], "--", "true"];
            assert!(Cli::try_parse_from(line).is_err(), "{wrong:?}");
        }
        assert!(Cli::try_parse_from(["sluice", "run", "true"]).is_err(), "needs --");
        assert!(Cli::try_parse_from(["sluice", "run", "--"]).is_err(), "needs a program");
    }
}
