//! What can go wrong before the program runs, and the exit status for it.

use std::io;
use std::path::PathBuf;

use crate::inject::InjectError;
use crate::profiles::ProfileError;
use crate::record::file::RecordError;

/// The exit statuses of `sluice` itself. Apart from these, `sluice run` ends with the status of the
/// program, or by the signal that killed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ExitStatus {
    /// `sluice demo` or `sluice hooks`: a check failed.
    CheckFailed = 1,
    /// The command line is wrong.
    Usage = 2,
    /// There is no NVIDIA driver, or it knows no GPU.
    NoDriver = 3,
    /// A file that belongs to Sluice is missing, or no program could load it.
    PartMissing = 4,
    /// The operating system refused something that Sluice needs.
    System = 70,
    /// `sluice doctor`: other programs use the GPU, so limits cannot be judged; as `EX_TEMPFAIL`.
    Busy = 75,
    /// The program was found but could not be run, as a shell says it.
    CannotExecute = 126,
    /// The program was not found, as a shell says it.
    NotFound = 127,
}

/// Why `sluice` could not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An impossible option, or an impossible combination of options.
    #[error("{0}")]
    Usage(String),
    /// NVML cannot be loaded, or refuses to work.
    #[error("no NVIDIA driver: {0}; limits need a GPU (--fake-gpu simulates one)")]
    NoDriver(String),
    /// NVML works, but lists no GPU.
    #[error("the NVIDIA driver finds no GPU (--fake-gpu simulates one)")]
    NoDevice,
    /// A file that belongs to Sluice is not where it is looked for.
    #[error("{name} is missing; looked for {}", looked_for.iter().map(|p| p.display().to_string()).collect::<Vec<_>>().join(", "))]
    PartMissing {
        /// Its file name.
        name: &'static str,
        /// The paths that were tried, in order.
        looked_for: Vec<PathBuf>,
    },
    /// A file that the loader would leave out, so that the program ran without limits.
    #[error("{} cannot be preloaded: {problem}", path.display())]
    Unloadable {
        /// Its path.
        path: PathBuf,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// A library that only its owner can load, in a session whose programs may become other users.
    #[error("other users cannot read {}, and copying it for them failed: {problem}", path.display())]
    NotForAll {
        /// Its path.
        path: PathBuf,
        /// Why there is no copy.
        problem: session::directory::DirectoryError,
    },
    /// A session's directory that cannot be used.
    #[error(transparent)]
    Directory(#[from] session::directory::DirectoryError),
    /// A page that is not valid.
    #[error(transparent)]
    Page(#[from] session::PageError),
    /// What a session's owner decided could not be written down.
    #[error(transparent)]
    Settings(#[from] session::settings::SettingsError),
    /// A recording that cannot be written or read.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// A file of settings that cannot be read, or a profile that is not there.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// A root that cannot be prepared.
    #[error(transparent)]
    Inject(#[from] InjectError),
    /// No daemon answers, where one is needed.
    #[error("no daemon: {0}")]
    Daemon(String),
    /// A failed system call.
    #[error("{what}: {source}")]
    System {
        /// What was tried, with the path.
        what: String,
        /// The operating system's answer.
        source: io::Error,
    },
    /// A helper program of Sluice failed.
    #[error("{name} failed: {problem}")]
    Helper {
        /// Its file name.
        name: &'static str,
        /// How it ended, and what it wrote.
        problem: String,
    },
    /// A signal asked `sluice` itself to end.
    #[error("interrupted")]
    Interrupted {
        /// Its number.
        signal: u8,
    },
    /// The program cannot be started.
    #[error("cannot run '{program}': {source}")]
    Spawn {
        /// As given on the command line.
        program: String,
        /// The operating system's answer.
        source: io::Error,
    },
}

impl Error {
    /// Describes a failed system call.
    pub fn system(what: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Self::System { what: what.into(), source: source.into() }
    }

    /// The exit status for this error.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        let status = match self {
            Self::Interrupted { signal } => return signal.saturating_add(128),
            Self::Usage(_) | Self::Inject(_) => ExitStatus::Usage,
            Self::Record(RecordError::Io { .. }) | Self::Profile(ProfileError::Io { .. }) => {
                ExitStatus::System
            }
            Self::Record(_) | Self::Profile(_) => ExitStatus::Usage,
            Self::NoDriver(_) | Self::NoDevice => ExitStatus::NoDriver,
            Self::PartMissing { .. } | Self::Unloadable { .. } => ExitStatus::PartMissing,
            Self::Directory(_)
            | Self::NotForAll { .. }
            | Self::Page(_)
            | Self::Settings(_)
            | Self::Daemon(_)
            | Self::System { .. }
            | Self::Helper { .. } => ExitStatus::System,
            Self::Spawn { source, .. } if source.kind() == io::ErrorKind::NotFound => {
                ExitStatus::NotFound
            }
            Self::Spawn { .. } => ExitStatus::CannotExecute,
        };
        status as u8
    }
}
