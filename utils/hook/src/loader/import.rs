//! Leads a library's own calls of a function that it imports elsewhere. Nobody else's calls change, and no code.

use super::elf::{Own, Tables};
use super::{Library, by_name};
use crate::code::overwrite::pages;
use crate::{HookError, Mappings, Slot};
use core::ffi::{CStr, c_void};
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};

impl Library {
    /// From now on the library's calls of `name` go to `detour`. `original` gets the function that they went to. One store
    /// for each place that holds the address: other threads may call it meanwhile.
    ///
    /// # Safety
    /// The library must have been relocated, and stay loaded during the call. `detour` must be a function of the same
    /// signature and calling convention.
    ///
    /// # Errors
    /// [`HookError`] if it does not import the function, or the place cannot be written. Nothing has changed then, or only
    /// some places have, if there are several.
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
                // Until the first call it leads into the library, which then asks the loader.
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

    /// A library of its own, whose calls change; this program's do not. Bound when it is loaded, with its table
    /// of addresses write-protected, and at the first call.
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
                // Once more: the original stays what it was.
                library.redirect(c"getuid", detour as *const c_void, &ORIGINAL).unwrap();
                assert_eq!(asks(), own + 1, "{name}");
                libc::dlclose(handle);
            }
        }
    }
}
