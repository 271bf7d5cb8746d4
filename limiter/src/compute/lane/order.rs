//! How a stream is ordered relative to the legacy default stream of its context: the driver makes that stream and
//! blocking streams wait for each other (CUDA driver API, "Stream synchronization behavior").

use super::super::driver_calls;
use driver::cuda::{STREAM_LEGACY, STREAM_NON_BLOCKING, STREAM_PER_THREAD, Stream};

/// The kind of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::compute) enum Order {
    /// The legacy default stream.
    Legacy,
    Blocking,
    NonBlocking,
}

impl Order {
    /// The kind of a stream of the current context; `None`: the driver does not tell.
    pub(super) fn of(stream: usize) -> Option<Self> {
        match stream {
            STREAM_LEGACY => return Some(Self::Legacy),
            STREAM_PER_THREAD => return Some(Self::Blocking),
            _ => {}
        }
        let mut flags = 0;
        let told = driver_calls::stream_get_flags(stream as Stream, &raw mut flags).is_ok();
        let order =
            if flags & STREAM_NON_BLOCKING == 0 { Self::Blocking } else { Self::NonBlocking };
        told.then_some(order)
    }

    /// Whether streams of these kinds implicitly wait for each other.
    pub(super) fn waits_for(self, other: Self) -> bool {
        matches!((self, other), (Self::Legacy, Self::Blocking) | (Self::Blocking, Self::Legacy))
    }
}
