//! Writes into code that cannot be made writable. A process may have no memory that is writable and
//! executable at the same time (SELinux, `MemoryDenyWriteExecute` of systemd). The kernel still
//! lets it write the way a debugger does.

use std::fs::File;
use std::os::unix::fs::FileExt;

/// Writes `bytes` at `address`, whatever the protection there. `false`: they may not have been
/// written. It is not a single store.
///
/// # Safety
/// As for a plain write there, if it were writable.
pub(crate) unsafe fn write(address: usize, bytes: &[u8]) -> bool {
    let memory = File::options().write(true).open("/proc/self/mem");
    memory.is_ok_and(|memory| memory.write_all_at(bytes, address as u64).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::ptr;

    #[test]
    fn code_is_written_that_is_not_writable() {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: memory of this test's own.
        unsafe {
            let code = libc::PROT_READ | libc::PROT_EXEC;
            let start = libc::mmap(ptr::null_mut(), 4096, code, flags, -1, 0);
            assert_ne!(start, libc::MAP_FAILED);
            // mov eax, 42; ret
            assert!(write(start as usize + 1, &[0xb8, 42, 0, 0, 0, 0xc3]));
            let function: extern "C" fn() -> i32 = core::mem::transmute(start.byte_add(1));
            assert_eq!(function(), 42);
            libc::munmap(start, 4096);
            assert!(!write(start as usize, &[1]));
        }
    }
}
