//! A lane whose gate is in its stream.
//!
//! Before each batch the stream waits for the gate's word. Then it writes the batch's number to a word of the lane, and
//! behind the batch to another. So the thread need not wait at a closed gate: it goes on launching, up to a bound. And
//! whoever wants to know how far the stream is reads memory, and never needs the driver.
//!
//! What has begun, the device does. The rest is held while the gate is closed. Only the device can tell which is
//! which: it looks at the gate when it comes to the wait, and that may be long after the wait was put there, or after
//! the batch before was done.

mod ahead;

use super::super::behind::Behind;
use super::super::fast_path::FAST_PATH;
use super::super::stream_gate::StreamGate;
use super::super::together::CATCH_UP_NS;
use super::super::{Gate, clock, driver_calls, words};
use super::batches::BATCHES;
use super::order::Order;
use super::turnstile::Turnstile;
use super::{AT_ONCE, Lane};
use core::ffi::c_uint;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use driver::cuda::{DevicePtr, STREAM_WAIT_VALUE_AND, Stream, StreamOperation};
use session::gate_page::layout::OPEN;
use std::sync::Arc;

pub(in crate::compute) use ahead::{Ahead, LaunchedAhead};

/// Estimated time of a batch: an eighth of a lease, so that a turn is as long as it should be. Where preferred sessions
/// wait for its end it is the shortest. These operations cost the device 5 us.
const SHORTEST_BATCH_NS: u64 = 500_000;
const LONGEST_BATCH_NS: u64 = 2_000_000;
const BATCHES_OF_LEASE: u64 = 8;
/// How much longer than its estimates the work takes that no mark covers yet.
const TAIL_MARGIN_NS: u64 = 100_000;
/// How long a thread leaves another one the time to begin or end a batch.
pub(in crate::compute) const BUSY_NAP_NS: u64 = 20_000;
/// Nobody has run out of patience, and no stream was seen to be idle.
const NEVER: u64 = u64::MAX;

/// Streams of this process do not do what they are told.
static USELESS: AtomicBool = AtomicBool::new(false);

/// See the module.
pub(super) struct InStream {
    /// Where the device sees the gate's word.
    gate_at: DevicePtr,
    turnstile: Arc<Turnstile>,
    order: Order,
    /// The last batch that has begun, and that is done.
    begun: Word,
    done: Word,
    /// The wait of the present batch is in the stream: put there while the gate had this number.
    waits: AtomicBool,
    lease: AtomicU32,
    /// A mark was seen: the operations do what they should.
    proven: AtomicBool,
    /// The operations cannot be had.
    denied: AtomicBool,
    /// What was done when a thread had waited for room in vain.
    stuck_at: AtomicU64,
    /// [`Lane::activity`] when the driver last said that the stream has nothing to do.
    idle_at: AtomicU64,
}

impl InStream {
    /// Of a stream of the current context.
    pub(super) fn new(
        gate: &StreamGate,
        turnstile: Arc<Turnstile>,
        context: usize,
        order: Order,
    ) -> Option<Self> {
        if USELESS.load(Relaxed) {
            return None;
        }
        let gate_at = gate.word_for(context)?;
        let begun = words::take(context)?;
        let Some(done) = words::take(context) else {
            words::give_back(begun.0);
            return None;
        };
        FAST_PATH.note_stream_gate();
        let [begun, done] = [begun, done].map(|(word, at)| {
            // Lanes before this one have left their last number in it. Streams may still be on their way to wait for
            // that, so numbers go on from there.
            Word { word, at, base: word.load(SeqCst) }
        });
        Some(Self {
            gate_at,
            turnstile,
            order,
            begun,
            done,
            waits: AtomicBool::new(false),
            lease: AtomicU32::new(0),
            proven: AtomicBool::new(false),
            denied: AtomicBool::new(false),
            stuck_at: AtomicU64::new(NEVER),
            idle_at: AtomicU64::new(NEVER),
        })
    }

    /// The lane is no more, and its last mark was seen or never comes.
    pub(super) fn give_back(&self) {
        words::give_back(self.begun.word);
        words::give_back(self.done.word);
    }

    /// Lanes of other threads in the same stream have the same.
    pub(super) const fn turnstile(&self) -> &Arc<Turnstile> {
        &self.turnstile
    }

    /// How its stream stands to the legacy one.
    pub(super) const fn order(&self) -> Order {
        self.order
    }

    /// Whether the next launch has to put a wait into the stream first.
    pub(super) fn needs_wait(&self) -> bool {
        !self.denied.load(Relaxed) && !self.has_batch()
    }

    /// Whether there is a wait in the stream that the lane's last mark does not cover.
    pub(super) fn has_wait(&self) -> bool {
        self.waits.load(Acquire)
    }

    /// The last mark, which is known, covers all.
    pub(super) fn is_covered(&self) {
        self.waits.store(false, Release);
    }

    /// The driver says that all is done that was launched when the lane's activity was this.
    pub(super) fn was_idle(&self, activity: u64) {
        self.idle_at.store(activity, Relaxed);
    }

    /// Whether the wait of a batch is in the stream that no thread has ended.
    fn has_batch(&self) -> bool {
        self.waits.load(Relaxed) && self.turnstile.has_open(self.done.at)
    }
}

/// Collectives that were put behind the gate, and how many of those the other devices have been told of.
#[derive(Default)]
pub(super) struct Collectives {
    pub(super) launched: AtomicU64,
    told: AtomicU64,
}

/// A word that the stream writes.
struct Word {
    word: &'static AtomicU32,
    at: DevicePtr,
    /// What it held when it was taken.
    base: u32,
}

impl Word {
    /// The number of a batch as the word has it. Numbers are compared as they are counted, modulo 2^32.
    const fn of(&self, number: u64) -> u32 {
        self.base.wrapping_add(number as u32)
    }

    /// Has the stream write the number of a batch.
    fn write(&self, stream: usize, number: u64) -> bool {
        driver_calls::stream_write_value(stream as Stream, self.at, self.of(number), 0).is_ok()
    }

    /// The batch, which is near to another.
    fn number(&self, near: u64) -> u64 {
        near.saturating_add_signed(
            self.word.load(Acquire).wrapping_sub(self.of(near)).cast_signed().into(),
        )
    }
}

impl Lane {
    /// The lane's gate in its stream, if it has one.
    pub(super) fn in_stream(&self) -> Option<&InStream> {
        self.in_stream.as_ref().filter(|own| !own.denied.load(Relaxed))
    }

    /// Whether its gate is in the stream.
    pub(in crate::compute) fn is_in_stream(&self) -> bool {
        self.in_stream().is_some()
    }

    /// Whether the device has begun what is not done: its stream has work, and nobody needs to ask the driver.
    pub(super) fn is_seen_to_work(&self) -> bool {
        let works = |own| self.see_done(own) < self.begun(own).min(self.batches.recorded());
        self.in_stream().is_some_and(works)
    }

    /// Sees how far the stream is.
    pub(super) fn see_done(&self, own: &InStream) -> u64 {
        // Two threads may mark a batch: the word may go back.
        let done = own.done.number(self.batches.recorded());
        self.batches.are_done_to(done)
    }

    fn begin_batch(&self, own: &InStream, gate: &Gate, lease: u32) -> Ahead {
        // One of another lease ends here, so that it is known to be held or to have passed.
        if !self.try_to_cover() {
            return Ahead::Full;
        }
        // A launch that did not wait for the other thread would come before the wait.
        let Some(mut passing) = own.turnstile.pass() else { return Ahead::Busy };
        let number = self.batches.recorded() + 1;
        let stream = self.stream as Stream;
        if let Some((mark_at, open)) = passing.unmarked() {
            // First, or its thread would add to what has its mark.
            gate.device_lanes.each(|lane| lane.look_up_if_marked_at(mark_at));
            let _ = driver_calls::stream_write_value(stream, mark_at, open, 0);
        }
        // In one call, which costs the thread and the device less than two.
        let mut operations = [
            StreamOperation::wait(own.gate_at, OPEN, STREAM_WAIT_VALUE_AND),
            StreamOperation::write(own.begun.at, own.begun.of(number)),
        ];
        let count = operations.len() as c_uint;
        if !driver_calls::stream_operations(stream, count, operations.as_mut_ptr(), 0).is_ok() {
            self.deny(own);
            return Ahead::OnThread;
        }
        passing.begin(own.done.at, own.done.of(number));
        drop(passing);
        let (Word { word, at, .. }, context) = (&own.begun, self.context);
        let number = own.begun.of(number);
        own.turnstile.comes_behind(Behind { context, word, at: *at, number });
        own.lease.store(lease, Relaxed);
        own.waits.store(true, Relaxed);
        let launched = self.count.launched_ns.load(Relaxed);
        self.count.most_ns.store(launched.saturating_add(self.batch_ns(gate)), Relaxed);
        self.stop_at(self.pace.planned.load(Relaxed));
        // The gate may have closed since the thread looked, and a call that waits says nothing more.
        gate.demand.ring_for_work();
        Ahead::Go
    }

    /// If it is the lane's batch whose mark goes there, its thread's next launch begins another.
    fn look_up_if_marked_at(&self, mark_at: DevicePtr) {
        if self.in_stream().is_some_and(|own| own.done.at == mark_at) {
            self.count.stop.store(AT_ONCE, SeqCst);
        }
    }

    /// Ends a batch with a mark; `false`: too many are under way.
    pub(super) fn mark(&self, own: &InStream, number: u64) -> bool {
        if number.saturating_sub(self.see_done(own)) + 2 > BATCHES as u64 {
            return false;
        }
        if !own.waits.load(Relaxed) {
            // Without a wait there is none that could be held.
            return own.begun.write(self.stream, number) && own.done.write(self.stream, number);
        }
        // Otherwise another thread has marked it, or does so now.
        own.turnstile.pass_after(own.done.at).is_none_or(|mut passing| {
            let written = own.done.write(self.stream, number);
            if !written {
                passing.begin(own.done.at, own.done.of(number));
            }
            written
        })
    }

    /// The estimated time of a batch.
    pub(super) fn batch_ns(&self, gate: &Gate) -> u64 {
        if gate.limits.low.load(Relaxed) {
            return SHORTEST_BATCH_NS;
        }
        (gate.tenure.length.load(Relaxed) / BATCHES_OF_LEASE)
            .clamp(SHORTEST_BATCH_NS, LONGEST_BATCH_NS)
    }

    /// How many launches a batch has at most, by what launches took lately. While that is not known: as many as the
    /// lease has milliseconds, up to four.
    pub(super) fn most_launches(&self, gate: &Gate) -> u32 {
        let unmeasured = || (gate.tenure.length.load(Relaxed) / 1_000_000).min(4);
        let most = self.batch_ns(gate).checked_div(gate.launch_ns());
        let most = most.unwrap_or_else(unmeasured).max(1);
        u32::try_from(most).unwrap_or(u32::MAX)
    }

    /// From now on its gate is on the thread.
    fn deny(&self, own: &InStream) {
        own.denied.store(true, Relaxed);
        own.waits.store(false, Release);
        let _ = self.batches.are_done_to(self.batches.recorded());
        self.count.most_ns.store(0, Relaxed);
        tracing::info!("a stream cannot wait for its gate, so its thread waits");
    }

    /// The last batch with a wait: the one that no mark covers yet, or the one before. What comes behind the wait may not
    /// be counted yet, as long as the call that launches it waits, or never, if it fails.
    fn last(&self, own: &InStream) -> u64 {
        // In this order: a mark is known before its wait is forgotten.
        let waits = own.has_wait();
        self.batches.recorded() + u64::from(waits)
    }

    /// The last batch that has begun.
    pub(super) fn begun(&self, own: &InStream) -> u64 {
        own.begun.number(self.batches.recorded()).max(self.batches.done())
    }

    /// Whether the stream has written the last number that it will ever write.
    pub(super) fn has_passed(&self, own: &InStream) -> bool {
        self.begun(own) >= self.last(own) && self.see_done(own) >= self.batches.recorded()
    }

    /// Estimated nanoseconds of all launches up to a batch's end.
    pub(super) fn launched_by(&self, number: u64) -> u64 {
        if number <= self.batches.recorded() {
            self.covered_by(number)
        } else {
            self.count.launched_ns.load(Relaxed)
        }
    }

    /// Whether no stream writes to the lane's words any more. To be asked by the governor, of an abandoned lane that is
    /// drained and whose stream has passed the gate.
    pub(super) fn leaves_stream(&self) -> bool {
        let Some(own) = self.in_stream().filter(|_| !self.life.is_lost()) else {
            return true;
        };
        // Otherwise another thread has put the last mark into the stream, or does so now.
        own.turnstile.pass_after(own.done.at).is_some()
            || !own.waits.load(Acquire)
            || self.see_done(own) > self.batches.recorded()
    }

    /// The same in launches.
    pub(super) fn launches_by(&self, number: u64) -> u64 {
        let recorded = self.batches.recorded();
        let uncovered = if number > recorded { self.count.uncovered.load(Relaxed) } else { 0 };
        self.batch(number.min(recorded)).launches.load(Relaxed) + u64::from(uncovered)
    }

    /// A collective is about to be launched behind the gate in the stream. To be called by the lane's thread.
    pub(in crate::compute) fn collective_begins(&self) {
        self.batches
            .collectives
            .launched
            .store(self.batches.collectives.launched.load(Relaxed) + 1, Release);
    }

    /// It was not launched.
    pub(in crate::compute) fn collective_failed(&self) {
        self.batches
            .collectives
            .launched
            .store(self.batches.collectives.launched.load(Relaxed) - 1, Release);
    }

    /// Whether a collective that has begun is not done.
    pub(in crate::compute) fn is_in_collective(&self) -> bool {
        let Some(own) = self.in_stream().filter(|_| !self.life.is_lost()) else { return false };
        let is_done =
            || self.collectives_by(self.begun(own)) == self.collectives_by(self.see_done(own));
        !is_done() && !self.is_seen_idle(own)
    }

    /// The driver has said that nothing of what was launched is left.
    fn is_seen_idle(&self, own: &InStream) -> bool {
        own.idle_at.load(Relaxed) == self.activity()
    }

    /// How many were launched up to a batch's end.
    fn collectives_by(&self, number: u64) -> u64 {
        let is_open = number > self.batches.recorded();
        let open = || self.batches.collectives.launched.load(Acquire);
        if is_open { open() } else { self.batch(number).collectives.load(Relaxed) }
    }

    /// How many were launched that the others have not been told of.
    pub(in crate::compute) fn collectives_ahead(&self) -> u64 {
        let Collectives { launched, told } = &self.batches.collectives;
        launched.load(Acquire).wrapping_sub(told.load(Relaxed))
    }

    /// How many more collectives have begun in the stream than when this was last asked: those of a batch with it. To
    /// be asked by the governor.
    pub(in crate::compute) fn take_collectives(&self) -> i64 {
        let launched = self.batches.collectives.launched.load(Acquire);
        if launched == 0 {
            return 0;
        }
        let begun = match self.in_stream() {
            Some(own) if !self.life.is_lost() => self.collectives_by(self.begun(own)),
            _ => launched,
        };
        begun.wrapping_sub(self.batches.collectives.told.swap(begun, Relaxed)).cast_signed()
    }

    /// Whether its stream has passed the gate with work that is not seen to be done.
    pub(in crate::compute) fn is_running(&self) -> bool {
        self.in_stream().is_some_and(|own| self.begun(own) > self.see_done(own))
    }

    /// Whether both lanes launch into one stream.
    pub(in crate::compute) fn shares_stream_with(&self, other: &Self) -> bool {
        let turnstiles = self.in_stream().zip(other.in_stream());
        turnstiles.is_some_and(|(own, others)| Arc::ptr_eq(&own.turnstile, &others.turnstile))
    }

    /// Whether work is held at a closed gate.
    pub(in crate::compute) fn is_held(&self, gate: &Gate) -> bool {
        gate.stream_closed_at().is_some() && self.awaits_gate()
    }

    /// Whether work in its stream may be held, or about to be, at a closed gate.
    pub(in crate::compute) fn may_be_held(&self) -> bool {
        self.is_in_stream() && (self.is_launching() || self.awaits_gate())
    }

    /// Whether work in its stream is not seen to have passed the gate.
    pub(in crate::compute) fn awaits_gate(&self) -> bool {
        let awaits = |own| !self.life.is_lost() && self.last(own) > self.begun(own);
        self.in_stream().is_some_and(awaits)
    }

    /// Whether all that has begun is done, at a closed gate; `None`: nothing can be held. A thread that launches is not
    /// waited for: the driver may have it wait for what is held. `asks`: the governor is in the driver.
    pub(super) fn is_drained_behind(&self, gate: &Gate, asks: bool) -> Option<bool> {
        if self.life.is_lost() {
            return Some(true);
        }
        let own = self.in_stream()?;
        let closed_at = gate.stream_closed_at()?;
        let (begun, done, recorded) =
            (self.begun(own), self.see_done(own), self.batches.recorded());
        let waits = self.calls.since.load(Acquire) != 0;
        if waits && self.last(own) <= begun && !gate.holds_work() {
            return Some(false);
        }
        if begun <= recorded {
            return Some(done >= begun);
        }
        // No mark says when what the last one does not cover is done. The driver may know.
        let tail = self.count.uncovered.load(Acquire) > 0 && !self.is_seen_idle(own);
        let asked = if tail && asks { self.has_idle_tail(self.activity()) } else { None };
        if let Some(is_idle) = asked {
            return Some(done >= recorded && is_idle);
        }
        let tail_ns =
            self.count.launched_ns.load(Relaxed).saturating_sub(self.covered_by(recorded));
        // A collective may wait for another device. If the program goes on, a mark comes behind it.
        let waits = self.collectives_by(begun) != self.collectives_by(recorded);
        let tail_ns = if waits { tail_ns.max(CATCH_UP_NS) } else { tail_ns };
        let tail_is_done = !tail || clock::now() > closed_at + tail_ns + TAIL_MARGIN_NS;
        Some(done >= recorded && tail_is_done)
    }

    /// Estimated nanoseconds of the launches that have begun, and of those of them that are not done.
    pub(super) fn begun_ns(&self, own: &InStream) -> (u64, u64) {
        let done = self.see_done(own);
        let launched = self.launched_by(self.begun(own).max(done));
        (launched, launched.saturating_sub(self.launched_by(done)))
    }

    /// For how long what has begun may keep the device busy: by its estimates, or by what launches took lately.
    pub(in crate::compute) fn begun_takes_ns(&self, gate: &Gate) -> u64 {
        let estimated_ns = self.totals().outstanding_ns;
        let Some(own) = self.in_stream() else { return estimated_ns };
        let (begun, done) = (self.begun(own), self.see_done(own));
        let launches = self.launches_by(begun).saturating_sub(self.launches_by(done));
        LaunchedAhead { batches: 0, launches, estimated_ns }.ns(gate.launch_ns())
    }
}
