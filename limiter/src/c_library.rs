//! Which C library the process has. The library is linked so that a process with another one than glibc loads it, too
//! (`cargo xtask build-release`): a name that only glibc has is looked up, never linked against. Such a process could
//! not load the driver, which needs glibc itself. So it is left alone. And whether it may be touched at all.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::{mem, ptr};
use std::arch::global_asm;

/// What a loaded library exports by this name, or null.
fn by_name(name: &CStr) -> *mut c_void {
    // SAFETY: the name is NUL-terminated.
    unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) }
}

/// Whether it is glibc.
pub(crate) fn is_glibc() -> bool {
    !version().is_null()
}

/// Whether the process has more rights than who started it, as a setuid program: its environment is not to be believed.
/// The loader preloads nothing into it by `LD_PRELOAD`; `/etc/ld.so.preload` holds for it, too.
pub(crate) fn has_more_rights() -> bool {
    // SAFETY: reads what the kernel passed.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// As in `2.36`; null on another C library.
extern "C" fn version() -> *const c_char {
    type Version = unsafe extern "C" fn() -> *const c_char;
    let found = by_name(c"gnu_get_libc_version");
    if found.is_null() {
        return ptr::null();
    }
    // SAFETY: glibc's function of this name and signature.
    unsafe { mem::transmute::<*mut c_void, Version>(found)() }
}

/// Reads the settings for name look-ups again.
extern "C" fn read_resolver_settings() -> c_int {
    type Init = unsafe extern "C" fn() -> c_int;
    let found = by_name(c"__res_init");
    if found.is_null() {
        return -1;
    }
    // SAFETY: glibc's function of this name and signature.
    unsafe { mem::transmute::<*mut c_void, Init>(found)() }
}

// The standard library is linked against these two names for look-ups that fail. Hidden: they serve this library alone.
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
