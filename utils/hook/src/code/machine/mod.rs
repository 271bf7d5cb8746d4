//! What depends on the processor: jumps, a function's first instructions, and how they are read and moved.
//!
//! Each processor has a module with the same names:
//!
//! * `JUMP`, `near`: the jump that functions are overwritten with. `REACH`: how far it goes.
//! * `Prologue`: the instructions that it takes the place of, and code elsewhere that does the same.
//! * `target`: where code jumps to, if it does nothing else. `LONGEST_JUMP`: how much is looked at for that.
//! * `ADDS_FIVE`: a function that adds five to its argument.
//! * `refusal`: a function that returns a number at once.
//! * `BREAKPOINT`: what a debugger puts over the beginning of an instruction.
//! * `PAGE`: what pages of every size begin at.
//! * `publish`: what has to be done before code that was written is executed.

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
pub(crate) use aarch64::*;
#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::*;

#[cfg(not(any(target_arch = "aarch64", target_arch = "x86_64")))]
compile_error!("functions are patched on x86-64 and aarch64 only");

/// Why the first instructions of a function cannot be moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unfit {
    /// One of them is hidden by a breakpoint.
    Breakpoint,
    /// A plain copy would not do the same.
    Shape,
}

/// How much of a function's beginning is decoded: more than the longest prologue with the padding after it.
pub(crate) const LONGEST: usize = 64;
