//! Machine code: jumps, and writing into code that runs.

#[cfg(target_arch = "x86_64")]
pub(crate) mod follow;
pub(crate) mod forced;
pub(crate) mod jump;
#[cfg(target_arch = "x86_64")]
pub(crate) mod mappings;
pub(crate) mod overwrite;
#[cfg(target_arch = "x86_64")]
pub(crate) mod peek;
