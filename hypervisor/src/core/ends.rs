//! The thread that sleeps until a process says by its gate page that a lease's work is done. Then the
//! next one's gate is opened, before any message has been sent.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use rustix::io::Errno;
use session::gate_page::{AwaitedEnd, Bell};

use super::Core;
use crate::gate_pages::HeldLease;

/// Ends the thread when it is dropped.
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
    /// Where the system cannot wait for several words, leases end when their reports come.
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
                // A page is gone. It was left out of those that are awaited, unless this is said once more.
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

    /// Ends the leases whose work is done. Returns those whose ends are still awaited.
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
