//! Marks: file locks that tell whether another process refers to exported memory.
//!
//! Exported memory lives until no process has a descriptor, a handle or a mapping of it, and no driver call tells when
//! that is. But the kernel drops a lock of an open file description with its last descriptor, in whatever process. So
//! a mark is a range of bytes of a file. Everything that refers to the memory holds a shared lock on the range's first
//! byte: each exported descriptor, and each process with a handle or mapping, through an open file description of its
//! own. The process that is charged for the memory holds another byte exclusively. When that process has ended, one of
//! the importers takes over this byte and is charged from then on.
//!
//! The file is `/dev/nvidiactl`, to which exported descriptors refer, or `/dev/null` for IPC handles, which have no
//! descriptor.

use core::ffi::c_int;
use core::hash::{BuildHasher, Hasher};
use core::mem;
use core::sync::atomic::AtomicI32;
use core::sync::atomic::Ordering::Relaxed;
use rustix::fs::{Mode, OFlags};
use std::hash::RandomState;
use std::os::fd::{IntoRawFd, RawFd};

/// Marks begin at multiples of `1 << SPACING`, from `FIRST` up to twice `FIRST`.
const FIRST: u64 = 1 << 60;
const SPACING: u32 = 20;
/// Added to a mark's start: the byte that the charged process holds.
const PAYER: u64 = 1 << 62;
/// A mark covers one byte per page of this many bytes of the memory.
const PAGE: u64 = 2 << 20;

/// Lowest descriptor number for the marks' files, if the process's limit permits.
const HIGH: RawFd = 992;

/// A range of bytes of a file, which stands for one piece of exported memory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mark {
    /// This process's own descriptor of the file.
    file: RawFd,
    start: u64,
    length: u64,
}

/// This process's own descriptors of the files with marks. Static, because a forked child has to close them: otherwise
/// the parent's locks would survive the parent.
static FILES: [AtomicI32; 4] = [const { AtomicI32::new(-1) }; 4];

/// Closes the inherited descriptors in a forked child.
pub(crate) fn after_fork() {
    for file in &FILES {
        let file = file.swap(-1, Relaxed);
        if file >= 0 {
            // SAFETY: a descriptor of this module's own, which no mark of this process uses.
            unsafe { libc::close(file) };
        }
    }
}

/// This process's own descriptor of the file `path`. Must not be called by two threads at once.
fn own(path: &str) -> Option<RawFd> {
    let wanted = rustix::fs::stat(path).ok()?;
    let is_same = |file: RawFd| {
        // SAFETY: plain integers; all zeroes are valid.
        let mut found: libc::stat = unsafe { mem::zeroed() };
        // SAFETY: a place for the answer; the system checks the number.
        let known = unsafe { libc::fstat(file, &raw mut found) } == 0;
        known && (found.st_dev, found.st_ino) == (wanted.st_dev, wanted.st_ino)
    };
    let open = || FILES.iter().map(|file| file.load(Relaxed));
    if let Some(file) = open().find(|&file| file >= 0 && is_same(file)) {
        return Some(file);
    }
    let free = FILES.iter().find(|file| file.load(Relaxed) < 0)?;
    let file = rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).ok()?;
    // Keep low numbers for the program.
    let file = rustix::io::fcntl_dupfd_cloexec(&file, HIGH).unwrap_or(file);
    free.store(file.into_raw_fd(), Relaxed);
    Some(free.load(Relaxed))
}

/// Sets or queries a lock; returns the kind of lock found, or `None` if the system refuses.
fn lock(file: RawFd, command: c_int, kind: c_int, start: u64, length: u64) -> Option<c_int> {
    // SAFETY: plain integers; all zeroes are valid.
    let mut lock: libc::flock = unsafe { mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    lock.l_start = start.cast_signed();
    lock.l_len = length.cast_signed();
    // SAFETY: a lock and a place for the answer; the system checks the number.
    let done = unsafe { libc::fcntl(file, command, &raw mut lock) } == 0;
    done.then(|| c_int::from(lock.l_type))
}

impl Mark {
    /// The mark of memory that cannot be marked, and is charged until the process ends.
    pub(super) const NONE: Self = Self { file: -1, start: 0, length: 0 };

    fn new(file: RawFd, number: u64, bytes: u64) -> Self {
        let start = FIRST | number << SPACING & (FIRST - 1);
        Self { file, start, length: (bytes / PAGE).clamp(1, (1 << SPACING) - 1) }
    }

    /// Marks a descriptor of memory that this process exports, with the memory's present mark or a new one.
    pub(super) fn put(descriptor: RawFd, old: Option<Self>, bytes: u64) -> Option<Self> {
        let file = own(&format!("/proc/self/fd/{descriptor}"))?;
        let random = || RandomState::new().build_hasher().finish();
        let mark = old.unwrap_or_else(|| Self::new(file, random(), bytes));
        let is_marked = mark.file == file
            && lock(descriptor, libc::F_OFD_SETLK, libc::F_RDLCK, mark.start, mark.length)
                .is_some();
        (is_marked && (old.is_some() || mark.is_paid_here())).then_some(mark)
    }

    /// Reads the mark of a descriptor.
    pub(super) fn of(descriptor: RawFd) -> Option<Self> {
        let locks = std::fs::read_to_string(format!("/proc/self/fdinfo/{descriptor}")).ok()?;
        let mut ranges =
            locks.lines().filter(|line| line.starts_with("lock:")).filter_map(|line| {
                let mut words = line.split_ascii_whitespace().rev().map(str::parse::<u64>);
                let (end, start) = (words.next()?.ok()?, words.next()?.ok()?);
                (start & !(FIRST - 1) == FIRST).then_some((start, end.checked_sub(start)? + 1))
            });
        let (start, length) = ranges.next()?;
        let file = own(&format!("/proc/self/fd/{descriptor}"))?;
        Some(Self { file, start, length })
    }

    /// The mark of a `CUipcMemHandle`, derived from its bytes.
    pub(super) fn of_ipc(handle: &[u8; 64]) -> Option<Self> {
        let number = handle.iter().fold(0xcbf2_9ce4_8422_2325, |sum: u64, &byte| {
            (sum ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
        });
        Some(Self::new(own("/dev/null")?, number ^ number >> 40, 0))
    }

    /// Size of the memory in bytes, as its exporter has recorded it.
    pub(super) fn bytes(self) -> u64 {
        self.length * PAGE
    }

    /// Records that this process refers to the memory; returns whether the lock was set.
    pub(super) fn refer(self) -> bool {
        lock(self.file, libc::F_OFD_SETLK, libc::F_RDLCK, self.start, 1).is_some()
    }

    /// Records that this process no longer refers to the memory.
    pub(super) fn leave(self) {
        let _ = lock(self.file, libc::F_OFD_SETLK, libc::F_UNLCK, self.start, 1);
    }

    /// Whether anything refers to the memory besides this process's own handles and mappings.
    pub(super) fn is_held(self) -> bool {
        lock(self.file, libc::F_OFD_GETLK, libc::F_WRLCK, self.start, 1) != Some(libc::F_UNLCK)
    }

    /// Whether another process is charged for the memory.
    pub(super) fn is_paid_elsewhere(self) -> bool {
        lock(self.file, libc::F_OFD_GETLK, libc::F_WRLCK, self.start | PAYER, 1)
            != Some(libc::F_UNLCK)
    }

    /// Takes over the charge of the memory and refers to it; `false` if another process is charged.
    pub(super) fn is_paid_here(self) -> bool {
        let pays = lock(self.file, libc::F_OFD_SETLK, libc::F_WRLCK, self.start | PAYER, 1);
        pays.is_some() && self.refer()
    }

    /// Drops this process's reference and charge.
    pub(super) fn end(self) {
        self.leave();
        let _ = lock(self.file, libc::F_OFD_SETLK, libc::F_UNLCK, self.start | PAYER, 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::AsRawFd;

    #[test]
    fn a_mark_is_held_until_the_last_copy_of_a_descriptor_is_closed() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let open = || File::options().read(true).write(true).open(file.path()).unwrap();
        let (first, second) = (open(), open());
        let mark = Mark::put(first.as_raw_fd(), None, 6 << 20).unwrap();
        assert!(Mark::put(second.as_raw_fd(), Some(mark), 6 << 20) == Some(mark));
        assert!(Mark::of(second.as_raw_fd()) == Some(mark) && mark.bytes() == 6 << 20);
        let copy = first.try_clone().unwrap();
        drop(first);
        drop(second);
        assert!(mark.is_held());
        drop(copy);
        assert!(!mark.is_held() && !mark.is_paid_elsewhere());
        // Unmarked descriptors, and a number that is no descriptor.
        assert!(Mark::of(open().as_raw_fd()).is_none() && Mark::of(-1).is_none());
        assert!(Mark::NONE.is_held());
    }

    #[test]
    fn ipc_handles_have_marks_of_their_own() {
        let mark = |byte: u8| {
            let mut handle = [7; 64];
            handle[63] = byte;
            Mark::of_ipc(&handle)
        };
        assert!(mark(1) == mark(1) && mark(1).is_some());
        assert!((2..=255).all(|byte| mark(byte) != mark(1)));
    }
}
