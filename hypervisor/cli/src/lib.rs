//! The user's command. It runs programs under limits, shows and changes the limits of running ones,
//! demonstrates that limits hold, and lists what is patched.

#![forbid(unsafe_code)]

pub mod child;
mod choice;
pub mod cli;
mod completion;
pub mod daemon_link;
pub mod demo;
pub mod devices;
mod doctor;
pub mod environment;
pub mod error;
mod explain;
pub mod freeze;
pub mod gpus;
mod healthy;
pub mod hooks;
pub mod inject;
pub mod library;
pub mod limit;
pub mod limits;
pub mod links;
mod manuals;
mod node;
pub mod owner;
pub mod parts;
mod plot;
mod processor;
pub mod profiles;
mod prune;
mod reach;
pub mod record;
mod remote;
pub mod run;
mod sample;
mod series;
mod shares;
pub mod status;
mod summary;
mod top;
pub mod version;

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

use ::limits::Shown;
use clap::Parser;

pub use completion::answer_shell;
pub use error::{Error, ExitStatus};

/// Carries out a command line.
#[must_use]
pub fn main(cli: cli::Cli) -> ExitCode {
    let outcome = match cli.command {
        cli::Command::Run(arguments) => run::run(&arguments),
        cli::Command::Status(arguments) => status::run(&arguments),
        cli::Command::Top(arguments) => top::run(&arguments),
        cli::Command::Record(arguments) => record::run(&arguments),
        cli::Command::Plot(arguments) => plot::run(&arguments),
        cli::Command::Limit(arguments) => limit::run(&arguments),
        cli::Command::Freeze(arguments) => freeze::run(&arguments, true),
        cli::Command::Thaw(arguments) => freeze::run(&arguments, false),
        cli::Command::Healthy(arguments) => healthy::run(&arguments),
        cli::Command::Explain(arguments) => explain::run(&arguments),
        cli::Command::Doctor(arguments) => {
            child::hear_of_ends().and_then(|()| doctor::run(&arguments))
        }
        cli::Command::Inject(arguments) => inject::run(&arguments),
        cli::Command::Prune(arguments) => prune::run(&arguments),
        cli::Command::Demo(arguments) => child::hear_of_ends().and_then(|()| demo::run(&arguments)),
        cli::Command::Hooks(arguments) => {
            child::hear_of_ends().and_then(|()| hooks::run(&arguments))
        }
        cli::Command::Config(command) => profiles::run(&command),
        cli::Command::Completions(arguments) => completion::script(&arguments),
        cli::Command::Man(arguments) => manuals::man(&arguments),
        cli::Command::Version(arguments) => version::run(&arguments),
        cli::Command::LoadNvml => hooks::load_nvml(),
    };
    match outcome {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            say(&error.to_string());
            ExitCode::from(error.exit_code())
        }
    }
}

/// Prints one line to stderr. Names and paths in it may be those of others. A closed stderr is no
/// reason to stop.
pub fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "sluice: {}", Shown(line));
}

/// Prints a text to stdout. `false`: nobody reads it any more.
///
/// # Errors
/// [`Error::System`] if it cannot be written.
pub(crate) fn print(text: &str) -> Result<bool, Error> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => Ok(false),
        Err(e) => Err(Error::system("cannot write to standard output", e)),
        Ok(()) => Ok(true),
    }
}

/// Reads the command line, and prints what it lacks.
///
/// # Errors
/// The status to end with: the command line is wrong, or asked for help.
pub fn command_line() -> Result<cli::Cli, ExitCode> {
    if build_info::are_asked_for(std::env::args_os().skip(1)) {
        let version = cli::VersionArgs { verbose: true };
        return Ok(cli::Cli { command: cli::Command::Version(version) });
    }
    let cli = cli::Cli::try_parse().map_err(|error| {
        if !error.use_stderr() {
            let _ = error.print();
            return ExitCode::SUCCESS;
        }
        // The text repeats arguments as they were given.
        for line in error.render().to_string().lines() {
            let _ = writeln!(std::io::stderr(), "{}", Shown(line));
        }
        ExitCode::from(ExitStatus::Usage as u8)
    })?;
    if let cli::Command::Run(arguments) = &cli.command {
        let line: Vec<OsString> = std::env::args_os().collect();
        cli::check_program(arguments, &line).map_err(|error| {
            say(&error.to_string());
            ExitCode::from(error.exit_code())
        })?;
    }
    Ok(cli)
}
