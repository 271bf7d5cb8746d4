//! Functions of the real driver that are exported but refused, so that programs get an answer and patching tools find
//! them.

use driver::cuda::CuResult;

use crate::ffi::{Out, api};
use crate::state::driver;

/// Decompression, inter-process events, copy and fill nodes of graphs: not simulated.
pub(crate) extern "C" fn not_supported() -> CuResult {
    api(|| {
        driver()?;
        Err(CuResult::NOT_SUPPORTED)
    })
}

/// `cuGetExportTable`: there are no undocumented tables.
pub(crate) extern "C" fn export_table(table: Out<*const core::ffi::c_void>) -> CuResult {
    api(|| {
        table.required()?.set(core::ptr::null());
        Err(CuResult::NOT_FOUND)
    })
}
