//! Reads memory that may not be mapped: addresses from a library's own tables or from jumps cannot be trusted.

use core::ffi::c_int;
use core::ptr;

const PAGE: usize = 4096;

/// Reads from `address` on; returns how many bytes could be read. Other threads must not unmap them meanwhile.
pub(crate) fn read(address: usize, into: &mut [u8]) -> usize {
    let mut read = 0;
    while read < into.len() {
        let Some(at) = address.checked_add(read).filter(|&at| is_readable(at)) else { break };
        let length = (PAGE - at % PAGE).min(into.len() - read);
        // SAFETY: a part of a page that can be read; the buffer is this function's caller's own.
        unsafe {
            ptr::copy_nonoverlapping(at as *const u8, into.as_mut_ptr().add(read), length);
        }
        read += length;
    }
    read
}

/// Whether the page of this address can be read. Uses a system call that reads eight bytes there and then fails because
/// of its first argument; even sandboxes that forbid nearly all calls allow it.
fn is_readable(address: usize) -> bool {
    const NO_SUCH_OPERATION: usize = usize::MAX;
    const SET_BYTES: usize = 8;
    // The call would not read a null pointer.
    if address < PAGE {
        return false;
    }
    let aligned = address - address % SET_BYTES;
    let nothing = ptr::null::<libc::sigset_t>();
    // SAFETY: the call changes nothing.
    let answer = error_of(|| unsafe {
        libc::syscall(libc::SYS_rt_sigprocmask, NO_SUCH_OPERATION, aligned, nothing, SET_BYTES)
    });
    answer != Some(libc::EFAULT)
}

/// The error of a failing system call. Preserves `errno`, for code that reads it after loading a library.
pub(crate) fn error_of<T: Into<i64>>(call: impl FnOnce() -> T) -> Option<c_int> {
    // SAFETY: this thread's own.
    unsafe {
        let errno = libc::__errno_location();
        let before = *errno;
        let error = (call().into() != 0).then(|| *errno);
        *errno = before;
        error
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_mapped_is_read_and_nothing_else() {
        let text = *b"sixteen bytes...";
        // SAFETY: two new pages, of which the second cannot be read.
        let start = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let rights = libc::PROT_READ | libc::PROT_WRITE;
            let start = libc::mmap(ptr::null_mut(), 2 * PAGE, rights, flags, -1, 0);
            assert_ne!(start, libc::MAP_FAILED);
            let end = start.byte_add(PAGE);
            assert_eq!(libc::mprotect(end, PAGE, libc::PROT_NONE), 0);
            ptr::copy_nonoverlapping(text.as_ptr(), end.byte_sub(16).cast(), 16);
            *libc::__errno_location() = 77;
            start as usize
        };
        let at = |address| {
            let mut bytes = [0; 8];
            (read(address, &mut bytes), bytes)
        };
        let end = start + PAGE;
        assert_eq!(at(end - 16), (8, *b"sixteen "));
        assert_eq!(at(end - 3), (3, *b"...\0\0\0\0\0"));
        for nothing in [end, 0, 1, PAGE, usize::MAX - 3, usize::MAX, 1 << 63, (1 << 47) - 4] {
            assert_eq!(at(nothing).0, 0, "{nothing:#x}");
        }
        let mut long = vec![1; 2 * PAGE];
        assert_eq!(read(start, &mut long), PAGE);
        assert!(long[..16].iter().all(|&byte| byte == 0));
        assert_eq!(read(long.as_ptr() as usize, &mut vec![0; 2 * PAGE]), 2 * PAGE);
        // SAFETY: this thread's own.
        assert_eq!(unsafe { *libc::__errno_location() }, 77);
    }
}
