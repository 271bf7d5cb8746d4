//! Process-wide flags that every launch checks first, all in one cache line.

use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicUsize};

/// The flags. The hooks of launches read them by address.
#[repr(C, align(64))]
pub(crate) struct FastPath {
    /// Whether any device of this process has a gate. First, because hooks read it through the structure's address.
    gated: AtomicU8,
    /// Whether there has been more than one context: a default stream's handle then does not identify the stream.
    several_contexts: AtomicBool,
    /// Captures begun and not ended. A stream that is destroyed during its capture leaves the count too high; that only
    /// costs time, because the count just decides whether to check further.
    pub(super) captures: AtomicU32,
    /// The handle of the first context.
    first_context: AtomicUsize,
    /// Whether work may ever have waited for something outside of its device.
    outside: AtomicBool,
    /// Whether any stream has ever had its gate in the stream.
    stream_gates: AtomicBool,
}

const _: () = assert!(core::mem::offset_of!(FastPath, gated) == 0);

/// Values of `gated`: not known yet, no, yes.
const UNKNOWN: u8 = 0;
pub(crate) const UNGATED: u8 = 1;
const GATED: u8 = 2;

/// The flags of this process.
pub(crate) static FAST_PATH: FastPath = FastPath {
    gated: AtomicU8::new(UNKNOWN),
    several_contexts: AtomicBool::new(false),
    captures: AtomicU32::new(0),
    first_context: AtomicUsize::new(0),
    outside: AtomicBool::new(false),
    stream_gates: AtomicBool::new(false),
};

impl FastPath {
    /// Whether launches go straight to the driver.
    #[inline]
    pub(super) fn is_ungated(&self) -> bool {
        self.gated.load(Relaxed) == UNGATED
    }

    /// Sets whether launches have to be checked; `None`: not known yet.
    pub(super) fn set_gated(&self, gated: Option<bool>) {
        let state = match gated {
            None => UNKNOWN,
            Some(false) => UNGATED,
            Some(true) => GATED,
        };
        self.gated.store(state, SeqCst);
    }

    /// Whether any stream may be capturing.
    #[inline]
    pub(super) fn has_captures(&self) -> bool {
        self.captures.load(Relaxed) != 0
    }

    /// Whether there has only ever been one context, so that every launch goes there.
    #[inline]
    pub(super) fn has_one_place(&self) -> bool {
        self.first_context.load(Relaxed) != 0 && !self.several_contexts.load(Relaxed)
    }

    /// Whether work may have waited for something outside of its device, apart from events.
    #[inline]
    pub(super) fn has_outside(&self) -> bool {
        self.outside.load(Relaxed)
    }

    /// Notes that work may wait for something outside of its device.
    pub(super) fn note_outside(&self) {
        // Mostly set already; not writing keeps the cache line shared.
        if !self.has_outside() {
            self.outside.store(true, Relaxed);
        }
    }

    /// Whether any stream has ever had its gate in the stream.
    #[inline]
    pub(super) fn has_stream_gates(&self) -> bool {
        self.stream_gates.load(Relaxed)
    }

    /// Notes that a stream has its gate in the stream.
    pub(super) fn note_stream_gate(&self) {
        self.stream_gates.store(true, Relaxed);
    }

    /// Notes a new context.
    pub(super) fn note_context(&self, context: usize) {
        let first = self.first_context.compare_exchange(0, context, Relaxed, Relaxed);
        if first.is_err_and(|first| first != context) {
            self.several_contexts.store(true, Relaxed);
        }
    }
}
