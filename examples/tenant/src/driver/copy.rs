//! Copies and fills of a buffer in the default stream.

use core::ffi::c_void;

use driver::copy::{Copy2d, Copy3d, MEMORY_DEVICE, Side2d, Side3d};
use driver::cuda::DevicePtr;

use super::{Context, DriverError, Stream};

/// A call that copies or fills.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum CopyApi {
    /// cuMemcpyHtoDAsync, from page-locked memory
    Htod,
    /// cuMemcpyDtoHAsync, to page-locked memory
    Dtoh,
    /// cuMemcpyDtoDAsync
    Dtod,
    /// cuMemcpyAsync, from device to device
    Any,
    /// cuMemcpy2DAsync, from device to device
    Rows,
    /// cuMemcpy3DAsync, from device to device
    Layers,
    /// cuMemsetD8Async
    Memset,
    /// cuMemcpyHtoD, synchronous
    HtodSync,
    /// cuMemcpyDtoH, synchronous
    DtohSync,
    /// cuMemsetD32, synchronous
    MemsetSync,
}

/// Rows of a 2-D copy; a 3-D copy has them in four layers.
const ROWS: usize = 16;
const LAYERS: usize = 4;

/// Buffers for repeated calls.
pub(crate) struct Copies<'c> {
    context: &'c Context,
    api: CopyApi,
    bytes: usize,
    device: [DevicePtr; 2],
    host: *mut c_void,
}

impl<'c> Copies<'c> {
    /// Allocates two buffers of `bytes` on the device and one on the host.
    ///
    /// # Errors
    /// [`DriverError::Call`]
    pub(crate) fn new(
        context: &'c Context,
        api: CopyApi,
        bytes: usize,
    ) -> Result<Self, DriverError> {
        let host = core::ptr::null_mut();
        let mut copies = Self { context, api, bytes, device: [0; 2], host };
        // SAFETY: results go to live variables; the fills cover what was just allocated.
        unsafe {
            for address in &mut copies.device {
                context.table.cuMemAlloc(address, bytes)?;
                context.table.cuMemsetD8Async(*address, 1, bytes, core::ptr::null_mut())?;
            }
            context.table.cuMemHostAlloc(&mut copies.host, bytes, 0)?;
            copies.host.cast::<u8>().write_bytes(2, bytes);
        }
        Ok(copies)
    }

    /// Issues the call once.
    ///
    /// # Errors
    /// [`DriverError::Call`]
    pub(crate) fn issue(&self, stream: &Stream<'_>) -> Result<(), DriverError> {
        let (table, raw, bytes, host) = (&self.context.table, stream.raw, self.bytes, self.host);
        let [to, from] = self.device;
        // SAFETY: the buffers have `bytes` bytes and live until drop, which waits for the copies;
        // descriptors are read during the call and stay within the buffers.
        unsafe {
            match self.api {
                CopyApi::Htod => table.cuMemcpyHtoDAsync(to, host, bytes, raw),
                CopyApi::Dtoh => table.cuMemcpyDtoHAsync(host, from, bytes, raw),
                CopyApi::Dtod => table.cuMemcpyDtoDAsync(to, from, bytes, raw),
                CopyApi::Any => table.cuMemcpyAsync(to, from, bytes, raw),
                CopyApi::Rows => table.cuMemcpy2DAsync(&self.rows(), raw),
                CopyApi::Layers => table.cuMemcpy3DAsync(&self.layers(), raw),
                CopyApi::Memset => table.cuMemsetD8Async(to, 3, bytes, raw),
                CopyApi::HtodSync => table.cuMemcpyHtoD(to, host, bytes),
                CopyApi::DtohSync => table.cuMemcpyDtoH(host, from, bytes),
                CopyApi::MemsetSync => table.cuMemsetD32(to, 4, bytes / 4),
            }
        }
    }

    fn rows(&self) -> Copy2d {
        let width = self.bytes / ROWS;
        let side = |device| Side2d {
            x: 0,
            y: 0,
            kind: MEMORY_DEVICE,
            host: core::ptr::null(),
            device,
            array: core::ptr::null_mut(),
            pitch: width,
        };
        let [to, from] = self.device;
        Copy2d { from: side(from), to: side(to), width, height: ROWS }
    }

    fn layers(&self) -> Copy3d {
        let (width, height) = (self.bytes / ROWS, ROWS / LAYERS);
        let side = |device| Side3d {
            x: 0,
            y: 0,
            z: 0,
            lod: 0,
            kind: MEMORY_DEVICE,
            host: core::ptr::null(),
            device,
            array: core::ptr::null_mut(),
            context: core::ptr::null_mut(),
            pitch: width,
            height,
        };
        let [to, from] = self.device;
        Copy3d { from: side(from), to: side(to), width, height, depth: LAYERS }
    }
}

impl Drop for Copies<'_> {
    fn drop(&mut self) {
        let table = &self.context.table;
        // SAFETY: what was allocated in `new` is freed once, after the last copy is done.
        unsafe {
            let _ = table.cuStreamSynchronize(core::ptr::null_mut());
            for address in self.device {
                let _ = table.cuMemFree(address);
            }
            if !self.host.is_null() {
                let _ = table.cuMemFreeHost(self.host);
            }
        }
    }
}
