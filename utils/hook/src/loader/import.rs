//! Redirects a library's own calls of an imported function, by its import table. Other libraries' calls do not change,
//! nor does any code.

use super::elf::{Own, Tables};
use super::{Library, by_name};
use crate::code::overwrite::pages;
use crate::{HookError, Mappings, Slot};
use core::ffi::{CStr, c_void};
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};

impl Library {
    /// Redirects the library's calls of `name` to `detour`. `original` gets the function that they called before.
    /// Writes one word for each place that holds the address, so other threads may call the function meanwhile.
    ///
    /// # Safety
    /// The library must have been relocated, and stay loaded during the call. `detour` must be a function of the same
    /// signature and calling convention.
    ///
    /// # Errors
    /// [`HookError`] if the library does not import the function, or a place cannot be written. If there are
    /// several places, some may have changed then.
    pub unsafe fn redirect(
        &self,
        name: &CStr,
        detour: *const c_void,
        original: &Slot,
    ) -> Result<(), HookError> {
        let refused = |reason| HookError::new(self.dynamic.cast(), reason);
        let tables = Tables::read(&Own, self.base, self.dynamic as usize);
        let places =
            tables.zip(name.to_str().ok()).map(|(tables, name)| tables.imports(&Own, name));
        let places = places.filter(|places| !places.is_empty());
        let places = places.ok_or_else(|| refused("the library does not import the function"))?;
        let mut mappings = Mappings::now().ok_or_else(|| refused("cannot read the mappings"))?;
        for place in places {
            let (rights, _) = mappings
                .at(place)
                .filter(|&(rights, left)| {
                    rights & libc::PROT_READ != 0 && left >= size_of::<usize>()
                })
                .filter(|_| place.is_multiple_of(align_of::<usize>()))
                .ok_or_else(|| refused("its entry in the import table is not mapped"))?;
            let page = pages(place as *const c_void, size_of::<usize>());
            // SAFETY: the page of a word of a loaded library. No other right is taken away.
            let protect = |rights| unsafe {
                libc::mprotect(page.start as *mut c_void, page.len(), rights) == 0
            };
            let is_open = rights & libc::PROT_WRITE != 0;
            if !is_open && !protect(rights | libc::PROT_WRITE) {
                return Err(refused("cannot make its entry in the import table writable"));
            }
            // SAFETY: an aligned word that is mapped, and that the loader, too, writes in one store.
            let place = unsafe { AtomicPtr::from_ptr(place as *mut *mut c_void) };
            if !original.is_set() {
                let known = place.load(Ordering::Relaxed);
                // With lazy binding, the word points into the library until the first call, which asks the loader.
                let own = self.base..self.dynamic as usize;
                let unknown = known.is_null() || own.contains(&(known as usize));
                original.set(if unknown { by_name(name) } else { known });
            }
            if original.is_set() && !ptr::eq(original.get(), detour) {
                place.store(detour.cast_mut(), Ordering::Release);
            }
            if !is_open {
                protect(rights);
            }
        }
        if original.is_set() { Ok(()) } else { Err(refused("function not found")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loader::libraries;

    static ORIGINAL: Slot = Slot::new();

    extern "C" fn detour() -> libc::uid_t {
        // SAFETY: what was found has this signature.
        let original = unsafe {
            core::mem::transmute::<*const c_void, extern "C" fn() -> libc::uid_t>(ORIGINAL.get())
        };
        original().wrapping_add(1)
    }

    /// Redirects the calls of one library but not this program's: bound at load with a write-protected import table,
    /// and lazily bound.
    #[test]
    fn the_calls_of_one_library_are_led_elsewhere() {
        let folder = tempfile::tempdir().unwrap();
        let source = "unsigned getuid(void); unsigned asks(void) { return getuid(); }";
        for (name, told) in [("now", "-Wl,-z,now,-z,relro"), ("lazy", "-Wl,-z,lazy")] {
            let path = crate::made_library::library(folder.path(), name, source, &[told]);
            // SAFETY: a library without constructors; the test process loads nothing else meanwhile.
            unsafe {
                let handle = libc::dlopen(path.as_ptr(), libc::RTLD_LAZY);
                assert!(!handle.is_null());
                let library = Library::of(handle);
                assert_eq!(library.path(), path.to_str().unwrap());
                let mut is_listed = false;
                libraries(&mut |one| is_listed |= one == library);
                assert!(is_listed);
                let asks: extern "C" fn() -> libc::uid_t =
                    core::mem::transmute(libc::dlsym(handle, c"asks".as_ptr()));
                let own = libc::getuid();
                ORIGINAL.set(ptr::null());
                let missing = library.redirect(c"geteuid", detour as *const c_void, &ORIGINAL);
                assert!(
                    missing.unwrap_err().reason.contains("does not import") && !ORIGINAL.is_set()
                );
                let place = Tables::read(&Own, library.base, library.dynamic as usize)
                    .unwrap()
                    .imports(&Own, "getuid")[0];
                let rights = || Mappings::now().unwrap().at(place).unwrap().0;
                let before = rights();
                assert_eq!(before & libc::PROT_WRITE == 0, name == "now");
                library.redirect(c"getuid", detour as *const c_void, &ORIGINAL).unwrap();
                assert_eq!(rights(), before, "{name}");
                assert_eq!((asks(), libc::getuid()), (own + 1, own), "{name}");
                // Once more: the original stays the same.
                library.redirect(c"getuid", detour as *const c_void, &ORIGINAL).unwrap();
                assert_eq!(asks(), own + 1, "{name}");
                libc::dlclose(handle);
            }
        }
    }
}
