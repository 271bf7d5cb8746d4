//! Makes a function refuse every call, without an engine: for one that should be hooked and cannot be.

#[cfg(target_arch = "x86_64")]
use crate::code::{mappings::Mappings, overwrite::overwrite, peek};
use core::ffi::c_void;

/// Makes `function` return `answer` at once. `false`: it may do what it did before.
///
/// # Safety
/// `function` must be the entry of a function of at least six bytes that returns an `int`. No thread may
/// execute its first instructions meanwhile.
#[must_use]
#[cfg(target_arch = "x86_64")]
pub unsafe fn refuse(function: *const c_void, answer: u32) -> bool {
    let number = answer.to_le_bytes();
    // mov eax, answer; ret
    let code = [0xb8, number[0], number[1], number[2], number[3], 0xc3];
    let mapped = Mappings::now().and_then(|mappings| mappings.at(function as usize));
    let Some((protection, _)) = mapped.filter(|&(_, left)| left >= code.len()) else {
        return false;
    };
    let mut written = [0; 6];
    // SAFETY: mapped code with this protection; the rest is the caller's.
    let overwritten = unsafe { overwrite(function, &code, protection) };
    let length = peek::read(function as usize, &mut written);
    overwritten && length == code.len() && written == code
}

/// Other processors' code is not known here.
///
/// # Safety
/// None.
#[must_use]
#[cfg(not(target_arch = "x86_64"))]
pub unsafe fn refuse(_: *const c_void, _: u32) -> bool {
    false
}
