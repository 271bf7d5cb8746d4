//! What could not be patched: limits cannot be kept then.

use std::sync::OnceLock;

/// The first function that exists and could not be patched, with the reason. A static, because libraries are
/// patched before the process's first call, and code that is not patched is not in a forked child either.
static FAILURE: OnceLock<String> = OnceLock::new();

/// A function could not be patched.
pub(crate) fn note(failure: String) {
    let _ = FAILURE.set(failure);
}

/// The first failure.
pub(crate) fn failure() -> Option<&'static str> {
    FAILURE.get().map(String::as_str)
}
