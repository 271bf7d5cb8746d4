//! The user's command. It runs programs under limits, shows and changes the limits of running ones,
//! demonstrates that limits hold, and lists what is patched.

#![forbid(unsafe_code)]

pub mod child;
pub mod cli;
pub mod daemon_link;
pub mod demo;
pub mod devices;
pub mod environment;
pub mod error;
pub mod hooks;
pub mod library;
pub mod limit;
pub mod limits;
pub mod links;
pub mod owner;
pub mod parts;
pub mod run;
pub mod status;

use std::io::Write;
use std::process::ExitCode;

use ::limits::Shown;
use clap::Parser;

pub use error::{Error, ExitStatus};

/// Carries out a command line.
#[must_use]
pub fn main(cli: cli::Cli) -> ExitCode {
    let outcome = match cli.command {
        cli::Command::Run(arguments) => run::run(&arguments),
        cli::Command::Status(arguments) => status::run(&arguments),
        cli::Command::Limit(arguments) => limit::run(&arguments),
        cli::Command::Demo(arguments) => child::hear_of_ends().and_then(|()| demo::run(&arguments)),
        cli::Command::Hooks(arguments) => {
            child::hear_of_ends().and_then(|()| hooks::run(&arguments))
        }
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

/// Reads the command line, and prints what it lacks.
///
/// # Errors
/// The status to end with: the command line is wrong, or asked for help.
pub fn command_line() -> Result<cli::Cli, ExitCode> {
    cli::Cli::try_parse().map_err(|error| {
        if !error.use_stderr() {
            let _ = error.print();
            return ExitCode::SUCCESS;
        }
        // The text repeats arguments as they were given.
        for line in error.render().to_string().lines() {
            let _ = writeln!(std::io::stderr(), "{}", Shown(line));
        }
        ExitCode::from(ExitStatus::Usage as u8)
    })
}
