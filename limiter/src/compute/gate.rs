//! The gate of a device in this process. Launching threads check it, and the governor opens and closes it.

use super::budget::Budget;
use super::daemon::Source;
use super::demand::Demand;
use super::governor;
use super::in_driver::InDriver;
use super::lane::{Order, Turnstile};
use super::lanes::{DeviceLanes, LaneList};
use super::stream_gate::StreamGate;
use super::together::Collectives;
use crate::clock;
use crate::exit_guard::{ExitGuard, Visits};
use crate::ledger::DeviceLedger;
use config::Gates;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use crossbeam::utils::CachePadded;
use limiter_core::tuning::{LEAST_OUTSTANDING_NS, LONGEST_LOOK_NS};
use limiter_core::{LaunchTimes, Lease, Neighbours, Stall, Totals};
use rustix::thread::futex;
use session::layout::MemberSlot;
use std::sync::{Arc, OnceLock};

/// A device's gate, and the lanes whose launches pass it.
pub(crate) struct Gate {
    /// Odd while open. Each opening and closing adds one, so a value identifies one lease. In a cache line of its own,
    /// because every launch reads it.
    word: CachePadded<AtomicU32>,
    pub(super) of: Owners,
    /// Threads that wait for the gate to open.
    pub(super) demand: Demand,
    pub(super) limits: Limits,
    pub(super) life: Life,
    /// Whether the governor is in the driver.
    pub(super) in_driver: InDriver,
    streams: Streams,
    pub(super) tenure: Tenure,
    /// The other devices that the session uses together with this one.
    pub(super) collectives: Collectives,
    /// How much work all lanes together may have outstanding.
    pub(super) budget: Budget,
    pub(super) seen: Seen,
    /// The lanes, for changes, and for reads that need no copy.
    pub(super) device_lanes: DeviceLanes,
}

/// The session and process that a gate belongs to.
pub(super) struct Owners {
    /// The session's account of the device.
    ledger: &'static DeviceLedger,
    pub(super) guard: &'static ExitGuard,
    /// The daemon that grants leases; `None`: only the session's own account does.
    pub(super) daemon: Option<Source>,
}

/// The session's limits.
pub(super) struct Limits {
    /// Whether the device's time is limited.
    active: AtomicBool,
    /// Whether the session has low priority.
    pub(super) low: AtomicBool,
    /// Whether a thread follows changes of the limits.
    pub(super) followed: AtomicBool,
}

/// The state of the governor and of the account.
#[derive(Default)]
pub(super) struct Life {
    pub(super) governed: AtomicBool,
    /// The limit cannot be enforced and the session fails open, so the gate stays open.
    pub(super) stands_open: AtomicBool,
    /// The process is ending: the governor does nothing more, and each launch obtains its own lease.
    unattended: AtomicBool,
    /// Whether a thread launches with a lease of its own; see `unattended`.
    pub(super) launches_unattended: AtomicBool,
    /// The account is unusable and the session fails closed: no launch passes.
    failed: AtomicBool,
}

/// The gate as streams see it.
struct Streams {
    /// Whether work waits in the stream or on the thread.
    gates: Gates,
    /// Made with the first lane.
    gate: OnceLock<Option<StreamGate>>,
    /// No stream waits at this gate any more, and none will.
    left: AtomicBool,
}

/// The current lease, or the last one.
#[derive(Default)]
pub(super) struct Tenure {
    /// Whether another session may be using the device at the same time.
    pub(super) shared: AtomicBool,
    /// Whether nobody waits for the lease although it is shared.
    pub(super) overlaps: AtomicBool,
    /// The expected end of the lease (ns, `clock::now`).
    pub(super) end: AtomicU64,
    /// How long the gate is open under this lease (ns).
    pub(super) length: AtomicU64,
}

/// Recent observations of the work.
#[derive(Default)]
pub(super) struct Seen {
    /// How long launches took.
    pub(super) launch_times: LaunchTimes,
    /// Whether streams wait for the program's next launches.
    pub(super) stall: Stall,
}

/// Why no lease can be had.
pub(crate) enum NoLease {
    /// The governor thread cannot be started.
    Governor(std::io::Error),
    /// The session's account is unusable; the reason has been reported.
    Account,
}

const fn is_open(word: u32) -> bool {
    word & 1 == 1
}

impl Tenure {
    /// Records whether others use the device under the present lease, and whether they wait for it.
    pub(super) fn note(&self, lease: &Lease, neighbours: &mut Neighbours) {
        self.shared.store(neighbours.note(lease, clock::now()), Ordering::Relaxed);
        self.overlaps.store(lease.overlaps, Ordering::Relaxed);
    }
}

impl Gate {
    /// Makes a closed gate. `active`: whether the device's time is limited.
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

    /// The gate as streams see it; `None` while no stream waits at it.
    pub(super) fn stream_gate(&self) -> Option<&StreamGate> {
        self.streams.gate.get()?.as_ref().filter(|_| !self.streams.left.load(Ordering::Relaxed))
    }

    /// Makes this a gate for threads, if no stream may be held any more and none is held. Gates for threads have longer
    /// turns, and are handed over by messages. Called by the governor, between leases.
    pub(super) fn leave_streams(&self) {
        let in_stream = || self.lanes().iter().any(|lane| lane.is_in_stream());
        if let Some(gate) =
            self.stream_gate().filter(|_| self.device_lanes.holds_no_more() && !in_stream())
        {
            // For a lane that is being made at this moment.
            gate.leave_open();
            self.streams.left.store(true, Ordering::Relaxed);
        }
    }

    /// The stream gate for one more lane of a stream, with the stream's turnstile; `None`: the lane's gate is on the
    /// thread.
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
            // From now on the governor opens and closes it.
            if self.lease().is_some() {
                made.open(None);
            }
            Some(made)
        };
        let gate = self.streams.gate.get_or_init(make).as_ref()?;
        Some((gate, turnstile))
    }

    /// Notes that work estimated at `estimated_ns` was not done after `ns`. Ignored for a device that is used together
    /// with others: its work may have waited for theirs.
    pub(super) fn took_at_least(&self, estimated_ns: u64, ns: u64) {
        if self.collectives.set().is_none() {
            self.seen.launch_times.took_at_least(estimated_ns, ns);
        }
    }

    /// The recent mean duration of a launch in nanoseconds; 0: unknown.
    pub(super) fn launch_ns(&self) -> u64 {
        self.seen.launch_times.each_ns()
    }

    /// How much work may be outstanding, in estimated nanoseconds. Little beside other sessions that would wait for a
    /// long queue.
    pub(super) fn room_ns(&self, now: u64) -> u64 {
        if self.is_shared() && !self.tenure.overlaps.load(Ordering::Relaxed) {
            return LEAST_OUTSTANDING_NS;
        }
        let left = self.tenure.end.load(Ordering::Relaxed).saturating_sub(now);
        self.seen.launch_times.estimated(limiter_core::room_ns(left))
    }

    /// When streams began to be held (ns, `clock::now`); `None`: they are not held.
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

    /// Estimated nanoseconds of the work that is queued in streams and not done.
    pub(super) fn queued_ns(&self) -> u64 {
        self.device_lanes.ahead().ns(self.launch_ns())
    }

    /// Called when a limit on the device's time is set or removed; removing it lets waiting threads pass. Returns
    /// `false` if nothing changed.
    ///
    /// When the limit is removed, the governor ends the current lease at its next check, and then sleeps until there is
    /// a limit again.
    pub(super) fn set_active(&self, active: bool) -> bool {
        if self.limits.active.swap(active, Ordering::SeqCst) == active {
            return false;
        }
        if !active {
            // Release queued work too, and everything launched behind it.
            if let Some(gate) = self.stream_gate() {
                gate.open(None);
            }
            // Invalidates the shortcuts into lanes.
            self.wake_all();
        } else if let Some(gate) = self.stream_gate().filter(|_| self.lease().is_none()) {
            gate.close();
            // The governor may have opened the gate meanwhile without seeing that the stream gate is closed.
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

    /// The number of the current lease; `None` while the gate is closed.
    pub(super) fn lease(&self) -> Option<u32> {
        // Ordered after the calling thread's [`Lane::launch_begins`].
        let word = self.word.load(Ordering::SeqCst);
        is_open(word).then_some(word)
    }

    /// The number of the current opening or closing.
    pub(super) fn number(&self) -> u32 {
        self.word.load(Ordering::SeqCst)
    }

    /// Whether `lease` is the current lease.
    #[inline]
    pub(super) fn admits(&self, lease: u32) -> bool {
        self.word.load(Ordering::Acquire) == lease
    }

    /// Opens for a daemon's lease, or for one of the session's own account (`None`). `false`: the daemon has already
    /// ended the lease.
    pub(super) fn open(&self, lease: Option<u64>) -> bool {
        if self.stream_gate().is_some_and(|gate| !gate.open(lease)) {
            return false;
        }
        self.word.fetch_or(1, Ordering::SeqCst);
        // A limit that was set meanwhile has closed the stream gate.
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

    /// Makes the word even, so that threads wait. The governor and a launching thread may do this at the same time.
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
            // Queued work is released, and nothing will close the gate again.
            if !self.is_active() || self.is_unattended() {
                gate.open(None);
            }
        }
        if self.life.stands_open.load(Ordering::SeqCst) {
            self.open(None);
        }
    }

    /// Called after a request for a lease was refused: closes the stream gate if the daemon has opened it all the same.
    pub(super) fn withdraw(&self) {
        if self.stream_gate().is_some_and(|gate| gate.block().withdraw()) {
            self.close();
        }
    }

    /// Called when the process is ending. Destructors that launch work must not wait at a gate that nobody opens, and
    /// nobody releases held streams any more.
    pub(crate) fn leave_unattended(&self) {
        self.life.unattended.store(true, Ordering::SeqCst);
        if !self.life.stands_open.load(Ordering::SeqCst) {
            self.shut();
        }
        // Queued work is released, because the program may wait for it.
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

    /// Called when there will never be a lease again: waiting threads pass if `open`, and fail otherwise.
    pub(super) fn fail(&self, open: bool) {
        if open {
            self.life.stands_open.store(true, Ordering::SeqCst);
            self.open(None);
        } else {
            self.life.failed.store(true, Ordering::SeqCst);
            self.wake_all();
        }
    }

    /// Makes all waiting threads check again. The current lease, if any, continues under another number.
    fn wake_all(&self) {
        self.word.fetch_add(2, Ordering::SeqCst);
        let _ = futex::wake(&self.word, futex::Flags::PRIVATE, i32::MAX as u32);
    }

    /// In a forked child: no inherited lane may pass.
    pub(super) fn abandon(&self) {
        let word = self.word.load(Ordering::Relaxed);
        self.word.store((word | 1).wrapping_add(1), Ordering::Relaxed);
    }

    /// Waits until the gate opens, or launches need not pass it any more.
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
                // Threads that arrived meanwhile rely on this thread's attempt.
                self.wake_all();
                return Err(NoLease::Governor(error));
            }
            // Woken or interrupted; the loop checks again.
            let _ = futex::wait(&self.word, futex::Flags::PRIVATE, word, None);
        }
        Ok(())
    }

    /// Whether a thread or held work waits for the gate.
    pub(super) fn is_wanted(&self) -> bool {
        self.demand.has_threads() || self.holds_work()
    }

    /// Whether work waits in streams where the device can do that.
    pub(super) const fn is_for_streams(&self) -> bool {
        matches!(self.streams.gates, Gates::Stream)
    }

    /// A snapshot of the lanes.
    pub(super) fn lanes(&self) -> LaneList {
        self.device_lanes.now()
    }

    /// Reads what has been launched, and publishes in the page until when the device may be working for this process,
    /// in case it dies. Called by the governor at each of its checks.
    pub(super) fn look<R>(&self, now: u64, with: impl FnOnce(Totals) -> R) -> R {
        let slot = self.of.ledger.own_slot();
        // The order matters: a launch is marked after its thread has announced it, and counted before the thread
        // withdraws the announcement.
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

    /// Marks that work of unknown duration is about to be launched.
    pub(super) fn unknown_work_begins(&self) {
        if let Some(slot) = self.of.ledger.own_slot() {
            slot.unknown_work_begins();
        }
    }
}
