//! The file `used` of a session's directory: who uses the session holds a shared lock on it.
//!
//! The lock (`flock(2)`) belongs to the open file, not to a process or a descriptor.
//!
//! * The program of a session inherits the file open. What it starts inherits it in turn, with or
//!   without the limiter, until somebody closes it.
//! * Each process that loads the limiter maps the file and closes its descriptor at once. A mapping
//!   keeps the file open until the process ends or becomes another program. A process that closes
//!   all descriptors, or overwrites its environment, does not lose it.
//!
//! Between execve(2) and the limiter's start, a process that has closed all descriptors holds
//! nothing. So the file's time tells when it was last begun to be used, and a session counts as
//! unused only when that is long ago.

use crate::folder::{Folder, FolderError};
use memmap2::MmapOptions;
use rustix::fs::{OFlags, Timespec, Timestamps, UTIME_NOW, futimens};
use rustix::io::FdFlags;
use std::fs::File;
use std::time::{Duration, SystemTime};

const NAME: &str = "used";

/// How long nobody must have begun to use a session whose owner is dead before it is removed. A
/// program takes milliseconds from execve(2) to the limiter, minutes where it is stopped or its file
/// system is gone. A session that waits costs the memory of its pages.
pub(super) const LONG: Duration = Duration::from_secs(600);

/// Makes the file, open and locked also in the programs that this process starts.
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

/// Moves a descriptor to where programs do not expect one of theirs.
fn above_the_programs(file: File) -> File {
    const NUMBER: i32 = 900;
    rustix::io::fcntl_dupfd_cloexec(&file, NUMBER).map_or(file, File::from)
}

/// Keeps this process's session from being removed while the process runs this program. Without the
/// file there is nothing to keep.
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
        // Somebody has just found it unused, and will see the new time.
        let _ = rustix::thread::nanosleep(&NAP);
    }
}

/// The same in a session that no command made, where the first process makes the file. `false`: somebody removes the
/// session, or the file cannot be made.
pub(super) fn make_and_hold(folder: &Folder) -> bool {
    if let Ok(file) = folder.make_file(NAME.as_ref(), 0o600) {
        // A page of an empty file can be mapped as well.
        let _ = file.set_len(1);
    }
    hold(folder);
    folder.file(NAME.as_ref(), OFlags::RDONLY).is_ok()
}

/// Says that the session is used now.
fn touch(file: &File) {
    let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
    let _ = futimens(file, &Timestamps { last_access: now, last_modification: now });
}

/// The exclusive lock on a session that nobody holds. `None`: somebody does, or it cannot be known.
pub(super) fn lock_alone(folder: &Folder) -> Option<File> {
    let file = folder.file(NAME.as_ref(), OFlags::RDWR).ok()?;
    if file.try_lock().is_ok() {
        return Some(file);
    }
    touch(&file);
    None
}

/// Runs `remove` if nobody has used the session of a dead owner, or of none, for that long.
pub(super) fn if_unused_for(age: Duration, folder: &Folder, remove: impl FnOnce()) {
    let is_long_since = |time| is_since(age, time);
    let is_long_ago =
        |file: &File| file.metadata().and_then(|found| found.modified()).is_ok_and(is_long_since);
    match folder.file(NAME.as_ref(), OFlags::RDONLY) {
        Ok(file) if is_long_ago(&file) => {
            let Some(alone) = lock_alone(folder) else { return };
            // Somebody may have begun since.
            if is_long_ago(&alone) {
                remove();
            }
        }
        // Its owner died before it was made, or an earlier version made the session.
        Err(error) if error.is_absent() && folder.modified().is_some_and(is_long_since) => remove(),
        _ => {}
    }
}

/// Whether so much time has passed since a moment.
pub(super) fn is_since(age: Duration, time: SystemTime) -> bool {
    SystemTime::now().duration_since(time).is_ok_and(|passed| passed >= age)
}
