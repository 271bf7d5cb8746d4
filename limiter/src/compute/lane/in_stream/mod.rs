//! A lane whose gate is in its stream.
//!
//! Before each batch the stream waits for the gate's word. Then it writes the batch's number to one word of the lane,
//! and after the batch to another. So the thread does not wait at a closed gate but continues to launch, up to a limit
//! ([`ahead`]), and the stream's progress is read from memory, without the driver.
//!
//! Work that has begun is executed; the rest is held while the gate is closed. Only the device knows which is which: it
//! reads the gate's word when it reaches the wait, possibly long after the wait was queued or the previous batch was
//! done.

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
use core::fmt::Arguments;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use driver::cuda::{DevicePtr, STREAM_WAIT_VALUE_AND, Stream, StreamOperation};
use session::gate_page::layout::OPEN;
use std::sync::Arc;

pub(in crate::compute) use ahead::{Ahead, LaunchedAhead};

/// Estimated time of a batch: an eighth of a lease, so that a turn ends when it should; for low priority the shortest,
/// because others wait for its end. The stream operations of a batch cost the device 5 us.
const SHORTEST_BATCH_NS: u64 = 500_000;
const LONGEST_BATCH_NS: u64 = 2_000_000;
const BATCHES_OF_LEASE: u64 = 8;
/// Time allowed for work that no mark covers, beyond its estimate.
const TAIL_MARGIN_NS: u64 = 100_000;
/// How long a thread sleeps while another thread begins or ends a batch.
pub(in crate::compute) const BUSY_NAP_NS: u64 = 20_000;
/// No batch or activity; initial value of `stuck_at` and `idle_at`.
const NEVER: u64 = u64::MAX;

/// Whether streams of this process do not execute stream operations as they should.
static USELESS: AtomicBool = AtomicBool::new(false);

/// The part of a lane whose gate is in its stream.
pub(super) struct InStream {
    /// Device address of the gate's word.
    gate_at: DevicePtr,
    turnstile: Arc<Turnstile>,
    order: Order,
    /// The last batch that has begun, and the last one that is done.
    begun: Word,
    done: Word,
    /// Whether the wait of the current batch is in the stream, and the gate's number when it was enqueued.
    waits: AtomicBool,
    lease: AtomicU32,
    /// Whether a mark was seen, which proves that the operations work.
    proven: AtomicBool,
    /// Whether the gate is on the thread for good.
    denied: AtomicBool,
    /// The last batch done when a thread had waited for room in vain.
    stuck_at: AtomicU64,
    /// [`Lane::activity`] when the driver last reported the stream as idle.
    idle_at: AtomicU64,
}

impl InStream {
    /// For a stream of the current context; `None` if its gate cannot be in the stream.
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
            // The word still has an earlier lane's last number, for which streams may yet wait, so numbers continue
            // from there.
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

    /// Returns the words. The lane is gone, and its last mark was seen or will never be written.
    pub(super) fn give_back(&self) {
        words::give_back(self.begun.word);
        words::give_back(self.done.word);
    }

    /// The stream's turnstile, shared with the lanes of other threads in the stream.
    pub(super) const fn turnstile(&self) -> &Arc<Turnstile> {
        &self.turnstile
    }

    /// The stream's order relative to the legacy default stream.
    pub(super) const fn order(&self) -> Order {
        self.order
    }

    /// Whether the next launch has to enqueue a wait first.
    pub(super) fn needs_wait(&self) -> bool {
        !self.denied.load(Relaxed) && !self.has_batch()
    }

    /// Whether the stream has a wait that the lane's last mark does not cover.
    pub(super) fn has_wait(&self) -> bool {
        self.waits.load(Acquire)
    }

    /// Notes that the last mark covers all waits.
    pub(super) fn is_covered(&self) {
        self.waits.store(false, Release);
    }

    /// Notes that the driver reported the stream as idle when the lane's activity was `activity`.
    pub(super) fn was_idle(&self, activity: u64) {
        self.idle_at.store(activity, Relaxed);
    }

    /// Whether the lane's current batch is open: its wait is in the stream, and no thread has ended it.
    fn has_batch(&self) -> bool {
        self.waits.load(Relaxed) && self.turnstile.has_open(self.done.at)
    }
}

/// Collectives launched behind the gate, and how many of them were reported to the other devices.
#[derive(Default)]
pub(super) struct Collectives {
    pub(super) launched: AtomicU64,
    told: AtomicU64,
}

/// A word that the stream writes.
struct Word {
    word: &'static AtomicU32,
    at: DevicePtr,
    /// The word's value when it was taken.
    base: u32,
}

impl Word {
    /// The word's value for a batch number. Numbers are counted and compared modulo 2^32.
    const fn of(&self, number: u64) -> u32 {
        self.base.wrapping_add(number as u32)
    }

    /// Makes the stream write the number of a batch.
    fn write(&self, stream: usize, number: u64) -> bool {
        driver_calls::stream_write_value(stream as Stream, self.at, self.of(number), 0).is_ok()
    }

    /// The batch number in the word, which is close to `near`.
    fn number(&self, near: u64) -> u64 {
        near.saturating_add_signed(
            self.word.load(Acquire).wrapping_sub(self.of(near)).cast_signed().into(),
        )
    }
}

impl Lane {
    /// The lane's gate in its stream; `None`: its gate is on the thread.
    pub(super) fn in_stream(&self) -> Option<&InStream> {
        self.in_stream.as_ref().filter(|own| !own.denied.load(Relaxed))
    }

    /// Whether the lane's gate is in the stream.
    pub(in crate::compute) fn is_in_stream(&self) -> bool {
        self.in_stream().is_some()
    }

    /// Whether the device has begun work that is not done, so the stream is known to be busy without asking the driver.
    pub(super) fn is_seen_to_work(&self) -> bool {
        let works = |own| self.see_done(own) < self.begun(own).min(self.batches.recorded());
        self.in_stream().is_some_and(works)
    }

    /// Reads and records how far the stream is; returns the last batch done.
    pub(super) fn see_done(&self, own: &InStream) -> u64 {
        // Two threads may mark a batch, so the word may go back.
        let done = own.done.number(self.batches.recorded());
        self.batches.are_done_to(done)
    }

    fn begin_batch(&self, own: &InStream, gate: &Gate, lease: u32) -> Ahead {
        // End a batch of an earlier lease here, so that each batch is either held or has passed.
        if !self.try_to_cover() {
            return Ahead::Full;
        }
        // A launch that did not wait for the other thread would be queued before the wait.
        let Some(mut passing) = own.turnstile.pass() else { return Ahead::Busy };
        let number = self.batches.recorded() + 1;
        let stream = self.stream as Stream;
        if let Some((mark_at, open)) = passing.unmarked() {
            // First, or the other thread would add launches to a batch that already has its mark.
            gate.device_lanes.each(|lane| lane.look_up_if_marked_at(mark_at));
            let _ = driver_calls::stream_write_value(stream, mark_at, open, 0);
        }
        // In one call, which costs the thread and the device less than two.
        let mut operations = [
            StreamOperation::wait(own.gate_at, OPEN, STREAM_WAIT_VALUE_AND),
            StreamOperation::write(own.begun.at, own.begun.of(number)),
        ];
        let count = operations.len() as c_uint;
        let put = driver_calls::stream_operations(stream, count, operations.as_mut_ptr(), 0);
        if !put.is_ok() {
            self.deny(own, format_args!("the driver refuses a wait ({put:?})"));
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
        // The gate may have closed since the thread checked it, and a call that waits would not report it.
        gate.demand.ring_for_work();
        Ahead::Go
    }

    /// If `mark_at` is this lane's mark, makes its thread's next launch begin another batch.
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
            // Without a wait nothing can be held.
            return own.begun.write(self.stream, number) && own.done.write(self.stream, number);
        }
        // Otherwise another thread has written the mark, or is writing it.
        own.turnstile.pass_after(own.done.at).is_none_or(|mut passing| {
            let written = own.done.write(self.stream, number);
            if !written {
                passing.begin(own.done.at, own.done.of(number));
            }
            written
        })
    }

    /// The intended duration of a batch in nanoseconds.
    pub(super) fn batch_ns(&self, gate: &Gate) -> u64 {
        if gate.limits.low.load(Relaxed) {
            return SHORTEST_BATCH_NS;
        }
        (gate.tenure.length.load(Relaxed) / BATCHES_OF_LEASE)
            .clamp(SHORTEST_BATCH_NS, LONGEST_BATCH_NS)
    }

    /// The most launches of a batch, by their recent duration. While that is unknown: as many as the lease has
    /// milliseconds, up to four.
    pub(super) fn most_launches(&self, gate: &Gate) -> u32 {
        let unmeasured = || (gate.tenure.length.load(Relaxed) / 1_000_000).min(4);
        let most = self.batch_ns(gate).checked_div(gate.launch_ns());
        let most = most.unwrap_or_else(unmeasured).max(1);
        u32::try_from(most).unwrap_or(u32::MAX)
    }

    /// Moves the lane's gate to the thread for good.
    fn deny(&self, own: &InStream, why: Arguments<'_>) {
        own.denied.store(true, Relaxed);
        own.waits.store(false, Release);
        let _ = self.batches.are_done_to(self.batches.recorded());
        self.count.most_ns.store(0, Relaxed);
        tracing::info!("a stream does not wait for its gate, its thread does: {why}");
    }

    /// The last batch with a wait: the one that no mark covers yet, or the one before. The launch behind the wait is
    /// not counted while its call waits, nor if it fails.
    fn last(&self, own: &InStream) -> u64 {
        // In this order: a mark is recorded before its wait is forgotten.
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

    /// Estimated nanoseconds of all launches up to the end of batch `number`.
    pub(super) fn launched_by(&self, number: u64) -> u64 {
        if number <= self.batches.recorded() {
            self.covered_by(number)
        } else {
            self.count.launched_ns.load(Relaxed)
        }
    }

    /// Whether no stream writes to the lane's words any more. Called by the governor, for an abandoned lane that is
    /// drained and whose stream has passed the gate.
    pub(super) fn leaves_stream(&self) -> bool {
        let Some(own) = self.in_stream().filter(|_| !self.life.is_lost()) else {
            return true;
        };
        // Otherwise another thread has written the last mark, or is writing it.
        own.turnstile.pass_after(own.done.at).is_some()
            || !own.waits.load(Acquire)
            || self.see_done(own) > self.batches.recorded()
    }

    /// Number of launches up to the end of batch `number`.
    pub(super) fn launches_by(&self, number: u64) -> u64 {
        let recorded = self.batches.recorded();
        let uncovered = if number > recorded { self.count.uncovered.load(Relaxed) } else { 0 };
        self.batch(number.min(recorded)).launches.load(Relaxed) + u64::from(uncovered)
    }

    /// Counts a collective that is about to be launched behind the gate in the stream. Called by the lane's thread.
    pub(in crate::compute) fn collective_begins(&self) {
        self.batches
            .collectives
            .launched
            .store(self.batches.collectives.launched.load(Relaxed) + 1, Release);
    }

    /// Undoes [`Self::collective_begins`] after a failed launch.
    pub(in crate::compute) fn collective_failed(&self) {
        self.batches
            .collectives
            .launched
            .store(self.batches.collectives.launched.load(Relaxed) - 1, Release);
    }

    /// Whether a collective has begun and is not done.
    pub(in crate::compute) fn is_in_collective(&self) -> bool {
        let Some(own) = self.in_stream().filter(|_| !self.life.is_lost()) else { return false };
        let is_done =
            || self.collectives_by(self.begun(own)) == self.collectives_by(self.see_done(own));
        !is_done() && !self.is_seen_idle(own)
    }

    /// Whether the driver has reported the stream as idle since the last launch.
    fn is_seen_idle(&self, own: &InStream) -> bool {
        own.idle_at.load(Relaxed) == self.activity()
    }

    /// Number of collectives launched up to the end of batch `number`.
    fn collectives_by(&self, number: u64) -> u64 {
        let is_open = number > self.batches.recorded();
        let open = || self.batches.collectives.launched.load(Acquire);
        if is_open { open() } else { self.batch(number).collectives.load(Relaxed) }
    }

    /// Number of launched collectives that were not reported to the other devices.
    pub(in crate::compute) fn collectives_ahead(&self) -> u64 {
        let Collectives { launched, told } = &self.batches.collectives;
        launched.load(Acquire).wrapping_sub(told.load(Relaxed))
    }

    /// How many more collectives have begun in the stream since the last call; a batch's collectives begin with the
    /// batch. Called by the governor.
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

    /// Whether work in the stream has passed the gate and is not known to be done.
    pub(in crate::compute) fn is_running(&self) -> bool {
        self.in_stream().is_some_and(|own| self.begun(own) > self.see_done(own))
    }

    /// Whether both lanes launch into the same stream.
    pub(in crate::compute) fn shares_stream_with(&self, other: &Self) -> bool {
        let turnstiles = self.in_stream().zip(other.in_stream());
        turnstiles.is_some_and(|(own, others)| Arc::ptr_eq(&own.turnstile, &others.turnstile))
    }

    /// Whether work is held at a closed gate.
    pub(in crate::compute) fn is_held(&self, gate: &Gate) -> bool {
        gate.stream_closed_at().is_some() && self.awaits_gate()
    }

    /// Whether work in the stream may be held at a closed gate, or is about to be.
    pub(in crate::compute) fn may_be_held(&self) -> bool {
        self.is_in_stream() && (self.is_launching() || self.awaits_gate())
    }

    /// Whether work in the stream is not known to have passed the gate.
    pub(in crate::compute) fn awaits_gate(&self) -> bool {
        let awaits = |own| !self.life.is_lost() && self.last(own) > self.begun(own);
        self.in_stream().is_some_and(awaits)
    }

    /// Whether all work that has begun is done, at a closed gate; `None`: nothing can be held. Launching threads are
    /// not waited for, because the driver may make them wait for held work. `asks`: the governor is in the driver.
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
        // No mark tells when the launches after the last mark are done, but the driver may know.
        let tail = self.count.uncovered.load(Acquire) > 0 && !self.is_seen_idle(own);
        let asked = if tail && asks { self.has_idle_tail(self.activity()) } else { None };
        if let Some(is_idle) = asked {
            return Some(done >= recorded && is_idle);
        }
        let tail_ns =
            self.count.launched_ns.load(Relaxed).saturating_sub(self.covered_by(recorded));
        // A collective may wait for another device. If the program continues, a mark follows it.
        let waits = self.collectives_by(begun) != self.collectives_by(recorded);
        let tail_ns = if waits { tail_ns.max(CATCH_UP_NS) } else { tail_ns };
        let tail_is_done = !tail || clock::now() > closed_at + tail_ns + TAIL_MARGIN_NS;
        Some(done >= recorded && tail_is_done)
    }

    /// Estimated nanoseconds of the launches that have begun, and of those among them that are not done.
    pub(super) fn begun_ns(&self, own: &InStream) -> (u64, u64) {
        let done = self.see_done(own);
        let launched = self.launched_by(self.begun(own).max(done));
        (launched, launched.saturating_sub(self.launched_by(done)))
    }

    /// How long the work that has begun may keep the device busy (ns): by its estimates, or by recent launch durations.
    pub(in crate::compute) fn begun_takes_ns(&self, gate: &Gate) -> u64 {
        let estimated_ns = self.totals().outstanding_ns;
        let Some(own) = self.in_stream() else { return estimated_ns };
        let (begun, done) = (self.begun(own), self.see_done(own));
        let launches = self.launches_by(begun).saturating_sub(self.launches_by(done));
        LaunchedAhead { batches: 0, launches, estimated_ns }.ns(gate.launch_ns())
    }
}
