//! Follows changes of a session's limits.
//!
//! One thread per device sleeps on the page's count of changes. A process that changes the limits wakes it.
//! The thread makes launches pass the gate or skip it, and notifies code that would notice later. Where no limit makes a
//! governor speak to the daemon, it has the daemon told that the process is there. It never calls the driver or foreign
//! code, so the process's end does not have to wait for it.

use super::clock;
use super::gate::Gate;
use super::presence::Presence;
use crate::own_thread::CpuTime;
use crate::{own_thread, report};
use core::sync::atomic::Ordering;
use limits::{Limits, Priority};
use rustix::io::Errno;
use rustix::thread::{Timespec, futex};

/// How often the thread looks by itself: who changed the limits may have died before it woke anybody, and
/// a page that is damaged wakes nobody.
const PERIOD: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };
/// How often it looks where the page cannot be slept on.
const UNWOKEN_NS: u64 = 100_000_000;
/// The shortest time between two looks, however often the page says that something has changed.
const DEBOUNCE_NS: u64 = 2_000_000;

/// Starts to follow the limits of a device, unless that is done already. `changed` is called after each change,
/// with whether the device's time has come to be limited by it, or is no more.
pub(crate) fn follow_limits(gate: &'static Gate, changed: impl Fn(bool) + Send + 'static) {
    if gate.limits.followed.swap(true, Ordering::AcqRel) {
        return;
    }
    if let Err(error) = own_thread::start("sluice-limits", move || follow(gate, &changed)) {
        report::once(format_args!(
            "cannot start the thread that follows changes of the limits: {error}; a compute limit set or removed \
             while this process runs has no effect"
        ));
    }
}

fn follow(gate: &'static Gate, changed: &impl Fn(bool)) {
    let mut followed = None;
    let mut presence = Presence::new();
    let mut cpu = CpuTime::default();
    // Of a damaged page nothing is believed any more; `DeviceLedger::broken` says so to the program.
    while let Some(page) = gate.ledger().page() {
        // Before the limits are read: a change that comes between is another one.
        let count = page.limit_changes.load(Ordering::Acquire);
        if followed != Some(count) {
            apply(gate, &page.limits(), changed);
            page.take_change(gate.ledger().membership().slot(), count);
            followed = Some(count);
        }
        presence.tell(gate);
        gate.ledger().note_own_cpu(cpu.since());
        let (changes, any) = (&page.limit_changes, futex::Flags::empty());
        match own_thread::asleep(|| futex::wait(changes, any, count, Some(&PERIOD))) {
            Err(Errno::TIMEDOUT) => {}
            Ok(()) | Err(Errno::AGAIN | Errno::INTR) => clock::sleep(DEBOUNCE_NS),
            // No sleeping on this page.
            Err(_) => clock::sleep(UNWOKEN_NS),
        }
    }
}

fn apply(gate: &'static Gate, limits: &Limits, changed: &impl Fn(bool)) {
    let limited = limits.compute.is_limit();
    // Before the first lease. A session without a limit has not been idle.
    if limited
        && !gate.is_active()
        && let Some(mut opened) = gate.ledger().open()
    {
        opened.forget_savings(clock::now());
    }
    let is_low = limits.compute.priority == Priority::Low;
    gate.limits.low.store(is_low, Ordering::Relaxed);
    let is_other = gate.set_active(limited);
    if is_other {
        tracing::info!("device {}: limits are now {limits:?}", gate.ledger().uuid());
    }
    changed(is_other);
    // The daemon is to know, and a lease under way may be too long.
    gate.demand.ring();
    if let Some(gate) = gate.stream_gate() {
        gate.block().ring();
    }
}
