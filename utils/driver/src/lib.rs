//! The driver's C types, as far as Sluice uses them.
//!
//! Enumerations are integers here. A value that this code does not know must be passed on
//! unchanged, which a Rust `enum` cannot do.

#![forbid(unsafe_code)]

pub mod copy;
pub mod cuda;
pub mod nvml;
