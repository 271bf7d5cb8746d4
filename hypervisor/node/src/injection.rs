//! Makes a container load the limiter and find its node's daemon, by mounts only: its own environment cannot override
//! them.

use std::fs::{File, FileTimes};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rustix::fs::{StatVfsMountFlags, statvfs};
use session::allocation;

use crate::proto::Mount;

/// Path of the libraries inside a container.
const LIBRARIES: &str = "/run/sluice/library";
/// The libraries preloaded into each program of a container.
pub(crate) const PRELOADED: [&str; 2] = ["libcuda_limiter.so", "libadd_path.so"];
/// The file from which glibc's loader reads them.
pub(crate) const PRELOAD: &str = "/etc/ld.so.preload";

/// Why containers cannot be made to load the limiter.
#[derive(Debug, thiserror::Error)]
pub enum InjectionError {
    /// A library is missing.
    #[error(
        "--library {folder}: {name}: {source}; expected the folder with {limiter} and {add_path}",
        folder = folder.display(),
        limiter = PRELOADED[0],
        add_path = PRELOADED[1]
    )]
    Missing {
        /// The folder.
        folder: PathBuf,
        /// The library.
        name: &'static str,
        /// The system's reason.
        source: io::Error,
    },
    /// The directory is mounted `noexec`, so the loader would refuse the libraries.
    #[error(
        "--library {folder}: it is on a file system without execution (noexec), from which no program can load a library",
        folder = folder.display()
    )]
    NoExec {
        /// The folder.
        folder: PathBuf,
    },
}

/// The source paths of the mounts of every container.
#[derive(Clone, Debug)]
pub(crate) struct Injection {
    library: PathBuf,
    preload: PathBuf,
    /// The daemon's socket on the node.
    daemon: PathBuf,
}

/// The preload list: the libraries' paths inside a container, one per line.
pub(crate) fn preload_text() -> String {
    PRELOADED.iter().map(|name| format!("{LIBRARIES}/{name}\n")).collect()
}

/// The libraries' paths on the node.
pub(crate) fn files(folder: &Path) -> impl Iterator<Item = PathBuf> {
    PRELOADED.iter().map(move |name| folder.join(name))
}

/// Checks that the directory has the libraries and allows execution.
pub(crate) fn check(folder: &Path) -> Result<(), InjectionError> {
    for name in PRELOADED {
        let missing = |source| InjectionError::Missing { folder: folder.to_owned(), name, source };
        let found = std::fs::metadata(folder.join(name)).map_err(missing)?;
        if !found.is_file() {
            return Err(missing(io::Error::other("it is no file")));
        }
    }
    let no_exec = |found: rustix::fs::StatVfs| found.f_flag.contains(StatVfsMountFlags::NOEXEC);
    match statvfs(folder).map(no_exec) {
        Ok(true) => Err(InjectionError::NoExec { folder: folder.to_owned() }),
        _ => Ok(()),
    }
}

/// Why libraries cannot be installed on the node.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    /// The libraries are missing.
    #[error(transparent)]
    Library(#[from] InjectionError),
    /// The libraries cannot be written.
    #[error("--install {folder}: {source}", folder = folder.display())]
    Write {
        /// The folder.
        folder: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
}

/// Copies the libraries of a directory into another one, from which the kubelet mounts them. Identical files stay as
/// they are, because running containers have them loaded.
///
/// # Errors
/// [`InstallError`].
pub fn install(from: &Path, to: &Path) -> Result<(), InstallError> {
    check(from)?;
    let write = |source| InstallError::Write { folder: to.to_owned(), source };
    std::fs::create_dir_all(to).map_err(write)?;
    for name in PRELOADED {
        let new = std::fs::read(from.join(name)).map_err(write)?;
        if std::fs::read(to.join(name)).is_ok_and(|present| present == new) {
            continue;
        }
        let draft = to.join(format!(".draft-{name}"));
        std::fs::write(&draft, new).map_err(write)?;
        std::fs::set_permissions(&draft, std::fs::Permissions::from_mode(0o755)).map_err(write)?;
        std::fs::rename(draft, to.join(name)).map_err(write)?;
    }
    // An agent of another version may still run, which removes directories unused for long.
    let now = FileTimes::new().set_modified(SystemTime::now());
    File::open(to).and_then(|folder| folder.set_times(now)).map_err(write)
}

impl Injection {
    pub(crate) const fn new(library: PathBuf, preload: PathBuf, daemon: PathBuf) -> Self {
        Self { library, preload, daemon }
    }

    /// The mounts of a container with an allocation and its session. Creates the daemon's directory if it is missing,
    /// since the daemon may start later; mounting the directory lets the container see a new socket, mounting the
    /// socket would not. `own`: the container's own preload list, if it has one.
    pub(crate) fn mounts(
        &self,
        (folder, session): (&Path, &Path),
        own: Option<&Path>,
    ) -> io::Result<Vec<Mount>> {
        let daemon = self.daemon.parent().unwrap_or(Path::new("/"));
        std::fs::create_dir_all(daemon)?;
        Ok(vec![
            mount(&self.library, LIBRARIES, true),
            mount(own.unwrap_or(&self.preload), PRELOAD, true),
            mount(daemon, allocation::DAEMON, true),
            mount(folder, allocation::FOLDER, true),
            mount(session, allocation::SESSION, false),
        ])
    }

    /// Path of the daemon's socket inside a container.
    pub(crate) fn daemon_inside(&self) -> PathBuf {
        let name = self.daemon.file_name().unwrap_or_default();
        Path::new(allocation::DAEMON).join(name)
    }
}

pub(crate) fn mount(host: &Path, inside: &str, read_only: bool) -> Mount {
    Mount {
        container_path: inside.to_owned(),
        host_path: host.to_string_lossy().into_owned(),
        read_only,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn libraries_are_put_on_the_node_and_those_in_use_stay() {
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (folder.path().join("from"), folder.path().join("a/b"));
        assert!(matches!(install(&from, &to), Err(InstallError::Library(_))));
        std::fs::create_dir(&from).unwrap();
        for name in PRELOADED {
            std::fs::write(from.join(name), name).unwrap();
        }
        let inode = |at: usize| std::fs::metadata(to.join(PRELOADED[at])).unwrap().ino();
        install(&from, &to).unwrap();
        let before = (inode(0), inode(1));
        std::fs::write(from.join(PRELOADED[1]), "newer").unwrap();
        install(&from, &to).unwrap();
        assert!(inode(0) == before.0 && inode(1) != before.1);
        assert_eq!(std::fs::read(to.join(PRELOADED[1])).unwrap(), b"newer");
        assert_eq!(std::fs::read_dir(&to).unwrap().count(), PRELOADED.len());
    }
}
