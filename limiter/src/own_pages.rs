//! Releases the library's own pages in memory after the start. Every process of a session loads the library, and one
//! that never uses CUDA needs hardly any of its pages.

use core::ffi::{c_int, c_ulong, c_void};
use core::{ptr, slice};
use libc::{Elf64_Phdr, dl_phdr_info};

/// An entry of a dynamic section (`Elf64_Dyn`), with the tags used here (`elf.h`).
#[repr(C)]
struct Dynamic {
    tag: i64,
    value: u64,
}

const DT_NULL: i64 = 0;
const DT_TEXTREL: i64 = 22;
const DT_FLAGS: i64 = 30;
const DF_TEXTREL: u64 = 4;

/// Releases the pages of the library's file that the start has touched. They remain in the page cache and come back
/// when touched. Must be called at the end of the constructor.
pub(crate) fn give_back() {
    // SAFETY: the callback is of this signature, and keeps nothing.
    unsafe { libc::dl_iterate_phdr(Some(look), ptr::null_mut()) };
}

/// Callback for each loaded library; a result other than 0 ends the iteration.
unsafe extern "C" fn look(info: *mut dl_phdr_info, _: usize, _: *mut c_void) -> c_int {
    // SAFETY: the loader passes a structure that is valid during the call, with the headers that it names.
    let (base, headers) = unsafe {
        let info = &*info;
        (info.dlpi_addr as usize, slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()))
    };
    let loaded = || headers.iter().filter(|header| header.p_type == libc::PT_LOAD);
    let here = give_back as *const () as usize;
    if !loaded().any(|header| here.wrapping_sub(start_of(base, header)) < header.p_memsz as usize) {
        return 0;
    }
    // SAFETY: these are the library's own headers and base, and it is relocated.
    if unsafe { may_have_relocated_code(base, headers) } {
        return 1;
    }
    // SAFETY: reads what the kernel passed.
    let page = unsafe { libc::getauxval(libc::AT_PAGESZ as c_ulong) } as usize;
    for header in loaded().filter(|header| header.p_flags & libc::PF_W == 0) {
        let Some((start, length)) =
            whole_pages(start_of(base, header), header.p_memsz as usize, page)
        else {
            continue;
        };
        // SAFETY: these pages are of this segment alone. Nothing is ever written there, so they come back as they were.
        // A refusal is of no consequence.
        unsafe { libc::madvise(start as *mut c_void, length, libc::MADV_DONTNEED) };
    }
    1
}

fn start_of(base: usize, header: &Elf64_Phdr) -> usize {
    base.wrapping_add(header.p_vaddr as usize)
}

/// Start and length of the whole pages within a range.
fn whole_pages(start: usize, length: usize, page: usize) -> Option<(usize, usize)> {
    let end = start.checked_add(length)?;
    let first = start.checked_next_multiple_of(page)?;
    let last = end.checked_sub(end.checked_rem(page)?)?;
    (first < last).then(|| (first, last - first))
}

/// Whether the loader may have written into read-only segments; such changes would be lost.
///
/// # Safety
/// `base` and `headers` must be those of a library that stays loaded.
unsafe fn may_have_relocated_code(base: usize, headers: &[Elf64_Phdr]) -> bool {
    let Some(header) = headers.iter().find(|header| header.p_type == libc::PT_DYNAMIC) else {
        return true;
    };
    let mut entry = start_of(base, header) as *const Dynamic;
    loop {
        // SAFETY: the section ends with `DT_NULL`.
        let Dynamic { tag, value } = unsafe { entry.read() };
        match tag {
            DT_NULL => return false,
            DT_TEXTREL => return true,
            DT_FLAGS if value & DF_TEXTREL != 0 => return true,
            // SAFETY: that was not the last entry.
            _ => entry = unsafe { entry.add(1) },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_page_of_a_neighbour_is_given_back() {
        assert_eq!(whole_pages(0x1000, 0x3000, 0x1000), Some((0x1000, 0x3000)));
        assert_eq!(whole_pages(0x1001, 0x3000, 0x1000), Some((0x2000, 0x2000)));
        assert_eq!(whole_pages(0x1fff, 0x1001, 0x1000), Some((0x2000, 0x1000)));
        assert_eq!(whole_pages(0x1001, 0x1ffe, 0x1000), None);
        assert_eq!(whole_pages(0x1000, 0, 0x1000), None);
        assert_eq!(whole_pages(usize::MAX - 1, 1, 0x1000), None);
        assert_eq!(whole_pages(0x1000, 0x1000, 0), None);
    }

    /// This test program's code and constants are unchanged.
    #[test]
    fn what_is_given_back_comes_back() {
        static SAID: &str = "constants are as they were";
        for _ in 0..3 {
            give_back();
            assert_eq!(SAID.len(), 26);
            assert_eq!(std::hint::black_box(SAID).bytes().map(u64::from).sum::<u64>(), 2518);
        }
    }
}
