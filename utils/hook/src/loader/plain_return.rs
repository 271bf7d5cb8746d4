//! Redirects a function that only returns, without trampoline or instruction decoder.
//!
//! In every known loader, the notification function is a `ret` with padding after it, and in some (Ubuntu's) an
//! `endbr64` before it. In a process that never loads a driver, setting up the decoder's tables would take longer (1.6
//! ms) than everything else here.

use crate::code::machine::jump;
use crate::code::overwrite::overwrite;
use core::ffi::c_void;

/// A landing pad for indirect jumps. Nothing jumps to the notification function so, and only kernels have this
/// enforced.
const ENDBR64: &[u8] = &[0xf3, 0x0f, 0x1e, 0xfa];

/// What compilers pad with, longest first.
const PADDING: &[&[u8]] = &[
    &[0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0],
    &[0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0],
    &[0x0f, 0x1f, 0x80, 0, 0, 0, 0],
    &[0x0f, 0x1f, 0x44, 0, 0],
    &[0x0f, 0x1f, 0x40, 0],
    &[0x0f, 0x1f, 0],
    &[0x90],
    &[0xcc],
];

/// The bytes of the function and its padding, as far as `code` shows; 0 if it does more than return.
fn span(code: &[u8]) -> usize {
    let marked = if code.starts_with(ENDBR64) { ENDBR64.len() } else { 0 };
    if code.get(marked) != Some(&0xc3) {
        return 0;
    }
    let mut length = marked + 1;
    'padding: while length < code.len() {
        let rest = &code[length..];
        // A no-operation may have any number of operand-size prefixes.
        let prefixes = rest.iter().take_while(|&&byte| byte == 0x66).count();
        for pad in PADDING {
            if rest[prefixes..].starts_with(pad) {
                length += prefixes + pad.len();
                continue 'padding;
            }
        }
        break;
    }
    length
}

/// Makes `function` jump to `target` if it only returns. `false`: it is unchanged.
///
/// # Safety
/// `function` must be the entry of a function that no thread executes meanwhile, followed by at
/// least 16 readable bytes.
pub(super) unsafe fn redirect(function: *const c_void, target: *const c_void) -> bool {
    // SAFETY: the caller vouches for 16 bytes.
    let code = unsafe { core::slice::from_raw_parts(function.cast::<u8>(), 16) };
    if span(code) < jump::FAR {
        return false;
    }
    let read_execute = libc::PROT_READ | libc::PROT_EXEC;
    let jump = jump::far(target as usize);
    // SAFETY: a `ret`, with its mark, that no thread executes, as the caller vouches, and padding, in mapped code. It is
    // read again: what was written may not last.
    unsafe {
        overwrite(function, &jump, read_execute)
            && core::ptr::read_volatile(function.cast::<[u8; jump::FAR]>()) == jump
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        #[test]
        fn any_code_is_padding_up_to_its_end(mut code: Vec<u8>, returns: bool) {
            if let (true, Some(first)) = (returns, code.first_mut()) {
                *first = 0xc3;
            }
            assert!(span(&code) <= code.len());
            let marked = [ENDBR64, &code].concat();
            assert!(span(&marked) <= marked.len());
        }
    }

    #[test]
    fn a_marked_return_leads_elsewhere() {
        static CALLS: core::sync::atomic::AtomicU32 = core::sync::atomic::AtomicU32::new(0);
        extern "C" fn count() {
            CALLS.fetch_add(1, core::sync::atomic::Ordering::Relaxed);
        }
        let code =
            [ENDBR64, &[0xc3], &[0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0, 0x90]].concat();
        // SAFETY: a page of this test's own, in which that code is a function without arguments.
        unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let writable = libc::PROT_READ | libc::PROT_WRITE;
            let page = libc::mmap(core::ptr::null_mut(), 4096, writable, flags, -1, 0);
            assert_ne!(page, libc::MAP_FAILED);
            core::ptr::copy_nonoverlapping(code.as_ptr(), page.cast(), code.len());
            assert_eq!(libc::mprotect(page, 4096, libc::PROT_READ | libc::PROT_EXEC), 0);
            let function: extern "C" fn() = core::mem::transmute(page);
            function();
            assert!(redirect(page, count as *const c_void));
            function();
        }
        assert_eq!(CALLS.load(core::sync::atomic::Ordering::Relaxed), 1);
    }

    #[test]
    fn a_return_and_its_padding_are_recognised() {
        let gcc = [0xc3, 0x66, 0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0, 0x0f, 0x1f, 0x40, 0];
        assert_eq!(span(&gcc), 16);
        assert_eq!(span(&[0xc3, 0x90, 0x90, 0x55, 0x90]), 3);
        let ubuntu =
            [0xf3, 0x0f, 0x1e, 0xfa, 0xc3, 0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0, 0x90];
        assert_eq!(span(&ubuntu), 16);
        assert_eq!(span(&[0xf3, 0x0f, 0x1e, 0xfa, 0x55]), 0);
        assert_eq!(span(ENDBR64), 0);
        assert_eq!(span(&[0xc3; 1]), 1);
        assert_eq!(span(&[0x55, 0xc3]), 0);
        assert_eq!(span(&[0xc3, 0x66, 0x55]), 1);
        assert_eq!(span(&[]), 0);
    }
}
