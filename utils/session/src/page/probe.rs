//! Queries the kernel whether memory can be read. When a file is truncated, the missing part stays mapped: a thread
//! that touches it is ended by `SIGBUS`, but a system call that gets its address only fails.

use std::io;

/// Bytes that one query covers.
pub(crate) const LENGTH: usize = size_of::<libc::itimerspec>();

/// Whether the [`LENGTH`] bytes at a non-null address can be read. `None`: the kernel does not tell.
///
/// Costs half as much as querying a file's size. Changes nothing: the kernel reads a timer's new value from the
/// address, and then finds that there is no such timer.
#[inline]
pub(crate) fn is_readable<T>(address: *const T) -> Option<bool> {
    const NO_TIMER: libc::c_int = -1;
    let nothing = core::ptr::null_mut::<libc::itimerspec>();
    // SAFETY: the kernel only reads the bytes, and checks itself whether they are there.
    let answer = unsafe { libc::syscall(libc::SYS_timer_settime, NO_TIMER, 0, address, nothing) };
    if answer == 0 {
        return None;
    }
    match io::Error::last_os_error().raw_os_error() {
        Some(libc::EINVAL) => Some(true),
        Some(libc::EFAULT) => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::AtomicU64;
    use core::sync::atomic::Ordering::Relaxed;
    use memmap2::MmapOptions;

    #[test]
    fn memory_behind_the_end_of_a_file_is_not_there() {
        let file = tempfile::tempfile_in("/dev/shm").unwrap();
        file.set_len(8192).unwrap();
        let map = MmapOptions::new().len(8192).map_raw(&file).unwrap();
        // SAFETY: aligned, mapped, and not touched here.
        let words = |at: usize| unsafe { &*map.as_ptr().add(at).cast::<[AtomicU64; 4]>() };
        let (first, last) = (words(0), words(8192 - 32));
        let is_readable = |words: &[AtomicU64; 4]| is_readable(words.as_ptr());
        assert_eq!((is_readable(first), is_readable(last)), (Some(true), Some(true)));
        file.set_len(4096).unwrap();
        assert_eq!((is_readable(first), is_readable(last)), (Some(true), Some(false)));
        file.set_len(8192).unwrap();
        assert_eq!(is_readable(last), Some(true));
        // It works for any contents.
        for value in [1, u64::MAX, 999_999_999] {
            last.iter().for_each(|word| word.store(value, Relaxed));
            assert_eq!(is_readable(last), Some(true));
        }
    }
}
