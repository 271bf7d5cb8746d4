//! Functions of the real driver that are exported here and refused. A program that asks for them
//! gets an answer, and a tool that patches them finds them.

use driver::cuda::CuResult;

use crate::ffi::{Out, api};
use crate::state::driver;

/// Decompression, events shared between processes, copy and fill nodes of graphs: not simulated.
pub(crate) extern "C" fn not_supported() -> CuResult {
    api(|| {
        driver()?;
        Err(CuResult::NOT_SUPPORTED)
    })
}

/// The undocumented tables of the real driver: there are none.
pub(crate) extern "C" fn export_table(table: Out<*const core::ffi::c_void>) -> CuResult {
    api(|| {
        table.required()?.set(core::ptr::null());
        Err(CuResult::NOT_FOUND)
    })
}
