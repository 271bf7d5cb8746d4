//! Tells living processes from dead ones.
//!
//! Each process locks the byte of the page's file that stands for its slot. The lock belongs to an open file
//! description of its own (`F_OFD_SETLK`, `fcntl(2)`), which only a mapping keeps open. No descriptor leads to it, so a
//! program that closes unknown descriptors does not drop the lock. A forked child does not inherit the mapping
//! (`MADV_DONTFORK`). The kernel removes the mapping, and with it the lock, when the process ends in any way or
//! executes another program (`execve(2)`). Namespaces and a changed root have no influence.
//!
//! If the kernel or the file system does not support that, the byte gets a record lock of the process (`F_SETLK`),
//! which a program can drop by closing descriptors. So such a slot without a lock is dead only if `/proc` agrees: the
//! process is gone, or no longer maps the page. A slot whose lock only the process's end drops is marked
//! ([`LOCK_IS_KEPT`]), and `/proc` is not consulted: in another pid namespace it shows another process under the same
//! id.

use super::Page;
use crate::layout::{LOCK_IS_KEPT, MemberSlot, SLOTS};
use crate::process::{ProcessIdentity, start_time};
use core::mem::ManuallyDrop;
use core::sync::atomic::Ordering::Relaxed;
use memmap2::{Advice, MmapOptions, MmapRaw};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::os::fd::AsRawFd;
use std::time::Instant;

/// Length of the mapping that keeps a lock, in bytes; never accessed.
const MAPPED: usize = 4096;

/// The byte locked while limits are changed: the one after those of the slots.
pub(super) const LIMITS: usize = SLOTS;

/// The byte locked while the session's first context is created.
pub(crate) const FIRST_CONTEXT: usize = SLOTS + 1;

/// Keeps a slot locked.
#[derive(Debug)]
pub(crate) struct SlotLock {
    /// `None`: the slot has a record lock.
    map: Option<ManuallyDrop<MmapRaw>>,
    /// The process that took the lock: a forked child has this value, but not the mapping.
    process: u32,
}

impl SlotLock {
    /// The start time to store in the slot.
    pub(crate) const fn marked(&self, start_time: u64) -> u64 {
        if self.map.is_some() { start_time | LOCK_IS_KEPT } else { start_time & !LOCK_IS_KEPT }
    }
}

impl Drop for SlotLock {
    fn drop(&mut self) {
        if self.process == std::process::id() {
            self.map.take().map(ManuallyDrop::into_inner);
        }
    }
}

/// A search for a slot that can be locked.
pub(crate) struct Search<'a> {
    page: &'a Page,
    /// An open file description of its own; `None`: record locks are used.
    file: Option<File>,
}

impl<'a> Search<'a> {
    pub(crate) fn new(page: &'a Page) -> Self {
        Self { page, file: page.open_again() }
    }

    /// Locks a slot's byte; `false`: another process holds it.
    pub(crate) fn lock(&mut self, slot: usize) -> io::Result<bool> {
        let Some(file) = &self.file else { return lock(self.page, slot) };
        match set(file, libc::F_OFD_SETLK, libc::F_WRLCK, slot) {
            // The kernel does not support such locks.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                self.file = None;
                lock(self.page, slot)
            }
            other => other,
        }
    }

    /// Unlocks a slot's byte.
    pub(crate) fn unlock(&self, slot: usize) {
        match &self.file {
            Some(file) => {
                let _ = set(file, libc::F_OFD_SETLK, libc::F_UNLCK, slot);
            }
            None => unlock(self.page, slot),
        }
    }

    /// Keeps a locked slot for the rest of this process's life. `None`: another process took it.
    pub(crate) fn keep(&mut self, slot: usize) -> io::Result<Option<SlotLock>> {
        let process = std::process::id();
        if let Some(file) = self.file.take() {
            let map = MmapOptions::new().len(MAPPED).map_raw(&file);
            let map = map.and_then(|map| map.advise(Advice::DontFork).map(|()| map)).ok();
            drop(file);
            // Some file systems map another file than the opened one.
            if let Some(map) = map.filter(|_| is_locked(self.page, slot) == Some(true)) {
                return Ok(Some(SlotLock { map: Some(ManuallyDrop::new(map)), process }));
            }
            if !lock(self.page, slot)? {
                return Ok(None);
            }
        }
        Ok(Some(SlotLock { map: None, process }))
    }
}

/// Guard that keeps other processes, and threads of this one, from changing a page's limits.
#[derive(Debug)]
#[must_use]
pub struct LimitsLock {
    /// An open file description of its own; `None`: a record lock, which lasts as long as the page is open.
    _file: Option<File>,
}

impl LimitsLock {
    /// `None`: the lock is taken.
    pub(super) fn take(page: &Page) -> Option<Self> {
        let mut search = Search::new(page);
        let taken = matches!(search.lock(LIMITS), Ok(true));
        taken.then(|| Self { _file: search.file.take() })
    }
}

fn record(kind: libc::c_int, slot: usize) -> libc::flock {
    libc::flock {
        l_type: libc::c_short::try_from(kind).unwrap_or(0),
        l_whence: libc::c_short::try_from(libc::SEEK_SET).unwrap_or(0),
        l_start: libc::off_t::try_from(slot).unwrap_or(libc::off_t::MAX),
        l_len: 1,
        l_pid: 0,
    }
}

/// Sets or drops a lock of one byte; `false`: the lock is taken.
fn set(file: &File, command: libc::c_int, kind: libc::c_int, slot: usize) -> io::Result<bool> {
    let lock = record(kind, slot);
    // SAFETY: a valid descriptor and a record that lives through the call.
    if unsafe { libc::fcntl(file.as_raw_fd(), command, &raw const lock) } == 0 {
        return Ok(true);
    }
    match io::Error::last_os_error() {
        error if matches!(error.raw_os_error(), Some(libc::EACCES | libc::EAGAIN)) => Ok(false),
        error => Err(error),
    }
}

/// Sets a record lock of this process on a slot's byte; `false`: another process holds it.
pub(crate) fn lock(page: &Page, slot: usize) -> io::Result<bool> {
    let Some(file) = page.file() else {
        return Err(io::Error::other("the program has closed the page's descriptor"));
    };
    set(&file, libc::F_SETLK, libc::F_WRLCK, slot)
}

/// Drops the record lock of a slot's byte.
pub(crate) fn unlock(page: &Page, slot: usize) {
    if let Some(file) = page.file() {
        // A failure leaves the byte locked, which is safe.
        let _ = set(&file, libc::F_SETLK, libc::F_UNLCK, slot);
    }
}

/// Whether a slot's byte is locked; `None`: the page's file is out of reach. The kernel does not report the caller's
/// record locks.
fn is_locked(page: &Page, slot: usize) -> Option<bool> {
    let file = page.file()?;
    let mut lock = record(libc::F_WRLCK, slot);
    // SAFETY: as in `set`.
    let asked = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETLK, &raw mut lock) };
    (asked == 0).then_some(libc::c_int::from(lock.l_type) != libc::F_UNLCK)
}

/// Whether a slot's process is alive. Not for the slot of the caller, `me`. True if unknown.
pub(crate) fn is_alive(page: &Page, slot: usize, record: &MemberSlot, me: ProcessIdentity) -> bool {
    // The record is read before its lock, in the reverse order of their writing.
    let (process, is_kept) = (process_of(record), lock_is_kept(record));
    // Without a lock, a process equal to the caller is the caller before an `execve`.
    is_locked(page, slot)
        .is_none_or(|locked| locked || (!is_kept && process != me && still_maps(page, process)))
}

/// Whether `/proc` shows the process, with the page mapped.
fn still_maps(page: &Page, process: ProcessIdentity) -> bool {
    process.is_running() && maps(process.pid, page, None).unwrap_or(true)
}

/// Whether a process has the page mapped; `None` if that cannot be found out, or not in time.
fn maps(pid: u32, page: &Page, until: Option<Instant>) -> Option<bool> {
    let inode = page.inode().to_string();
    let maps = BufReader::with_capacity(1 << 16, File::open(format!("/proc/{pid}/maps")).ok()?);
    for line in maps.split(b'\n') {
        let line = line.ok()?;
        if until.is_some_and(|until| Instant::now() >= until) {
            return None;
        }
        // `proc_pid_maps(5)`: address, permissions, offset, device, inode, path.
        let mut fields = line.split(|byte| *byte == b' ').filter(|field| !field.is_empty());
        if fields.nth(4) == Some(inode.as_bytes()) {
            return Some(true);
        }
    }
    Some(false)
}

/// Finds out which processes of a page are alive, for a reader that is no member. Queries `/proc` once per process, and
/// only until a given time.
pub(super) struct Onlooker<'a> {
    page: &'a Page,
    until: Instant,
    seen: HashMap<u32, Seen>,
    /// Number of processes whose state is unknown.
    pub(super) unknown: usize,
}

/// What `/proc` shows under a process id.
struct Seen {
    start_time: Option<u64>,
    maps_page: Option<bool>,
}

impl<'a> Onlooker<'a> {
    pub(super) fn new(page: &'a Page, until: Instant) -> Self {
        Self { page, until, seen: HashMap::new(), unknown: 0 }
    }

    /// Whether a slot's process is alive. True if unknown.
    pub(super) fn is_alive(
        &mut self,
        slot: usize,
        process: ProcessIdentity,
        lock_is_kept: bool,
    ) -> bool {
        match is_locked(self.page, slot) {
            Some(true) => return true,
            Some(false) if lock_is_kept => return false,
            _ => {}
        }
        let found = self.look(process);
        self.unknown += usize::from(found.is_none());
        found.unwrap_or(true)
    }

    fn look(&mut self, process: ProcessIdentity) -> Option<bool> {
        let Self { page, until, .. } = *self;
        let is_late = || Instant::now() >= until;
        let seen = match self.seen.entry(process.pid) {
            Entry::Occupied(seen) => seen.into_mut(),
            Entry::Vacant(_) if is_late() => return None,
            Entry::Vacant(place) => {
                let start_time = start_time(process.pid);
                let maps_page = start_time.and_then(|_| maps(process.pid, page, Some(until)));
                place.insert(Seen { start_time, maps_page })
            }
        };
        if seen.start_time == Some(process.start_time) { seen.maps_page } else { Some(false) }
    }
}

/// The process in a slot; id 0: none.
pub(crate) fn process_of(slot: &MemberSlot) -> ProcessIdentity {
    let (pid, start_time) = (slot.pid.load(Relaxed), slot.start_time.load(Relaxed));
    ProcessIdentity { pid, start_time: start_time & !LOCK_IS_KEPT }
}

/// Whether a slot is marked as unlocked only by the end of its process.
pub(crate) fn lock_is_kept(slot: &MemberSlot) -> bool {
    slot.start_time.load(Relaxed) & LOCK_IS_KEPT != 0
}
