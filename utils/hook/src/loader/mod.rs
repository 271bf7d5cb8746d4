//! The dynamic loader's own list of libraries, and a watch on its changes.
//!
//! Only the loader's public debugger interface is used (`struct r_debug`, `link_map`; see `link.h` and "System V ABI,
//! Dynamic Linking"). Nothing in the found libraries is called: during a notification, a new library may not be
//! relocated yet.

mod elf;
mod import;
#[cfg(target_arch = "x86_64")]
mod plain_return;
mod watch;

use crate::code::peek;
use core::ffi::{CStr, c_char, c_int, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};
use core::{mem, ptr};

use elf::Own;
pub use elf::Symbol;
#[cfg(any(test, feature = "checks"))]
pub use elf::checks;
pub use watch::{WatchError, watch};

/// `struct link_map`, the public part.
#[repr(C)]
struct LinkMap {
    l_addr: usize,
    l_name: *const c_char,
    l_ld: *const elf::Dyn,
    l_next: *const LinkMap,
    l_prev: *const LinkMap,
}

/// `struct r_debug`, followed by `r_next` if `r_version` is at least 2.
#[repr(C)]
struct RDebug {
    r_version: c_int,
    r_map: *const LinkMap,
    r_brk: usize,
    r_state: c_int,
    r_ldbase: usize,
    r_next: *const RDebug,
}

/// `RT_CONSISTENT`: the list is complete and not being changed.
const RT_CONSISTENT: c_int = 0;

/// The loader's structure for debuggers (`_r_debug`), or null. Looked up by name: a library linked against this symbol
/// could not be loaded with another C library.
fn debug() -> *const RDebug {
    static FOUND: AtomicPtr<RDebug> = AtomicPtr::new(ptr::null_mut());
    let found = FOUND.load(Ordering::Acquire);
    if !found.is_null() {
        return found;
    }
    let found = by_name(c"_r_debug").cast::<RDebug>();
    FOUND.store(found, Ordering::Release);
    found
}

/// The address of an exported symbol of any loaded library, or null.
fn by_name(name: &CStr) -> *mut c_void {
    // SAFETY: the name is NUL-terminated. The loader's lock, which dlsym takes, may be taken again by the thread that
    // holds it.
    unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) }
}

type Dlmopen = unsafe extern "C" fn(libc::Lmid_t, *const c_char, c_int) -> *mut c_void;

/// A library in the loader's list.
///
/// Valid as long as the library stays loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Library {
    map: *const LinkMap,
    base: usize,
    dynamic: *const elf::Dyn,
    name: *const c_char,
}

impl Library {
    /// Identifies one load of a library: the same file loaded again may get another key.
    #[must_use]
    pub fn key(&self) -> (usize, usize) {
        (self.base, self.dynamic as usize)
    }

    /// The handle as `dlopen` returns it: see [`keep`].
    #[must_use]
    pub fn handle(&self) -> *const c_void {
        self.map.cast()
    }

    /// The path from which the library was loaded; empty for the program itself.
    #[must_use]
    pub fn path(&self) -> &str {
        if self.name.is_null() {
            return "";
        }
        // SAFETY: the loader keeps a C string here for as long as the library is loaded.
        unsafe { CStr::from_ptr(self.name) }.to_str().unwrap_or("")
    }

    /// The library with this handle.
    ///
    /// # Safety
    /// `handle` must be the handle of a library that stays loaded during the call.
    #[must_use]
    pub unsafe fn of(handle: *const c_void) -> Self {
        let map: *const LinkMap = handle.cast();
        // SAFETY: a handle is the address of the library's entry in the list.
        let entry = unsafe { &*map };
        Self { map, base: entry.l_addr, dynamic: entry.l_ld, name: entry.l_name }
    }

    /// The library's `DT_SONAME`.
    #[must_use]
    pub fn soname(&self) -> Option<String> {
        elf::Tables::read(&Own, self.base, self.dynamic as usize)?.soname(&Own)
    }

    /// Calls `visit` with each function that the library defines.
    pub fn functions(&self, visit: &mut dyn FnMut(Symbol<'_>)) {
        if let Some(tables) = elf::Tables::read(&Own, self.base, self.dynamic as usize) {
            tables.functions(&Own, visit);
        }
    }
}

/// Calls `visit` with every loaded library of every namespace.
///
/// # Safety
/// The list must not change meanwhile: call this function from a [`watch`] callback or from a library's constructor.
pub unsafe fn libraries(visit: &mut dyn FnMut(Library)) {
    let mut debug = debug();
    while !debug.is_null() {
        // SAFETY: the head is the loader's own, and the other structures come from it. Only the
        // first part is read before the version is known.
        let (version, mut map) = unsafe { ((*debug).r_version, (*debug).r_map) };
        while !map.is_null() {
            // SAFETY: the caller vouches that the list does not change.
            let entry = unsafe { &*map };
            let (base, dynamic, name) = (entry.l_addr, entry.l_ld, entry.l_name);
            visit(Library { map, base, dynamic, name });
            map = entry.l_next;
        }
        debug = if version >= 2 {
            // SAFETY: `r_next` exists from version 2.
            unsafe { (*debug).r_next }
        } else {
            ptr::null()
        };
    }
}

/// Keeps a library loaded for the rest of the process, whatever the program closes. Waits for the loader's lock.
/// `false`: the loader refuses.
///
/// # Safety
/// `handle` must be the handle of a [`Library`] that stays loaded during the call. Must not be called from a
/// [`watch`] callback.
#[must_use]
pub unsafe fn keep(handle: *const c_void) -> bool {
    let dlmopen = by_name(c"dlmopen");
    if dlmopen.is_null() {
        return false;
    }
    // SAFETY: the function of this name has this signature.
    let dlmopen: Dlmopen = unsafe { mem::transmute(dlmopen) };
    let mut namespace: libc::Lmid_t = libc::LM_ID_BASE;
    // SAFETY: a handle is the address of the library's entry in the list, and the entry's name is
    // its key there. The library is loaded already, so this loads none.
    unsafe {
        let asked =
            libc::dlinfo(handle.cast_mut(), libc::RTLD_DI_LMID, (&raw mut namespace).cast());
        let name = (*handle.cast::<LinkMap>()).l_name;
        let flags = libc::RTLD_LAZY | libc::RTLD_NOLOAD;
        asked == 0 && !name.is_null() && !dlmopen(namespace, name, flags).is_null()
    }
}

/// Whether the calling thread may have a caller in the library loaded at `base`: an address in its code is on the
/// stack, possibly left from an earlier call.
#[must_use]
pub fn is_calling(base: usize) -> bool {
    /// Words of the stack to search; more than the loader's own functions take.
    const WORDS: usize = 8192;
    let mut code = (base, 0..0);
    // SAFETY: the callback gets what is passed here, and the loader's description of each library.
    unsafe { libc::dl_iterate_phdr(Some(note_code), (&raw mut code).cast()) };
    let mut word = [0; size_of::<usize>()];
    let here = (&raw const word).addr();
    (1..WORDS)
        .map_while(|index| {
            let read = peek::read(here + index * word.len(), &mut word);
            (read == word.len()).then(|| usize::from_ne_bytes(word))
        })
        .any(|word| code.1.contains(&word))
}

/// Stores the executable range of the library at `(base, range)`.
unsafe extern "C" fn note_code(
    library: *mut libc::dl_phdr_info,
    _: usize,
    wanted: *mut c_void,
) -> c_int {
    // SAFETY: both are valid during the call: the loader's, and that of `is_calling`.
    let (library, (base, range)) =
        unsafe { (&*library, &mut *wanted.cast::<(usize, core::ops::Range<usize>)>()) };
    if library.dlpi_addr as usize != *base {
        return 0;
    }
    // SAFETY: the library's headers, as many as the loader says.
    let heads =
        unsafe { core::slice::from_raw_parts(library.dlpi_phdr, library.dlpi_phnum.into()) };
    if let Some(code) =
        heads.iter().find(|head| head.p_type == libc::PT_LOAD && head.p_flags & libc::PF_X != 0)
    {
        let start = base.wrapping_add(code.p_vaddr as usize);
        *range = start..start.wrapping_add(code.p_memsz as usize);
    }
    1
}

/// The loader's notification function, and whether the list is complete.
fn notification() -> (*const c_void, bool) {
    let debug = debug();
    if debug.is_null() {
        return (ptr::null(), false);
    }
    // SAFETY: the loader's own structure lives as long as the process. The read is volatile,
    // because the loader changes it without the compiler's knowledge.
    let (brk, state) = unsafe {
        (
            ptr::read_volatile(&raw const (*debug).r_brk),
            ptr::read_volatile(&raw const (*debug).r_state),
        )
    };
    (brk as *const c_void, state == RT_CONSISTENT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_c_library_is_listed_with_its_functions() {
        let mut found = None;
        // SAFETY: the test process loads nothing meanwhile.
        unsafe {
            libraries(&mut |library| {
                if library.soname().as_deref() == Some("libc.so.6") {
                    found = Some(library);
                }
            });
        }
        let library = found.unwrap();
        assert!(library.path().ends_with("libc.so.6"));
        let mut getpid = 0;
        library.functions(&mut |symbol| {
            if symbol.name == "getpid" {
                getpid = symbol.address as usize;
            }
        });
        assert_eq!(getpid, libc::getpid as *const () as usize);
    }
}
