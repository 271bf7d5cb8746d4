//! The gate of a device in this process.

use super::budget::Budget;
use super::daemon::Source;
use super::governor::{self, LONGEST_LOOK_NS};
use super::lane::{Lane, MOST_LANES};
use super::stall::Stall;
use super::stream_gate::StreamGate;
use super::usage::Totals;
use crate::exit_guard::{ExitGuard, Visits};
use crate::ledger::DeviceLedger;
use crate::own_thread;
use config::Gates;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use crossbeam::utils::CachePadded;
use rustix::thread::futex;
use session::layout::MemberSlot;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Open or closed, and the lanes that lead through it.
pub(crate) struct Gate {
    /// Alone in its cache line: every launch reads it.
    /// Odd: open. Each opening and closing adds one, so that a value stands for one lease.
    word: CachePadded<AtomicU32>,
    /// The session's account of the device.
    ledger: &'static DeviceLedger,
    guard: &'static ExitGuard,
    /// Where leases come from, if not from the session's own account.
    daemon: Option<Source>,
    /// Number of threads that wait.
    waiting: AtomicU32,
    /// Changes when a thread begins to wait; the governor sleeps on it.
    bell: AtomicU32,
    /// Whether the device's time is limited at all.
    active: AtomicBool,
    /// Whether another session may be using the device at the same time.
    shared: AtomicBool,
    governed: AtomicBool,
    /// The governor sleeps until somebody wants a lease.
    asleep: AtomicBool,
    /// Whether a thread follows the session's limits.
    followed: AtomicBool,
    /// The limit cannot be enforced and need not be: nothing closes any more.
    stands_open: AtomicBool,
    /// The program is ending: the governor does nothing more, and each launch obtains its own lease.
    unattended: AtomicBool,
    /// A thread does so.
    launches_unattended: AtomicBool,
    /// The account cannot be used any more: nobody passes.
    failed: AtomicBool,
    /// The governor is in the driver, or about to be.
    inside: AtomicBool,
    /// The gate as streams see it, where they are to; made when the first lane is.
    in_streams: bool,
    stream_gate: OnceLock<Option<StreamGate>>,
    /// How long launches into such streams took lately, each; zero: not known. And whether the estimates say
    /// otherwise.
    launch_ns: AtomicU64,
    estimates_off: AtomicBool,
    /// What all lanes together may have outstanding.
    budget: Budget,
    /// Whether streams wait for what the program does next.
    stall: Stall,
    lanes: Mutex<Vec<Arc<Lane>>>,
    /// What lanes that are gone had launched.
    retired: Mutex<Totals>,
    /// Time for which some lane had work queued.
    backlogged_ns: AtomicU64,
}

/// The governor is in the driver until this is dropped.
pub(super) struct Inside<'gate>(&'gate AtomicBool);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
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
        Self {
            word: CachePadded::new(AtomicU32::new(0)),
            ledger,
            guard,
            daemon,
            waiting: AtomicU32::new(0),
            bell: AtomicU32::new(0),
            active: AtomicBool::new(active),
            shared: AtomicBool::new(false),
            governed: AtomicBool::new(false),
            asleep: AtomicBool::new(false),
            followed: AtomicBool::new(false),
            stands_open: AtomicBool::new(false),
            unattended: AtomicBool::new(false),
            launches_unattended: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            inside: AtomicBool::new(false),
            in_streams: gates == Gates::Stream,
            stream_gate: OnceLock::new(),
            launch_ns: AtomicU64::new(0),
            estimates_off: AtomicBool::new(false),
            budget: Budget::default(),
            stall: Stall::new(),
            lanes: Mutex::new(Vec::new()),
            retired: Mutex::new(Totals {
                launched_ns: 0,
                outstanding_ns: 0,
                backlogged_ns: 0,
                unknown: false,
            }),
            backlogged_ns: AtomicU64::new(0),
        }
    }

    /// The session's account of the device.
    pub(super) const fn ledger(&self) -> &'static DeviceLedger {
        self.ledger
    }

    pub(super) const fn guard(&self) -> &'static ExitGuard {
        self.guard
    }

    /// The governors' visits to the driver.
    pub(super) const fn governors(&self) -> &'static Visits {
        &self.guard.governors
    }

    /// The gate as streams see it, where any does.
    pub(super) fn stream_gate(&self) -> Option<&StreamGate> {
        self.stream_gate.get()?.as_ref()
    }

    /// The same, for one more lane; `None`: its gate is on the thread.
    pub(super) fn stream_gate_for_one_more(&self) -> Option<&StreamGate> {
        if !self.in_streams || self.lanes_in_stream() >= MOST_LANES {
            return None;
        }
        let make = || {
            let made = StreamGate::of(self.ledger.uuid())?;
            // The governor opens and closes it from now on.
            if self.lease().is_some() {
                made.open(None);
            }
            Some(made)
        };
        self.stream_gate.get_or_init(make).as_ref()
    }

    /// How many lanes have their gate in the stream.
    pub(super) fn lanes_in_stream(&self) -> u32 {
        if self.stream_gate().is_none() {
            return 0;
        }
        let lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        lanes.iter().map(|lane| u32::from(lane.is_in_stream())).sum()
    }

    /// How long launches into streams with gates took lately; zero: not known.
    pub(super) fn launch_ns(&self) -> u64 {
        self.launch_ns.load(Ordering::Relaxed)
    }

    /// Whether they took another time than they were estimated to.
    pub(super) fn estimates_are_off(&self) -> bool {
        self.estimates_off.load(Ordering::Relaxed)
    }

    /// Launches that are done, and what they were estimated to take: of all streams with gates.
    pub(super) fn done_launches(&self) -> (u64, u64) {
        let lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        lanes
            .iter()
            .map(|lane| lane.done_launches())
            .fold((0, 0), |(launches, ns), (more, took)| {
                (launches.wrapping_add(more), ns.wrapping_add(took))
            })
    }

    /// So many launches, estimated at so much, kept the device busy for some time.
    pub(super) fn launches_took(&self, launches: u64, estimated_ns: u64, ns: u64) {
        let each = ns / launches.max(1);
        let old = self.launch_ns();
        // Longer ones at once: a batch of them holds others up.
        let new = if each > old { each } else { old - (old - each) / 4 };
        self.launch_ns.store(new.max(1), Ordering::Relaxed);
        self.estimates_off.store(estimated_ns.abs_diff(ns) > ns / 4, Ordering::Relaxed);
    }

    /// Since when streams are held; `None`: they are not.
    pub(super) fn stream_closed_at(&self) -> Option<u64> {
        self.stream_gate().and_then(StreamGate::closed_at)
    }

    /// Whether work is held in a stream.
    pub(super) fn holds_work(&self) -> bool {
        self.stream_closed_at().is_some() && self.lanes().iter().any(|lane| lane.is_held(self))
    }

    /// What all lanes together may have outstanding.
    pub(super) const fn budget(&self) -> &Budget {
        &self.budget
    }

    /// Whether streams wait for what the program does next, as far as has been noticed.
    pub(super) const fn stall(&self) -> &Stall {
        &self.stall
    }

    /// A number that changes whenever something is seen to be done.
    pub(super) fn progress(&self) -> u64 {
        let lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        lanes.iter().fold(0, |sum: u64, lane| sum.wrapping_add(lane.progress()))
    }

    /// The daemon, where one is to be used.
    pub(super) const fn daemon(&self) -> Option<&Source> {
        self.daemon.as_ref()
    }

    /// Whether the device's time is limited.
    pub(crate) fn is_active(&self) -> bool {
        self.active.load(Ordering::SeqCst)
    }

    /// The device's time has come to be limited, or is no more: then whoever waits passes. `false`: it was
    /// so before.
    ///
    /// The governor goes on as it was: with a lease under way, or asleep.
    pub(super) fn set_active(&self, active: bool) -> bool {
        if self.active.swap(active, Ordering::SeqCst) == active {
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
        }
        true
    }

    /// The limits are followed from now on. `false`: they are already.
    pub(super) fn begin_following(&self) -> bool {
        !self.followed.swap(true, Ordering::AcqRel)
    }

    /// Whether another session may be using the device at the same time.
    pub(super) fn is_shared(&self) -> bool {
        self.shared.load(Ordering::Relaxed)
    }

    pub(super) fn set_shared(&self, shared: bool) {
        self.shared.store(shared, Ordering::Relaxed);
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
        if self.is_unattended() {
            self.shut();
        }
        let _ = futex::wake(&self.word, futex::Flags::PRIVATE, i32::MAX as u32);
        true
    }

    /// Makes the word even. The governor and a thread that ends the process may do so at the same time.
    fn shut(&self) {
        let _ = self.word.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |word| {
            is_open(word).then(|| word.wrapping_add(1))
        });
    }

    pub(super) fn close(&self) {
        self.shut();
        if let Some(gate) = self.stream_gate() {
            gate.close();
            if !self.is_active() {
                gate.open(None);
            }
        }
        if self.stands_open.load(Ordering::SeqCst) {
            self.open(None);
        }
    }

    /// Whether the governor will see that a stream is held back, as the calling thread has just said: it
    /// follows a lease, and is not in the driver, where whoever waits for that stream may be in its way.
    pub(super) fn may_hold_back(&self) -> bool {
        is_open(self.word.load(Ordering::SeqCst))
            && !self.stands_open.load(Ordering::SeqCst)
            && !self.inside.load(Ordering::SeqCst)
    }

    /// Keeps threads from holding a stream back as long as the governor is in the driver; `None`: one of
    /// them does, and the governor has to stay outside.
    pub(super) fn inside(&self, lanes: &[Arc<Lane>]) -> Option<Inside<'_>> {
        self.inside.store(true, Ordering::SeqCst);
        let inside = Inside(&self.inside);
        (!lanes.iter().any(|lane| lane.holds_back())).then_some(inside)
    }

    /// Opens for good.
    fn stand_open(&self) {
        self.stands_open.store(true, Ordering::SeqCst);
        self.open(None);
    }

    /// The process is ending: destructors that launch work must not wait at a gate that nobody will open. And
    /// nobody will let a stream go that is held back.
    pub(super) fn leave_unattended(&self) {
        self.unattended.store(true, Ordering::SeqCst);
        if !self.stands_open.load(Ordering::SeqCst) {
            self.shut();
        }
        // What is queued in streams is let through: the program may wait for it.
        if let Some(gate) = self.stream_gate() {
            gate.open(None);
        }
        self.wake_all();
        self.lanes().iter().for_each(|lane| lane.let_go());
    }

    /// Whether each launch has to obtain its own lease.
    pub(super) fn is_unattended(&self) -> bool {
        self.unattended.load(Ordering::SeqCst) && !self.stands_open.load(Ordering::SeqCst)
    }

    pub(super) const fn launches_unattended(&self) -> &AtomicBool {
        &self.launches_unattended
    }

    /// There will be no lease again: whoever waits passes, or is turned away.
    pub(super) fn fail(&self, open: bool) {
        if open {
            self.stand_open();
        } else {
            self.failed.store(true, Ordering::SeqCst);
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
        self.waiting.fetch_add(1, Ordering::AcqRel);
        self.ring();
        loop {
            let word = self.word.load(Ordering::SeqCst);
            if is_open(word) || !self.is_active() || self.is_unattended() {
                break;
            }
            if self.failed.load(Ordering::SeqCst) {
                self.waiting.fetch_sub(1, Ordering::AcqRel);
                return Err(NoLease::Account);
            }
            if !self.governed.swap(true, Ordering::AcqRel)
                && let Err(error) = governor::start(self)
            {
                self.governed.store(false, Ordering::SeqCst);
                self.waiting.fetch_sub(1, Ordering::AcqRel);
                // Threads that came meanwhile rely on this one's attempt.
                self.wake_all();
                return Err(NoLease::Governor(error));
            }
            // Interrupted or woken: look again.
            let _ = futex::wait(&self.word, futex::Flags::PRIVATE, word, None);
        }
        self.waiting.fetch_sub(1, Ordering::AcqRel);
        Ok(())
    }

    /// Whether a thread waits, or work does.
    pub(super) fn is_wanted(&self) -> bool {
        self.waiting.load(Ordering::Acquire) > 0 || self.holds_work()
    }

    /// Whether there is a governor.
    pub(super) fn is_governed(&self) -> bool {
        self.governed.load(Ordering::Acquire)
    }

    /// Has the governor look around.
    pub(super) fn ring(&self) {
        self.bell.fetch_add(1, Ordering::Release);
        let _ = futex::wake(&self.bell, futex::Flags::PRIVATE, 1);
    }

    /// Has the governor see that work is held, if it has nothing to do.
    pub(super) fn ring_for_work(&self) {
        if self.asleep.load(Ordering::SeqCst) {
            self.ring();
        }
    }

    /// How often the governor has been rung for.
    pub(super) fn rings(&self) -> u32 {
        self.bell.load(Ordering::Acquire)
    }

    /// Sleeps until a thread waits or the governor is rung for once more than `rings` times; may wake
    /// early.
    pub(super) fn await_demand(&self, rings: u32) {
        self.asleep.store(true, Ordering::SeqCst);
        if !self.is_wanted() {
            let private = futex::Flags::PRIVATE;
            let _ = own_thread::asleep(|| futex::wait(&self.bell, private, rings, None));
        }
        self.asleep.store(false, Ordering::SeqCst);
    }

    /// Adds a lane.
    pub(super) fn add(&self, lane: Arc<Lane>) {
        super::HAS_LANES.store(true, Ordering::SeqCst);
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner).push(lane);
    }

    /// The lanes as they are now.
    pub(super) fn lanes(&self) -> Vec<Arc<Lane>> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Removes a lane that nobody will use again and that is drained.
    pub(super) fn retire(&self, gone: &Arc<Lane>) {
        let mut lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        lanes.retain(|lane| !Arc::ptr_eq(lane, gone));
        gone.give_all_back(&self.budget);
        let mut retired = self.retired.lock().unwrap_or_else(PoisonError::into_inner);
        retired.add(gone.totals());
        (retired.outstanding_ns, retired.unknown) = (0, false);
    }

    /// Looks at what has been launched, and tells whoever may find this process dead until when the device may be
    /// working for it. To be called by the governor, at each of its looks.
    pub(super) fn look<R>(&self, now: u64, with: impl FnOnce(Totals) -> R) -> R {
        let slot = self.ledger.own_slot();
        // In this order: a launch is marked after its thread has said that it launches, and counted before it says
        // that it does not any more.
        let seen = slot.map(MemberSlot::work);
        let launching = self.lanes().iter().any(|lane| lane.is_launching());
        let totals = self.totals();
        if let (Some(slot), Some(seen)) = (slot, seen) {
            let open = if is_open(self.word.load(Ordering::SeqCst)) { LONGEST_LOOK_NS } else { 0 };
            let until = now.saturating_add(totals.outstanding_ns).saturating_add(open);
            slot.work_was_seen(seen, until, totals.unknown || launching);
        }
        with(totals)
    }

    /// Something of unknown duration is about to be launched.
    pub(super) fn unknown_work_begins(&self) {
        if let Some(slot) = self.ledger.own_slot() {
            slot.unknown_work_begins();
        }
    }

    /// What has been launched through this gate. To be asked by the governor.
    pub(super) fn totals(&self) -> Totals {
        let lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        let mut totals = *self.retired.lock().unwrap_or_else(PoisonError::into_inner);
        let mut backlogged_ns = 0;
        for lane in lanes.iter() {
            totals.add(lane.totals());
            backlogged_ns = backlogged_ns.max(lane.take_backlogged_ns());
        }
        // Queues of several lanes stand for the same time.
        totals.backlogged_ns =
            self.backlogged_ns.fetch_add(backlogged_ns, Ordering::Relaxed) + backlogged_ns;
        totals
    }
}
