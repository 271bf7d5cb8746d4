//! Hardware queues: which streams are held by a wait for a value, and what is held behind them.
//!
//! A process has a few hardware queues per device (8, or `CUDA_DEVICE_MAX_CONNECTIONS`), used by its streams in turn. A
//! queue is in order: work submitted behind an unfinished wait is held, whichever stream it belongs to. Measured on an
//! H200 with 8 queues: with 8 held streams, each with a kernel behind its wait, submission does not block; with 64 it
//! blocks until one continues. The limit lies in between; here it is the number of queues.

use crate::layout::{Kind, MAX_DEVICES, State, StreamId};

/// Default number of queues of a process on a device.
pub const QUEUES: u32 = 8;
/// Most queues of a process on a device.
pub const MOST_QUEUES: u32 = 32;
/// Marks a stream that uses no hardware queue.
pub(crate) const NO_QUEUE: u32 = u32::MAX;

impl State {
    /// Sets the number of a process's queues per device. Call before it creates streams.
    pub fn set_queues(&mut self, process: u32, queues: u32) {
        self.processes[process as usize].queues = queues.clamp(1, MOST_QUEUES);
    }

    pub(crate) fn next_queue(&mut self, process: u32, device: u32) -> u32 {
        let process = &mut self.processes[process as usize];
        let client = &mut process.clients[device as usize];
        client.streams = client.streams.wrapping_add(1);
        (client.streams - 1) % process.queues.max(1)
    }

    /// Whether a stream has reached a wait whose value is not there.
    pub(crate) fn waits(&self, slot: u32) -> bool {
        self.head(slot).is_some_and(|op| op.kind == Kind::Value as u32 && op.started == 0)
    }

    /// The process's streams on a device that have reached such a wait.
    fn waiting(&self, process: u32, device: u32) -> impl Iterator<Item = u32> + '_ {
        let mut slot = self.processes[process as usize].clients[device as usize].first;
        core::iter::from_fn(move || {
            let this = slot;
            slot = self.streams.get(this as usize)?.next;
            Some(this)
        })
        .filter(|&slot| self.waits(slot))
    }

    /// Records whether any stream of the client waits, so that clients without one need no search.
    pub(crate) fn note_waiting(&mut self, process: u32, device: usize) {
        let waiting = self.waiting(process, device as u32).next().is_some();
        self.processes[process as usize].clients[device].waiting = waiting.into();
    }

    /// Whether operation `seq` of a stream is behind another stream's wait in their shared queue.
    pub(crate) fn held_back(&self, slot: u32, seq: u64) -> bool {
        let stream = &self.streams[slot as usize];
        if self.processes[stream.process as usize].clients[stream.device as usize].waiting == 0 {
            return false;
        }
        self.waiting(stream.process, stream.device).any(|other| {
            other != slot
                && self.streams[other as usize].queue == stream.queue
                && self.head(other).is_some_and(|op| op.seq < seq)
        })
    }

    /// Whether work for a held stream finds no queue, because too many other streams have work behind their waits.
    pub(crate) fn lacks_queue(&self, slot: u32) -> bool {
        if !self.waits(slot) {
            return false;
        }
        let stream = &self.streams[slot as usize];
        let others = self.waiting(stream.process, stream.device).filter(|&other| {
            let other_stream = &self.streams[other as usize];
            other != slot && other_stream.tail - other_stream.head > 1
        });
        others.count() >= self.processes[stream.process as usize].queues as usize
    }

    /// Whether a stream continues only after a value changes.
    #[must_use]
    pub fn is_held(&self, id: StreamId) -> bool {
        let alive = self
            .streams
            .get(id.slot as usize)
            .is_some_and(|stream| stream.generation == id.generation && stream.state != 0);
        alive
            && (self.waits(id.slot)
                || self.head(id.slot).is_some_and(|op| self.held_back(id.slot, op.seq)))
    }

    /// Contexts of a process with a stream held by a wait for a value.
    #[must_use]
    pub fn held_contexts(&self, process: u32) -> Vec<u64> {
        let clients = &self.processes[process as usize].clients;
        let held = (0..MAX_DEVICES).filter(|&device| clients[device].waiting != 0);
        held.flat_map(|device| self.waiting(process, device as u32))
            .map(|slot| self.streams[slot as usize].context)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use crate::layout::{Op, Order};
    use crate::queue::{EventState, QueueError};
    use crate::tests::{MS, kernel, node, reached, stream};

    #[test]
    fn what_is_behind_a_held_stream_in_its_hardware_queue_is_held() {
        let mut s = node();
        let p = s.add_process(1, 1).unwrap();
        s.set_queues(p, 2);
        let [a, b, c] = [(); 3].map(|()| stream(&mut s, p, Order::NonBlocking));
        s.push(c, kernel(MS)).unwrap();
        let before = reached(&mut s, p, c);
        let held = s.push(a, Op::value(false)).unwrap();
        s.push(a, kernel(MS)).unwrap();
        s.push(b, kernel(MS)).unwrap();
        let apart = reached(&mut s, p, b);
        s.push(c, kernel(MS)).unwrap();
        let behind = reached(&mut s, p, c);
        s.advance(10 * MS);
        assert_eq!(s.event_state(before), Ok(EventState::Reached(MS)));
        assert_eq!(s.event_state(apart), Ok(EventState::Reached(2 * MS)));
        assert_eq!(s.event_state(behind), Ok(EventState::Pending));
        assert_eq!([a, b, c].map(|on| s.is_held(on)), [true, false, true]);
        assert_eq!(s.held_contexts(p), [1]);
        s.tell(a, held, true);
        s.advance(20 * MS);
        assert_eq!(s.event_state(behind), Ok(EventState::Reached(12 * MS)));
        assert_eq!([a, b, c].map(|on| s.is_held(on)), [false; 3]);
        assert_eq!(s.held_contexts(p), [0_u64; 0]);
        // A wait holds nothing that was submitted to the queue earlier.
        s.push(c, kernel(MS)).unwrap();
        let first = reached(&mut s, p, c);
        s.push(a, Op::value(false)).unwrap();
        s.advance(30 * MS);
        assert_eq!(s.event_state(first), Ok(EventState::Reached(21 * MS)));
    }

    #[test]
    fn only_so_many_streams_can_be_held_with_work_behind() {
        let mut s = node();
        let p = s.add_process(1, 1).unwrap();
        let streams = [(); 10].map(|()| stream(&mut s, p, Order::NonBlocking));
        let waits = streams.map(|on| s.push(on, Op::value(false)).unwrap());
        for &on in &streams[..8] {
            s.push(on, kernel(MS)).unwrap();
            s.push(on, kernel(MS)).unwrap();
        }
        assert_eq!(s.push(streams[8], kernel(MS)), Err(QueueError::Held));
        s.push(streams[0], kernel(MS)).unwrap();
        s.push(streams[8], Op::write()).unwrap();
        s.tell(streams[3], waits[3], true);
        s.advance(MS);
        // A stream with only a write behind its wait counts, too.
        assert_eq!(s.push(streams[9], kernel(MS)), Err(QueueError::Held));
        s.push(streams[8], kernel(MS)).unwrap();
    }
}
