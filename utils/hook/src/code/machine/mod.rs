//! Everything that depends on the processor: jumps, and decoding and relocating a function's first instructions.
//!
//! Each processor has a module with the same names:
//!
//! * `JUMP`, `near`: the jump that overwrites functions; `REACH`: the largest distance, in bytes
//! * `Prologue`: the instructions that the jump replaces, and their equivalent elsewhere
//! * `target`: the target of a jump; `LONGEST_JUMP`: the bytes that it reads
//! * `ADDS_FIVE`: a function that adds five to its argument
//! * `refusal`: a function that returns a number at once
//! * `BREAKPOINT`: a debugger's breakpoint
//! * `PAGE`: a multiple of every page size
//! * `publish`: must be called between writing code and executing it

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

/// The reason why a function's first instructions cannot be relocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unfit {
    /// A breakpoint hides one of the instructions.
    Breakpoint,
    /// A copy would not do the same.
    Shape,
}

/// Bytes of a function's beginning to decode: more than the longest prologue with its padding.
pub(crate) const LONGEST: usize = 64;
