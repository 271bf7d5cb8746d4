//! `sluice completions` and `sluice man`: what shells and `man` know of the command line, made from it.

use std::fs;

use clap::CommandFactory;

use super::cli::{Cli, CompletionsArgs, ManArgs};
use super::{Error, print};

/// Prints the completions for a shell.
///
/// # Errors
/// [`Error::System`] if they cannot be printed.
pub(crate) fn completions(arguments: &CompletionsArgs) -> Result<u8, Error> {
    let mut text = Vec::new();
    clap_complete::generate(arguments.shell, &mut Cli::command(), "sluice", &mut text);
    print(&String::from_utf8_lossy(&text)).map(|_| 0)
}

/// Writes a page for each command.
///
/// # Errors
/// [`Error::System`] if they cannot be written.
pub(crate) fn man(arguments: &ManArgs) -> Result<u8, Error> {
    let folder = &arguments.folder;
    let failed = |error| Error::system(format!("cannot write to {}", folder.display()), error);
    fs::create_dir_all(folder).map_err(failed)?;
    clap_mangen::generate_to(Cli::command(), folder).map_err(failed)?;
    Ok(0)
}
