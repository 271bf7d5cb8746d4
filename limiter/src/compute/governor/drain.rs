//! Drain: waiting after a lease's end until everything launched is done.

use super::super::account::Account;
use super::super::clock;
use super::super::gate::Gate;
use super::super::lanes::LaneList;
use super::super::together::{CATCH_UP_NS, Set};
use super::POLL_NS;
use super::tenure::Tenure;
use limiter_core::{Rest, Used};

/// How often the use by work that still runs is reported to the account.
const TELL_NS: u64 = 10_000_000;
/// How long work may stand still while a thread waits at the gate, before it is assumed to wait for that thread.
const STUCK_NS: u64 = 1_000_000_000;
/// [`STUCK_NS`] for work that was recently found to wait for its program.
const STUCK_AGAIN_NS: u64 = 50_000_000;
/// How long the gate is then opened.
const GLIMPSE_NS: u64 = 5_000_000;
/// The longest time for which the gate is then opened, while the program continues to launch into waiting streams.
const LONGEST_GLIMPSE_NS: u64 = 100_000_000;
/// How long other devices are called to launch what this device's work waits for. A governor that asks the daemon
/// checks every 15 ms.
const CALL_NS: u64 = 20_000_000;
/// How long before the work will be done the daemon is told that the lease is over: the next holder's first launch
/// takes at least as long to arrive.
const HANDOVER_NS: u64 = 300_000;
/// [`HANDOVER_NS`] between gates in streams: the time until the next gate is open. The device continues the running
/// work until it is done, or until the end of its time slice (2 ms).
const STREAM_HANDOVER_NS: u64 = 120_000;
/// If work between gates in streams ends this much later than expected, it was not the expected work.
const LATE_NS: u64 = 500_000;

/// What the end of one lease teaches for the next ones. Leases are given up when the last work is expected to be almost
/// done.
pub(super) struct Handover {
    /// Whether work was last seen to wait for its program's next launches.
    dependent: bool,
    /// When the last lease's work should have been done (ns).
    ended: Option<u64>,
    /// No lease is given up early during this rest, which follows one that was given up far too early.
    rest: Rest,
}

impl Default for Handover {
    fn default() -> Self {
        Self { dependent: false, ended: None, rest: Rest::none() }
    }
}

impl Handover {
    /// Checks once whether the last lease's work is still not done although it should be. Then it was not the expected
    /// work, and no lease is given up early for a while.
    pub(super) fn check_for_left_work(&mut self, gate: &Gate) -> bool {
        let now = clock::now();
        let Some(at) = self.ended.take() else { return false };
        let lanes = gate.lanes();
        let done = gate.inside(&lanes).is_none_or(|_inside| lanes.are_drained(gate));
        if !done && now > at.saturating_add(HANDOVER_NS) {
            self.rest.begin(now);
        }
        !done && now > at
    }
}

/// The state of a drain.
#[derive(Default)]
struct Ending {
    /// When the gate was closed (ns).
    begun: u64,
    /// The progress when work was last seen to be done, and since when it has not changed.
    done: u64,
    since: u64,
    /// When devices that are used together had last begun different numbers of collectives (ns).
    uneven_at: u64,
    /// How long work may stand still (ns).
    patience: u64,
    was_stuck: bool,
    /// When all work should be done (ns); `None`: unknown.
    done_at: Option<u64>,
    /// The `done_at` with which the daemon was told that the lease is over.
    told_early: Option<u64>,
    /// When the account was last told, and whether all of the work may only have waited at some moment since then.
    /// Nobody sees for how much of the time.
    told: u64,
    waited: bool,
    /// When other devices were last called, and by which call.
    called: u64,
    call: u64,
}

impl Tenure {
    /// Waits until the work launched under the lease is done.
    ///
    /// Work may wait for work that its program is about to launch (a stream that waits for a value, a kernel that waits
    /// for another). So if nothing progresses while a thread waits at the gate, the gate is opened for a moment. That
    /// time is charged too.
    ///
    /// Work may also wait for work that is held in another stream, and its mark may be queued behind that. So while
    /// work is held, a lease ends by the clock.
    pub(super) fn drain(&mut self, account: &mut Account, handover: &mut Handover) {
        let gate = self.gate;
        let lanes = gate.lanes();
        let begun = clock::now();
        let busy_since = gate.inside(&lanes).and_then(|_inside| self.busy_since(&lanes));
        self.measure(begun, busy_since);
        self.look(begun, busy_since);
        let expected_ns = lanes.expected_ns();
        let mut end = Ending {
            begun,
            since: begun,
            told: begun,
            patience: if handover.dependent { STUCK_AGAIN_NS } else { STUCK_NS },
            ..Ending::default()
        };
        let mut was_launching = true;
        let mut unfinished_at = begun;
        let is_drained = loop {
            // A thread that was on its way when the gate closed may have made a lane since.
            let lanes = gate.lanes();
            // First, because it may close the gate, and work that passed before has to be seen below.
            let goes_on = self.catches_up(begun) || self.others_may_begin(begun);
            if is_all_done(gate, &lanes) && !goes_on {
                break true;
            }
            // Without a limit the program launches freely, and marks are queued behind those launches.
            if !gate.is_active() {
                break false;
            }
            unfinished_at = clock::now();
            end.waited |= lanes.only_wait();
            clock::sleep(POLL_NS);
            let now = clock::now();
            lanes.release_overdue(now);
            if was_launching && !lanes.are_launching() {
                // Until now the device may have had nothing to do.
                was_launching = false;
                self.look(now, None);
            }
            let is_over = self.stands_still(now, &lanes, &mut end, handover)
                || self.is_about_to_end(now, goes_on, &lanes, &mut end, handover);
            if is_over {
                break false;
            }
            if now.saturating_sub(end.told) > TELL_NS {
                end.told = now;
                self.look_at_the_rest(now, core::mem::take(&mut end.waited));
                account.still_draining(self.holding.lease, self.holding.take_used());
            }
        };
        self.tell_end_of_drain(&end, handover);
        // Work that waited for its program says nothing about durations.
        if let Some(expected_ns) = expected_ns.filter(|_| !end.was_stuck && !gate.is_shared()) {
            gate.took_at_least(expected_ns, clock::now().saturating_sub(begun));
        }
        self.charge_the_rest(&end, is_drained, unfinished_at);
        self.give_back_unneeded();
        self.remove_abandoned();
    }

    /// Charges the time since the account was last told. `unfinished_at`: when work was last seen not to be done.
    fn charge_the_rest(&mut self, end: &Ending, is_drained: bool, unfinished_at: u64) {
        let (gate, now) = (self.gate, clock::now());
        tracing::trace!(
            "device {}: drained at {now}, {} us after the close, not {} us before",
            gate.ledger().uuid(),
            now.saturating_sub(end.begun) / 1_000,
            now.saturating_sub(unfinished_at) / 1_000
        );
        if is_drained {
            // At some time between the last two checks, which may be far apart on a busy machine.
            let done_at = unfinished_at.midpoint(now);
            self.measure(done_at, (!end.waited && !end.was_stuck).then_some(0));
            self.look_at_the_rest(done_at, end.waited);
            self.holding.usage.drained(gate.device_lanes.totals());
            self.look(now, None);
        } else {
            self.look_at_the_rest(now, end.waited);
        }
    }

    /// Sees what is done. Where nothing is for long, others are called to launch what it may wait for, or the gate is
    /// opened for a moment. Returns whether the lease is over: what has begun waits for what is held.
    fn stands_still(
        &mut self,
        now: u64,
        lanes: &LaneList,
        end: &mut Ending,
        handover: &mut Handover,
    ) -> bool {
        let gate = self.gate;
        let done = lanes.progress();
        if !end.was_stuck && gate.is_wanted() {
            end.patience = self.patience(end.patience, lanes);
        }
        if done != end.done {
            (end.done, end.since) = (done, now);
            end.done_at = self.expected_end(now, lanes, handover);
            return false;
        }
        let still_ns = now.saturating_sub(end.since);
        if self.is_uneven(end.begun) {
            end.uneven_at = now;
        }
        // A collective that the last device has just begun goes on from here.
        let even_ns = now.saturating_sub(end.since.max(end.uneven_at));
        if waits_for_held_work(gate, lanes, even_ns) {
            return true;
        }
        let called = end.called.max(end.since);
        let is_late = |set: &&Set| now.saturating_sub(called) > set.patience();
        if let Some(set) = gate.collectives.set().filter(is_late) {
            end.called = now;
            end.call = set.call_others(now.saturating_add(CALL_NS));
        } else if still_ns > end.patience && gate.is_wanted() {
            end.was_stuck = true;
            let uuid = gate.ledger().uuid();
            tracing::debug!("device {uuid}: work stands still at a closed gate: {lanes:?}");
            handover.dependent = self.glimpse(done);
            end.since = clock::now();
            // Longer each time, so that it outgrows kernels that merely take long.
            let longer = end.patience.saturating_mul(2);
            end.patience = if handover.dependent { STUCK_AGAIN_NS } else { longer };
        }
        false
    }

    /// When everything launched will be done, if progress has just been seen; `None`: unknown, or not soon.
    fn expected_end(&mut self, now: u64, lanes: &LaneList, handover: &Handover) -> Option<u64> {
        const SOON_NS: u64 = 5_000_000;
        let gate = self.gate;
        if self.holding.lease.id.is_none() || !handover.rest.is_over(now) {
            return None;
        }
        if gate.stream_gate().is_none() {
            let left_ns = lanes.expected_ns().filter(|&left_ns| left_ns < SOON_NS);
            return left_ns.map(|left_ns| now + left_ns);
        }
        if lanes.may_wait() {
            return None;
        }
        // The running batch began when the previous one was done.
        lanes.begun_takes_ns(gate).map(|ns| self.see_progress(now).1.saturating_add(ns))
    }

    /// Whether all is about to be done, and the lease is over for that: by a word, after which the governor goes on to
    /// see how long it takes, or by itself.
    fn is_about_to_end(
        &mut self,
        now: u64,
        goes_on: bool,
        lanes: &LaneList,
        end: &mut Ending,
        handover: &mut Handover,
    ) -> bool {
        let in_stream = self.gate.stream_gate();
        let early_ns = if in_stream.is_some() { STREAM_HANDOVER_NS } else { HANDOVER_NS };
        let soon = |at: &u64| (*at..*at + early_ns).contains(&(now + early_ns));
        // The governor has to release held streams, so it must not leave.
        let ends = end.done_at.filter(soon).filter(|_| !goes_on && !lanes.hold_back());
        let Some(at) = ends else { return false };
        let Some((stream_gate, lease)) = in_stream.zip(self.holding.lease.id) else {
            handover.ended = Some(at);
            // Charge the rest of the work now.
            self.holding.used += Used::busy(at.saturating_sub(now));
            return true;
        };
        if end.told_early.is_none() {
            stream_gate.block().end(lease);
            end.told_early = Some(at);
        }
        false
    }

    /// Closes the gate if it was opened meanwhile, and tells the daemon and the other devices that the lease is over.
    fn tell_end_of_drain(&self, end: &Ending, handover: &Handover) {
        let gate = self.gate;
        // Opened to catch up, and left open because the limit was removed and set again.
        if gate.lease().is_some() {
            gate.close();
        }
        if let Some(set) = gate.collectives.known_set() {
            set.ends(gate.lanes().iter().any(|lane| lane.is_in_collective()), end.call);
        }
        let now = clock::now();
        match (end.told_early, gate.stream_gate().zip(self.holding.lease.id)) {
            (Some(at), _) if now.saturating_sub(at) > LATE_NS => handover.rest.begin(now),
            (None, Some((stream_gate, lease))) => stream_gate.block().end(lease),
            _ => {}
        }
    }

    /// Whether the gate was opened to catch up, and has been closed, or may be.
    pub(super) fn has_caught_up(&self) -> bool {
        let own = &self.gate.collectives;
        let have_streams = || self.gate.stream_gate().is_some() && own.streams_have_caught_up();
        own.catch_up() && (self.gate.lease().is_none() || have_streams())
    }

    /// Whether, after the end of the lease at `since`, other devices may begin collectives that this device also has to
    /// begin. Once those begin no more, they see the collectives of this device.
    fn others_may_begin(&self, since: u64) -> bool {
        let (gate, now) = (self.gate, clock::now());
        let Some(closed_at) = gate.stream_closed_at() else { return false };
        let Some(set) = gate.collectives.set() else { return false };
        if now.saturating_sub(since) >= CATCH_UP_NS {
            return false;
        }
        // A stream may have passed the gate at the last moment without having written that yet.
        if now.saturating_sub(closed_at) < POLL_NS || gate.lanes().are_launching() {
            return true;
        }
        gate.tell_closed();
        set.others_are_open()
    }

    /// Whether the work that has begun may wait for other devices that have yet to begin it.
    fn is_uneven(&self, since: u64) -> bool {
        let in_time = clock::now().saturating_sub(since) < CATCH_UP_NS;
        let uneven = |set: &Set| set.others_are_open() || !set.is_even();
        in_time && self.gate.collectives.set().is_some_and(uneven)
    }

    /// Keeps the gate open after the end of the lease at `since`, while other devices have launched collectives that
    /// this device's program has yet to launch; otherwise those would not finish.
    fn catches_up(&self, since: u64) -> bool {
        let gate = self.gate;
        let in_time = clock::now().saturating_sub(since) < CATCH_UP_NS;
        gate.tell_collectives();
        let behind = in_time && gate.collectives.are_behind();
        if behind && gate.lease().is_none() {
            gate.tell_open(since.saturating_add(CATCH_UP_NS));
            // Even if the daemon has ended the lease early.
            let _ = gate.open_to_catch_up(None);
        } else if !behind && gate.collectives.catch_up() {
            gate.close();
        }
        behind
    }

    /// How long work may stand still (ns): if it may wait for further launches, as long as a launch waits at an open
    /// gate; only briefly if it recently did so, or if it may wait for held work.
    fn patience(&self, usual: u64, lanes: &LaneList) -> u64 {
        let usual = if self.unknown_may_wait(lanes) { usual.min(GLIMPSE_NS) } else { usual };
        if !lanes.iter().any(|lane| lane.has_unfinished_waits()) {
            return usual;
        }
        let usual = usual.min(self.gate.budget.patience());
        let outstanding = lanes.iter().map(|lane| lane.totals().outstanding_ns);
        let outstanding = outstanding.fold(0, u64::saturating_add);
        self.gate.seen.stall.patience(clock::now(), usual, outstanding)
    }

    /// Whether work of unknown duration is under way that the driver may have queued behind held work. When it will be
    /// done is unknown. Work of devices that are used together rather waits for another device.
    fn unknown_may_wait(&self, lanes: &LaneList) -> bool {
        self.gate.collectives.set().is_none()
            && lanes.begun_takes_ns(self.gate).is_none()
            && self.gate.holds_work()
    }

    /// Opens the gate until there is progress, for at most a moment; returns whether there was any. The moment is
    /// longer while the program launches into waiting streams, and for work of unknown duration that may wait for held
    /// work.
    fn glimpse(&self, before: u64) -> bool {
        let gate = self.gate;
        let begun = clock::now();
        let mut until = begun.saturating_add(GLIMPSE_NS);
        let lanes = gate.lanes();
        let mut launched = lanes.launches_into_waiting();
        let for_unknown = self.unknown_may_wait(&lanes);
        if for_unknown {
            until = begun.saturating_add(LONGEST_GLIMPSE_NS);
        }
        gate.seen.stall.begin(before, begun);
        gate.tell_open(until);
        let _ = gate.open(None);
        let helped = loop {
            clock::sleep(POLL_NS);
            let now = clock::now();
            let lanes = gate.lanes();
            lanes.release_overdue(now);
            let all = gate.inside(&lanes).is_some_and(|_inside| lanes.are_drained(gate));
            let goes_on = lanes.progress() != before;
            if all || goes_on && !(for_unknown && lanes.begun_takes_ns(gate).is_none()) {
                break true;
            }
            let launches = lanes.launches_into_waiting();
            if launches != launched {
                launched = launches;
                until = until.max(now + GLIMPSE_NS).min(begun + LONGEST_GLIMPSE_NS);
            }
            if now >= until {
                break goes_on;
            }
        };
        gate.close();
        helped
    }
}

/// Whether all work that has passed the gate is known to be done.
fn is_all_done(gate: &Gate, lanes: &LaneList) -> bool {
    match gate.inside(lanes) {
        Some(_inside) => lanes.are_drained(gate),
        None => {
            gate.stream_closed_at().is_some()
                && lanes
                    .iter()
                    .all(|lane| !lane.sampling.hold.is_under_way() && lane.is_seen_drained(gate))
        }
    }
}

/// Whether the work that has begun should have been done, after `still_ns` without progress. Then it waits for work
/// that is held in another stream, and needs no time until the gate opens again.
fn waits_for_held_work(gate: &Gate, lanes: &LaneList, still_ns: u64) -> bool {
    // Devices that are held together wait for each other all the time.
    let least_ns = if gate.collectives.set().is_some() { 600_000 } else { 20_000_000 };
    let lasts = |ns: u64| ns.saturating_mul(2).max(least_ns);
    lanes.may_await_held(gate) && lanes.begun_takes_ns(gate).is_some_and(|ns| still_ns > lasts(ns))
}
