//! Tail jumps: hooks of launches and waits that mostly jump on to the driver.
//!
//! An ordinary hook copies a call's arguments to make the call again, but most launches need only a check. So an entry
//! with a tail jump saves the argument registers on the stack, runs the check, restores the registers, and jumps to the
//! driver's function or to the full hook. Nothing else changes, so the driver sees the caller's own call.

use std::panic::{self, AssertUnwindSafe};

/// Number of argument registers, and of words between the saved registers and the caller's stack: padding and the
/// return address.
const REGISTERS: usize = if cfg!(target_arch = "aarch64") { 8 } else { 6 };
const BETWEEN: usize = if cfg!(target_arch = "aarch64") { 4 } else { 2 };

/// The arguments of a call, as an entry has saved them.
pub(crate) struct Arguments(*const u64);

impl Arguments {
    /// # Safety
    /// An entry has put the arguments at this address, and waits for the answer.
    pub(crate) unsafe fn found_at(at: *const u64) -> Self {
        Self(at)
    }

    /// Argument `n`, counted from 0.
    ///
    /// # Safety
    /// The function has this argument, and none of its arguments is a floating-point number or a structure.
    #[inline]
    pub(crate) unsafe fn nth(&self, n: usize) -> u64 {
        let at = if n < REGISTERS { n } else { n + BETWEEN };
        // SAFETY: saved by the entry, or the caller's own.
        unsafe { self.0.add(at).read() }
    }
}

/// Runs the check; `false` if it panics.
#[inline]
pub(crate) fn ask(answer: impl FnOnce() -> bool) -> bool {
    panic::catch_unwind(AssertUnwindSafe(answer)).unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_where_the_calling_convention_puts_them() {
        // Registers, padding and return address, then the stack.
        let numbered = |from: usize, to: usize| (from..to).map(|n| 10 + n as u64);
        let between = [99; BETWEEN].into_iter();
        let found: Vec<u64> =
            numbered(0, REGISTERS).chain(between).chain(numbered(REGISTERS, 12)).collect();
        // SAFETY: laid out as an entry does.
        let arguments = unsafe { Arguments::found_at(found.as_ptr()) };
        // SAFETY: there are twelve.
        assert!((0..12).all(|n| unsafe { arguments.nth(n) } == 10 + n as u64));
    }

    #[test]
    fn what_cannot_be_answered_is_no() {
        assert!(ask(|| true) && !ask(|| false));
    }
}
