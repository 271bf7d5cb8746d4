//! Asks the kernel whether memory is there. What a file that was cut short no longer holds is still
//! mapped, and whoever touches it is ended by `SIGBUS`; a system call that is handed it only fails.

use core::sync::atomic::AtomicU64;
use std::io;

/// Whether `word` can be read; `None`: the kernel does not say.
///
/// Half the price of asking for the file's size. The call changes nothing: the mask of signals is
/// fetched from `word`, and then it turns out that what to do with it is not said.
#[inline]
pub(super) fn is_readable(word: &AtomicU64) -> Option<bool> {
    const NO_SUCH_ACTION: libc::c_int = -1;
    let none = core::ptr::null_mut::<u64>();
    // SAFETY: the kernel only reads the eight bytes, and finds out by itself whether they are there.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            NO_SUCH_ACTION,
            word.as_ptr(),
            none,
            size_of::<AtomicU64>(),
        )
    };
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
    use memmap2::MmapOptions;

    #[test]
    fn memory_behind_the_end_of_a_file_is_not_there() {
        let file = tempfile::tempfile_in("/dev/shm").unwrap();
        file.set_len(8192).unwrap();
        let map = MmapOptions::new().len(8192).map_raw(&file).unwrap();
        // SAFETY: aligned, mapped, and not touched here.
        let word = |at: usize| unsafe { &*map.as_ptr().add(at).cast::<AtomicU64>() };
        assert_eq!((is_readable(word(0)), is_readable(word(8184))), (Some(true), Some(true)));
        file.set_len(4096).unwrap();
        assert_eq!((is_readable(word(0)), is_readable(word(8184))), (Some(true), Some(false)));
        file.set_len(8192).unwrap();
        assert_eq!(is_readable(word(8184)), Some(true));
    }
}
