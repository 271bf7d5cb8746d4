//! Keeps this crate's descriptors out of the range that programs use.

use rustix::fs::{Mode, OFlags};
use std::fs::File;
use std::os::fd::AsFd;

/// The least descriptor number to use: below the usual limit, above the numbers of most programs.
fn least() -> Option<i32> {
    const MOST: u64 = 1024;
    const ABOVE: u64 = 32;
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let least = limit.map_or(MOST, |limit| limit.min(MOST)).saturating_sub(ABOVE);
    i32::try_from(least).ok()
}

/// Moves a descriptor above those of the program. When a process ends, the kernel closes descriptors in order, so the
/// slot is released only after the driver was told to free the process's memory.
pub(crate) fn out_of_the_way(file: File) -> File {
    match least().map(|least| rustix::io::fcntl_dupfd_cloexec(&file, least)) {
        Some(Ok(higher)) => File::from(higher),
        _ => file,
    }
}

/// Makes the kernel enlarge this process's descriptor table now. Must be called while there is only one thread: with
/// more, the kernel waits for an RCU grace period, which took 20 ms on a machine with 32 processors.
pub fn make_room() {
    let Ok(any) = rustix::fs::open("/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()) else {
        return;
    };
    let _ = least().map(|least| rustix::io::fcntl_dupfd_cloexec(any.as_fd(), least));
}
