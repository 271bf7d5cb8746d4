//! What could not be patched. Limits cannot be enforced then.

use std::sync::OnceLock;

/// The first function that exists and could not be patched, with the reason. A static, because libraries are
/// patched before the process's first call. It holds in a forked child too, whose code is the same.
static FAILURE: OnceLock<String> = OnceLock::new();

/// A function could not be patched.
pub(crate) fn note(failure: String) {
    let _ = FAILURE.set(failure);
}

/// The first failure.
pub(crate) fn failure() -> Option<&'static str> {
    FAILURE.get().map(String::as_str)
}
