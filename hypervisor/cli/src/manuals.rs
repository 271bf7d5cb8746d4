//! `sluice man`: manual pages, made from the command line.

use std::fs;

use clap::CommandFactory;

use super::Error;
use super::cli::{Cli, ManArgs};

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
