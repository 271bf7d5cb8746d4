//! Tells living processes from dead ones.
//!
//! Each process locks one byte of the page's file, which stands for its slot (`fcntl(2)`, record
//! locks). The kernel drops the lock when the process ends, however it ends. No other process,
//! child or namespace can hold it instead. But a program that closes descriptors it does not know
//! drops the lock, too. So a slot without a lock is dead only if `/proc` agrees: the process is
//! gone, or it has become another program (`execve(2)`) and no longer maps the page.

use super::Page;
use crate::layout::MemberSlot;
use crate::process::ProcessIdentity;
use core::sync::atomic::Ordering::Relaxed;
use std::fs;
use std::io;
use std::os::fd::AsRawFd;

fn record(slot: usize) -> libc::flock {
    libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: libc::off_t::try_from(slot).unwrap_or(libc::off_t::MAX),
        l_len: 1,
        l_pid: 0,
    }
}

/// Locks a slot's byte for the rest of this process's life; `false`: another process has it.
pub(crate) fn lock(page: &Page, slot: usize) -> io::Result<bool> {
    if !page.has_its_file() {
        return Err(io::Error::other("the program has closed the page's descriptor"));
    }
    let file = page.file();
    let lock = record(slot);
    // SAFETY: a valid descriptor and a record that lives through the call.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLK, &raw const lock) } == 0 {
        return Ok(true);
    }
    match io::Error::last_os_error() {
        error if matches!(error.raw_os_error(), Some(libc::EACCES | libc::EAGAIN)) => Ok(false),
        error => Err(error),
    }
}

/// Unlocks a slot's byte.
pub(crate) fn unlock(page: &Page, slot: usize) {
    if !page.has_its_file() {
        return;
    }
    let file = page.file();
    let mut lock = record(slot);
    lock.l_type = libc::F_UNLCK as libc::c_short;
    // SAFETY: as in `lock`. A failure leaves the byte locked, which is safe.
    unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLK, &raw const lock) };
}

/// Whether a slot's process lives. Not for the caller's own slot: the kernel does not report the
/// asker's locks.
pub(crate) fn is_alive(page: &Page, slot: usize, process: ProcessIdentity) -> bool {
    if page.has_its_file() {
        let mut lock = record(slot);
        // SAFETY: as in `lock`.
        let asked = unsafe { libc::fcntl(page.file().as_raw_fd(), libc::F_GETLK, &raw mut lock) };
        if asked == 0 && lock.l_type != libc::F_UNLCK as libc::c_short {
            return true;
        }
    }
    process.is_running() && maps(process.pid, page)
}

/// Whether a process has a page mapped; `true` if that cannot be found out.
fn maps(pid: u32, page: &Page) -> bool {
    let inode = page.inode().to_string();
    let Ok(maps) = fs::read_to_string(format!("/proc/{pid}/maps")) else { return true };
    // `proc_pid_maps(5)`: address, permissions, offset, device, inode, path.
    maps.lines().any(|line| line.split_ascii_whitespace().nth(4) == Some(inode.as_str()))
}

/// The process that a slot names; id zero: none.
pub(crate) fn process_of(slot: &MemberSlot) -> ProcessIdentity {
    let (pid, start_time) = (slot.pid.load(Relaxed), slot.start_time.load(Relaxed));
    ProcessIdentity { pid, start_time }
}
