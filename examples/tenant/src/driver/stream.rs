//! Streams and events.

use core::ffi::c_uint;

use driver::cuda::{self, CuResult};

use super::{Context, DriverError};

const STREAM_NON_BLOCKING: c_uint = 1;
const EVENT_BLOCKING_SYNC: c_uint = 1;

/// A stream, used only by the thread that created it.
pub(crate) struct Stream<'c> {
    pub(super) context: &'c Context,
    pub(super) raw: cuda::Stream,
}

impl<'c> Stream<'c> {
    /// The default stream: the legacy one, or this thread's own if the context was opened with per-thread streams.
    pub(crate) fn default_of(context: &'c Context) -> Self {
        Self { context, raw: core::ptr::null_mut() }
    }

    /// Creates a stream that does not wait for the legacy stream.
    ///
    /// # Errors
    /// [`DriverError::Call`]
    pub(crate) fn create(context: &'c Context) -> Result<Self, DriverError> {
        let mut raw = core::ptr::null_mut();
        // SAFETY: the result goes to a live variable.
        unsafe { context.table.cuStreamCreate(&mut raw, STREAM_NON_BLOCKING) }?;
        Ok(Self { context, raw })
    }

    /// Waits until all work in the stream is done.
    ///
    /// # Errors
    /// [`DriverError::Call`], also for a kernel that failed.
    pub(crate) fn synchronize(&self) -> Result<(), DriverError> {
        // SAFETY: the stream lives as long as `self`.
        unsafe { self.context.table.cuStreamSynchronize(self.raw) }
    }
}

impl Drop for Stream<'_> {
    fn drop(&mut self) {
        if !self.raw.is_null() {
            // SAFETY: created by `create`, destroyed once; the driver finishes its work first.
            let _ = unsafe { self.context.table.cuStreamDestroy(self.raw) };
        }
    }
}

/// A timing event; threads that wait for it sleep.
pub(crate) struct Event<'c> {
    context: &'c Context,
    raw: cuda::Event,
}

impl<'c> Event<'c> {
    /// Creates an event that is not recorded.
    ///
    /// # Errors
    /// [`DriverError::Call`]
    pub(crate) fn create(context: &'c Context) -> Result<Self, DriverError> {
        let mut raw = core::ptr::null_mut();
        // SAFETY: the result goes to a live variable.
        unsafe { context.table.cuEventCreate(&mut raw, EVENT_BLOCKING_SYNC) }?;
        Ok(Self { context, raw })
    }

    /// Records the event after the work now in `stream`.
    ///
    /// # Errors
    /// [`DriverError::Call`]
    pub(crate) fn record(&self, stream: &Stream<'_>) -> Result<(), DriverError> {
        // SAFETY: both live as long as the references.
        unsafe { self.context.table.cuEventRecord(self.raw, stream.raw) }
    }

    /// Makes later work in `stream` wait for the event.
    ///
    /// # Errors
    /// [`DriverError::Call`]
    pub(crate) fn hold_up(&self, stream: &Stream<'_>) -> Result<(), DriverError> {
        // SAFETY: both live as long as the references.
        unsafe { self.context.table.cuStreamWaitEvent(stream.raw, self.raw, 0) }
    }

    /// Whether the device has reached the event.
    ///
    /// # Errors
    /// [`DriverError::Call`], also for a kernel that failed before the event.
    pub(crate) fn is_done(&self) -> Result<bool, DriverError> {
        // SAFETY: the event lives as long as `self`.
        match unsafe { self.context.table.cuEventQuery(self.raw) } {
            Ok(()) => Ok(true),
            Err(DriverError::Call { result: CuResult::NOT_READY, .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Waits until the device has reached the event.
    ///
    /// # Errors
    /// [`DriverError::Call`], also for a kernel that failed before the event.
    pub(crate) fn synchronize(&self) -> Result<(), DriverError> {
        // SAFETY: the event lives as long as `self`.
        unsafe { self.context.table.cuEventSynchronize(self.raw) }
    }

    /// Device time from `start` to this event, in milliseconds. Both must have been reached.
    ///
    /// # Errors
    /// [`DriverError::Call`]
    pub(crate) fn ms_since(&self, start: &Event<'_>) -> Result<f64, DriverError> {
        let mut ms = 0.0_f32;
        // SAFETY: both events live, the result goes to a live variable.
        unsafe { self.context.table.cuEventElapsedTime(&mut ms, start.raw, self.raw) }?;
        Ok(f64::from(ms))
    }
}

impl Drop for Event<'_> {
    fn drop(&mut self) {
        // SAFETY: created by `create`, destroyed once.
        let _ = unsafe { self.context.table.cuEventDestroy(self.raw) };
    }
}
