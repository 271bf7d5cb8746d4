//! The tools of the project, one module each.
#![allow(clippy::print_stdout, reason = "the tools' answers")]

mod build_release;
mod debian;
mod elf;
mod export_tables;
mod foreign;
mod fuzz;
mod minimal_versions;
mod new_symbols;
mod package;
mod pictures;
mod symbol_versions;

use crate::process::Failure;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{env, fs, io};

/// The repository.
const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// Why a tool did not do its work.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The answer is no; the reasons have been printed.
    #[error("failed")]
    Found,
    /// It cannot be done.
    #[error("{0}")]
    Wrong(String),
    /// An argument is wrong, or names a file that cannot be read.
    #[error("{0}")]
    Usage(String),
    /// The registry cannot be reached, so nothing is known.
    #[error("the registry cannot be reached: {0}")]
    Registry(String),
    /// A program failed.
    #[error(transparent)]
    Failed(#[from] Failure),
    /// A file cannot be written.
    #[error(transparent)]
    File(#[from] io::Error),
}

impl From<Error> for ExitCode {
    fn from(error: Error) -> Self {
        Self::from(match error {
            Error::Usage(_) => 2,
            Error::Registry(_) => 3,
            _ => 1,
        })
    }
}

#[derive(clap::Subcommand)]
pub(crate) enum Tool {
    /// Build what is shipped into target/shipped
    BuildRelease(build_release::Arguments),
    /// Unpack packages of Debian without installing them
    DebianPackage(debian::Arguments),
    /// Compile with the oldest crates that the manifests allow (exit status 3: the registry cannot be reached)
    MinimalVersions,
    /// Make a folder in which programs of aarch64 run
    Emulate(foreign::Emulate),
    /// Tell the private tables of functions that programs get from the driver
    ExportTables(export_tables::Arguments),
    /// Print symbols of a driver that are in no list (exit status 1: there are some, or a list is wrong)
    FindNewSymbols(new_symbols::Arguments),
    /// Run a fuzz target
    Fuzz(fuzz::Arguments),
    /// Make a folder in which programs run on another glibc
    OldGlibc(foreign::OldGlibc),
    /// Make packages of what is shipped in target/packages
    Package(package::Arguments),
    /// Draw the pictures of the documents
    Pictures(pictures::Arguments),
    /// Check that programs and libraries start with an old glibc (exit status 1: one does not)
    SymbolVersions(symbol_versions::Arguments),
}

impl Tool {
    /// Runs the tool in the root of the repository.
    pub(crate) fn run(self, target: &Path) -> ExitCode {
        match env::set_current_dir(ROOT).map_err(Error::from).and_then(|()| self.run_there(target))
        {
            Ok(()) => ExitCode::SUCCESS,
            Err(Error::Found) => Error::Found.into(),
            Err(error) => {
                eprintln!("xtask: {error}");
                error.into()
            }
        }
    }

    fn run_there(self, target: &Path) -> Result<(), Error> {
        fs::create_dir_all(target)?;
        let target = fs::canonicalize(target)?;
        match self {
            Self::BuildRelease(arguments) => build_release::build(arguments, &target),
            Self::DebianPackage(arguments) => debian::fetch(&arguments),
            Self::Emulate(arguments) => foreign::emulate(&arguments, &target),
            Self::ExportTables(arguments) => export_tables::tell(&arguments),
            Self::Fuzz(arguments) => fuzz::run_target(&arguments),
            Self::MinimalVersions => minimal_versions::check(&target),
            Self::FindNewSymbols(arguments) => new_symbols::find(arguments),
            Self::OldGlibc(arguments) => foreign::old_glibc(&arguments, &target),
            Self::Package(arguments) => package::make(&arguments, &target),
            Self::Pictures(arguments) => pictures::make(arguments, target),
            Self::SymbolVersions(arguments) => symbol_versions::check(&arguments),
        }
    }
}

/// A path among the arguments, from where the user is.
fn path(given: &str) -> io::Result<PathBuf> {
    std::path::absolute(given)
}

/// Reads a file whose name the error tells.
fn read(path: impl AsRef<Path>) -> Result<Vec<u8>, Error> {
    let path = path.as_ref();
    fs::read(path)
        .map_err(|error| Error::Usage(format!("{} cannot be read: {error}", path.display())))
}
