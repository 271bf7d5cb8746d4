//! The gate of a device in this process.

use super::budget::Budget;
use super::daemon::Source;
use super::demand::Demand;
use super::governor;
use super::in_driver::InDriver;
use super::lane::{Order, Turnstile};
use super::lanes::{DeviceLanes, LaneList};
use super::stream_gate::StreamGate;
use super::together::Collectives;
use crate::exit_guard::{ExitGuard, Visits};
use crate::ledger::DeviceLedger;
use config::Gates;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use crossbeam::utils::CachePadded;
use limiter_core::tuning::{LEAST_OUTSTANDING_NS, LONGEST_LOOK_NS};
use limiter_core::{LaunchTimes, Stall, Totals};
use rustix::thread::futex;
use session::layout::MemberSlot;
use std::sync::{Arc, OnceLock};

/// Open or closed, and the lanes that lead through it.
pub(crate) struct Gate {
    /// Alone in its cache line: every launch reads it.
    /// Odd: open. Each opening and closing adds one, so that a value stands for one lease.
    word: CachePadded<AtomicU32>,
    pub(super) of: Owners,
    /// Who wants it to be open.
    pub(super) demand: Demand,
    pub(super) limits: Limits,
    pub(super) life: Life,
    /// Whether the governor is in the driver.
    pub(super) in_driver: InDriver,
    streams: Streams,
    pub(super) tenure: Tenure,
    /// What the device is held together with.
    pub(super) collectives: Collectives,
    /// What all lanes together may have outstanding.
    pub(super) budget: Budget,
    pub(super) seen: Seen,
    /// The lanes, to be changed, or looked at without a copy.
    pub(super) device_lanes: DeviceLanes,
}

/// Whom it belongs to.
pub(super) struct Owners {
    /// The session's account of the device.
    ledger: &'static DeviceLedger,
    pub(super) guard: &'static ExitGuard,
    /// Where leases come from, if not from the session's own account.
    pub(super) daemon: Option<Source>,
}

/// The session's limits.
pub(super) struct Limits {
    /// Whether the device's time is limited at all.
    active: AtomicBool,
    /// Whether others are preferred.
    pub(super) low: AtomicBool,
    /// Whether a thread follows them.
    pub(super) followed: AtomicBool,
}

/// Who opens and closes it.
#[derive(Default)]
pub(super) struct Life {
    pub(super) governed: AtomicBool,
    /// The limit cannot be enforced and need not be: nothing closes any more.
    pub(super) stands_open: AtomicBool,
    /// The program is ending: the governor does nothing more, and each launch obtains its own lease.
    unattended: AtomicBool,
    /// A thread does so.
    pub(super) launches_unattended: AtomicBool,
    /// The account cannot be used any more: nobody passes.
    failed: AtomicBool,
}

/// The gate as streams see it.
struct Streams {
    /// Where work waits.
    gates: Gates,
    /// Made when the first lane is.
    gate: OnceLock<Option<StreamGate>>,
    /// No stream waits for it any more, nor will.
    left: AtomicBool,
}

/// The present lease, or the last one.
#[derive(Default)]
pub(super) struct Tenure {
    /// Whether another session may be using the device at the same time.
    pub(super) shared: AtomicBool,
    /// When it is to end, as far as is known.
    pub(super) end: AtomicU64,
    /// For how long the gate is open under it.
    pub(super) length: AtomicU64,
}

/// What was seen of the work lately.
#[derive(Default)]
pub(super) struct Seen {
    /// How long launches took.
    pub(super) launch_times: LaunchTimes,
    /// Whether streams wait for what the program does next.
    pub(super) stall: Stall,
}

/// Why there is no time to be had.
pub(crate) enum NoLease {
    /// The thread that opens gates cannot be started.
    Governor(std::io::Error),
    /// The session's account cannot be used any more; why has been said.
    Account,
}

const fn is_open(word: u32) -> bool {
    word & 1 == 1
}

impl Gate {
    /// A closed gate; `active`: whether anybody has to pass it.
    pub(crate) fn new(
        ledger: &'static DeviceLedger,
        guard: &'static ExitGuard,
        daemon: Option<Source>,
        gates: Gates,
        active: bool,
    ) -> Self {
        let [low, followed] = [false; 2].map(AtomicBool::new);
        Self {
            word: CachePadded::new(AtomicU32::new(0)),
            of: Owners { ledger, guard, daemon },
            demand: Demand::default(),
            limits: Limits { active: AtomicBool::new(active), low, followed },
            life: Life::default(),
            in_driver: InDriver::default(),
            streams: Streams { gates, gate: OnceLock::new(), left: AtomicBool::new(false) },
            tenure: Tenure::default(),
            collectives: Collectives::default(),
            budget: Budget::default(),
            seen: Seen::default(),
            device_lanes: DeviceLanes::default(),
        }
    }

    /// The session's account of the device.
    pub(super) const fn ledger(&self) -> &'static DeviceLedger {
        self.of.ledger
    }

    /// The governors' visits to the driver.
    pub(super) const fn governors(&self) -> &'static Visits {
        &self.of.guard.governors
    }

    /// The gate as streams see it, where any does.
    pub(super) fn stream_gate(&self) -> Option<&StreamGate> {
        self.streams.gate.get()?.as_ref().filter(|_| !self.streams.left.load(Ordering::Relaxed))
    }

    /// Where no stream may be held any more, and none is, the gate is one for threads: its turns are longer, and it is
    /// handed over by messages. To be called by the governor, between leases.
    pub(super) fn leave_streams(&self) {
        let in_stream = || self.lanes().iter().any(|lane| lane.is_in_stream());
        if let Some(gate) =
            self.stream_gate().filter(|_| self.device_lanes.are_crowded() && !in_stream())
        {
            // For a lane that is being made.
            gate.leave_open();
            self.streams.left.store(true, Ordering::Relaxed);
        }
    }

    /// The same, for one more lane of a stream, and whose batch is open there; `None`: its gate is on the thread.
    pub(super) fn stream_gate_for(
        &self,
        stream: usize,
        context: usize,
        order: Order,
    ) -> Option<(&StreamGate, Arc<Turnstile>)> {
        if !self.is_for_streams() {
            return None;
        }
        let turnstile = self.device_lanes.turnstile_for(stream, context, order)?;
        let make = || {
            let made = StreamGate::of(self.of.ledger.uuid())?;
            // The governor opens and closes it from now on.
            if self.lease().is_some() {
                made.open(None);
            }
            Some(made)
        };
        let gate = self.streams.gate.get_or_init(make).as_ref()?;
        Some((gate, turnstile))
    }

    /// What was estimated at so much was not done for so long. Work that may wait for other devices tells nothing by that.
    pub(super) fn took_at_least(&self, estimated_ns: u64, ns: u64) {
        if self.collectives.set().is_none() {
            self.seen.launch_times.took_at_least(estimated_ns, ns);
        }
    }

    /// The same of each; zero: not known.
    pub(super) fn launch_ns(&self) -> u64 {
        self.seen.launch_times.each_ns()
    }

    /// How much may be outstanding, in estimated time. Who waits for the device must not wait for long queues: beside
    /// other sessions it is little.
    pub(super) fn room_ns(&self, now: u64) -> u64 {
        if self.is_shared() {
            return LEAST_OUTSTANDING_NS;
        }
        let left = self.tenure.end.load(Ordering::Relaxed).saturating_sub(now);
        self.seen.launch_times.estimated(limiter_core::room_ns(left))
    }

    /// Since when streams are held; `None`: they are not.
    pub(super) fn stream_closed_at(&self) -> Option<u64> {
        self.stream_gate().and_then(StreamGate::closed_at)
    }

    /// Whether work is held in a stream.
    pub(super) fn holds_work(&self) -> bool {
        self.stream_closed_at().is_some() && self.lanes().iter().any(|lane| lane.is_held(self))
    }

    /// Whether the device's time is limited.
    pub(crate) fn is_active(&self) -> bool {
        self.limits.active.load(Ordering::SeqCst)
    }

    /// The estimated time of what is queued in streams and is not done.
    pub(super) fn queued_ns(&self) -> u64 {
        self.device_lanes.ahead().ns(self.launch_ns())
    }

    /// The device's time has come to be limited, or is no more: then whoever waits passes. `false`: it was
    /// so before.
    ///
    /// The governor ends a lease under way at its next look, and then sleeps until the device's time is limited again.
    pub(super) fn set_active(&self, active: bool) -> bool {
        if self.limits.active.swap(active, Ordering::SeqCst) == active {
            return false;
        }
        if !active {
            // What is queued goes on, too, and so does what is launched behind it.
            if let Some(gate) = self.stream_gate() {
                gate.open(None);
            }
            // No shortcut leads into a lane any more.
            self.wake_all();
        } else if let Some(gate) = self.stream_gate().filter(|_| self.lease().is_none()) {
            gate.close();
            // The governor may have opened meanwhile, and not have seen that.
            if self.lease().is_some() {
                gate.open(None);
            }
        }
        true
    }

    /// Whether another session may be using the device at the same time.
    pub(super) fn is_shared(&self) -> bool {
        self.tenure.shared.load(Ordering::Relaxed)
    }

    /// The lease under way, `None` while closed.
    pub(super) fn lease(&self) -> Option<u32> {
        // After the calling thread has said that it launches ([`Lane::launch_begins`]).
        let word = self.word.load(Ordering::SeqCst);
        is_open(word).then_some(word)
    }

    /// The number of the present opening or closing.
    pub(super) fn number(&self) -> u32 {
        self.word.load(Ordering::SeqCst)
    }

    /// Whether `lease` is under way.
    #[inline]
    pub(super) fn admits(&self, lease: u32) -> bool {
        self.word.load(Ordering::Acquire) == lease
    }

    /// Opens for a lease of the daemon's, or one of the own account. `false`: it has ended already.
    pub(super) fn open(&self, lease: Option<u64>) -> bool {
        if self.stream_gate().is_some_and(|gate| !gate.open(lease)) {
            return false;
        }
        self.word.fetch_or(1, Ordering::SeqCst);
        // Closed meanwhile by limits that came into force.
        let closed = |gate: &&StreamGate| gate.closed_at().is_some();
        if self.stream_gate().filter(closed).is_some_and(|gate| !gate.open(lease)) {
            self.shut();
            return false;
        }
        if self.is_unattended() {
            self.shut();
        }
        let _ = futex::wake(&self.word, futex::Flags::PRIVATE, i32::MAX as u32);
        true
    }

    /// Makes the word even: threads wait. The governor and another thread may do so at the same time.
    pub(super) fn shut(&self) {
        let _ = self.word.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |word| {
            is_open(word).then(|| word.wrapping_add(1))
        });
    }

    pub(super) fn close(&self) {
        self.shut();
        self.collectives.closed();
        if let Some(gate) = self.stream_gate() {
            gate.close();
            // What is queued there is let through, and nobody closes behind it.
            if !self.is_active() || self.is_unattended() {
                gate.open(None);
            }
        }
        if self.life.stands_open.load(Ordering::SeqCst) {
            self.open(None);
        }
    }

    /// The governor has asked for a lease and got none. If its gate was opened all the same, it is closed.
    pub(super) fn withdraw(&self) {
        if self.stream_gate().is_some_and(|gate| gate.block().withdraw()) {
            self.close();
        }
    }

    /// The process is ending: destructors that launch work must not wait at a gate that nobody will open. And
    /// nobody will let a stream go that is held back.
    pub(crate) fn leave_unattended(&self) {
        self.life.unattended.store(true, Ordering::SeqCst);
        if !self.life.stands_open.load(Ordering::SeqCst) {
            self.shut();
        }
        // What is queued in streams is let through: the program may wait for it.
        if let Some(gate) = self.stream_gate() {
            gate.leave_open();
        }
        self.wake_all();
        for lane in self.lanes().iter() {
            let _ = lane.sampling.hold.let_go();
        }
    }

    /// Whether each launch has to obtain its own lease.
    pub(super) fn is_unattended(&self) -> bool {
        self.life.unattended.load(Ordering::SeqCst) && !self.life.stands_open.load(Ordering::SeqCst)
    }

    /// There will be no lease again: whoever waits passes, as the gate opens for good, or is turned away.
    pub(super) fn fail(&self, open: bool) {
        if open {
            self.life.stands_open.store(true, Ordering::SeqCst);
            self.open(None);
        } else {
            self.life.failed.store(true, Ordering::SeqCst);
            self.wake_all();
        }
    }

    /// Has all who wait look again. The lease under way, if there is one, goes on under another number.
    fn wake_all(&self) {
        self.word.fetch_add(2, Ordering::SeqCst);
        let _ = futex::wake(&self.word, futex::Flags::PRIVATE, i32::MAX as u32);
    }

    /// In a forked child: no lane of the parent may pass.
    pub(super) fn abandon(&self) {
        let word = self.word.load(Ordering::Relaxed);
        self.word.store((word | 1).wrapping_add(1), Ordering::Relaxed);
    }

    /// Waits until the gate opens, or nobody has to pass it any more.
    pub(super) fn wait(&'static self) -> Result<(), NoLease> {
        let _waiting = self.demand.wait();
        loop {
            let word = self.word.load(Ordering::SeqCst);
            if is_open(word) || !self.is_active() || self.is_unattended() {
                break;
            }
            if self.life.failed.load(Ordering::SeqCst) {
                return Err(NoLease::Account);
            }
            if !self.life.governed.swap(true, Ordering::AcqRel)
                && let Err(error) = governor::start(self)
            {
                self.life.governed.store(false, Ordering::SeqCst);
                // Threads that came meanwhile rely on this one's attempt.
                self.wake_all();
                return Err(NoLease::Governor(error));
            }
            // Interrupted or woken: look again.
            let _ = futex::wait(&self.word, futex::Flags::PRIVATE, word, None);
        }
        Ok(())
    }

    /// Whether a thread waits, or work does.
    pub(super) fn is_wanted(&self) -> bool {
        self.demand.has_threads() || self.holds_work()
    }

    /// Whether streams wait for it, where they can.
    pub(super) const fn is_for_streams(&self) -> bool {
        matches!(self.streams.gates, Gates::Stream)
    }

    /// The lanes as they are now.
    pub(super) fn lanes(&self) -> LaneList {
        self.device_lanes.now()
    }

    /// Looks at what has been launched, and tells whoever may find this process dead until when the device may be
    /// working for it. To be called by the governor, at each of its looks.
    pub(super) fn look<R>(&self, now: u64, with: impl FnOnce(Totals) -> R) -> R {
        let slot = self.of.ledger.own_slot();
        // In this order: a launch is marked after its thread has said that it launches, and counted before it says
        // that it does not any more.
        let seen = slot.map(MemberSlot::work);
        let launching = self.lanes().are_launching();
        let totals = self.device_lanes.totals();
        if let (Some(slot), Some(seen)) = (slot, seen) {
            let open = if is_open(self.word.load(Ordering::SeqCst)) { LONGEST_LOOK_NS } else { 0 };
            let until = now.saturating_add(totals.outstanding_ns).saturating_add(open);
            slot.work_was_seen(seen, until, totals.unknown || launching);
        }
        with(totals)
    }

    /// Something of unknown duration is about to be launched.
    pub(super) fn unknown_work_begins(&self) {
        if let Some(slot) = self.of.ledger.own_slot() {
            slot.unknown_work_begins();
        }
    }
}
