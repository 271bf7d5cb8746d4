//! Machine code: decoding jumps, writing into running code, and reading memory that may not be mapped.

pub(crate) mod follow;
pub(crate) mod forced;
pub(crate) mod machine;
pub(crate) mod mappings;
pub(crate) mod overwrite;
pub(crate) mod peek;
mod segments;
