//! What every launch checks first, for any stream: all of it in one cache line.

use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicUsize};

/// See the module.
#[repr(C, align(64))]
pub(crate) struct FastPath {
    /// Whether any device of this process has a gate. First, because hooks read it by the structure's address.
    gated: AtomicU8,
    /// Whether there has been more than one context: a default stream's handle then does not tell which.
    several_contexts: AtomicBool,
    /// Captures that were begun and not ended. Only says whether to look closer: a stream that ends while
    /// it is captured leaves it too high, which costs time and nothing else.
    pub(super) captures: AtomicU32,
    /// The first context.
    first_context: AtomicUsize,
    /// Whether work may ever have waited for something outside of its device.
    outside: AtomicBool,
    /// Whether any stream has had its gate in it.
    stream_gates: AtomicBool,
}

const _: () = assert!(core::mem::offset_of!(FastPath, gated) == 0);

/// Not known yet, no, yes.
const UNKNOWN: u8 = 0;
pub(crate) const UNGATED: u8 = 1;
const GATED: u8 = 2;

/// The only one.
pub(crate) static FAST_PATH: FastPath = FastPath {
    gated: AtomicU8::new(UNKNOWN),
    several_contexts: AtomicBool::new(false),
    captures: AtomicU32::new(0),
    first_context: AtomicUsize::new(0),
    outside: AtomicBool::new(false),
    stream_gates: AtomicBool::new(false),
};

impl FastPath {
    /// Whether launches need no look.
    #[inline]
    pub(super) fn is_ungated(&self) -> bool {
        self.gated.load(Relaxed) == UNGATED
    }

    /// Says whether launches have to be looked at; `None`: to be found out.
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

    /// Whether there has been one context, and no other, so that every launch goes there.
    #[inline]
    pub(super) fn has_one_place(&self) -> bool {
        self.first_context.load(Relaxed) != 0 && !self.several_contexts.load(Relaxed)
    }

    /// Whether work may have waited for something outside of its device, apart from events.
    #[inline]
    pub(super) fn has_outside(&self) -> bool {
        self.outside.load(Relaxed)
    }

    /// It may from now on.
    pub(super) fn note_outside(&self) {
        // Most calls find it set: they leave the cache line to all.
        if !self.has_outside() {
            self.outside.store(true, Relaxed);
        }
    }

    /// Whether any stream has had its gate in it.
    #[inline]
    pub(super) fn has_stream_gates(&self) -> bool {
        self.stream_gates.load(Relaxed)
    }

    /// A stream's gate is in it.
    pub(super) fn note_stream_gate(&self) {
        self.stream_gates.store(true, Relaxed);
    }

    /// A context is made.
    pub(super) fn note_context(&self, context: usize) {
        let first = self.first_context.compare_exchange(0, context, Relaxed, Relaxed);
        if first.is_err_and(|first| first != context) {
            self.several_contexts.store(true, Relaxed);
        }
    }
}
