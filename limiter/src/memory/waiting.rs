//! Calls that wait with bytes reserved, which the driver has not taken yet. A check leaves them out.

use crate::ledger::DeviceLedger;
use core::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The waiting calls: address of the device's ledger, and bytes.
#[derive(Default)]
pub(super) struct WaitingCalls(Mutex<Vec<(usize, u64)>>);

/// Guard of a waiting call.
pub(super) struct WaitingCall<'a> {
    among: &'a WaitingCalls,
    call: (usize, u64),
}

impl WaitingCalls {
    fn calls(&self) -> MutexGuard<'_, Vec<(usize, u64)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a call as waiting, with `bytes` of a device reserved, until the guard is dropped.
    pub(super) fn begin(&self, device: &DeviceLedger, bytes: u64) -> WaitingCall<'_> {
        let call = (ptr::from_ref(device).addr(), bytes);
        self.calls().push(call);
        WaitingCall { among: self, call }
    }

    /// The number of waiting calls, and the bytes that they have reserved on a device.
    pub(super) fn now(&self, device: &DeviceLedger) -> StandingCalls {
        let device = ptr::from_ref(device).addr();
        let calls = self.calls();
        let bytes = calls.iter().filter(|call| call.0 == device);
        let bytes = bytes.fold(0, |sum: u64, call| sum.saturating_add(call.1));
        StandingCalls { calls: calls.len() as u64, bytes }
    }
}

impl Drop for WaitingCall<'_> {
    fn drop(&mut self) {
        let mut calls = self.among.calls();
        if let Some(found) = calls.iter().position(|call| *call == self.call) {
            calls.swap_remove(found);
        }
    }
}

/// Number of waiting calls on all devices, and their reserved bytes on one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct StandingCalls {
    pub(super) calls: u64,
    pub(super) bytes: u64,
}
