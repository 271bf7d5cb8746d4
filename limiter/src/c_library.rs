//! Whether this process may be touched: only with glibc, and without extra privileges.
//!
//! The library is linked such that processes with another C library load it as well (`cargo xtask build-release`):
//! names that only glibc has are looked up at run time, never linked against. A process with another C library could
//! not load the driver, which needs glibc, so it is left alone.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::{mem, ptr};
use std::arch::global_asm;

/// The address of an exported symbol of any loaded library, or null.
fn by_name(name: &CStr) -> *mut c_void {
    // SAFETY: the name is NUL-terminated.
    unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) }
}

/// Whether the process's C library is glibc.
pub(crate) fn is_glibc() -> bool {
    !version().is_null()
}

/// Whether the process has more privileges than its starter, as a setuid program does: its environment is then not
/// trusted. The loader ignores `LD_PRELOAD` for such processes, but not `/etc/ld.so.preload`.
pub(crate) fn has_more_rights() -> bool {
    // SAFETY: reads what the kernel passed.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// glibc's version, such as `2.36`; null on another C library.
extern "C" fn version() -> *const c_char {
    type Version = unsafe extern "C" fn() -> *const c_char;
    let found = by_name(c"gnu_get_libc_version");
    if found.is_null() {
        return ptr::null();
    }
    // SAFETY: glibc's function of this name and signature.
    unsafe { mem::transmute::<*mut c_void, Version>(found)() }
}

/// Rereads the resolver's settings; -1 on another C library.
extern "C" fn read_resolver_settings() -> c_int {
    type Init = unsafe extern "C" fn() -> c_int;
    let found = by_name(c"__res_init");
    if found.is_null() {
        return -1;
    }
    // SAFETY: glibc's function of this name and signature.
    unsafe { mem::transmute::<*mut c_void, Init>(found)() }
}

// The standard library links against these two names, for failed look-ups. Hidden, because only this library uses them.
macro_rules! stands_for {
    ($jump:literal) => {
        global_asm!(
            ".pushsection .text.sluice_c_library, \"ax\", @progbits",
            ".globl gnu_get_libc_version",
            ".hidden gnu_get_libc_version",
            ".type gnu_get_libc_version, @function",
            "gnu_get_libc_version:",
            concat!($jump, " {version}"),
            ".globl __res_init",
            ".hidden __res_init",
            ".type __res_init, @function",
            "__res_init:",
            concat!($jump, " {settings}"),
            ".popsection",
            version = sym version,
            settings = sym read_resolver_settings,
        );
    };
}

#[cfg(target_arch = "x86_64")]
stands_for!("jmp");
#[cfg(target_arch = "aarch64")]
stands_for!("b");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tests_run_on_glibc() {
        assert!(is_glibc());
        // SAFETY: glibc's version is a constant.
        let told = unsafe { CStr::from_ptr(version()) }.to_str().unwrap();
        assert!(told.starts_with("2."), "{told}");
        assert_eq!(read_resolver_settings(), 0);
    }

    #[test]
    fn an_unknown_name_is_not_found() {
        assert!(by_name(c"no_library_has_this_function").is_null());
    }
}
