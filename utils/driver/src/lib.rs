//! The driver's C types, as far as Sluice names them.
//!
//! Enumerations are integers here: a value that this code has never heard of must be carried
//! through unchanged, which a Rust `enum` cannot do.

pub mod copy;
pub mod cuda;
pub mod nvml;
