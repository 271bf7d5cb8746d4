//! A folder that is opened once and then used by its descriptor, so that the checked folder is the used one, whatever
//! is renamed or linked meanwhile.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, SystemTime};

use limits::session_name::told;
use rustix::fs::{self, AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use crate::layout::PageLayout;
use crate::user_namespace::may_be_outer_root;

/// Where a node mounts the folder of a container's session.
pub(crate) const MOUNTED: &str = "/run/sluice/session";
/// The largest file in a session's folder, in bytes.
const LONGEST: u64 = size_of::<PageLayout>() as u64;

/// The reason why a folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// The system refused.
    #[error("cannot {what} {}: {source}", path.display())]
    Io {
        /// The failed operation: make, read or lock.
        what: &'static str,
        /// The folder or file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Another user could interfere.
    #[error("{} must be {wanted}, but is {found}", path.display())]
    Unsafe {
        /// The folder or file.
        path: PathBuf,
        /// The accepted state.
        wanted: String,
        /// The present state.
        found: String,
    },
}

impl FolderError {
    pub(crate) fn io<E: Into<io::Error>>(
        what: &'static str,
        path: &Path,
    ) -> impl FnOnce(E) -> Self {
        let path = told(path);
        move |source| Self::Io { what, path, source: source.into() }
    }

    /// Whether nothing exists at that path.
    #[must_use]
    pub fn is_absent(&self) -> bool {
        matches!(self, Self::Io { source, .. }
            if matches!(source.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory))
    }

    /// Whether nothing can be created there, by anyone or by this user.
    pub(crate) fn is_of_the_place(&self) -> bool {
        self.is_absent()
            || matches!(self, Self::Io { source, .. } if matches!(
                source.kind(),
                ErrorKind::ReadOnlyFilesystem | ErrorKind::PermissionDenied
            ))
    }
}

/// An open folder.
#[derive(Debug)]
pub(crate) struct Folder {
    fd: OwnedFd,
    path: PathBuf,
    uid: u32,
    mode: u32,
}

const LOOK: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
/// The most links in one path, as in the kernel.
const MOST_LINKS: usize = 40;

impl Folder {
    /// Opens the folder at `path`, component by component.
    ///
    /// * From the first folder on that does not belong to the system, all folders must belong to the same user.
    /// * A link is followed only if nobody but the system and this user can have created it; below another process's
    ///   root (`/proc/PID/root`), no link is followed.
    ///
    /// # Errors
    /// [`FolderError`]
    pub(crate) fn open(path: &Path) -> Result<Self, FolderError> {
        let io = |error: Errno| FolderError::io("open", path)(error);
        let absolute = std::path::absolute(path).map_err(FolderError::io("open", path))?;
        let of_process = root_of_process(&absolute);
        let is_foreign = of_process.is_some();
        let (begin, below) = of_process.unwrap_or(("/".into(), absolute.clone()));
        let mut ahead: VecDeque<OsString> = steps(&below).collect();
        let root = || -> Result<Self, FolderError> {
            let look = OFlags::PATH | OFlags::CLOEXEC | OFlags::DIRECTORY;
            let fd = fs::open(&begin, look, Mode::empty()).map_err(io)?;
            Self::of(fd, begin.clone())
        };
        let mut here = root()?;
        let system = Owners { system: here.uid, own: own_user() };
        let (mut owner, mut links) = (None, 0);
        while let Some(name) = ahead.pop_front() {
            let fd = fs::openat(&here.fd, &*name, LOOK, Mode::empty()).map_err(io)?;
            let stat = fs::fstat(&fd).map_err(io)?;
            let next = here.path.join(&name);
            if FileType::from_raw_mode(stat.st_mode) == FileType::Symlink {
                links += 1;
                if links > MOST_LINKS {
                    return Err(io(Errno::LOOP));
                }
                let trusted = system.trusts(stat.st_uid) && system.trusts(here.uid);
                if is_foreign || !trusted || here.is_open_to_all() {
                    return Err(not_one(&next, &stat));
                }
                let target = fs::readlinkat(&fd, "", Vec::new()).map_err(io)?;
                let target = PathBuf::from(OsString::from_vec(target.into_bytes()));
                if target.is_absolute() {
                    (here, owner) = (root()?, None);
                }
                steps(&target).collect::<Vec<_>>().into_iter().rev().for_each(|step| {
                    ahead.push_front(step);
                });
                continue;
            }
            here = Self::of(fd, next)?;
            if owner.is_some_and(|owner| owner != here.uid) {
                return Err(not_one(&here.path, &stat));
            }
            if here.uid != system.system && here.uid != 0 {
                owner = Some(here.uid);
            }
        }
        Ok(Self { path: absolute, ..here })
    }

    fn of(fd: OwnedFd, path: PathBuf) -> Result<Self, FolderError> {
        let stat = fs::fstat(&fd).map_err(FolderError::io("read", &path))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
            return Err(FolderError::io("open", &path)(Errno::NOTDIR));
        }
        Ok(Self { fd, path, uid: stat.st_uid, mode: stat.st_mode & 0o7777 })
    }

    /// Whether its file system is mounted read-only for this process.
    pub(crate) fn is_read_only(&self) -> bool {
        fs::fstatvfs(&self.fd)
            .is_ok_and(|system| system.f_flag.contains(fs::StatVfsMountFlags::RDONLY))
    }

    /// Opens a folder in this one that belongs to the same user and is no link.
    ///
    /// # Errors
    /// [`FolderError`]
    pub(crate) fn child(&self, name: &OsStr) -> Result<Self, FolderError> {
        let path = self.path.join(name);
        let fd = self.look_at(name).map_err(FolderError::io("open", &path))?;
        let child = Self::of(fd, path)?;
        if child.uid == self.uid {
            return Ok(child);
        }
        Err(FolderError::Unsafe {
            path: told(&child.path),
            wanted: format!("a directory of user {}", self.uid),
            found: format!("one of user {}", child.uid),
        })
    }

    /// Opens an entry. Does not enter mounts in another user's folder, whose file system could block the caller for
    /// ever.
    fn look_at(&self, name: &OsStr) -> Result<OwnedFd, Errno> {
        if self.uid != own_user() {
            let inside = ResolveFlags::NO_XDEV | ResolveFlags::NO_SYMLINKS | ResolveFlags::BENEATH;
            match fs::openat2(&self.fd, name, LOOK, Mode::empty(), inside) {
                Err(Errno::NOSYS | Errno::PERM) => {}
                other => return other,
            }
        }
        fs::openat(&self.fd, name, LOOK, Mode::empty())
    }

    /// Creates a folder in this one with exactly this mode, and opens it.
    ///
    /// # Errors
    /// [`FolderError`]
    pub(crate) fn make(&self, name: &OsStr, mode: u32) -> Result<Self, FolderError> {
        self.make_closed(name)?;
        self.child(name)?.with_mode(mode)
    }

    /// Creates a folder in this one that only this process's user can enter.
    ///
    /// # Errors
    /// [`FolderError::Io`]
    pub(crate) fn make_closed(&self, name: &OsStr) -> Result<(), FolderError> {
        fs::mkdirat(&self.fd, name, Mode::RWXU)
            .map_err(FolderError::io("make", &self.path.join(name)))
    }

    /// Sets the mode.
    ///
    /// # Errors
    /// [`FolderError::Io`]
    pub(crate) fn with_mode(self, mode: u32) -> Result<Self, FolderError> {
        if self.mode == mode {
            return Ok(self);
        }
        self.readable()
            .and_then(|fd| fs::fchmod(fd, Mode::from_raw_mode(mode)))
            .map_err(FolderError::io("change", &self.path))?;
        Ok(Self { mode, ..self })
    }

    fn readable(&self) -> Result<OwnedFd, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        fs::openat(&self.fd, ".", flags, Mode::empty())
    }

    /// Opens a regular file in this folder that belongs to the same user and has no other hard link. Never blocks.
    ///
    /// # Errors
    /// [`FolderError`]
    pub(crate) fn file(&self, name: &OsStr, access: OFlags) -> Result<File, FolderError> {
        let path = self.path.join(name);
        let flags = access | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let opened = if self.uid == own_user() {
            fs::openat(&self.fd, name, flags, Mode::empty())
        } else {
            let inside = ResolveFlags::NO_XDEV | ResolveFlags::NO_SYMLINKS | ResolveFlags::BENEATH;
            match fs::openat2(&self.fd, name, flags, Mode::empty(), inside) {
                Err(Errno::NOSYS | Errno::PERM) => fs::openat(&self.fd, name, flags, Mode::empty()),
                other => other,
            }
        };
        let file = File::from(opened.map_err(FolderError::io("open", &path))?);
        let stat = fs::fstat(&file).map_err(FolderError::io("read", &path))?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        if kind == FileType::RegularFile && stat.st_uid == self.uid && stat.st_nlink <= 1 {
            return Ok(file);
        }
        Err(FolderError::Unsafe {
            path: told(&path),
            wanted: format!("a regular file of user {} with one name", self.uid),
            found: format!("{} of user {} with {} names", called(kind), stat.st_uid, stat.st_nlink),
        })
    }

    /// Creates a file in this folder, for at most [`LONGEST`] bytes. It must not exist.
    ///
    /// # Errors
    /// [`FolderError::Io`]
    pub(crate) fn make_file(&self, name: &OsStr, mode: u32) -> Result<File, FolderError> {
        let flags =
            OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let path = self.path.join(name);
        // Exceeding this limit raises a signal that ends the process.
        let most = getrlimit(Resource::Fsize).current;
        if most.is_some_and(|most| most < LONGEST) {
            return Err(FolderError::io("make", &path)(Errno::FBIG));
        }
        let made = fs::openat(&self.fd, name, flags, Mode::from_raw_mode(mode & 0o600))
            .map_err(FolderError::io("make", &path))?;
        // The umask may have removed rights.
        fs::fchmod(&made, Mode::from_raw_mode(mode)).map_err(FolderError::io("change", &path))?;
        Ok(File::from(made))
    }

    /// The entries with their types, and whether there are more than `most`.
    ///
    /// # Errors
    /// [`FolderError::Io`]
    pub(crate) fn names(
        &self,
        most: usize,
    ) -> Result<(Vec<(OsString, FileType)>, bool), FolderError> {
        let io = |error: Errno| FolderError::io("read", &self.path)(error);
        let mut names = Vec::new();
        for entry in Dir::new(self.readable().map_err(io)?).map_err(io)? {
            let entry = entry.map_err(io)?;
            let name = entry.file_name().to_bytes();
            if name == b"." || name == b".." {
                continue;
            }
            if names.len() == most {
                return Ok((names, true));
            }
            names.push((OsStr::from_bytes(name).to_owned(), entry.file_type()));
        }
        Ok((names, false))
    }

    /// Removes the contents, down to `depth` levels of folders; deeper ones stay.
    pub(crate) fn clear(&self, depth: usize) {
        let Ok((names, _)) = self.names(usize::MAX) else { return };
        for (name, kind) in names {
            if kind == FileType::Directory {
                self.remove_folder(&name, depth);
            } else {
                let _ = fs::unlinkat(&self.fd, &*name, AtFlags::empty());
            }
        }
    }

    /// Removes a folder in this one, with its contents.
    pub(crate) fn remove_folder(&self, name: &OsStr, depth: usize) {
        if let Some(deeper) = depth.checked_sub(1)
            && let Ok(inner) = self.child(name)
        {
            inner.clear(deeper);
        }
        let _ = fs::unlinkat(&self.fd, name, AtFlags::REMOVEDIR);
    }

    /// The descriptor, usable for `*at` system calls.
    pub(crate) fn descriptor(&self) -> impl AsFd + '_ {
        self.fd.as_fd()
    }

    /// The path under which it was opened.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Its user.
    pub(crate) const fn uid(&self) -> u32 {
        self.uid
    }

    /// The time of its entries' last change.
    pub(crate) fn modified(&self) -> Option<SystemTime> {
        let stat = fs::fstat(&self.fd).ok()?;
        let seconds = u64::try_from(stat.st_mtime).ok()?;
        SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds))
    }

    /// Whether it is on tmpfs. Another file system could block the caller for ever.
    pub(crate) fn is_in_memory(&self) -> bool {
        const TMPFS: u64 = 0x0102_1994;
        fs::fstatfs(&self.fd).is_ok_and(|found| u64::try_from(found.f_type) == Ok(TMPFS))
    }

    /// Its mode.
    pub(crate) const fn mode(&self) -> u32 {
        self.mode
    }

    /// Whether users may replace entries that are not their own.
    const fn is_open_to_all(&self) -> bool {
        const STICKY: u32 = 0o1000;
        self.mode & 0o022 != 0 && self.mode & STICKY == 0
    }

    /// Whether this process may trust it as its session's folder: it belongs to this process's user or to the system,
    /// and no other user may change it.
    ///
    /// # Errors
    /// [`FolderError::Unsafe`]
    pub(crate) fn check_is_reliable(&self) -> Result<(), FolderError> {
        let system = fs::stat("/").map_or(0, |root| root.st_uid);
        let own = own_user();
        // A node mounts its own folder into containers, including those that do not know its root user.
        let is_nodes = || self.path == Path::new(MOUNTED) && may_be_outer_root(self.uid);
        if ([own, 0, system].contains(&self.uid) || is_nodes()) && self.mode & 0o022 == 0 {
            return Ok(());
        }
        Err(FolderError::Unsafe {
            path: told(&self.path),
            wanted: format!("a directory that only user {own} or root can write to"),
            found: format!("one of user {} with mode {:04o}", self.uid, self.mode),
        })
    }

    /// Whether other users may use its contents if they know a name inside.
    pub(crate) const fn is_for_those_who_know(&self) -> bool {
        self.mode & 0o077 == 0o011
    }
}

/// The users whose links may be followed.
struct Owners {
    system: u32,
    own: u32,
}

impl Owners {
    fn trusts(&self, uid: u32) -> bool {
        [0, self.system, self.own].contains(&uid)
    }
}

fn own_user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Splits `/proc/PID/root` from the rest of a path. It is not a link to a path: the process may be in a container. No
/// links below it are followed, because root there may not be root here.
fn root_of_process(path: &Path) -> Option<(PathBuf, PathBuf)> {
    let mut parts = path.components();
    let is_there = parts.next() == Some(Component::RootDir) && parts.next()?.as_os_str() == "proc";
    let pid = parts.next()?.as_os_str().to_str()?.parse::<u32>().ok();
    let is_root = parts.next()?.as_os_str() == "root";
    let pid = pid.filter(|_| is_there && is_root)?;
    Some((PathBuf::from(format!("/proc/{pid}/root")), parts.as_path().to_owned()))
}

/// The components of a path.
fn steps(path: &Path) -> impl Iterator<Item = OsString> + '_ {
    path.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        _ => None,
    })
}

fn not_one(path: &Path, stat: &Stat) -> FolderError {
    let kind = FileType::from_raw_mode(stat.st_mode);
    FolderError::Unsafe {
        path: told(path),
        wanted: "a directory of the session's user".to_owned(),
        found: format!("{} of user {}", called(kind), stat.st_uid),
    }
}

fn called(kind: FileType) -> &'static str {
    match kind {
        FileType::RegularFile => "a file",
        FileType::Directory => "a directory",
        FileType::Symlink => "a link",
        FileType::Fifo => "a pipe",
        FileType::Socket => "a socket",
        FileType::CharacterDevice | FileType::BlockDevice => "a device",
        FileType::Unknown => "something",
    }
}
