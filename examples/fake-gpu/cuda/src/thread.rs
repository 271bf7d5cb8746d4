//! The state of one thread: its stack of contexts and its capture mode.

use core::cell::Cell;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use driver::cuda::{CAPTURE_MODE_GLOBAL, CuResult};

use crate::ffi::{Api, ensure};
use crate::state;

/// The most contexts on a thread's stack.
const DEPTH: usize = 128;

/// Plain data without a destructor, so usable until the thread's very end.
struct Local {
    life: Cell<u64>,
    id: Cell<u64>,
    mode: Cell<u32>,
    depth: Cell<usize>,
    callbacks: Cell<bool>,
    stack: [Cell<u64>; DEPTH],
}

thread_local! {
    static LOCAL: Local = const {
        Local {
            life: Cell::new(0),
            id: Cell::new(0),
            mode: Cell::new(CAPTURE_MODE_GLOBAL),
            depth: Cell::new(0),
            callbacks: Cell::new(false),
            stack: [const { Cell::new(0) }; DEPTH],
        }
    };
}

static NEXT: AtomicU64 = AtomicU64::new(1);

/// Runs `body` on this thread's state. State from before a fork belongs to the parent: a child starts with an empty
/// stack.
fn with<T>(body: impl FnOnce(&Local) -> T) -> T {
    LOCAL.with(|local| {
        let life = state::life();
        if local.life.get() != life {
            local.life.set(life);
            local.id.set(NEXT.fetch_add(1, Relaxed));
            local.mode.set(CAPTURE_MODE_GLOBAL);
            local.depth.set(0);
            local.callbacks.set(false);
        }
        body(local)
    })
}

/// A number that identifies this thread.
pub(crate) fn id() -> u64 {
    with(|local| local.id.get())
}

/// The current context's handle; 0: none.
pub(crate) fn current() -> u64 {
    with(|local| match local.depth.get() {
        0 => 0,
        depth => local.stack[depth - 1].get(),
    })
}

/// Replaces the top of the stack; 0 removes it.
pub(crate) fn set_current(context: u64) {
    with(|local| {
        let depth = local.depth.get();
        if context == 0 {
            local.depth.set(depth.saturating_sub(1));
        } else if depth == 0 {
            local.stack[0].set(context);
            local.depth.set(1);
        } else {
            local.stack[depth - 1].set(context);
        }
    });
}

/// Pushes a context.
pub(crate) fn push(context: u64) -> Api {
    with(|local| {
        let depth = local.depth.get();
        ensure(depth < DEPTH, CuResult::INVALID_VALUE)?;
        local.stack[depth].set(context);
        local.depth.set(depth + 1);
        Ok(())
    })
}

/// Pops the top of the stack.
pub(crate) fn pop() -> Api<u64> {
    with(|local| {
        let depth = local.depth.get();
        ensure(depth > 0, CuResult::INVALID_CONTEXT)?;
        local.depth.set(depth - 1);
        Ok(local.stack[depth - 1].get())
    })
}

/// The thread's stream capture mode.
pub(crate) fn mode() -> u32 {
    with(|local| local.mode.get())
}

/// Changes the mode; returns the old one.
pub(crate) fn exchange_mode(mode: u32) -> u32 {
    with(|local| local.mode.replace(mode))
}

/// Marks this thread as the driver's thread for host functions.
pub(crate) fn enter_callbacks() {
    with(|local| local.callbacks.set(true));
}

/// Whether this is the driver's thread for host functions.
pub(crate) fn in_callbacks() -> bool {
    LOCAL.with(|local| local.callbacks.get() && local.life.get() == state::life())
}
