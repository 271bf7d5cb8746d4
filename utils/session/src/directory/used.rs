//! The file `used` in a session's directory, on which the session's processes hold a shared lock (`flock(2)`).
//!
//! The lock belongs to the open file description, not to a process or a descriptor.
//!
//! * The session's program inherits the open file. Its children inherit it in turn, with or without the limiter, until
//!   it is closed.
//! * Each process that loads the limiter maps the file and closes its descriptor at once. The mapping keeps the file
//!   open until the process ends or executes another program, even if the process closes all descriptors or overwrites
//!   its environment.
//!
//! Between execve(2) and the limiter's start, a process that has closed all descriptors holds nothing. So the file's
//! time records when a process last started to use the session, which counts as unused only if that is long ago.

use crate::folder::{Folder, FolderError};
use memmap2::MmapOptions;
use rustix::fs::{OFlags, Timespec, Timestamps, UTIME_NOW, futimens};
use rustix::io::FdFlags;
use std::fs::File;
use std::time::{Duration, SystemTime};

const NAME: &str = "used";

/// A session with a dead owner is removed if no process has started to use it for this long. A program takes
/// milliseconds from execve(2) to the limiter, or minutes if it is stopped or its file system hangs. A session that is
/// kept costs the memory of its pages.
pub(super) const LONG: Duration = Duration::from_secs(600);

/// Creates the file, open and locked, for the programs that this process starts as well.
pub(super) fn make(folder: &Folder) -> Result<File, FolderError> {
    let mode = if folder.is_for_those_who_know() { 0o666 } else { 0o600 };
    let file = folder.make_file(NAME.as_ref(), mode)?;
    let path = folder.path().join(NAME);
    file.set_len(1).map_err(FolderError::io("make", &path))?;
    file.lock_shared().map_err(FolderError::io("lock", &path))?;
    let file = above_the_programs(file);
    rustix::io::fcntl_setfd(&file, FdFlags::empty()).map_err(FolderError::io("keep", &path))?;
    Ok(file)
}

/// Moves a descriptor above the numbers that programs use.
fn above_the_programs(file: File) -> File {
    const NUMBER: i32 = 900;
    rustix::io::fcntl_dupfd_cloexec(&file, NUMBER).map_or(file, File::from)
}

/// Keeps this process's session from being removed while the process runs this program. Does nothing without the file.
pub(super) fn hold(folder: &Folder) {
    const TRIES: u32 = 5;
    const NAP: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
    let Ok(file) = folder.file(NAME.as_ref(), OFlags::RDONLY) else { return };
    touch(&file);
    for _ in 0..TRIES {
        if file.try_lock_shared().is_ok() {
            if let Ok(map) = MmapOptions::new().len(1).map_raw_read_only(&file) {
                core::mem::forget(map);
            }
            return;
        }
        // A process has just found it unused, and will see the new time.
        let _ = rustix::thread::nanosleep(&NAP);
    }
}

/// Like [`hold`], in an implicit session, where the first process creates the file. `false`: the session is being
/// removed, or the file cannot be created.
pub(super) fn make_and_hold(folder: &Folder) -> bool {
    if let Ok(file) = folder.make_file(NAME.as_ref(), 0o600) {
        // One byte, so that a page can be mapped.
        let _ = file.set_len(1);
    }
    hold(folder);
    folder.file(NAME.as_ref(), OFlags::RDONLY).is_ok()
}

/// Records that the session is in use now.
fn touch(file: &File) {
    let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
    let _ = futimens(file, &Timestamps { last_access: now, last_modification: now });
}

/// Takes the exclusive lock of an unused session. `None`: it is in use, or that is unknown.
pub(super) fn lock_alone(folder: &Folder) -> Option<File> {
    let file = folder.file(NAME.as_ref(), OFlags::RDWR).ok()?;
    if file.try_lock().is_ok() {
        return Some(file);
    }
    touch(&file);
    None
}

/// Runs `remove` if a session without a living owner has been unused for `age`.
pub(super) fn if_unused_for(age: Duration, folder: &Folder, remove: impl FnOnce()) {
    let is_long_since = |time| is_since(age, time);
    let is_long_ago =
        |file: &File| file.metadata().and_then(|found| found.modified()).is_ok_and(is_long_since);
    match folder.file(NAME.as_ref(), OFlags::RDONLY) {
        Ok(file) if is_long_ago(&file) => {
            let Some(alone) = lock_alone(folder) else { return };
            // A process may have started since.
            if is_long_ago(&alone) {
                remove();
            }
        }
        // The owner died before creating it, or an earlier build made the session.
        Err(error) if error.is_absent() && folder.modified().is_some_and(is_long_since) => remove(),
        _ => {}
    }
}

/// Whether at least `age` has passed since `time`.
pub(super) fn is_since(age: Duration, time: SystemTime) -> bool {
    SystemTime::now().duration_since(time).is_ok_and(|passed| passed >= age)
}
