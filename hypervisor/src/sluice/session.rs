//! The directory that the processes of a session share, and the clean-up of those whose owner died.
//!
//! `/dev/shm/sluice-<uid>/<pid>-<start time>-<random>/`, all of mode 0700. The owner holds a lock
//! on the file `owner` in it, which the kernel drops with the owner, in whatever PID namespace.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs::{self, DirBuilder, File};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, ErrorKind};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use limits::env;

use super::Error;
use super::environment::loader_can_name;
use super::parts::{self, Parts};

const LOCK: &str = "owner";

/// Whether this process is itself a member of a session.
#[must_use]
pub fn is_inside() -> bool {
    std::env::var_os(env::SESSION_DIR).is_some_and(|value| !value.is_empty())
}

/// Where all sessions' directories are.
pub const ROOT: &str = "/dev/shm";

/// The directory of a user's sessions.
#[must_use]
pub fn base(uid: u32) -> PathBuf {
    Path::new(ROOT).join(format!("sluice-{uid}"))
}

/// A session's directory; removed when dropped, unless a process of the session is left over.
#[derive(Debug)]
pub struct Session {
    path: PathBuf,
    _lock: File,
}

impl Session {
    /// Makes a session of the user who runs this, and removes what dead owners left behind.
    ///
    /// # Errors
    /// [`Error::System`] or [`Error::UnsafeDirectory`], each naming the directory.
    pub fn create() -> Result<Self, Error> {
        let uid = rustix::process::getuid().as_raw();
        let base = base(uid);
        Self::create_in(&base, uid)
    }

    fn create_in(base: &Path, uid: u32) -> Result<Self, Error> {
        private_base(base, uid)?;
        remove_leftovers(base);
        let pid = std::process::id();
        let start = start_time(pid).unwrap_or(0);
        let random = RandomState::new().hash_one(pid);
        let path = base.join(format!("{pid}-{start}-{random:016x}"));
        make_private(&path)?;
        let lock_path = path.join(LOCK);
        let lock = File::create(&lock_path)
            .and_then(|file| file.lock().map(|()| file))
            .map_err(|e| Error::system(format!("cannot lock {}", lock_path.display()), e))?;
        Ok(Self { path, _lock: lock })
    }

    /// The directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes a directory within it.
    ///
    /// # Errors
    /// [`Error::System`] naming the directory.
    pub fn subdirectory(&self, name: &str) -> Result<PathBuf, Error> {
        let path = self.path.join(name);
        make_private(&path)?;
        Ok(path)
    }

    /// The limiter under a name that the loader takes as one entry.
    ///
    /// # Errors
    /// [`Error::System`] when a link is needed and cannot be made.
    pub fn preloadable(&self, limiter: PathBuf) -> Result<PathBuf, Error> {
        if loader_can_name(&limiter) {
            return Ok(limiter);
        }
        self.link(&limiter, &self.path, parts::LIMITER)
    }

    /// A directory that gives the simulated driver the names under which programs load it.
    ///
    /// # Errors
    /// [`Error::PartMissing`] without the simulated driver, [`Error::System`] otherwise.
    pub fn fake_driver(&self, parts: &Parts) -> Result<PathBuf, Error> {
        let folder = self.subdirectory("fake-driver")?;
        for (file, name) in [parts::FAKE_CUDA, parts::FAKE_NVML] {
            self.link(&parts.find(file)?, &folder, name)?;
        }
        Ok(folder)
    }

    fn link(&self, target: &Path, folder: &Path, name: &str) -> Result<PathBuf, Error> {
        let path = folder.join(name);
        symlink(target, &path)
            .map_err(|e| Error::system(format!("cannot make {}", path.display()), e))?;
        Ok(path)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // A program may leave processes behind, and their limits live here. The next session's
        // start removes the directory once they are gone.
        if !used_sessions().iter().any(|used| Path::new(used).starts_with(&self.path)) {
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

fn make_private(path: &Path) -> Result<(), Error> {
    DirBuilder::new()
        .mode(0o700)
        .create(path)
        .map_err(|e| Error::system(format!("cannot make {}", path.display()), e))
}

/// Makes `base` if need be. Anyone can make a directory in /dev/shm, so one that is there already
/// is believed only if it is ours alone.
fn private_base(base: &Path, uid: u32) -> Result<(), Error> {
    match DirBuilder::new().mode(0o700).create(base) {
        Ok(()) => return Ok(()),
        Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
        Err(e) => return Err(Error::system(format!("cannot make {}", base.display()), e)),
    }
    let metadata = fs::symlink_metadata(base)
        .map_err(|e| Error::system(format!("cannot read {}", base.display()), e))?;
    let mode = metadata.mode() & 0o777;
    if metadata.is_dir() && metadata.uid() == uid && mode == 0o700 {
        return Ok(());
    }
    let kind = if metadata.is_dir() { "a directory" } else { "something else" };
    let found = format!("{kind} of user {} with mode {mode:04o}", metadata.uid());
    Err(Error::UnsafeDirectory { path: base.to_owned(), uid, found })
}

/// Removes the directories of sessions that have neither an owner nor a process. What cannot be
/// removed now is tried again next time.
fn remove_leftovers(base: &Path) {
    let Ok(entries) = fs::read_dir(base) else { return };
    let dead: Vec<_> =
        entries.flatten().map(|entry| entry.path()).filter(|path| !owner_lives(path)).collect();
    if dead.is_empty() {
        return;
    }
    let used = used_sessions();
    for path in dead {
        if !used.iter().any(|session| Path::new(session).starts_with(&path)) {
            let _ = fs::remove_dir_all(path);
        }
    }
}

/// Whether the owner holds its lock, or is about to take it. A directory that no `sluice` has named
/// is nobody's leftover.
pub(super) fn owner_lives(path: &Path) -> bool {
    let Some((pid, start)) = owner(path) else { return true };
    if start_time(pid).is_ok_and(|now| now == start) {
        return true;
    }
    match File::open(path.join(LOCK)) {
        Ok(lock) => lock.try_lock().is_err(),
        Err(e) => e.kind() != ErrorKind::NotFound,
    }
}

/// Process id and start time, from a directory's name.
pub(super) fn owner(path: &Path) -> Option<(u32, u64)> {
    let mut fields = path.file_name()?.to_str()?.split('-');
    let owner = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    let random = fields.next()?;
    (random.len() == 16 && fields.next().is_none()).then_some(owner)
}

/// When a process started, in clock ticks since boot: field 22 of `/proc/<pid>/stat` (proc(5)). One
/// that has ended and only waits to be noticed by its parent counts as gone.
pub(super) fn start_time(pid: u32) -> io::Result<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name, field 2, may hold anything, spaces and brackets included.
    let after_name = stat.rfind(')').and_then(|end| stat.get(end + 1..)).unwrap_or_default();
    let mut fields = after_name.split_ascii_whitespace();
    if matches!(fields.next(), Some("Z" | "X")) {
        return Err(ErrorKind::NotFound.into());
    }
    fields
        .nth(18)
        .and_then(|text| text.parse().ok())
        .ok_or_else(|| io::Error::new(ErrorKind::InvalidData, "no start time"))
}

/// The session directories that processes of this user were started with.
fn used_sessions() -> HashSet<OsString> {
    let prefix = format!("{}=", env::SESSION_DIR);
    let own = std::process::id().to_string();
    let Ok(processes) = fs::read_dir("/proc") else { return HashSet::new() };
    processes
        .flatten()
        .filter(|entry| entry.file_name().as_bytes().first().is_some_and(u8::is_ascii_digit))
        .filter(|entry| entry.file_name().to_str() != Some(&own))
        .filter_map(|entry| environment(&entry.path()))
        .filter_map(|environment| {
            environment
                .split(|byte| *byte == 0)
                .find_map(|variable| variable.strip_prefix(prefix.as_bytes()))
                .map(|value| OsString::from_vec(value.to_vec()))
        })
        .collect()
}

/// What a process was started with. While it becomes another program (execve(2)) that is empty for a moment: one that
/// stays so really has none.
fn environment(process: &Path) -> Option<Vec<u8>> {
    const LOOKS: u32 = 50;
    let look = || fs::read(process.join("environ")).ok();
    // The kernel's own threads have no program.
    let becomes = |found: &Vec<u8>| found.is_empty() && process.join("exe").read_link().is_ok();
    let mut found = look()?;
    for _ in 0..LOOKS {
        if !becomes(&found) {
            break;
        }
        std::thread::sleep(Duration::from_millis(1));
        found = look()?;
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use std::process::Command;

    fn base() -> (tempfile::TempDir, PathBuf, u32) {
        let root = tempfile::tempdir().unwrap();
        let base = root.path().join("base");
        (root, base, rustix::process::getuid().as_raw())
    }

    #[test]
    fn a_session_is_private_and_removed_at_its_end() {
        let (_root, base, uid) = base();
        let session = Session::create_in(&base, uid).unwrap();
        let path = session.path().to_owned();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
        assert_eq!(fs::metadata(&base).unwrap().permissions().mode() & 0o777, 0o700);
        assert_eq!(owner(&path).unwrap().0, std::process::id());
        drop(session);
        assert!(!path.exists());
    }

    #[test]
    fn a_base_that_others_can_write_to_is_refused() {
        let (_root, base, uid) = base();
        fs::create_dir(&base).unwrap();
        fs::set_permissions(&base, PermissionsExt::from_mode(0o777)).unwrap();
        let message = Session::create_in(&base, uid).unwrap_err().to_string();
        assert!(message.contains("mode 0777"), "{message}");
        let message = Session::create_in(&base, uid + 1).unwrap_err().to_string();
        assert!(message.contains(&format!("belongs to user {}", uid + 1)), "{message}");
        fs::remove_dir(&base).unwrap();
        symlink("/dev/shm", &base).unwrap();
        assert!(matches!(Session::create_in(&base, uid), Err(Error::UnsafeDirectory { .. })));
    }

    #[test]
    fn a_program_that_becomes_another_one_still_uses_its_session() {
        let (root, _, _) = base();
        let script = root.path().join("again");
        fs::write(&script, "exec /bin/sh \"$0\"\n").unwrap();
        let mut again = Command::new("/bin/sh");
        let mut again = again.arg(&script).env(env::SESSION_DIR, root.path()).spawn().unwrap();
        let process = PathBuf::from(format!("/proc/{}", again.id()));
        let empty = |_: &u32| environment(&process).unwrap().is_empty();
        let misses = (0..5_000).filter(empty).count();
        again.kill().unwrap();
        again.wait().unwrap();
        assert_eq!(misses, 0);
    }

    #[test]
    fn leftovers_of_the_dead_go_and_those_of_the_living_stay() {
        let (_root, base, uid) = base();
        let living = Session::create_in(&base, uid).unwrap();
        // This process's id with another start time: a reused pid.
        let dead = base.join(format!("{}-1-0123456789abcdef", std::process::id()));
        let used = base.join("4000000000-1-0123456789abcdef");
        let locked = base.join("4000000001-1-0123456789abcdef");
        let foreign = base.join("notes");
        for path in [&dead, &used, &locked, &foreign] {
            fs::create_dir(path).unwrap();
            fs::write(path.join(LOCK), "").unwrap();
        }
        let mut program =
            Command::new("sleep").arg("60").env(env::SESSION_DIR, &used).spawn().unwrap();
        let lock = File::open(locked.join(LOCK)).unwrap();
        lock.lock().unwrap();
        let next = Session::create_in(&base, uid).unwrap();
        assert!(!dead.exists());
        assert!(living.path().exists() && used.exists() && locked.exists() && foreign.exists());
        drop(next);
        program.kill().unwrap();
        program.wait().unwrap();
        drop(lock);
        let _last = Session::create_in(&base, uid).unwrap();
        assert!(!used.exists() && !locked.exists());
        assert!(living.path().exists() && foreign.exists());
    }

    #[test]
    fn the_ended_have_no_start_time() {
        assert!(start_time(std::process::id()).unwrap() > 0);
        assert!(start_time(u32::MAX).is_err());
        let mut ended = Command::new("true").spawn().unwrap();
        let start = std::time::Instant::now();
        while start_time(ended.id()).is_ok() {
            assert!(start.elapsed().as_secs() < 60, "a zombie still counts as living");
            std::thread::yield_now();
        }
        ended.wait().unwrap();
    }
}
