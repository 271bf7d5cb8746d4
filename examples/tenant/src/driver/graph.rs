//! Graphs captured from a stream.

use driver::cuda::{self, CAPTURE_MODE_THREAD_LOCAL};

use super::{Context, DriverError, Stream};

/// An executable graph.
pub(crate) struct Graph<'c> {
    context: &'c Context,
    exec: cuda::GraphExec,
}

impl<'c> Graph<'c> {
    /// Captures the work that `work` puts into `stream`, and instantiates the graph. The stream must not be the legacy
    /// default stream, which cannot be captured.
    ///
    /// # Errors
    /// [`DriverError::Call`], or the error of `work`.
    pub(crate) fn capture(
        context: &'c Context,
        stream: &Stream<'_>,
        work: impl FnOnce() -> Result<(), DriverError>,
    ) -> Result<Self, DriverError> {
        let (mut graph, mut exec) = (core::ptr::null_mut(), core::ptr::null_mut());
        // SAFETY: the stream lives; the capture begun here is ended below, whatever `work` did.
        unsafe { context.table.cuStreamBeginCapture(stream.raw, CAPTURE_MODE_THREAD_LOCAL) }?;
        let worked = work();
        // SAFETY: the stream is capturing; the result goes to a live variable.
        let ended = unsafe { context.table.cuStreamEndCapture(stream.raw, &mut graph) };
        worked?;
        ended?;
        // SAFETY: `graph` is the captured graph; it is not needed once instantiated.
        let made = unsafe {
            let made = context.table.cuGraphInstantiateWithFlags(&mut exec, graph, 0);
            let _ = context.table.cuGraphDestroy(graph);
            made
        };
        made.map(|()| Self { context, exec })
    }

    /// Runs the graph in `stream`.
    ///
    /// # Errors
    /// [`DriverError::Call`]
    pub(crate) fn launch(&self, stream: &Stream<'_>) -> Result<(), DriverError> {
        // SAFETY: graph and stream live and belong to the current context.
        unsafe { self.context.table.cuGraphLaunch(self.exec, stream.raw) }
    }
}

impl Drop for Graph<'_> {
    fn drop(&mut self) {
        // SAFETY: instantiated once, destroyed once; the driver finishes a running launch first.
        let _ = unsafe { self.context.table.cuGraphExecDestroy(self.exec) };
    }
}
