//! Writes into code that cannot be made writable, through `/proc/self/mem`, as a debugger does. Needed where a process
//! may have no memory that is writable and executable at the same time (SELinux, `MemoryDenyWriteExecute` of systemd).

use super::machine::publish;
use std::fs::File;
use std::os::unix::fs::FileExt;

/// Writes `bytes` at `address`, whatever the protection there, but not in a single store. `false`: they may not have
/// been written.
///
/// # Safety
/// As for a plain write there, if the memory were writable.
pub(crate) unsafe fn write(address: usize, bytes: &[u8]) -> bool {
    let memory = File::options().write(true).open("/proc/self/mem");
    let written = memory.is_ok_and(|memory| memory.write_all_at(bytes, address as u64).is_ok());
    if written {
        publish(address as *const u8, bytes.len());
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::code::machine::{PAGE, refusal};
    use core::ptr;

    #[test]
    fn code_is_written_that_is_not_writable() {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: memory of this test's own.
        unsafe {
            let code = libc::PROT_READ | libc::PROT_EXEC;
            let start = libc::mmap(ptr::null_mut(), PAGE, code, flags, -1, 0);
            assert_ne!(start, libc::MAP_FAILED);
            assert!(write(start as usize + 12, &refusal(42)));
            let function: extern "C" fn() -> i32 = core::mem::transmute(start.byte_add(12));
            assert_eq!(function(), 42);
            libc::munmap(start, PAGE);
            // Nothing is ever mapped at this address.
            assert!(!write(1 << 62, &[1]));
        }
    }
}
