//! The thread that waits until a process signals in its gate page that a lease's work is done, and then opens the next
//! process's gate. This hands a device over without waiting for a message.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use rustix::io::Errno;
use session::gate_page::{AwaitedEnd, Bell};

use super::Core;
use crate::gate_pages::HeldLease;

/// Stops the thread on drop.
#[derive(Debug)]
pub(crate) struct EndWatch {
    over: Arc<AtomicBool>,
    bell: Arc<Bell>,
}

impl EndWatch {
    pub(crate) fn start(core: &Arc<Core>) -> io::Result<Self> {
        let (over, bell) = (Arc::<AtomicBool>::default(), core.state().gates.bell());
        let watch = Self { over: Arc::clone(&over), bell: Arc::clone(&bell) };
        let core = Arc::clone(core);
        let watching = move || core.watch_ends(&bell, &over);
        thread::Builder::new().name("ends".to_owned()).spawn(watching)?;
        Ok(watch)
    }
}

impl Drop for EndWatch {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Release);
        self.bell.ring();
    }
}

impl Core {
    /// Waits for ends until `over` is set. If the kernel cannot wait on several futexes (futex_waitv), leases end when
    /// their reports arrive.
    fn watch_ends(&self, bell: &Bell, over: &AtomicBool) {
        let mut called = None;
        let mut gone = false;
        while !over.load(Ordering::Acquire) {
            let (held, ends, rings) = self.end_leases(called);
            called = match AwaitedEnd::wait_for_any(&ends, bell, rings) {
                Ok(called) => {
                    gone = false;
                    called.and_then(|index| held.get(index)).copied()
                }
                // A page was unmapped. Its ends are dropped by `end_leases`; if the error repeats, all ends are
                // dropped.
                Err(Errno::FAULT) => {
                    if core::mem::replace(&mut gone, true) {
                        self.state().gates.forget_awaited();
                    }
                    None
                }
                Err(error) => {
                    tracing::info!(%error, "leases end only when their reports arrive");
                    return;
                }
            };
        }
    }

    /// Ends the leases whose work is done. Returns the leases whose ends are still awaited, their ends, and the bell's
    /// count.
    fn end_leases(&self, called: Option<HeldLease>) -> (Vec<HeldLease>, Vec<AwaitedEnd>, u32) {
        let mut state = self.state();
        for ended in state.gates.take_ended(called) {
            let now = self.now(&mut state);
            if state.node.ended(ended.device, ended.worker, ended.lease, now) {
                self.decide(&mut state, ended.device, now);
            }
        }
        state.gates.awaited()
    }
}
