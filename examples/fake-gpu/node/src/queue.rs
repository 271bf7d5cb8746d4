//! Streams, events, and their operations. Callers advance the state to the current time first.

use crate::held::{NO_QUEUE, QUEUES};
use crate::layout::{
    Event, EventId, Kind, MAX_EVENTS, MAX_PROCESSES, MAX_STREAMS, NONE, Op, Order, Process,
    QUEUE_DEPTH, State, StreamId,
};

/// Assumed length of an operation that is not queued yet, in nanoseconds.
const UNKNOWN_NS: u64 = 50_000;
/// Interval at which a waiting process checks a missing value, in nanoseconds.
pub(crate) const LOOK_NS: u64 = 20_000;

/// How long a dead process's work continues, in nanoseconds. On an H200 it ends 9 to 13 ms after the death, in the
/// middle of a kernel; here the death is noticed slightly late.
const TAKEN_OFF_NS: u64 = 8_000_000;

/// Why an operation could not be queued.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum QueueError {
    /// The stream has [`QUEUE_DEPTH`] operations outstanding.
    #[error("the stream's queue is full")]
    Full,
    /// The stream is held, and other held streams occupy all hardware queues.
    #[error("streams are held in all hardware queues")]
    Held,
    /// The stream or event does not exist.
    #[error("no such stream or event")]
    Gone,
    /// The node has no free slot.
    #[error("the node has no slot left for another process, stream or event")]
    NoSlot,
}

/// The state of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventState {
    /// Never recorded.
    Fresh,
    /// The recorded position is not reached.
    Pending,
    /// Reached at this time, in nanoseconds.
    Reached(u64),
}

impl State {
    /// Adds a process.
    ///
    /// # Errors
    /// [`QueueError::NoSlot`].
    pub fn add_process(&mut self, pid: u32, start: u64) -> Result<u32, QueueError> {
        let slot = self.processes.iter().position(|p| p.state == 0).ok_or(QueueError::NoSlot)?;
        self.process_mark = self.process_mark.max(slot as u32 + 1);
        let process: &mut Process = &mut self.processes[slot];
        process.pid = pid;
        process.start = start;
        process.queues = QUEUES;
        for client in &mut process.clients {
            client.memory = 0;
            client.contexts = 0;
            client.first = NONE;
            client.choice = NONE;
            client.dirty = 0;
            client.held = 0;
            client.streams = 0;
            client.waiting = 0;
            client.wake = u64::MAX;
            client.worked_ns = 0;
            for sample in &mut client.samples {
                sample.busy = 0;
            }
        }
        process.state = 1;
        Ok(slot as u32)
    }

    /// Removes a process with everything it had. Its queued work never runs.
    pub fn drop_process(&mut self, slot: u32) {
        let index = slot as usize;
        if index < MAX_PROCESSES && self.processes[index].state != 0 {
            self.processes[index].state = 0;
            self.rebuild();
        }
    }

    /// Handles a process's death. Its memory is freed at once. Its queued work runs until the driver has removed it
    /// from the device; the rest never runs.
    pub fn process_died(&mut self, slot: u32) {
        if let Some(process) = self.processes.get_mut(slot as usize).filter(|p| p.state == 1) {
            process.state = 2;
            process.gone_at = self.now + TAKEN_OFF_NS;
            self.next_gone = self.next_gone.min(process.gone_at);
            self.rebuild();
        }
    }

    /// Removes the dead processes whose work has ended.
    pub(crate) fn drop_gone(&mut self) {
        let mut next = u64::MAX;
        for slot in 0..self.process_mark {
            let Process { state, gone_at, .. } = self.processes[slot as usize];
            if state == 2 && gone_at <= self.now {
                self.drop_process(slot);
            } else if state == 2 {
                next = next.min(gone_at);
            }
        }
        self.next_gone = next;
    }

    /// Creates a stream. A stream without context (0) is the driver's own and uses no hardware queue.
    ///
    /// # Errors
    /// [`QueueError::NoSlot`].
    pub fn create_stream(
        &mut self,
        process: u32,
        device: u32,
        context: u64,
        order: Order,
        priority: i32,
    ) -> Result<StreamId, QueueError> {
        let slot = match self.free_streams {
            NONE if (self.stream_mark as usize) < MAX_STREAMS => {
                self.stream_mark += 1;
                self.stream_mark - 1
            }
            NONE => return Err(QueueError::NoSlot),
            slot => {
                self.free_streams = self.streams[slot as usize].next;
                slot
            }
        };
        let queue = if context == 0 { NO_QUEUE } else { self.next_queue(process, device) };
        let stream = &mut self.streams[slot as usize];
        stream.queue = queue;
        stream.process = process;
        stream.device = device;
        stream.context = context;
        stream.order = order as u32;
        stream.priority = priority;
        stream.next = NONE;
        stream.listed = 0;
        stream.head = 0;
        stream.tail = 0;
        stream.open_at = 0;
        stream.settled_at = 0;
        stream.work_at = 0;
        stream.state = 1;
        Ok(StreamId { slot, generation: stream.generation })
    }

    /// Destroys a stream. Its queued work still runs.
    ///
    /// # Errors
    /// [`QueueError::Gone`].
    pub fn destroy_stream(&mut self, id: StreamId) -> Result<(), QueueError> {
        self.find_stream(id)?;
        let stream = &mut self.streams[id.slot as usize];
        stream.state = 2;
        if stream.head == stream.tail {
            self.release_stream(id.slot);
        }
        Ok(())
    }

    pub(crate) fn release_stream(&mut self, slot: u32) {
        let next = self.free_streams;
        let stream = &mut self.streams[slot as usize];
        stream.state = 0;
        stream.generation = stream.generation.wrapping_add(1);
        stream.next = next;
        self.free_streams = slot;
    }

    fn find_stream(&self, id: StreamId) -> Result<(), QueueError> {
        let stream = self.streams.get(id.slot as usize).ok_or(QueueError::Gone)?;
        if stream.state == 1 && stream.generation == id.generation {
            Ok(())
        } else {
            Err(QueueError::Gone)
        }
    }

    /// Creates an event.
    ///
    /// # Errors
    /// [`QueueError::NoSlot`].
    pub fn create_event(&mut self, process: u32) -> Result<EventId, QueueError> {
        let slot = match self.free_events {
            NONE if (self.event_mark as usize) < MAX_EVENTS => {
                self.event_mark += 1;
                self.event_mark - 1
            }
            NONE => return Err(QueueError::NoSlot),
            slot => {
                self.free_events = self.events[slot as usize].next;
                slot
            }
        };
        let event = &mut self.events[slot as usize];
        let generation = event.generation.wrapping_add(1);
        *event = Event {
            state: 1,
            generation,
            process,
            next: NONE,
            records: 0,
            stream: NONE,
            stream_generation: 0,
            position: 0,
            time: 0,
        };
        Ok(EventId { slot, generation })
    }

    /// Destroys an event.
    ///
    /// # Errors
    /// [`QueueError::Gone`].
    pub fn destroy_event(&mut self, id: EventId) -> Result<(), QueueError> {
        self.event(id)?;
        let next = self.free_events;
        let event = &mut self.events[id.slot as usize];
        event.state = 0;
        event.next = next;
        self.free_events = id.slot;
        Ok(())
    }

    fn event(&self, id: EventId) -> Result<&Event, QueueError> {
        match self.events.get(id.slot as usize) {
            Some(event) if event.state == 1 && event.generation == id.generation => Ok(event),
            _ => Err(QueueError::Gone),
        }
    }

    /// Queues an operation; returns the stream's position after it.
    ///
    /// # Errors
    /// [`QueueError::Full`], [`QueueError::Held`] or [`QueueError::Gone`].
    pub fn push(&mut self, id: StreamId, op: Op) -> Result<u64, QueueError> {
        self.find_stream(id)?;
        let seq = self.seq + 1;
        let stream = &self.streams[id.slot as usize];
        if stream.tail - stream.head >= QUEUE_DEPTH {
            return Err(QueueError::Full);
        }
        if op.is_work() && self.lacks_queue(id.slot) {
            return Err(QueueError::Held);
        }
        let stream = &mut self.streams[id.slot as usize];
        self.seq = seq;
        self.queues[id.slot as usize].ops[(stream.tail % QUEUE_DEPTH) as usize] = Op { seq, ..op };
        stream.tail += 1;
        let (tail, listed) = (stream.tail, stream.listed);
        if listed == 0 {
            self.enlist(id.slot);
        } else if tail - stream.head == 1 {
            let (process, device) = (stream.process as usize, stream.device as usize);
            self.processes[process].clients[device].dirty = 1;
        }
        Ok(tail)
    }

    /// Queues a record of an event.
    ///
    /// # Errors
    /// [`QueueError::Full`] or [`QueueError::Gone`].
    pub fn record(&mut self, stream: StreamId, event: EventId) -> Result<(), QueueError> {
        let records = self.event(event)?.records + 1;
        let position = self.push(
            stream,
            Op {
                seq: 0,
                value: records,
                kind: Kind::Record as u32,
                target: event.slot,
                generation: event.generation,
                started: 0,
            },
        )?;
        let event = &mut self.events[event.slot as usize];
        event.records = records;
        event.stream = stream.slot;
        event.stream_generation = stream.generation;
        event.position = position;
        Ok(())
    }

    /// Makes a stream wait for the latest record of an event, if there is one.
    ///
    /// # Errors
    /// [`QueueError::Full`] or [`QueueError::Gone`].
    pub fn wait(&mut self, stream: StreamId, event: EventId) -> Result<(), QueueError> {
        let event = *self.event(event)?;
        self.find_stream(stream)?;
        if event.records == 0 || self.passed(event.stream, event.stream_generation, event.position)
        {
            return Ok(());
        }
        let to = StreamId { slot: event.stream, generation: event.stream_generation };
        self.push(stream, Op::wait(to, event.position))?;
        Ok(())
    }

    /// Sets whether the value is there that a stream awaits before `position`. Returns `false` if there is no such
    /// wait.
    pub fn tell(&mut self, id: StreamId, position: u64, there: bool) -> bool {
        if self.passed(id.slot, id.generation, position) {
            return false;
        }
        let at = position - 1;
        self.queues[id.slot as usize].ops[(at % QUEUE_DEPTH) as usize].started = there.into();
        let stream = &self.streams[id.slot as usize];
        if there && stream.head == at {
            let (process, device) = (stream.process as usize, stream.device as usize);
            self.processes[process].clients[device].dirty = 1;
        }
        true
    }

    /// Whether a stream has finished everything up to `position`.
    #[must_use]
    pub fn passed(&self, slot: u32, generation: u32, position: u64) -> bool {
        match self.streams.get(slot as usize) {
            Some(stream) => stream.generation != generation || stream.head >= position,
            None => true,
        }
    }

    /// A stream's position after everything queued.
    ///
    /// # Errors
    /// [`QueueError::Gone`].
    pub fn end_of(&self, id: StreamId) -> Result<u64, QueueError> {
        self.find_stream(id)?;
        Ok(self.streams[id.slot as usize].tail)
    }

    /// The state of an event.
    ///
    /// # Errors
    /// [`QueueError::Gone`].
    pub fn event_state(&self, id: EventId) -> Result<EventState, QueueError> {
        let event = self.event(id)?;
        Ok(if event.records == 0 {
            EventState::Fresh
        } else if self.passed(event.stream, event.stream_generation, event.position) {
            EventState::Reached(event.time)
        } else {
            EventState::Pending
        })
    }

    /// Stream and position of an event's latest record.
    ///
    /// # Errors
    /// [`QueueError::Gone`].
    pub fn event_position(&self, id: EventId) -> Result<(StreamId, u64), QueueError> {
        let event = self.event(id)?;
        let stream = StreamId { slot: event.stream, generation: event.stream_generation };
        Ok((stream, event.position))
    }

    /// Least time, in nanoseconds, until a stream reaches `position`: the work before it, with the device to itself.
    #[must_use]
    pub fn least_time(&self, id: StreamId, position: u64) -> u64 {
        self.least_time_through(id, position, 3)
    }

    /// Like [`State::least_time`], provided that no value in the process's memory changes; `None` if a value must
    /// change first.
    #[must_use]
    pub(crate) fn due_in(&self, id: StreamId, position: u64) -> Option<u64> {
        if self.passed(id.slot, id.generation, position) {
            return Some(0);
        }
        let stream = &self.streams[id.slot as usize];
        let ops = &self.queues[id.slot as usize].ops;
        let held = (stream.head..position.min(stream.tail)).any(|at| {
            let op = &ops[(at % QUEUE_DEPTH) as usize];
            op.kind == Kind::Value as u32 && op.started == 0
        });
        let held = held || self.is_held(id);
        (!held).then(|| self.least_time(id, position))
    }

    fn least_time_through(&self, id: StreamId, position: u64, depth: u32) -> u64 {
        if self.passed(id.slot, id.generation, position) {
            return 0;
        }
        let stream = &self.streams[id.slot as usize];
        let mut work = 0_u64;
        // An operation that is not queued yet depends on a program: check again soon, but not continuously.
        let mut blocked = if position > stream.tail { UNKNOWN_NS } else { 0 };
        for at in stream.head..position.min(stream.tail) {
            let op = &self.queues[id.slot as usize].ops[(at % QUEUE_DEPTH) as usize];
            if op.is_work() {
                work = work.saturating_add(op.value);
                if self.lacks_members(op) {
                    blocked = blocked.max(UNKNOWN_NS);
                }
            } else if op.kind == Kind::Wait as u32 && depth > 0 {
                let other = StreamId { slot: op.target, generation: op.generation };
                blocked = blocked.max(self.least_time_through(other, op.value, depth - 1));
            } else if op.kind == Kind::Value as u32 && op.started == 0 {
                blocked = blocked.max(LOOK_NS);
            }
        }
        work.max(blocked)
    }

    /// Adds a stream with work to its client's list, and the client to its device's queue.
    pub(crate) fn enlist(&mut self, slot: u32) {
        let stream = &mut self.streams[slot as usize];
        let (process, device) = (stream.process, stream.device as usize);
        let client = &mut self.processes[process as usize].clients[device];
        if client.first == NONE {
            let device = &mut self.devices[device];
            device.queue[device.queued as usize] = process;
            device.queued += 1;
        }
        stream.next = client.first;
        stream.listed = 1;
        client.first = slot;
        client.dirty = 1;
    }

    /// Removes a stream without work from the lists.
    pub(crate) fn delist(&mut self, slot: u32) {
        let (process, device, next) = {
            let stream = &mut self.streams[slot as usize];
            stream.listed = 0;
            (stream.process, stream.device as usize, stream.next)
        };
        let client = &mut self.processes[process as usize].clients[device];
        if client.first == slot {
            client.first = next;
        } else {
            let mut at = client.first;
            while at != NONE && self.streams[at as usize].next != slot {
                at = self.streams[at as usize].next;
            }
            if at != NONE {
                self.streams[at as usize].next = next;
            }
        }
        if client.first == NONE {
            client.choice = NONE;
            client.dirty = 0;
            client.held = 0;
            client.wake = u64::MAX;
            let device = &mut self.devices[device];
            let queued = device.queued as usize;
            if let Some(at) = device.queue[..queued].iter().position(|&p| p == process) {
                device.queue.copy_within(at + 1..queued, at);
                device.queued -= 1;
            }
        }
    }
}
