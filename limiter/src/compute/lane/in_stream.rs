//! A lane whose gate is in its stream.
//!
//! Before each batch the stream waits for the gate's word. Then it writes the batch's number to a word of the lane, and
//! behind the batch to another. So the thread need not wait at a closed gate: it goes on launching, up to a bound. And
//! whoever wants to know how far the stream is reads memory, and never needs the driver.
//!
//! What has begun, the device does. The rest is held while the gate is closed. Only the device can tell which is
//! which: it looks at the gate when it comes to the wait, and that may be long after the wait was put there, or after
//! the batch before was done.

use super::super::stream_gate::StreamGate;
use super::super::{Gate, clock, driver_calls, is_capturing, undisturbing, within, words};
use super::{CLOSED, Lane};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use driver::cuda::{CuResult, DevicePtr, STREAM_PER_THREAD, STREAM_WAIT_VALUE_AND, Stream};
use session::gate_page::layout::OPEN;

/// Lanes of a process and device whose gate is in the stream: beyond so many held streams, submitting blocks on
/// devices with few hardware queues.
pub(in crate::compute) const MOST_LANES: u32 = 8;
/// Batches of a lane that may not be done, and a few.
pub(super) const BATCHES: usize = 128;
/// What may be queued ahead of the device: estimated time of a lane, and entries of the driver's queue in all lanes.
/// An H200 blocks the thread at 1,020 entries, and then every other thread, too.
const AHEAD_NS: u64 = 100_000_000;
const MOST_ENTRIES: u64 = 900;
/// The same in batches of all lanes: an H200 blocks the thread at the 57th that a default stream holds.
const MOST_AHEAD: u64 = 48;
/// A batch's wait and its two numbers take an entry each.
const ENTRIES_OF_BATCH: u64 = 3;
/// Estimated time of a batch: beside other sessions, which wait for it at a handover, and alone. These
/// operations cost the device 6 us.
const SHARED_BATCH_NS: u64 = 1_000_000;
const BATCH_NS: u64 = 2_000_000;
/// How much longer than its estimates the work takes that no mark covers yet.
const TAIL_MARGIN_NS: u64 = 100_000;
/// How often a thread looks whether there is room, and for how long it does.
const NAP_NS: u64 = 200_000;
const PATIENCE_NS: u64 = 200_000_000;
/// Nobody has run out of patience.
const NEVER: u64 = u64::MAX;

/// Streams of this process do not do what they are told.
static USELESS: AtomicBool = AtomicBool::new(false);

/// See the module.
pub(super) struct InStream {
    /// Where the device sees the gate's word.
    gate_at: DevicePtr,
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
}

impl InStream {
    /// Of a stream of the current context.
    pub(super) fn new(gate: &StreamGate, context: usize) -> Option<Self> {
        if USELESS.load(Relaxed) {
            return None;
        }
        let gate_at = gate.word_for(context)?;
        let begun = words::take(context)?;
        let Some(done) = words::take(context) else {
            words::give_back(begun.0);
            return None;
        };
        let [begun, done] = [begun, done].map(|(word, at)| {
            // Lanes before this one have left their last number in it.
            word.store(0, SeqCst);
            Word { word, at }
        });
        Some(Self {
            gate_at,
            begun,
            done,
            waits: AtomicBool::new(false),
            lease: AtomicU32::new(0),
            proven: AtomicBool::new(false),
            denied: AtomicBool::new(false),
            stuck_at: AtomicU64::new(NEVER),
        })
    }

    /// The lane is no more, and its last mark was seen or never comes.
    pub(super) fn give_back(&self) {
        words::give_back(self.begun.word);
        words::give_back(self.done.word);
    }

    /// Whether the next launch has to put a wait into the stream first.
    pub(super) fn needs_wait(&self) -> bool {
        !self.denied.load(Relaxed) && !self.waits.load(Relaxed)
    }
}

/// A word that the stream writes.
struct Word {
    word: &'static AtomicU32,
    at: DevicePtr,
}

impl Word {
    /// Has the stream write the number of a batch. Numbers are compared as they are counted, modulo 2^32.
    fn write(&self, stream: usize, number: u64) -> bool {
        driver_calls::stream_write_value(stream as Stream, self.at, number as u32, 0).is_ok()
    }

    /// The batch, which is near to another.
    fn number(&self, near: u64) -> u64 {
        near.saturating_add_signed(
            self.word.load(Acquire).wrapping_sub(near as u32).cast_signed().into(),
        )
    }
}

/// What a launch is to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::compute) enum Ahead {
    /// Go on: its stream waits for the gate, if need be.
    Go,
    /// Too much is queued.
    Full,
    /// Its gate is on the thread.
    OnThread,
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

    /// Sees how far the stream is.
    pub(super) fn see_done(&self, own: &InStream) -> u64 {
        let done = own.done.number(self.recorded.load(Acquire));
        if done > self.done.load(Relaxed) {
            self.done.fetch_max(done, Release);
        }
        done
    }

    /// Prepares a launch: has the stream wait for the gate before a batch. To be called by the lane's thread, which has
    /// said that it launches. `waits`: the call itself may wait for its work, so it must not be held.
    pub(in crate::compute) fn goes_ahead(&self, gate: &Gate, waits: bool) -> Ahead {
        let Some(own) = self.in_stream() else { return Ahead::OnThread };
        if waits {
            return if gate.lease().is_some() { Ahead::Go } else { Ahead::Full };
        }
        if !self.has_room(own, gate) {
            return Ahead::Full;
        }
        let lease = gate.number();
        if own.waits.load(Relaxed) && own.lease.load(Relaxed) == lease {
            return Ahead::Go;
        }
        undisturbing(|| self.begin_batch(own, gate, lease))
    }

    fn begin_batch(&self, own: &InStream, gate: &Gate, lease: u32) -> Ahead {
        // One of another lease ends here, so that it is known to be held or to have passed.
        if !self.try_to_cover() {
            return Ahead::Full;
        }
        let number = self.recorded.load(Relaxed) + 1;
        let stream = self.stream as Stream;
        let waits =
            driver_calls::stream_wait_value(stream, own.gate_at, OPEN, STREAM_WAIT_VALUE_AND);
        if !waits.is_ok() || !own.begun.write(self.stream, number) {
            self.deny(own);
            return Ahead::OnThread;
        }
        own.lease.store(lease, Relaxed);
        own.waits.store(true, Relaxed);
        let launched = self.count.launched_ns.load(Relaxed);
        self.count.most_ns.store(launched.saturating_add(self.batch_ns(gate)), Relaxed);
        self.stop_at(self.planned.load(Relaxed));
        Ahead::Go
    }

    /// Ends a batch with a mark; `false`: too many are under way.
    pub(super) fn mark(&self, own: &InStream, number: u64) -> bool {
        if number.saturating_sub(self.see_done(own)) + 2 > BATCHES as u64 {
            return false;
        }
        let written = own.done.write(self.stream, number);
        if written {
            own.waits.store(false, Relaxed);
        }
        written
    }

    /// The estimated time of a batch.
    pub(super) fn batch_ns(&self, gate: &Gate) -> u64 {
        if gate.is_shared() { SHARED_BATCH_NS } else { BATCH_NS }
    }

    /// How many launches a batch has at most, by what launches took lately; fewer if that is not known.
    pub(super) fn most_launches(&self, gate: &Gate) -> u32 {
        const UNMEASURED: u32 = 4;
        let most = self
            .batch_ns(gate)
            .checked_div(gate.launch_ns())
            .map_or(UNMEASURED.into(), |most| most.max(1));
        u32::try_from(most).unwrap_or(u32::MAX)
    }

    /// How many of the launches are done, and what they were estimated to take.
    pub(in crate::compute) fn done_launches(&self) -> (u64, u64) {
        let Some(own) = self.in_stream() else { return (0, 0) };
        let batch = self.batch(self.see_done(own));
        (batch.launches.load(Relaxed), batch.covered_ns.load(Relaxed))
    }

    fn has_room(&self, own: &InStream, gate: &Gate) -> bool {
        let (recorded, done) = (self.recorded.load(Relaxed), self.see_done(own));
        if done == own.stuck_at.load(Relaxed) {
            return true;
        }
        if !own.proven.load(Relaxed) {
            if recorded > 0 && done == 0 {
                return false;
            }
            own.proven.store(done > 0, Relaxed);
        }
        let launches = self.batch(recorded).launches.load(Relaxed)
            + u64::from(self.count.uncovered.load(Relaxed))
            - self.batch(done).launches.load(Relaxed);
        let entries = launches + (recorded - done) * ENTRIES_OF_BATCH;
        let estimated = self.count.launched_ns.load(Relaxed).saturating_sub(self.covered_by(done));
        let ahead_ns = estimated.max(launches.saturating_mul(gate.launch_ns()));
        entries < MOST_ENTRIES / u64::from(gate.lanes_in_stream().max(1))
            && ahead_ns < AHEAD_NS
            && recorded - done < MOST_AHEAD / u64::from(gate.lanes_in_stream().max(1))
    }

    /// Waits a moment for room at an open gate. `since`: when that began, and what was done then. In vain for long, it
    /// waits no more: what is queued may wait for what comes.
    pub(in crate::compute) fn nap_for_room(&self, since: &mut Option<(u64, u64)>) {
        let Some(own) = self.in_stream() else { return };
        let (now, done) = (clock::now(), self.see_done(own));
        let (begun, before) = *since.get_or_insert((now, done));
        if before != done {
            *since = Some((now, done));
        } else if now.saturating_sub(begun) > PATIENCE_NS {
            let empty = || driver_calls::stream_query(self.stream as Stream) != CuResult::NOT_READY;
            if !own.proven.load(Relaxed) && undisturbing(empty) && self.see_done(own) == done {
                // All is done, and no mark came.
                USELESS.store(true, Relaxed);
                self.deny(own);
                return;
            }
            own.stuck_at.store(done, Relaxed);
            return;
        }
        clock::sleep(NAP_NS);
    }

    /// From now on its gate is on the thread.
    fn deny(&self, own: &InStream) {
        own.denied.store(true, Relaxed);
        self.done.fetch_max(self.recorded.load(Relaxed), Release);
        self.count.most_ns.store(0, Relaxed);
        tracing::info!("a stream cannot wait for its gate: its thread does");
    }

    /// Number of the batch that no mark covers yet, or of the last one.
    fn last(&self) -> u64 {
        self.recorded.load(Acquire) + u64::from(self.count.uncovered.load(Acquire) > 0)
    }

    /// The last batch that has begun.
    pub(super) fn begun(&self, own: &InStream) -> u64 {
        own.begun.number(self.recorded.load(Acquire))
    }

    /// Estimated nanoseconds of all launches up to a batch's end.
    fn launched_by(&self, number: u64) -> u64 {
        if number <= self.recorded.load(Acquire) {
            self.covered_by(number)
        } else {
            self.count.launched_ns.load(Relaxed)
        }
    }

    /// Whether work is held at a closed gate.
    pub(in crate::compute) fn is_held(&self, gate: &Gate) -> bool {
        let Some(own) = self.in_stream().filter(|_| gate.stream_closed_at().is_some()) else {
            return false;
        };
        !self.lost.load(Acquire) && self.last() > self.begun(own)
    }

    /// Whether all that has begun is done; at an open gate, whether all is. At a closed one a thread that launches is not
    /// waited for: the driver may have it wait for what is held. To be called by the governor, pinned.
    pub(super) fn is_drained_in_stream(&self, own: &InStream, gate: &Gate) -> bool {
        let (begun, done, recorded) =
            (self.begun(own), self.see_done(own), self.recorded.load(Acquire));
        let waits = self.calling_since.load(Acquire) != 0;
        let tail = self.count.uncovered.load(Acquire) > 0;
        let Some(closed_at) = gate.stream_closed_at() else {
            return done >= recorded
                && !waits
                && !self.is_launching()
                && (!tail || self.is_tail_done());
        };
        if waits && self.last() <= begun && !gate.holds_work() {
            return false;
        }
        if begun <= recorded {
            return done >= begun;
        }
        // No mark says when what the last one does not cover is done.
        let tail_ns =
            self.count.launched_ns.load(Relaxed).saturating_sub(self.covered_by(recorded));
        done >= recorded && (!tail || clock::now() > closed_at + tail_ns + TAIL_MARGIN_NS)
    }

    /// Asks the driver, while the gate is open: nobody waits in there for a stream that is held.
    fn is_tail_done(&self) -> bool {
        // The calling thread cannot name another thread's default stream.
        if self.batch.load(Relaxed) == CLOSED || self.stream == STREAM_PER_THREAD {
            return true;
        }
        let done = || {
            is_capturing(self.stream)
                || driver_calls::stream_query(self.stream as Stream) != CuResult::NOT_READY
        };
        within(self.context, done).unwrap_or(true)
    }

    /// Estimated nanoseconds of the launches that have begun, and of those of them that are not done.
    pub(super) fn begun_ns(&self, own: &InStream) -> (u64, u64) {
        let done = self.see_done(own);
        let launched = self.launched_by(self.begun(own).max(done));
        (launched, launched.saturating_sub(self.covered_by(done)))
    }
}
