//! `sluice version`: what this command and the library that it preloads were built from.

use std::env::var_os;
use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;

use ::limits::Shown;
use session::directory::told;

use super::Error;
use super::cli::VersionArgs;
use super::parts::{self, Parts};

/// Prints the version.
///
/// # Errors
/// [`Error`] if standard output cannot be written.
pub fn run(arguments: &VersionArgs) -> Result<u8, Error> {
    let text = if arguments.verbose {
        let library = library().unwrap_or_else(|error| format!("unknown: {error}"));
        build_info::told("sluice", &[], &[("library", &Shown(&library).to_string())])
    } else {
        format!("sluice {}", build_info::VERSION)
    };
    let written = writeln!(io::stdout(), "{text}");
    written.map_err(|e| Error::system("cannot write to standard output", e))?;
    Ok(0)
}

/// What the library says of itself. It is read, not loaded.
fn library() -> Result<String, Error> {
    let path = Parts::locate(var_os(parts::LIBRARY).map(PathBuf::from))?.limiter()?;
    let shown = told(&path);
    let bytes = fs::read(&path)
        .map_err(|e| Error::system(format!("cannot read {}", shown.display()), e))?;
    let line = build_info::line_in(&bytes).unwrap_or("has no build information");
    Ok(format!("{}: {line}", shown.display()))
}
