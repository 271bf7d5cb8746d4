//! Machine code: jumps, and writing into code that runs.

pub(crate) mod forced;
pub(crate) mod jump;
pub(crate) mod overwrite;
