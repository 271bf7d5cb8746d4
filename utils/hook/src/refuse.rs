//! Makes a function refuse every call, without an engine: for a function that should be hooked but cannot be.

use crate::code::{machine, mappings::Mappings, overwrite::overwrite, peek};
use core::ffi::c_void;

/// Makes `function` return `answer` at once. `false`: it may be unchanged.
///
/// # Safety
/// `function` must be the entry of a function of at least twelve bytes that returns an `int`. No thread may
/// execute its first instructions meanwhile.
#[must_use]
pub unsafe fn refuse(function: *const c_void, answer: u32) -> bool {
    let code = machine::refusal(answer);
    let mapped = Mappings::now().and_then(|mut mappings| mappings.at(function as usize));
    let Some((protection, _)) = mapped.filter(|&(_, left)| left >= code.len()) else {
        return false;
    };
    let mut written = code.map(|_| 0);
    // SAFETY: mapped code with this protection; the rest is the caller's.
    let overwritten = unsafe { overwrite(function, &code, protection) };
    let length = peek::read(function as usize, &mut written);
    overwritten && length == code.len() && written == code
}
