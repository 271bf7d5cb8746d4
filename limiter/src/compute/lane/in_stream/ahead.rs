//! How far a thread may launch ahead of the device.
//!
//! The driver holds so many entries of all streams, and blocks every thread when it is full. So there is a bound, well
//! below it. A stream that does not do what it is told, or that waits for what the program does after more launches,
//! has its gate on the thread from then on.

use super::super::super::{Gate, clock, driver_calls, undisturbing};
use super::super::{Lane, MOST_ENTRIES};
use super::{InStream, USELESS};
use core::sync::atomic::Ordering::Relaxed;
use driver::cuda::{CuResult, Stream};

/// What may be queued ahead of the device in all lanes, in estimated time.
const AHEAD_NS: u64 = 100_000_000;
/// The same in batches of all lanes: an H200 blocks the thread at the 57th that a default stream holds.
const MOST_AHEAD: u64 = 48;
/// A batch's wait and its two numbers take an entry each.
const ENTRIES_OF_BATCH: u64 = 3;
/// Fewer launches are not worth a batch of their own, where it was to have more.
const LEAST_ROOM: u64 = 64;
/// How often a thread looks whether there is room, and for how long it does.
const NAP_NS: u64 = 200_000;
const PATIENCE_NS: u64 = 200_000_000;

/// What a launch is to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::compute) enum Ahead {
    /// Go on: its stream waits for the gate, if need be.
    Go,
    /// Too much is queued.
    Full,
    /// Another thread begins or ends a batch in the stream.
    Busy,
    /// Its gate is on the thread.
    OnThread,
}

/// What streams have queued that is not done.
#[derive(Clone, Copy, Default, Debug)]
pub(in crate::compute) struct LaunchedAhead {
    pub(in crate::compute) batches: u64,
    pub(in crate::compute) launches: u64,
    pub(in crate::compute) estimated_ns: u64,
}

impl LaunchedAhead {
    /// How many launches a batch may have behind it.
    fn room(self) -> u64 {
        MOST_ENTRIES.saturating_sub((self.batches + 1) * ENTRIES_OF_BATCH + self.launches)
    }

    /// How long it takes, where launches took so long lately.
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
    /// Prepares a launch: has the stream wait for the gate before a batch. To be called by the lane's thread, which has
    /// said that it launches. `waits`: the call itself may wait for its work, so it is not held on purpose.
    pub(in crate::compute) fn goes_ahead(&self, gate: &Gate, waits: bool) -> Ahead {
        let Some(own) = self.in_stream() else { return Ahead::OnThread };
        if let Some(ahead) = self.moves_to_thread(own, gate) {
            return ahead;
        }
        // Held work keeps the governor out of the driver, and the governor in there keeps work from being held.
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

    /// Where no stream may be held any more, or the lane's stream waits for what the program does after more launches:
    /// what is held behind such a wait holds the program up. Then its gate is on the thread as soon as nothing is queued.
    /// `None`: it is in the stream.
    fn moves_to_thread(&self, own: &InStream, gate: &Gate) -> Option<Ahead> {
        let crowded = gate.device_lanes.are_crowded();
        let waits_for_program = || gate.seen.stall.has_been() && self.has_unfinished_waits();
        if !(crowded || waits_for_program()) {
            return None;
        }
        let _ = self.cover();
        let done = self.see_done(own);
        if !own.has_wait() && done == self.batches.recorded() {
            self.deny(own);
            return Some(Ahead::OnThread);
        }
        let goes_on = done == own.stuck_at.load(Relaxed) || self.is_stalled(gate);
        (crowded && !goes_on).then_some(Ahead::Full)
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

    /// Makes the batch that comes as small as it has to be; `false`: there is hardly any room.
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

    /// What the lane has in its stream that is not done.
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

    /// Waits a moment for room at an open gate. `since`: when that began, and what was done then. In vain for long, it
    /// waits no more: what is queued may wait for what comes.
    pub(in crate::compute) fn nap_for_room(&self, since: &mut Option<(u64, u64)>, gate: &Gate) {
        let Some(own) = self.in_stream() else { return };
        let (now, done) = (clock::now(), self.see_done(own));
        let (begun, before) = *since.get_or_insert((now, done));
        if before != done {
            *since = Some((now, done));
        } else if now.saturating_sub(begun) > PATIENCE_NS {
            let found = undisturbing(|| driver_calls::stream_query(self.stream as Stream));
            let is_empty = found != CuResult::NOT_READY;
            // All is done, and no mark came.
            let is_useless = !own.proven.load(Relaxed) && is_empty && self.see_done(own) == done;
            if is_useless || has_failed(found) {
                USELESS.fetch_or(is_useless, Relaxed);
                self.deny(own);
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

/// How large a batch can be. The one before may just have been ended: who waited until that is seen to be done would leave
/// the device idle.
fn fitting(batch: u64, room: u64) -> Option<u64> {
    (room >= batch.min(LEAST_ROOM)).then_some(batch.min(room))
}

/// Whether a stream's state says that its context is lost, as after a fault of a kernel: nothing more is written there.
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
        // As small as two may be that stand in the driver's queue at once.
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
