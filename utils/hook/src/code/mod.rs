//! Machine code: jumps, writing into code that runs, and reading what may not be mapped.

#[cfg(target_arch = "x86_64")]
pub(crate) mod follow;
pub(crate) mod forced;
pub(crate) mod jump;
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "for batches"))]
pub(crate) mod mappings;
pub(crate) mod overwrite;
pub(crate) mod peek;
