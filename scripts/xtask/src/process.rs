//! Running other programs.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

/// Why a program did not do its work.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// It did not start.
    #[error("{program} did not start: {source}")]
    Start {
        /// Its name.
        program: String,
        /// The reason.
        source: io::Error,
    },
    /// It failed.
    #[error("{program} ended with {status}")]
    Status {
        /// Its name.
        program: String,
        /// How it ended.
        status: ExitStatus,
    },
}

/// Runs a program. Its output goes to the same place as this program's.
///
/// # Errors
/// It did not start, or ended with another status than 0.
pub(crate) fn run(command: &mut Command) -> Result<(), Failure> {
    let program = command.get_program().to_string_lossy().into_owned();
    match command.status() {
        Err(source) => Err(Failure::Start { program, source }),
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(Failure::Status { program, status }),
    }
}

/// A program with arguments: the words of a line without quotes.
pub(crate) fn command(line: &str) -> Command {
    let mut words = line.split_whitespace();
    let mut command = Command::new(words.next().unwrap_or_default());
    command.args(words);
    command
}

/// Runs a program and returns what it printed, without the newline at its end.
///
/// # Errors
/// It did not start, or ended with another status than 0.
pub(crate) fn output(command: &mut Command) -> Result<String, Failure> {
    let program = command.get_program().to_string_lossy().into_owned();
    match command.stderr(Stdio::inherit()).output() {
        Err(source) => Err(Failure::Start { program, source }),
        Ok(output) if output.status.success() => {
            Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned())
        }
        Ok(output) => Err(Failure::Status { program, status: output.status }),
    }
}

/// The file of a program on `PATH`.
pub(crate) fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|file| file.is_file())
}

/// What a program prints, without the last line feed; none if it fails.
pub(crate) fn output_of(command: &mut Command) -> Option<String> {
    let output = command.output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8_lossy(&output.stdout).trim_end().to_owned())
}

/// The files of a folder.
pub(crate) fn files_in(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    files.sort();
    files
}
