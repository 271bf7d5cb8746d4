//! The driver, one device and its primary context. All other objects of this folder borrow from it.

use core::ffi::{CStr, c_int};

use driver::cuda::{self, CuResult, Device};

use super::DriverError;
use super::table::Table;

const ATTRIBUTE_MULTIPROCESSOR_COUNT: c_int = 16;

/// A device's primary context, kept until drop. All other objects borrow from it.
pub(crate) struct Context {
    pub(super) table: Table,
    pub(super) device: Device,
    raw: cuda::Context,
}

// SAFETY: a CUcontext may be used from any thread (CUDA driver API, "Context Management"); the
// table holds only function addresses.
unsafe impl Send for Context {}
// SAFETY: as above; the driver locks its own state.
unsafe impl Sync for Context {}

impl Context {
    /// Loads the driver and makes the primary context of device `index` current in this thread. With
    /// `per_thread_streams` the driver's `_ptsz` functions are used, as in a program built with `-default-stream
    /// per-thread`.
    ///
    /// # Errors
    /// [`DriverError`] of the first step that failed.
    pub(crate) fn open(index: u32, per_thread_streams: bool) -> Result<Self, DriverError> {
        let table = Table::load(per_thread_streams)?;
        let (mut count, mut device, mut raw) = (0, 0, core::ptr::null_mut());
        // SAFETY: results go to live variables; cuInit comes first, as the driver asks.
        unsafe {
            table.cuInit(0)?;
            table.cuDeviceGetCount(&mut count)?;
            let ordinal = c_int::try_from(index).unwrap_or(c_int::MAX);
            if ordinal >= count {
                return Err(DriverError::NoSuchDevice { index, count });
            }
            table.cuDeviceGet(&mut device, ordinal)?;
            table.cuDevicePrimaryCtxRetain(&mut raw, device)?;
        }
        let context = Self { table, device, raw };
        context.make_current()?;
        Ok(context)
    }

    /// Makes the context current in the calling thread. Each thread that uses the context calls this first.
    ///
    /// # Errors
    /// [`DriverError::Call`]
    pub(crate) fn make_current(&self) -> Result<(), DriverError> {
        // SAFETY: the context is retained as long as `self` lives.
        unsafe { self.table.cuCtxSetCurrent(self.raw) }
    }

    /// The device's product name.
    ///
    /// # Errors
    /// [`DriverError::Call`]
    pub(crate) fn device_name(&self) -> Result<String, DriverError> {
        let mut name = [0_u8; 256];
        // SAFETY: the driver writes at most 255 bytes and a NUL into the buffer.
        unsafe { self.table.cuDeviceGetName(name.as_mut_ptr().cast(), 255, self.device) }?;
        let text = CStr::from_bytes_until_nul(&name).unwrap_or(c"");
        Ok(text.to_string_lossy().into_owned())
    }

    /// The device's UUID as NVML prints it: `GPU-` and 32 hexadecimal digits in five groups.
    ///
    /// # Errors
    /// [`DriverError::Call`]
    pub(crate) fn device_uuid(&self) -> Result<String, DriverError> {
        let mut uuid = cuda::Uuid::default();
        // SAFETY: the driver writes 16 bytes.
        unsafe { self.table.cuDeviceGetUuid(&mut uuid, self.device) }?;
        let mut text = String::from("GPU");
        for (i, byte) in uuid.bytes.iter().enumerate() {
            if matches!(i, 0 | 4 | 6 | 8 | 10) {
                text.push('-');
            }
            text.push_str(&format!("{byte:02x}"));
        }
        Ok(text)
    }

    /// The CUDA version that the driver supports: 1000 x major + 10 x minor.
    ///
    /// # Errors
    /// [`DriverError::Call`]
    pub(crate) fn driver_version(&self) -> Result<i32, DriverError> {
        let mut version = 0;
        // SAFETY: the result goes to a live variable.
        unsafe { self.table.cuDriverGetVersion(&mut version) }?;
        Ok(version)
    }

    /// Number of multiprocessors that this process may use.
    ///
    /// # Errors
    /// [`DriverError::Call`]
    pub(super) fn multiprocessors(&self) -> Result<u32, DriverError> {
        let mut value = 0;
        // SAFETY: the result goes to a live variable.
        unsafe {
            self.table.cuDeviceGetAttribute(&mut value, ATTRIBUTE_MULTIPROCESSOR_COUNT, self.device)
        }?;
        u32::try_from(value).map_err(|_| DriverError::Call {
            call: "cuDeviceGetAttribute",
            result: CuResult::INVALID_VALUE,
        })
    }

    /// Free and total memory of the device, in bytes, as the driver reports it to this process.
    ///
    /// # Errors
    /// [`DriverError::Call`]
    pub(crate) fn memory_info(&self) -> Result<(usize, usize), DriverError> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: both results go to live variables.
        unsafe { self.table.cuMemGetInfo(&mut free, &mut total) }?;
        Ok((free, total))
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: retained in `open`; everything that borrowed from it is gone. A failure at the
        // end of the program has no remedy.
        let _ = unsafe { self.table.cuDevicePrimaryCtxRelease(self.device) };
    }
}
