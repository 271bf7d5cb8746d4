//! A page of host memory shared by several devices and processes, for collectives.

use core::ffi::c_void;
use std::fs::OpenOptions;
use std::os::fd::AsRawFd;
use std::path::Path;

use driver::cuda::{DevicePtr, MEMHOSTREGISTER_DEVICEMAP};

use super::{Context, DriverError};

/// `CU_MEMHOSTREGISTER_PORTABLE`: for all contexts of the process.
const PORTABLE: u32 = 1;
const SIZE: usize = 4096;
/// Most members: each has a slot of 64 bytes.
pub(crate) const SLOTS: u64 = 64;

/// The page, registered with the driver. Kept until the process ends, because a kernel may write to it until then.
pub(crate) struct Page(*mut c_void);

// SAFETY: only an address, which is never unmapped; the devices alone use what is behind it.
unsafe impl Sync for Page {}

impl Page {
    /// Creates a page of this process, or opens or creates the one in the file at `path`, for all contexts of the
    /// process; `context` must be current.
    ///
    /// # Errors
    /// The system's error for file or mapping, or the driver's.
    pub(crate) fn new(context: &Context, path: Option<&Path>) -> Result<Self, PageError> {
        let file = match path {
            Some(path) => {
                let file = OpenOptions::new()
                    .read(true)
                    .write(true)
                    .create(true)
                    .truncate(false)
                    .open(path)?;
                file.set_len(SIZE as u64)?;
                Some(file)
            }
            None => None,
        };
        let (kind, descriptor) = match &file {
            Some(file) => (libc::MAP_SHARED, file.as_raw_fd()),
            None => (libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1),
        };
        // SAFETY: a new mapping at an address of the system's choice.
        let address = unsafe {
            let access = libc::PROT_READ | libc::PROT_WRITE;
            libc::mmap(core::ptr::null_mut(), SIZE, access, kind, descriptor, 0)
        };
        if address == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error().into());
        }
        let flags = PORTABLE | MEMHOSTREGISTER_DEVICEMAP;
        // SAFETY: memory of this size, which is never unmapped.
        unsafe { context.table.cuMemHostRegister(address, SIZE, flags) }?;
        Ok(Self(address))
    }

    /// The page's address on the current context's device.
    ///
    /// # Errors
    /// [`DriverError::Call`]
    pub(crate) fn on_device(&self, context: &Context) -> Result<DevicePtr, DriverError> {
        let mut address = 0;
        // SAFETY: the result goes to a live variable.
        unsafe { context.table.cuMemHostGetDevicePointer(&mut address, self.0, 0) }?;
        Ok(address)
    }
}

/// Why a page could not be created.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PageError {
    #[error(transparent)]
    System(#[from] std::io::Error),
    #[error(transparent)]
    Driver(#[from] DriverError),
}

/// Bytes on a device that a stream's work writes one by one, and the host reads at the end.
pub(crate) struct Trace<'c> {
    context: &'c Context,
    address: DevicePtr,
}

/// Size of a [`Trace`], in bytes.
pub(crate) const TRACE: usize = 4096;

impl<'c> Trace<'c> {
    /// A trace of zeros.
    ///
    /// # Errors
    /// [`DriverError::Call`]
    pub(crate) fn new(context: &'c Context) -> Result<Self, DriverError> {
        let mut trace = Self { context, address: 0 };
        // SAFETY: the result goes to a live variable; the fill covers what was just allocated.
        unsafe {
            context.table.cuMemAlloc(&mut trace.address, TRACE)?;
            let stream = core::ptr::null_mut();
            context.table.cuMemsetD8Async(trace.address, 0, TRACE, stream)?;
            context.table.cuStreamSynchronize(stream)?;
        }
        Ok(trace)
    }

    /// Writes a byte in stream order, at `at` modulo the size.
    ///
    /// # Errors
    /// [`DriverError::Call`]
    pub(crate) fn write(
        &self,
        at: u64,
        value: u8,
        stream: &super::Stream<'_>,
    ) -> Result<(), DriverError> {
        let at = self.address + at % TRACE as u64;
        // SAFETY: within the allocation, which lives until drop.
        unsafe { self.context.table.cuMemsetD8Async(at, value, 1, stream.raw) }
    }

    /// Reads the bytes, once the streams have been synchronized.
    ///
    /// # Errors
    /// [`DriverError::Call`]
    pub(crate) fn read(&self) -> Result<Vec<u8>, DriverError> {
        let mut bytes = vec![0; TRACE];
        // SAFETY: both sides have this size.
        unsafe { self.context.table.cuMemcpyDtoH(bytes.as_mut_ptr().cast(), self.address, TRACE) }?;
        Ok(bytes)
    }
}

impl Drop for Trace<'_> {
    fn drop(&mut self) {
        let _ = self.context.make_current();
        // SAFETY: allocated once, freed once; its stream was waited for or failed.
        let _ = unsafe { self.context.table.cuMemFree(self.address) };
    }
}
