//! A check at work: it runs programs whose output goes into the log.

use crate::process::{self, Failure};
use std::fmt::Display;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// How a check ended.
pub(crate) type Outcome<T = ()> = Result<T, Fault>;

/// What is wrong.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Fault {
    /// A program failed.
    #[error(transparent)]
    Program(#[from] Failure),
    /// A file could not be read or written.
    #[error(transparent)]
    File(#[from] io::Error),
    /// The check found this.
    #[error("{0}")]
    Wrong(String),
    /// It cannot run here, for this reason: that is no failure.
    #[error("{0}")]
    Missing(String),
}

/// Fails with this message.
pub(crate) fn wrong<T>(message: impl Display) -> Outcome<T> {
    Err(Fault::Wrong(message.to_string()))
}

/// Cannot run here, for this reason.
pub(crate) fn missing<T>(reason: impl Display) -> Outcome<T> {
    Err(Fault::Missing(reason.to_string()))
}

/// What a check has to do with: folders, and the log.
///
/// The log is a file: a process that a failed test leaves behind would keep a pipe open forever.
pub(crate) struct Job {
    /// The folder of the build.
    pub(crate) target: PathBuf,
    /// Cases of each property test.
    pub(crate) cases: u32,
    /// Which seeds of the simulated hours run: see `hours.rs` of the scheduler's tests.
    pub(crate) hours: &'static str,
    /// Where the output of programs goes.
    pub(crate) log: File,
}

impl Job {
    /// A file below the folder of the build.
    pub(crate) fn built(&self, path: impl AsRef<Path>) -> PathBuf {
        self.target.join(path)
    }

    /// What is shipped, for this processor.
    pub(crate) fn shipped(&self) -> PathBuf {
        self.built("shipped")
    }

    /// Writes a line into the log.
    pub(crate) fn say(&self, line: impl Display) {
        let _ = writeln!(&self.log, "{line}");
    }

    /// Runs a program.
    pub(crate) fn run(&self, command: &mut Command) -> Outcome {
        command.stdin(Stdio::null()).stdout(self.log.try_clone()?).stderr(self.log.try_clone()?);
        Ok(process::run(command)?)
    }

    /// Runs a line of words without quotes.
    pub(crate) fn line(&self, line: &str) -> Outcome {
        self.run(&mut process::command(line))
    }

    /// Runs a script of bash with arguments.
    pub(crate) fn bash(&self, script: &str, arguments: &[&Path]) -> Outcome {
        self.run(Command::new("bash").args(["-euo", "pipefail", "-c", script, "-"]).args(arguments))
    }

    /// Runs a program and returns what it prints to its standard output.
    pub(crate) fn output(&self, command: &mut Command) -> Outcome<String> {
        let output = command.stdin(Stdio::null()).stderr(self.log.try_clone()?).output()?;
        match output.status.success() {
            true => Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned()),
            false => wrong(format_args!("{command:?} ended with {}", output.status)),
        }
    }

    /// Runs a program that has to fail, and to say `reason`.
    pub(crate) fn refused(&self, command: &mut Command, reason: &str) -> Outcome {
        let output = command.stdin(Stdio::null()).output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        if output.status.success() || !said.contains(reason) {
            return wrong(format_args!("{command:?} was not refused for '{reason}':\n{said}"));
        }
        Ok(())
    }
}

/// Shows what is appended to the log until it is dropped.
pub(super) struct Follower {
    stop: std::sync::mpsc::Sender<()>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Follower {
    /// Begins at the start of the file.
    pub(super) fn start(path: &Path) -> io::Result<Self> {
        let mut file = File::open(path)?;
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            let mut more = true;
            while more {
                let timeout = std::sync::mpsc::RecvTimeoutError::Timeout;
                more = stopped.recv_timeout(std::time::Duration::from_millis(200)) == Err(timeout);
                let mut new = Vec::new();
                let _ = file.read_to_end(&mut new);
                let _ = io::stdout().write_all(&new);
            }
        });
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        let _ = self.stop.send(());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
