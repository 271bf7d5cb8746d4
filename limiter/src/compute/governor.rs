//! The governor: a thread that obtains leases for a device and opens and closes its gate.

use super::account::{Account, Lease};
use super::gate::Gate;
use super::lane::Lane;
use super::rest::Rest;
use super::usage::{Usage, Used};
use super::work::SPREAD;
use super::{clock, driver_calls};
use std::io;
use std::sync::Arc;

/// How often the governor looks whether the program still uses its lease: every 3 to 5 ms, in no rhythm that a
/// program could have.
const LEAST_LOOK_NS: u64 = 3_000_000;
const LOOK_SPREAD_NS: u64 = 2_000_000;
pub(super) const LONGEST_LOOK_NS: u64 = LEAST_LOOK_NS + LOOK_SPREAD_NS;
/// The same of a short lease, where looking costs next to nothing.
const LOOKS_OF_SHORT: u64 = 4;
const SHORTEST_LOOK_NS: u64 = 500_000;
/// For how long a program may not use its lease, where that costs others nothing, and where it does.
const PATIENCE_NS: u64 = 25_000_000;
const IMPATIENCE_NS: u64 = 4_000_000;
/// How long before its end at most a lease is asked to go on.
const RENEW_BEFORE_NS: u64 = 6_000_000;
const LEAST_BEFORE_NS: u64 = 500_000;
/// How long another session that was seen to use the device is expected again.
const NEIGHBOURS_NS: u64 = 1_000_000_000;
/// How often the account is told of work that still runs.
const TELL_NS: u64 = 20_000_000;
/// How often it looks after the budget while threads wait for it.
const BUDGET_NS: u64 = 300_000;
/// How often it asks whether the work is done, once the gate is closed.
const DRAIN_POLL_NS: u64 = 30_000;
/// How long work may stand still, with a thread waiting at the gate, before it is taken to wait for that
/// thread.
const STUCK_NS: u64 = 1_000_000_000;
/// The same for work that has just been seen to wait for that.
const STUCK_AGAIN_NS: u64 = 50_000_000;
/// How long the gate is then opened at most.
const GLIMPSE_NS: u64 = 5_000_000;
/// The same, while the program goes on launching what has to wait.
const LONGEST_GLIMPSE_NS: u64 = 100_000_000;
/// So long before its work will be done the daemon is told that a lease is over: the next holder's first
/// launch takes at least as long to come.
const HANDOVER_NS: u64 = 300_000;

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
    let mut density = Density::default();
    let mut neighbours = Neighbours::default();
    let mut handover = Handover { dependent: false, ended: None, rest: Rest::none() };
    loop {
        loop {
            let rings = gate.rings();
            if gate.is_wanted() {
                break;
            }
            account.idle();
            gate.await_demand(rings);
        }
        let Some(lease) = account.begin() else { continue };
        gate.set_shared(neighbours.note(&lease));
        let left = handover.check_for_left_work(gate);
        let mut tenure = Tenure::new(gate, lease, left);
        if gate.open(tenure.lease.id) {
            tenure.hold(&mut account, &mut density, &mut neighbours);
        }
        gate.close();
        tenure.drain(&mut account, &mut handover);
        density.add(tenure.used);
        tracing::trace!("device {}: {:?}, at the end", gate.ledger().uuid(), tenure.used);
        account.end(tenure.lease, tenure.used);
    }
}

/// What one lease's end teaches for the next one's. Leases are given up when the last work is about to be
/// done, by what is known of it.
struct Handover {
    /// Work was last seen to wait for what its program would launch next.
    dependent: bool,
    /// When the last one's should have been.
    ended: Option<u64>,
    /// After one that was given up far too early.
    rest: Rest,
}

impl Handover {
    /// Looks, once, whether the work of the last lease is still not done although it should be: then it was
    /// another than it was taken for, and for a while nothing is given up early.
    fn check_for_left_work(&mut self, gate: &Gate) -> bool {
        let now = clock::now();
        let Some(at) = self.ended.take() else { return false };
        let lanes = gate.lanes();
        let done = gate.inside(&lanes).is_none_or(|_inside| drained(gate, &lanes));
        if !done && now > at.saturating_add(HANDOVER_NS) {
            self.rest.begin(now);
        }
        !done && now > at
    }
}

/// How much of the time that it holds the device the program uses, lately.
#[derive(Default)]
struct Density(Option<f64>);

impl Density {
    /// Below this part, waiting a while for the program to go on costs others nothing: they may use the
    /// device at the same time.
    const SPARSE: f64 = 0.8;
    /// Time over which it is averaged.
    const OVER_NS: f64 = 200e6;

    fn add(&mut self, used: Used) {
        if used.held_ns > 0 {
            let held = used.held_ns as f64;
            let latest = used.alone() as f64 / held;
            let old = self.0.unwrap_or(latest);
            self.0 = Some(old + (latest - old) * held / (held + Self::OVER_NS));
        }
    }

    fn is_sparse(&self) -> bool {
        self.0.is_some_and(|density| density < Self::SPARSE)
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

/// The time from the opening of the gate until all work is done.
struct Tenure {
    gate: &'static Gate,
    lease: Lease,
    usage: Usage,
    /// What has not been told to the account.
    used: Used,
    /// When to ask for the lease to go on.
    renew_at: Option<u64>,
    /// What was done when launches were last measured, and when that was.
    measured: Option<Measured>,
}

/// See [`Tenure::measure`].
#[derive(Clone, Copy)]
struct Measured {
    at: u64,
    launches: u64,
    estimated_ns: u64,
}

impl Tenure {
    /// `left`: work of the lease before is not done.
    fn new(gate: &'static Gate, lease: Lease, left: bool) -> Self {
        let now = clock::now();
        let totals = gate.look(now, |totals| totals);
        let usage = if left { Usage::with_rest(now, totals) } else { Usage::new(now, totals) };
        gate.lanes().iter().for_each(|lane| lane.forget_question());
        let (used, renew_at) = (Used::default(), renewal(now, &lease));
        Self { gate, lease, usage, used, renew_at, measured: None }
    }

    /// Sees how long launches take, while there always is work: `busy`. Not beside others, whose work it may be.
    fn measure(&mut self, now: u64, busy: bool) {
        const LEAST_NS: u64 = 1_000_000;
        let gate = self.gate;
        if gate.stream_gate().is_none() {
            return;
        }
        if !busy || gate.is_shared() {
            self.measured = None;
            return;
        }
        let (launches, estimated_ns) = gate.done_launches();
        let since = *self.measured.get_or_insert(Measured { at: now, launches, estimated_ns });
        let ns = now.saturating_sub(since.at);
        if ns >= LEAST_NS && launches != since.launches {
            let (launched, estimated) = (
                launches.wrapping_sub(since.launches),
                estimated_ns.wrapping_sub(since.estimated_ns),
            );
            gate.launches_took(launched, estimated, ns);
            self.measured = Some(Measured { at: now, launches, estimated_ns });
        }
    }

    fn look(&mut self, now: u64, busy: bool) {
        let gate = self.gate;
        // Nobody else can use the device meanwhile.
        let busy = busy || gate.stall().lasts(|| gate.progress());
        let used = gate.look(now, |totals| self.usage.until(now, totals, busy));
        self.used += used;
    }

    /// The same while what is left is being done. Where no other session uses the device that is all of the
    /// time, whatever the work was taken to need, unless all of it may have been waiting.
    fn look_at_the_rest(&mut self, now: u64, waits: bool) {
        let gate = self.gate;
        let waits = waits && !gate.stall().lasts(|| gate.progress());
        let used = gate.look(now, |totals| self.usage.until(now, totals, !waits));
        self.used += if gate.is_shared() || waits { used } else { Used::busy(used.held_ns) };
    }

    /// Keeps the gate open until the lease ends or the program has stopped using it.
    fn hold(&mut self, account: &mut Account, density: &mut Density, neighbours: &mut Neighbours) {
        let mut before = None;
        let mut idle_since = None;
        loop {
            let now = clock::now();
            if now >= self.lease.end {
                return;
            }
            let next = self.lease.end.min(self.renew_at.unwrap_or(u64::MAX));
            self.sleep(now.saturating_add(self.until_look(now)).min(next));
            let now = clock::now();
            if self.is_stopped() {
                return;
            }
            let lanes = self.gate.lanes();
            lanes.iter().for_each(|lane| lane.release_overdue(now));
            let Some(inside) = self.gate.inside(&lanes) else {
                // A sample is being taken. It is short.
                clock::sleep(DRAIN_POLL_NS);
                continue;
            };
            let activity: u64 = lanes.iter().fold(0, |sum, lane| sum.wrapping_add(lane.activity()));
            let goes_on = before.replace(activity) != Some(activity);
            let queues =
                lanes.iter().filter(|lane| lane.take_busy(self.gate.governors())).count() > 0;
            let shared = self.gate.is_shared();
            let works = goes_on && !shared && lanes.iter().any(|lane| lane.found_work());
            self.look(now, queues || works);
            self.measure(now, queues);
            if goes_on {
                idle_since = None;
                let look = if shared { Lane::forget_looks } else { Lane::ask };
                lanes.iter().for_each(|lane| look(lane));
            } else if drained(self.gate, &lanes) {
                self.usage.drained(self.gate.totals());
                let since = *idle_since.get_or_insert(now);
                // Holding on costs nothing: what is not used is not charged.
                let cheap = self.lease.id.is_none() || self.lease.shared || density.is_sparse();
                let dear = if self.gate.stream_gate().is_some() {
                    SHORTEST_LOOK_NS
                } else {
                    IMPATIENCE_NS
                };
                if now.saturating_sub(since) >= if cheap { PATIENCE_NS } else { dear } {
                    return;
                }
            }
            drop(inside);
            if self.renew_at.is_some_and(|at| now >= at) {
                self.remove_abandoned();
                density.add(self.used);
                tracing::trace!("device {}: {:?}", self.gate.ledger().uuid(), self.used);
                let renewed = account.renew(self.lease, core::mem::take(&mut self.used));
                let goes_on = renewed.end > self.lease.end;
                self.renew_at = if goes_on { renewal(clock::now(), &renewed) } else { None };
                self.lease = renewed;
                self.gate.set_shared(neighbours.note(&renewed));
            }
        }
    }

    /// Whether the daemon has ended the lease early.
    fn is_stopped(&self) -> bool {
        let gate = self.gate.stream_gate();
        self.lease.id.zip(gate).is_some_and(|(lease, gate)| gate.is_stopped(lease))
    }

    /// Sleeps until a moment, or until the lease is ended early. While threads wait for what others have taken of the budget, sees to it that what is
    /// done is given back.
    fn sleep(&self, until: u64) {
        let gate = self.gate;
        if let Some(stream_gate) = gate.stream_gate() {
            let rings = stream_gate.rings();
            if !self.is_stopped() {
                stream_gate.sleep(rings, until.saturating_sub(clock::now()).max(1));
            }
            return;
        }
        loop {
            gate.budget().sleep_unless_wanted(until.saturating_sub(clock::now()).max(1));
            let left = until.saturating_sub(clock::now());
            if left == 0 {
                return;
            }
            if gate.budget().is_wanted() {
                clock::sleep(left.min(BUDGET_NS));
                self.give_back_unneeded();
            }
        }
    }

    /// How long to wait for the next look. Where that needs no driver, a short lease is looked at a few times.
    fn until_look(&self, now: u64) -> u64 {
        let usual = until_look(now);
        let short = self.lease.end.saturating_sub(now) / LOOKS_OF_SHORT;
        if self.gate.stream_gate().is_some() {
            usual.min(short.max(SHORTEST_LOOK_NS))
        } else {
            usual
        }
    }

    /// What lanes have taken of the budget and do not need is given back.
    fn give_back_unneeded(&self) {
        let gate = self.gate;
        let lanes = gate.lanes();
        let Some(_inside) = gate.inside(&lanes) else { return };
        let Some(_pin) = gate.governors().try_enter() else { return };
        lanes.iter().for_each(|lane| lane.give_back_unneeded(gate));
    }

    /// Waits until the work launched under the lease is done.
    ///
    /// Work may wait for work that its program is about to launch (a stream that waits for a value, a
    /// kernel that waits for another): where nothing gets done while a thread waits at the gate, the gate is
    /// opened for a moment. The time goes on being charged.
    fn drain(&mut self, account: &mut Account, handover: &mut Handover) {
        let gate = self.gate;
        self.look(clock::now(), false);
        let mut done_before = 0;
        let mut since = clock::now();
        let begun = since;
        let under_way: Vec<_> = gate
            .lanes()
            .into_iter()
            .filter(|lane| !lane.may_wait())
            .map(|lane| (lane.under_way(), lane.totals().outstanding_ns, lane))
            .filter(|(launches, ..)| *launches > 0)
            .collect();
        let mut told = since;
        let mut patience = if handover.dependent { STUCK_AGAIN_NS } else { STUCK_NS };
        let mut done_at = None;
        let mut was_stuck = false;
        let mut was_launching = true;
        // Since the last look. Nobody sees for how much of the time.
        let mut waited = false;
        loop {
            // A thread that was on its way when the gate closed may have made a lane since: look each
            // time.
            let lanes = gate.lanes();
            if gate.inside(&lanes).is_some_and(|_inside| drained(gate, &lanes)) {
                break;
            }
            waited |= only_waits(&lanes);
            clock::sleep(DRAIN_POLL_NS);
            let now = clock::now();
            lanes.iter().for_each(|lane| lane.release_overdue(now));
            if was_launching && !lanes.iter().any(|lane| lane.is_launching()) {
                // Until now there may have been nothing to be done.
                was_launching = false;
                self.look(now, false);
            }
            let done = progress(&lanes);
            if !was_stuck && gate.is_wanted() {
                patience = self.patience(patience, &lanes);
            }
            if done != done_before {
                done_before = done;
                since = now;
                let may_guess = self.lease.id.is_some() && handover.rest.is_over(now);
                done_at = if may_guess { expected_end(now, &lanes) } else { None };
            } else if now.saturating_sub(since) > patience && gate.is_wanted() {
                was_stuck = true;
                tracing::debug!(
                    "device {}: work stands still at a closed gate: {lanes:?}",
                    gate.ledger().uuid()
                );
                handover.dependent = self.glimpse(done);
                since = clock::now();
                // Longer each time, so that it outgrows kernels that only take long.
                patience =
                    if handover.dependent { STUCK_AGAIN_NS } else { patience.saturating_mul(2) };
            }
            let soon = |at: &u64| (*at..*at + HANDOVER_NS).contains(&(now + HANDOVER_NS));
            // Whoever holds a stream back has to be looked after.
            if let Some(at) = done_at.filter(soon)
                && !lanes.iter().any(|lane| lane.holds_back())
            {
                handover.ended = Some(at);
                // What is left is paid for now.
                self.used += Used::busy(at.saturating_sub(now));
                break;
            }
            if now.saturating_sub(told) > TELL_NS {
                told = now;
                self.look_at_the_rest(now, core::mem::take(&mut waited));
                account.still_draining(self.lease, core::mem::take(&mut self.used));
            }
        }
        let now = clock::now();
        // Work that waited for its program tells nothing of how long it takes.
        for (launches, expected_ns, lane) in under_way.into_iter().filter(|_| !was_stuck) {
            lane.took(launches, expected_ns, now.saturating_sub(begun));
        }
        self.look_at_the_rest(now, waited);
        self.give_back_unneeded();
        self.remove_abandoned();
    }

    /// How long work may stand still: not long, if it may wait for more and has done so lately.
    fn patience(&self, usual: u64, lanes: &[Arc<Lane>]) -> u64 {
        if !lanes.iter().any(|lane| lane.has_unfinished_waits()) {
            return usual;
        }
        let outstanding = lanes.iter().map(|lane| lane.totals().outstanding_ns);
        let outstanding = outstanding.fold(0, u64::saturating_add);
        self.gate.stall().patience(clock::now(), usual, outstanding)
    }

    /// Opens the gate until more has been done than before, or for a moment; tells which. Launches into streams that
    /// wait make the moment longer.
    fn glimpse(&self, before: u64) -> bool {
        let gate = self.gate;
        let begun = clock::now();
        let mut until = begun.saturating_add(GLIMPSE_NS);
        let mut launched = launches_into_waiting(&gate.lanes());
        gate.stall().begin(before, begun);
        let _ = gate.open(None);
        let helped = loop {
            clock::sleep(DRAIN_POLL_NS);
            let now = clock::now();
            let lanes = gate.lanes();
            lanes.iter().for_each(|lane| lane.release_overdue(now));
            let all = gate.inside(&lanes).is_some_and(|_inside| drained(gate, &lanes));
            if all || progress(&lanes) != before {
                break true;
            }
            let goes_on = launches_into_waiting(&lanes);
            if goes_on != launched {
                launched = goes_on;
                until = (now + GLIMPSE_NS).min(begun + LONGEST_GLIMPSE_NS);
            }
            if now >= until {
                break false;
            }
        };
        gate.close();
        helped
    }

    /// Gives back the events of lanes whose threads have ended and whose work is done.
    fn remove_abandoned(&self) {
        let gate = self.gate;
        let lanes = gate.lanes();
        let gone: Vec<_> = lanes.iter().filter(|lane| lane.is_abandoned()).collect();
        let Some(_inside) = gate.inside(&lanes) else { return };
        let governors = gate.governors();
        let Some(_pin) = governors.try_enter().filter(|_| !gone.is_empty()) else { return };
        for lane in gone.iter().filter(|lane| lane.is_drained(gate)) {
            gate.retire(lane);
            lane.destroy_events();
        }
    }
}

/// When to ask for more of a lease: so early that the answer comes before its end, if there is the time.
fn renewal(now: u64, lease: &Lease) -> Option<u64> {
    let early = (lease.end.saturating_sub(now) / 4).min(RENEW_BEFORE_NS);
    (early >= LEAST_BEFORE_NS).then_some(lease.end - early)
}

/// How long to wait for the next look.
fn until_look(now: u64) -> u64 {
    let mixed = now.wrapping_mul(SPREAD) >> 32;
    LEAST_LOOK_NS + mixed * LOOK_SPREAD_NS / (1 << 32)
}

/// When everything launched will be done, if something has just been seen to be done; `None`: not known,
/// or not soon.
fn expected_end(now: u64, lanes: &[Arc<Lane>]) -> Option<u64> {
    const SOON_NS: u64 = 5_000_000;
    let mut left_ns = 0_u64;
    for lane in lanes {
        let totals = lane.totals();
        if totals.unknown || lane.may_wait() {
            return None;
        }
        left_ns = left_ns.saturating_add(totals.outstanding_ns);
    }
    (left_ns < SOON_NS).then_some(now + left_ns)
}

/// Whether there is work that may wait for something outside of the device, and no other.
fn only_waits(lanes: &[Arc<Lane>]) -> bool {
    let waits = |lane: &Arc<Lane>| lane.may_wait();
    lanes.iter().any(waits) && !lanes.iter().any(|lane| !waits(lane) && lane.under_way() > 0)
}

/// A number that changes whenever something is launched into a stream with unfinished waits.
fn launches_into_waiting(lanes: &[Arc<Lane>]) -> u64 {
    let waiting = lanes.iter().filter(|lane| lane.has_unfinished_waits());
    waiting.fold(0, |sum: u64, lane| sum.wrapping_add(lane.activity()))
}

/// A number that changes whenever something is seen to be done.
fn progress(lanes: &[Arc<Lane>]) -> u64 {
    lanes.iter().fold(0, |sum: u64, lane| sum.wrapping_add(lane.progress()))
}

fn drained(gate: &Gate, lanes: &[Arc<Lane>]) -> bool {
    let _pin = gate.governors().enter();
    // Each is asked, so that each one's progress is seen.
    lanes.iter().filter(|lane| !lane.is_drained(gate)).count() == 0
}
