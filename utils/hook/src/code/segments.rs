//! The code of loaded libraries, according to the loader's headers.

use super::mappings::Mapping;
use super::peek::{self, error_of};
use core::ffi::{c_int, c_void};
use core::ops::Range;
use core::{ptr, slice};
use libc::{Elf64_Phdr, dl_phdr_info};

/// The protection of code.
const CODE: c_int = libc::PROT_READ | libc::PROT_EXEC;

struct Search {
    address: usize,
    found: Option<Range<usize>>,
}

/// The mapping of code that contains an address, according to the loader's headers. `None` if no library contains it,
/// or if the memory is unreadable or writable, contrary to the headers.
pub(super) fn code_at(address: usize) -> Option<Mapping> {
    let mut search = Search { address, found: None };
    // SAFETY: the callback is of this signature, and gets what it expects.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut search).cast()) };
    let range = search.found.filter(is_readable)?;
    (!is_writable(range.start)).then_some(Mapping { range, protection: CODE })
}

/// Callback for each loaded library; a result other than 0 ends the iteration.
unsafe extern "C" fn look(info: *mut dl_phdr_info, _: usize, search: *mut c_void) -> c_int {
    // SAFETY: the loader passes a structure that is valid during the call, with the headers that it names; and what this
    // module passed to it.
    let (base, headers, search) = unsafe {
        let (info, search) = (&*info, &mut *search.cast::<Search>());
        let count = if info.dlpi_phdr.is_null() { 0 } else { usize::from(info.dlpi_phnum) };
        let first = if count == 0 { ptr::NonNull::dangling().as_ptr() } else { info.dlpi_phdr };
        (info.dlpi_addr as usize, slice::from_raw_parts(first, count), search)
    };
    let is_code = |header: &&Elf64_Phdr| {
        header.p_type == libc::PT_LOAD
            && header.p_flags & (libc::PF_R | libc::PF_W | libc::PF_X) == libc::PF_R | libc::PF_X
    };
    let range = |header: &Elf64_Phdr| {
        let start = base.wrapping_add(header.p_vaddr as usize);
        Some(start..start.checked_add(header.p_filesz as usize)?)
    };
    let mut code = headers.iter().filter(is_code).filter_map(range);
    search.found = code.find(|range| range.contains(&search.address));
    search.found.is_some().into()
}

/// Whether the first and the last byte can be read.
fn is_readable(range: &Range<usize>) -> bool {
    [range.start, range.end - 1].iter().all(|&at| peek::read(at, &mut [0]) == 1)
}

/// Whether this process may write there; tried by an atomic addition of 0 to a word.
fn is_writable(address: usize) -> bool {
    const ADD_NOTHING: usize = 1 << 28;
    let own = 0_u32;
    let word = address & !(align_of::<u32>() - 1);
    let operation = libc::FUTEX_WAKE_OP | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: nobody waits at either word, and the second one stays as it is, in one step.
    let error = error_of(|| unsafe {
        libc::syscall(libc::SYS_futex, &raw const own, operation, 0, 0_usize, word, ADD_NOTHING)
    });
    error != Some(libc::EFAULT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Mappings;
    use crate::code::overwrite::pages;

    /// A page of this process with these rights.
    fn page(rights: c_int) -> usize {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: anonymous memory, nothing replaced.
        let page = unsafe { libc::mmap(ptr::null_mut(), 4096, rights, flags, -1, 0) };
        assert_ne!(page, libc::MAP_FAILED);
        page as usize
    }

    #[test]
    fn the_loader_says_of_code_what_the_kernel_says() {
        let mut kernel = Mappings::now().unwrap();
        let functions =
            [libc::getppid as *const (), libc::dladdr as *const (), code_at as *const ()];
        for function in functions.map(|function| function as usize) {
            let code = code_at(function).unwrap();
            let (protection, left) = kernel.at(function).unwrap();
            assert_eq!(code.protection, protection);
            let own = code.range.end - function;
            assert!(code.range.contains(&function) && own <= left && left < own + (1 << 16));
        }
    }

    #[test]
    fn what_is_no_librarys_code_is_not_found() {
        static CONSTANT: [u64; 4] = [1, 2, 3, 4];
        let here = 0_u64;
        let mapped = page(CODE);
        let places =
            [0, 1, mapped, CONSTANT.as_ptr() as usize, &raw const here as usize, usize::MAX];
        for place in places {
            assert!(code_at(place).is_none(), "{place:x}");
        }
    }

    #[test]
    fn code_that_is_not_as_the_loader_mapped_it_is_not_believed() {
        let folder = tempfile::tempdir().unwrap();
        let source = "int code(void) { return 5; }";
        let path = crate::made_library::library(folder.path(), "code", source, &["-nostdlib"]);
        // SAFETY: a library without constructors, of this test's own, that stays loaded.
        let code = unsafe {
            let handle = libc::dlopen(path.as_ptr(), libc::RTLD_NOW);
            assert!(!handle.is_null());
            libc::dlsym(handle, c"code".as_ptr())
        };
        let found = code_at(code as usize).unwrap().range;
        let page = pages(found.start as *const c_void, found.len());
        let (first, length) = (page.start as *mut c_void, page.len());
        let protect = |rights| {
            // SAFETY: that library's code, of which nothing runs.
            assert_eq!(unsafe { libc::mprotect(first, length, rights) }, 0);
            code_at(code as usize).is_some()
        };
        assert!(!protect(CODE | libc::PROT_WRITE));
        assert!(protect(CODE));
        assert!(!protect(libc::PROT_NONE));
        assert!(protect(CODE));
        // SAFETY: as above.
        unsafe { assert_eq!(libc::munmap(first, length), 0) };
        assert!(code_at(code as usize).is_none());
    }

    #[test]
    fn the_kernel_says_what_can_be_read_and_what_can_be_written() {
        let (code, data) = (page(CODE), page(libc::PROT_READ | libc::PROT_WRITE));
        assert!(is_readable(&(code + 1..code + 9)) && is_readable(&(data..data + 4096)));
        assert!(!is_readable(&(1 << 20..(1 << 20) + 1)));
        // SAFETY: this test's own.
        unsafe { *(data as *mut u32) = 77 };
        assert!(is_writable(data + 2) && !is_writable(code) && !is_writable(1 << 20));
        // SAFETY: as above.
        assert_eq!(unsafe { *(data as *const u32) }, 77);
    }
}
