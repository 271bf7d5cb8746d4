//! The governor: a thread that obtains leases for a device and opens and closes its gate.

mod drain;
mod tenure;

use super::account::{Account, Lease};
use super::gate::Gate;
use super::together::CATCH_UP_NS;
use super::usage::Used;
use super::{clock, driver_calls};
use drain::Handover;
use std::io;
use tenure::Tenure;

pub(super) use tenure::LONGEST_LOOK_NS;

/// How long another session that was seen to use the device is expected again.
const NEIGHBOURS_NS: u64 = 1_000_000_000;
/// How often it looks whether something has happened, once the gate is closed.
const POLL_NS: u64 = 30_000;

/// Starts the governor of a device.
pub(super) fn start(gate: &'static Gate) -> io::Result<()> {
    gate.guard().start("sluice-governor", move || govern(gate))
}

fn govern(gate: &'static Gate) {
    // Short sleeps should be short; this thread makes few.
    // SAFETY: concerns the calling thread only.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1_000_usize) };
    // This thread asks about events while other threads may be capturing.
    driver_calls::never_disturb();
    let mut account = Account::new(gate);
    let mut utilization = LeaseUtilization::default();
    let mut neighbours = Neighbours::default();
    let mut handover = Handover::default();
    loop {
        loop {
            let rings = gate.demand().rings();
            if gate.is_wanted() {
                break;
            }
            account.idle();
            gate.demand().sleep_unless(|| gate.is_wanted(), rings);
        }
        gate.leave_streams();
        // Where the daemon opens the gate, work begins before its answer comes.
        let before = gate.stream_gate().map(|_| gate.look(clock::now(), |totals| totals));
        let asked = clock::now();
        let lease = account.begin();
        if !account.is_withheld() {
            let until = lease.map_or_else(clock::now, |lease| lease.begun);
            gate.ledger().note_wait(until.saturating_sub(asked));
        }
        let Some(lease) = lease else { continue };
        gate.set_shared(neighbours.note(&lease));
        let now = clock::now();
        tracing::trace!("device {}: asked at {asked}, {lease:?} at {now}", gate.ledger().uuid());
        let left = handover.check_for_left_work(gate);
        let mut tenure = Tenure::new(gate, lease, before, left);
        tenure.tell_end(clock::now());
        let begun = gate.lanes().begun();
        gate.lease_lasts(tenure.lease.end.saturating_sub(tenure.lease.begun));
        gate.tell_open(tenure.lease.end.saturating_add(CATCH_UP_NS));
        let open = if lease.to_catch_up { Gate::open_to_catch_up } else { Gate::open };
        if open(gate, tenure.lease.id) {
            let (device, at) = (gate.ledger().uuid(), tenure.lease.begun);
            tracing::trace!("device {device}: open at {at}, seen at {}", clock::now());
            tenure.hold(&mut account, &mut utilization, &mut neighbours);
            tenure.let_something_begin(begun);
        }
        gate.close();
        tenure.drain(&mut account, &mut handover);
        utilization.add(tenure.used);
        tenure.tell_use(", at the end");
        account.end(tenure.lease, tenure.used);
    }
}

/// How much of the time that it holds the device the program uses, lately.
#[derive(Default)]
struct LeaseUtilization(Option<f64>);

impl LeaseUtilization {
    /// Below this part, waiting a while for the program to go on costs others nothing: they may use the
    /// device at the same time.
    const SPARSE: f64 = 0.8;
    /// Time over which it is averaged.
    const OVER_NS: f64 = 200e6;

    fn add(&mut self, used: Used) {
        if used.needed_ns() > 0 {
            let held = used.needed_ns() as f64;
            let latest = used.alone() as f64 / held;
            let old = self.0.unwrap_or(latest);
            self.0 = Some(old + (latest - old) * held / (held + Self::OVER_NS));
        }
    }

    fn is_sparse(&self) -> bool {
        self.0.is_some_and(|utilization| utilization < Self::SPARSE)
    }
}

/// Whether another session uses the device at the same time. A lease tells how it was when it was
/// granted; those who were there a moment ago will be there again.
#[derive(Default)]
struct Neighbours(Option<u64>);

impl Neighbours {
    /// A lease tells of others or does not; whether to count on them.
    fn note(&mut self, lease: &Lease) -> bool {
        let now = clock::now();
        if lease.shared {
            self.0 = Some(now);
        }
        !lease.exclusive && self.0.is_some_and(|at| now.saturating_sub(at) < NEIGHBOURS_NS)
    }
}
