//! Where this crate's descriptors are among those of the program.

use rustix::fs::{Mode, OFlags};
use std::fs::File;
use std::os::fd::AsFd;

/// The least number of a descriptor that is out of the way: below the usual limit, above what programs open.
fn least() -> Option<i32> {
    const MOST: u64 = 1024;
    const ABOVE: u64 = 32;
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let least = limit.map_or(MOST, |limit| limit.min(MOST)).saturating_sub(ABOVE);
    i32::try_from(least).ok()
}

/// Moves a descriptor above those of the program. The kernel closes descriptors in order when a
/// process ends. So the slot is given up after the driver was told to free what the process held,
/// not before.
pub(crate) fn out_of_the_way(file: File) -> File {
    match least().map(|least| rustix::io::fcntl_dupfd_cloexec(&file, least)) {
        Some(Ok(higher)) => File::from(higher),
        _ => file,
    }
}

/// Has the kernel make this process's table of descriptors as large as it will have to be. To be called while there is
/// one thread: with more, the kernel waits until all processors have passed a point of rest, which took 20 ms on a
/// machine with 32.
pub fn make_room() {
    let Ok(any) = rustix::fs::open("/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()) else {
        return;
    };
    let _ = least().map(|least| rustix::io::fcntl_dupfd_cloexec(any.as_fd(), least));
}
