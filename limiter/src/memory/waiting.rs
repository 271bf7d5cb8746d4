//! Calls that wait with what they have reserved: the driver has not taken it, whatever else goes on.

use crate::device::Device;
use crate::per_process::PerProcess;
use core::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Device and bytes of each.
type Calls = Vec<(usize, u64)>;

static WAITING: PerProcess<Mutex<Calls>> = PerProcess::new();

/// In a forked child: the parent's calls do not wait here.
pub(super) fn after_fork() {
    WAITING.forget();
}

fn calls() -> MutexGuard<'static, Calls> {
    WAITING.get().lock().unwrap_or_else(PoisonError::into_inner)
}

/// A call, while it waits.
pub(super) struct Waits((usize, u64));

/// A call that is counted as one that allocates begins to wait, with so many bytes of a device reserved.
pub(super) fn begin(device: &Device, bytes: u64) -> Waits {
    let call = (ptr::from_ref(device).addr(), bytes);
    calls().push(call);
    Waits(call)
}

impl Drop for Waits {
    fn drop(&mut self) {
        let mut calls = calls();
        if let Some(found) = calls.iter().position(|call| *call == self.0) {
            calls.swap_remove(found);
        }
    }
}

/// Calls that wait, whatever device they are for, and what they have reserved of one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Waiting {
    pub(super) calls: u64,
    pub(super) bytes: u64,
}

pub(super) fn now(device: &Device) -> Waiting {
    let device = ptr::from_ref(device).addr();
    let calls = calls();
    let bytes = calls.iter().filter(|call| call.0 == device);
    let bytes = bytes.fold(0, |sum: u64, call| sum.saturating_add(call.1));
    Waiting { calls: calls.len() as u64, bytes }
}
