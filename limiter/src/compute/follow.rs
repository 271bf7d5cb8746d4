//! Follows changes of a session's limits, with one thread per device that sleeps on the page's count of changes.
//!
//! The process that changes limits wakes it. The thread sets whether launches have to pass the gate, and notifies code
//! that would notice late. If no limit makes a governor talk to the daemon, it tells the daemon that the process
//! exists. It never calls the driver or foreign code, so the end of the process does not wait for it.

use super::clock;
use super::gate::Gate;
use super::presence::Presence;
use crate::own_thread::CpuTime;
use crate::{own_thread, report};
use core::sync::atomic::Ordering;
use limits::{Limits, Priority};
use rustix::io::Errno;
use rustix::thread::{Timespec, futex};

/// How often the thread checks unprompted: the process that changed the limits may have died before waking anybody, and
/// a damaged page wakes nobody.
const PERIOD: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };
/// How often it checks if it cannot sleep on the page.
const UNWOKEN_NS: u64 = 100_000_000;
/// The shortest time between two checks, however often the page reports changes.
const DEBOUNCE_NS: u64 = 2_000_000;

/// Starts to follow the limits of a device, unless a thread already does. `changed` is called after each change, with
/// whether a limit on the device's time was set or removed by it.
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
    // A damaged page is not trusted; `DeviceLedger::broken` reports it to the program.
    while let Some(page) = gate.ledger().page() {
        // Read before the limits: a change in between counts as another one.
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
            // This page cannot be slept on.
            Err(_) => clock::sleep(UNWOKEN_NS),
        }
    }
}

fn apply(gate: &'static Gate, limits: &Limits, changed: &impl Fn(bool)) {
    let limited = limits.compute.is_limit();
    // Before the first lease: a session without a limit has not been idle.
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
    // The daemon has to learn of the change, and the current lease may be too long.
    gate.demand.ring();
    if let Some(gate) = gate.stream_gate() {
        gate.block().ring();
    }
}
