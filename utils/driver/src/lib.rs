//! C types and constants of the CUDA driver API and NVML, as far as Sluice uses them: for the limiter, the simulated
//! driver and the tenant.
//!
//! C enumerations are integers here, because unknown values must be passed on unchanged, which a Rust `enum` cannot
//! represent.

#![forbid(unsafe_code)]

pub mod copy;
pub mod cuda;
pub mod nvml;
