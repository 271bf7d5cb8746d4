//! The governor: a thread that obtains leases for a device, and opens and closes its gate. Started by the first launch
//! that waits.

mod drain;
mod tenure;

use super::account::Account;
use super::gate::Gate;
use super::together::CATCH_UP_NS;
use super::{clock, driver_calls};
use core::sync::atomic::Ordering;
use drain::Handover;
use limiter_core::{Lease, LeaseUtilization, Neighbours};
use std::io;
use tenure::Tenure;

/// How often the governor checks for changes while the gate is closed.
const POLL_NS: u64 = 30_000;

/// Starts the governor of a device.
///
/// # Errors
/// If the thread cannot be started.
pub(super) fn start(gate: &'static Gate) -> io::Result<()> {
    gate.of.guard.start("sluice-governor", move || govern(gate))
}

fn govern(gate: &'static Gate) {
    // Make short sleeps accurate; this thread makes few.
    // SAFETY: concerns the calling thread only.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1_000_usize) };
    // This thread queries events while other threads may be capturing.
    driver_calls::never_disturb();
    let mut account = Account::new(gate);
    let mut utilization = LeaseUtilization::default();
    let mut neighbours = Neighbours::default();
    let mut handover = Handover::default();
    loop {
        loop {
            let rings = gate.demand.rings();
            if gate.is_wanted() {
                break;
            }
            account.idle();
            gate.demand.sleep_unless(|| gate.is_wanted(), rings);
        }
        gate.leave_streams();
        // If the daemon opens the gate, work begins before its answer arrives.
        let before = gate.stream_gate().map(|_| gate.look(clock::now(), |totals| totals));
        let asked = clock::now();
        let lease = account.begin();
        if !account.is_withheld() {
            let until = lease.map_or_else(clock::now, |lease| lease.begun);
            gate.ledger().note_wait(until.saturating_sub(asked));
        }
        let Some(lease) = lease else { continue };
        gate.tenure.note(&lease, &mut neighbours);
        let now = clock::now();
        tracing::trace!("device {}: asked at {asked}, {lease:?} at {now}", gate.ledger().uuid());
        let left = handover.check_for_left_work(gate);
        let mut tenure = Tenure::new(gate, lease, before, left);
        tenure.tell_end(clock::now());
        let begun = gate.lanes().begun();
        let Lease { begun: from, end, .. } = tenure.holding.lease;
        gate.tenure.length.store(end.saturating_sub(from), Ordering::Relaxed);
        gate.tell_open(end.saturating_add(CATCH_UP_NS));
        let open = if lease.to_catch_up { Gate::open_to_catch_up } else { Gate::open };
        if open(gate, tenure.holding.lease.id) {
            let (device, at) = (gate.ledger().uuid(), tenure.holding.lease.begun);
            tracing::trace!("device {device}: open at {at}, seen at {}", clock::now());
            tenure.hold(&mut account, &mut utilization, &mut neighbours);
            tenure.let_something_begin(begun);
        }
        gate.close();
        tenure.drain(&mut account, &mut handover);
        utilization.add(tenure.holding.used);
        tenure.tell_use(", at the end");
        account.end(tenure.holding.lease, tenure.holding.used);
    }
}
