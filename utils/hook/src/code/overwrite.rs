//! Writes into code that is mapped without write permission. Patches and their removal go through here.

use super::{forced, machine};
use core::ffi::{c_int, c_void};
use core::ops::Range;
use core::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// Overwrites the code at `function` with `bytes`. The pages have `protection` before and again afterwards, unless the
/// kernel refuses: then they stay writable. `false`: the code is unchanged.
///
/// The pages stay executable meanwhile, because other functions in them keep running.
///
/// # Safety
/// `function` must be mapped, readable and executable code of at least `bytes.len()` bytes. All of
/// it must have `protection`. Meanwhile no thread may execute these bytes or change their
/// protection.
pub(crate) unsafe fn overwrite(function: *const c_void, bytes: &[u8], protection: c_int) -> bool {
    // SAFETY: the caller's.
    unsafe { overwrite_all(&[(function, bytes)], protection) }
}

/// The pages that contain `length` bytes at `at`.
pub(crate) fn pages(at: *const c_void, length: usize) -> Range<usize> {
    // SAFETY: asks for a constant.
    let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
    let at = at as usize;
    at / page * page..(at + length).next_multiple_of(page)
}

/// Like [`overwrite`], for several functions in order of their addresses: all or none, with one protection change.
///
/// # Safety
/// As for [`overwrite`], for each function. The pages between the first and the last must have this protection as well.
pub(crate) unsafe fn overwrite_all(changes: &[(*const c_void, &[u8])], protection: c_int) -> bool {
    let (Some(first), Some(last)) = (changes.first(), changes.last()) else { return true };
    let range = pages(first.0, 0).start..pages(last.0, last.1.len()).end;
    // SAFETY: whole pages of the code that the caller vouches for.
    let protect = |protection| unsafe {
        libc::mprotect(range.start as *mut c_void, range.len(), protection) == 0
    };
    let mut before = Vec::new();
    for &(function, bytes) in changes {
        // SAFETY: the caller vouches that these bytes can be read.
        before.extend_from_slice(unsafe {
            core::slice::from_raw_parts(function.cast::<u8>(), bytes.len())
        });
    }
    let mut rest = before.as_slice();
    let restored = changes.iter().map(|&(function, bytes)| {
        let (text, behind) = rest.split_at(bytes.len());
        rest = behind;
        (function, text)
    });
    // SAFETY: written while the pages are writable.
    let write = |(function, bytes): (*const c_void, &[u8])| unsafe {
        let code = function.cast::<u8>().cast_mut();
        store(code, bytes);
        machine::publish(code, bytes.len());
    };
    if protect(libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC) {
        changes.iter().copied().for_each(write);
        // If the kernel refuses, the pages stay writable, as they would with the old code.
        protect(protection);
        return true;
    }
    // A part of the pages may have become writable.
    protect(protection);
    // SAFETY: as for a plain write.
    let force = |(function, bytes): (*const c_void, &[u8])| unsafe {
        forced::write(function as usize, bytes)
    };
    // If only a part was written, restore the old code.
    changes.iter().copied().all(force) || {
        restored.for_each(|change| {
            force(change);
        });
        false
    }
}

/// Writes `bytes` in one store if they lie in one aligned word, so that no thread sees half of them. Otherwise writes
/// the first byte last: a thread that runs a lone `ret` there sees the `ret` or the whole jump.
///
/// # Safety
/// The words that contain `bytes` must be readable and writable.
unsafe fn store(at: *mut u8, bytes: &[u8]) {
    const WORD: usize = size_of::<u64>();
    let offset = at as usize % WORD;
    if offset + bytes.len() <= WORD {
        // SAFETY: aligned, and in the same page as `at`.
        let word = unsafe { AtomicU64::from_ptr(at.sub(offset).cast()) };
        let mut value = word.load(Ordering::Relaxed).to_ne_bytes();
        value[offset..offset + bytes.len()].copy_from_slice(bytes);
        word.store(u64::from_ne_bytes(value), Ordering::Release);
        return;
    }
    for (index, &byte) in bytes.iter().enumerate().rev() {
        // SAFETY: inside the range that the caller vouches for.
        unsafe { AtomicU8::from_ptr(at.add(index)) }.store(byte, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::ptr;

    const READ_EXECUTE: c_int = libc::PROT_READ | libc::PROT_EXEC;

    fn mapped(count: usize, protection: c_int) -> *mut u8 {
        // SAFETY: anonymous memory of the kernel's choice.
        let start = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            libc::mmap(ptr::null_mut(), count * 4096, protection, flags, -1, 0)
        };
        assert_ne!(start, libc::MAP_FAILED);
        start.cast()
    }

    #[test]
    fn bytes_are_written_wherever_they_lie_and_nothing_beside_them() {
        let start = mapped(2, READ_EXECUTE);
        for at in [0, 1, 3, 4, 8, 61, 4091, 4093, 4096] {
            let bytes = [1_u8, 2, 3, 4, 5];
            // SAFETY: code of this test's own.
            unsafe {
                assert!(overwrite(start.add(at).cast(), &bytes, READ_EXECUTE));
                let around = core::slice::from_raw_parts(start, 2 * 4096);
                assert_eq!(around[at..at + 5], bytes);
                assert_eq!(around.iter().filter(|&&byte| byte != 0).count(), 5, "at {at}");
                assert!(overwrite(start.add(at).cast(), &[0; 5], READ_EXECUTE));
            }
        }
    }

    #[test]
    fn several_are_written_together_or_none() {
        let start = mapped(3, READ_EXECUTE);
        let at = |offset| start.wrapping_add(offset).cast_const().cast::<c_void>();
        let changes: [(_, &[u8]); 4] =
            [(at(3), &[1, 2]), (at(61), &[3; 5]), (at(4094), &[4; 5]), (at(8200), &[5])];
        // SAFETY: code of this test's own.
        let code = || unsafe { core::slice::from_raw_parts(start, 3 * 4096) };
        // SAFETY: as above.
        unsafe {
            assert!(overwrite_all(&changes, READ_EXECUTE));
            assert!(overwrite_all(&[], READ_EXECUTE));
        }
        let written: Vec<_> = (0..code().len()).filter(|&index| code()[index] != 0).collect();
        assert_eq!(written, [3, 4, 61, 62, 63, 64, 65, 4094, 4095, 4096, 4097, 4098, 8200]);
        assert_eq!((code()[4], code()[65], code()[4098], code()[8200]), (2, 3, 4, 5));
        let mut mappings = crate::Mappings::now().unwrap();
        assert!(
            (0..3).all(|page| mappings.at(start as usize + page * 4096).unwrap().0 == READ_EXECUTE)
        );
    }

    #[test]
    fn the_pages_cannot_be_written_afterwards() {
        let start = mapped(1, READ_EXECUTE);
        // SAFETY: code of this test's own.
        assert!(unsafe { overwrite(start.cast(), &[0x90; 5], READ_EXECUTE) });
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let line = maps.lines().find(|line| {
            let (range, _) = line.split_once(' ').unwrap();
            let (from, to) = range.split_once('-').unwrap();
            let number = |text| usize::from_str_radix(text, 16).unwrap();
            (number(from)..number(to)).contains(&(start as usize))
        });
        assert!(line.unwrap().contains(" r-xp "), "{line:?}");
    }

    #[test]
    fn code_whose_protection_cannot_be_set_back_is_written_all_the_same() {
        let start = mapped(1, READ_EXECUTE);
        // The kernel refuses this invalid protection.
        let impossible = 0x4000_0000;
        // SAFETY: code of this test's own.
        unsafe {
            assert!(overwrite(start.cast(), &[0x90; 5], impossible));
            assert_eq!(core::slice::from_raw_parts(start, 6), [0x90, 0x90, 0x90, 0x90, 0x90, 0]);
        }
    }
}
