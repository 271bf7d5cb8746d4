//! The governor: a thread that obtains leases for a device and opens and closes its gate.

use super::account::{Account, Lease};
use super::lane::Lane;
use super::{clock, own, pins};
use crate::device::Device;
use core::time::Duration;
use std::io;
use std::sync::Arc;
use utils::driver::cuda::CAPTURE_MODE_RELAXED;

/// How often the governor looks whether the program still uses its lease.
const LOOK_NS: u64 = 2_000_000;
/// How often it asks whether the work is done, once the gate is closed.
const DRAIN_POLL_NS: u64 = 30_000;
/// How long work may stand still, with a thread waiting at the gate, before it is taken to wait for that
/// thread.
const STUCK_NS: u64 = 1_000_000_000;
/// How long the gate is then opened.
const GLIMPSE_NS: u64 = 5_000_000;
/// Enough for the calls that the thread makes.
const STACK_BYTES: usize = 512 * 1024;

/// Starts the governor of a device.
pub(super) fn start(device: &'static Device) -> io::Result<()> {
    pins::watch_exit();
    let signals = SignalsBlocked::new();
    let started = std::thread::Builder::new()
        .name("sluice-governor".to_owned())
        .stack_size(STACK_BYTES)
        .spawn(move || govern(device));
    drop(signals);
    started.map(drop)
}

/// Keeps the program's signals away from a thread that is started meanwhile: they are for the
/// program's own threads.
pub(crate) struct SignalsBlocked(libc::sigset_t);

impl SignalsBlocked {
    pub(crate) fn new() -> Self {
        // SAFETY: both sets are initialised by the calls.
        unsafe {
            let (mut all, mut old) = core::mem::zeroed();
            libc::sigfillset(&raw mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut old);
            Self(old)
        }
    }
}

impl Drop for SignalsBlocked {
    fn drop(&mut self) {
        // SAFETY: the mask that was in force before.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, core::ptr::null_mut())
        };
    }
}

fn govern(device: &'static Device) {
    // Short sleeps should be short; this thread makes few.
    // SAFETY: concerns the calling thread only.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1_000_usize) };
    // This thread asks about events while other threads may be capturing.
    let mut mode = CAPTURE_MODE_RELAXED;
    let _ = own::exchange_capture_mode(&raw mut mode);
    let gate = device.gate();
    let mut account = Account::new(device);
    loop {
        while !gate.is_wanted() {
            account.idle();
            gate.await_demand();
        }
        let Some(lease) = account.begin() else { continue };
        gate.open();
        let opened = clock::now();
        hold(device, &lease);
        gate.close();
        drain(device);
        let now = clock::now();
        tracing::trace!(
            "device {}: lease of {} us held for {} us",
            device.uuid(),
            lease.end.saturating_sub(opened) / 1000,
            now.saturating_sub(opened) / 1000,
        );
        account.end(&lease, now.saturating_sub(opened));
    }
}

/// Keeps the gate open until the lease ends or the program has stopped using it.
fn hold(device: &Device, lease: &Lease) {
    let mut before = None;
    loop {
        let now = clock::now();
        if now >= lease.end {
            return;
        }
        clock::sleep(LOOK_NS.min(lease.end - now));
        let lanes = device.gate().lanes();
        let activity: u64 = lanes.iter().fold(0, |sum, lane| sum.wrapping_add(lane.activity()));
        if before != Some(activity) {
            before = Some(activity);
        } else if drained(&lanes) {
            return;
        }
    }
}

/// Waits until the work launched under the lease is done.
///
/// Work may wait for work that its program is about to launch (a stream that waits for a value, a
/// kernel that waits for another): where nothing gets done while a thread waits at the gate, the gate is
/// opened for a moment. The time goes on being charged.
fn drain(device: &Device) {
    let gate = device.gate();
    let mut progress = 0;
    let mut since = clock::now();
    let mut patience = STUCK_NS;
    loop {
        // A thread that was on its way when the gate closed may have made a lane since: look each
        // time.
        let lanes = gate.lanes();
        if drained(&lanes) {
            break;
        }
        clock::sleep(DRAIN_POLL_NS);
        let now = clock::now();
        let done = lanes.iter().fold(0, |sum: u64, lane| sum.wrapping_add(lane.progress()));
        if done != progress {
            progress = done;
            since = now;
        } else if now.saturating_sub(since) > patience && gate.is_wanted() {
            gate.open();
            clock::sleep(GLIMPSE_NS);
            gate.close();
            since = clock::now();
            // Longer each time, so that it outgrows kernels that only take long.
            patience = patience.saturating_mul(2);
        }
        device.seat().still_holding(now);
    }
    let abandoned = device.gate().remove_abandoned();
    if let Some(_pin) = pins::pin() {
        for lane in abandoned {
            lane.destroy_events();
        }
    }
}

fn drained(lanes: &[Arc<Lane>]) -> bool {
    match pins::pin() {
        // Each is asked, so that each one's progress is seen.
        Some(_pin) => lanes.iter().filter(|lane| !lane.is_drained()).count() == 0,
        // The program is ending: nobody will ask again.
        None => loop {
            std::thread::sleep(Duration::from_secs(3600));
        },
    }
}
