//! Reads memory that may not be mapped: what a jump leads to is anybody's guess.

use super::mappings::Mappings;
use libc::iovec;

const PAGE: usize = 4096;

/// Why the kernel read nothing.
enum Unread {
    /// Nothing is mapped there.
    Nothing,
    /// The call is forbidden here, as in some sandboxes.
    Forbidden,
}

/// Reads from `address` on; returns how many bytes could be read.
pub(crate) fn read(address: usize, into: &mut [u8]) -> usize {
    by_kernel(address, into).unwrap_or_else(|unread| match unread {
        Unread::Nothing => 0,
        Unread::Forbidden => read_by_list(address, into),
    })
}

/// The same of a library that the loader lists. Where the kernel's help is forbidden the loader is believed: a
/// process has hundreds of libraries, and to read the list of mappings for each would take too long.
pub(crate) fn read_loaded(address: usize, into: &mut [u8]) -> usize {
    by_kernel(address, into).unwrap_or_else(|unread| match unread {
        Unread::Nothing => 0,
        Unread::Forbidden => {
            // SAFETY: a part of a library that is loaded, as the loader says.
            let loaded = unsafe { core::slice::from_raw_parts(address as *const u8, into.len()) };
            into.copy_from_slice(loaded);
            into.len()
        }
    })
}

fn by_kernel(address: usize, into: &mut [u8]) -> Result<usize, Unread> {
    // The kernel may read a part of memory wholly or not at all. So what is in the next page is a part of its own.
    let first = (PAGE - address % PAGE).min(into.len());
    let part = |at: usize, length| iovec { iov_base: at as *mut _, iov_len: length };
    let parts = [part(address, first), part(address.saturating_add(first), into.len() - first)];
    let whole = iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    // SAFETY: writes into the buffer; what is read is the kernel's to check.
    let read = unsafe {
        libc::process_vm_readv(libc::getpid(), &raw const whole, 1, parts.as_ptr(), 2, 0)
    };
    usize::try_from(read).map_err(|_| match std::io::Error::last_os_error().raw_os_error() {
        Some(libc::EPERM | libc::ENOSYS | libc::EACCES) => Unread::Forbidden,
        _ => Unread::Nothing,
    })
}

/// Reads what the list of mappings has as readable.
fn read_by_list(address: usize, into: &mut [u8]) -> usize {
    let list = Mappings::now();
    let found = list.as_ref().and_then(|list| list.at(address));
    let Some((_, left)) = found.filter(|(rights, _)| rights & libc::PROT_READ != 0) else {
        return 0;
    };
    let length = left.min(into.len());
    // SAFETY: readable, as the kernel's list says, unless another thread unmaps it at this moment.
    let code = unsafe { core::slice::from_raw_parts(address as *const u8, length) };
    into[..length].copy_from_slice(code);
    length
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::ptr;

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
            start as usize
        };
        for how in [read, read_by_list] {
            let mut bytes = [0; 8];
            let mut at = |address| {
                bytes = [0; 8];
                (how(address, &mut bytes), bytes)
            };
            let end = start + PAGE;
            assert_eq!(at(end - 16), (8, *b"sixteen "));
            assert_eq!(at(end - 3), (3, *b"...\0\0\0\0\0"));
            assert_eq!([at(end).0, at(0).0, at(1).0, at(usize::MAX - 3).0], [0; 4]);
        }
    }
}
