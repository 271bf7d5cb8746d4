//! Limits how far a thread may launch ahead of the device, for lanes with gates in streams.
//!
//! The driver's queue has a fixed number of entries for all streams, and a full queue blocks every thread. So there is
//! a limit well below it. If a stream does not execute the stream operations, or waits for what the program does after
//! further launches, its gate moves to the thread for good.

use super::super::super::{Gate, clock, driver_calls, undisturbing};
use super::super::{Lane, MOST_ENTRIES};
use super::{InStream, USELESS};
use core::sync::atomic::Ordering::Relaxed;
use driver::cuda::{CuResult, Stream};

/// The most estimated work queued ahead of the device, in all lanes.
const AHEAD_NS: u64 = 100_000_000;
/// The most batches queued ahead in all lanes: an H200 blocks the thread at the 57th in a default stream.
const MOST_AHEAD: u64 = 48;
/// A batch's wait and its two numbers take an entry each.
const ENTRIES_OF_BATCH: u64 = 3;
/// Smallest batch worth splitting off from a larger one.
const LEAST_ROOM: u64 = 64;
/// How often a thread checks for room, and for how long.
const NAP_NS: u64 = 200_000;
const PATIENCE_NS: u64 = 200_000_000;

/// How a launch proceeds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::compute) enum Ahead {
    /// Call the driver; the stream waits for the gate if necessary.
    Go,
    /// Too much is queued.
    Full,
    /// Another thread begins or ends a batch in the stream.
    Busy,
    /// The lane's gate is on the thread.
    OnThread,
}

/// Work queued in streams and not done.
#[derive(Clone, Copy, Default, Debug)]
pub(in crate::compute) struct LaunchedAhead {
    pub(in crate::compute) batches: u64,
    pub(in crate::compute) launches: u64,
    pub(in crate::compute) estimated_ns: u64,
}

impl LaunchedAhead {
    /// How many launches the next batch may have.
    fn room(self) -> u64 {
        MOST_ENTRIES.saturating_sub((self.batches + 1) * ENTRIES_OF_BATCH + self.launches)
    }

    /// Estimated duration in nanoseconds; at least the number of launches times `launch_ns`, their recent mean.
    pub(in crate::compute) fn ns(self, launch_ns: u64) -> u64 {
        self.estimated_ns.max(self.launches.saturating_mul(launch_ns))
    }
}

impl core::iter::Sum for LaunchedAhead {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, one| Self {
            batches: sum.batches + one.batches,
            launches: sum.launches + one.launches,
            estimated_ns: sum.estimated_ns.saturating_add(one.estimated_ns),
        })
    }
}

impl Lane {
    /// Prepares a launch: begins a batch, whose wait for the gate is put into the stream, if none is open. Called by
    /// the lane's thread after [`Lane::launch_begins`]. `waits`: the call may wait for its work, so it must not be
    /// held.
    pub(in crate::compute) fn goes_ahead(&self, gate: &Gate, waits: bool) -> Ahead {
        let Some(own) = self.in_stream() else { return Ahead::OnThread };
        if let Some(ahead) = self.moves_to_thread(own, gate) {
            return ahead;
        }
        // Held work keeps the governor out of the driver, and a governor in the driver keeps work from being held.
        if gate.lease().is_none() && (waits || gate.in_driver.is_now()) {
            return Ahead::Full;
        }
        let lease = gate.number();
        if own.has_batch() && own.lease.load(Relaxed) == lease {
            return Ahead::Go;
        }
        if !self.has_room(own, gate) {
            return Ahead::Full;
        }
        undisturbing(|| self.begin_batch(own, gate, lease))
    }

    /// Moves the lane's gate to the thread once nothing is queued, if streams must not be held any more, or if the
    /// lane's stream waits for what the program does after further launches: work held behind such a wait would block
    /// the program. `None`: the gate stays in the stream.
    fn moves_to_thread(&self, own: &InStream, gate: &Gate) -> Option<Ahead> {
        let holds_no_more = gate.device_lanes.holds_no_more();
        let waits_for_program = || gate.seen.stall.has_been() && self.has_unfinished_waits();
        let why = if holds_no_more {
            "no stream of its device may be held any more"
        } else if waits_for_program() {
            "its work waits for the program's next launches"
        } else {
            return None;
        };
        let _ = self.cover();
        let done = self.see_done(own);
        if !own.has_wait() && done == self.batches.recorded() {
            self.deny(own, format_args!("{why}"));
            return Some(Ahead::OnThread);
        }
        let goes_on = done == own.stuck_at.load(Relaxed) || self.is_stalled(gate);
        (holds_no_more && !goes_on).then_some(Ahead::Full)
    }

    fn has_room(&self, own: &InStream, gate: &Gate) -> bool {
        let (recorded, done) = (self.batches.recorded(), self.see_done(own));
        if done == own.stuck_at.load(Relaxed) || self.is_stalled(gate) {
            return true;
        }
        if !own.proven.load(Relaxed) {
            if recorded > 0 && done == 0 {
                return false;
            }
            own.proven.store(done > 0, Relaxed);
        }
        let ahead = gate.device_lanes.ahead();
        ahead.batches < MOST_AHEAD
            && ahead.ns(gate.launch_ns()) < AHEAD_NS
            && self.fits_into(ahead.room())
    }

    /// Reduces the next batch to `room` launches; `false`: there is too little room.
    fn fits_into(&self, room: u64) -> bool {
        let batch = self.pace.batch();
        let fitting = fitting(batch.into(), room);
        if let Some(Ok(smaller)) = fitting.map(u32::try_from)
            && smaller < batch
        {
            self.resize(smaller);
        }
        fitting.is_some()
    }

    /// Work of this lane that is queued in its stream and not done.
    pub(in crate::compute) fn ahead(&self) -> LaunchedAhead {
        let Some(own) = self.in_stream().filter(|_| !self.life.is_lost()) else {
            return LaunchedAhead::default();
        };
        let done = self.see_done(own);
        let launched_ns = self.count.launched_ns.load(Relaxed);
        LaunchedAhead {
            batches: self.batches.recorded().saturating_sub(done),
            launches: self.launches_by(u64::MAX).saturating_sub(self.launches_by(done)),
            estimated_ns: launched_ns.saturating_sub(self.launched_by(done)),
        }
    }

    /// Waits a moment for room at an open gate. `since`: when the waiting began, and the last batch done at that time.
    /// Gives up after [`PATIENCE_NS`] without progress, because the queued work may wait for what follows.
    pub(in crate::compute) fn nap_for_room(&self, since: &mut Option<(u64, u64)>, gate: &Gate) {
        let Some(own) = self.in_stream() else { return };
        let (now, done) = (clock::now(), self.see_done(own));
        let (begun, before) = *since.get_or_insert((now, done));
        if before != done {
            *since = Some((now, done));
        } else if now.saturating_sub(begun) > PATIENCE_NS {
            let found = undisturbing(|| driver_calls::stream_query(self.stream as Stream));
            let is_empty = found != CuResult::NOT_READY;
            // All work is done, but its mark was not written.
            let is_useless = !own.proven.load(Relaxed) && is_empty && self.see_done(own) == done;
            if is_useless || has_failed(found) {
                USELESS.fetch_or(is_useless, Relaxed);
                self.deny(own, format_args!("it does not execute what it is told ({found:?})"));
                return;
            }
            own.stuck_at.store(done, Relaxed);
            if self.has_unfinished_waits() {
                gate.seen.stall.begin(gate.lanes().progress(), now);
            }
        }
        clock::sleep(NAP_NS);
    }
}

/// The size of the next batch. The previous batch may just have ended: waiting until it is done would leave the device
/// idle.
fn fitting(batch: u64, room: u64) -> Option<u64> {
    (room >= batch.min(LEAST_ROOM)).then_some(batch.min(room))
}

/// Whether a stream's state shows a lost context, as after a kernel's fault; then no stream operation is executed any
/// more.
fn has_failed(found: CuResult) -> bool {
    let captured = CuResult::STREAM_CAPTURE_UNSUPPORTED.0..=CuResult::STREAM_CAPTURE_WRONG_THREAD.0;
    !(found.is_ok() || found == CuResult::NOT_READY || captured.contains(&found.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_that_has_just_ended_is_not_waited_for() {
        let behind = |launches| LaunchedAhead { batches: 1, launches, estimated_ns: 0 }.room();
        // Small enough that both batches fit into the driver's queue.
        let largest = u64::from(super::super::super::MAX_BATCH);
        assert_eq!(fitting(largest, behind(largest)), Some(MOST_ENTRIES - largest - 6));
        assert_eq!(fitting(200, behind(largest)), Some(200));
    }

    #[test]
    fn hardly_any_room_is_none() {
        assert_eq!(fitting(512, LEAST_ROOM), Some(LEAST_ROOM));
        assert_eq!(fitting(512, LEAST_ROOM - 1), None);
        assert_eq!([fitting(8, 8), fitting(8, 7), fitting(1, 0)], [Some(8), None, None]);
        let full = LaunchedAhead { batches: 2, launches: 2 * MOST_ENTRIES, estimated_ns: 0 };
        assert_eq!(full.room(), 0);
    }
}
