//! The shared data: plain numbers at fixed places, valid for any process that maps the file.
//!
//! Records refer to each other by slot number and generation, never by address. If a process dies
//! while it holds the lock, [`State::rebuild`] recomputes what can be derived (lists, sums).

use std::alloc::{Layout, alloc_zeroed, handle_alloc_error};

use crate::blocks::{Block, MAX_BLOCKS};
use crate::config::Config;
use crate::groups::{Group, MAX_GROUPS};

/// Devices that a node can have.
pub const MAX_DEVICES: usize = 16;
/// Processes that can use the node at the same time.
pub const MAX_PROCESSES: usize = 1024;
/// Streams of all processes together.
pub const MAX_STREAMS: usize = 4096;
/// Events of all processes together.
pub const MAX_EVENTS: usize = 65_536;
/// Operations that a stream can have outstanding before a launch blocks, as on the real driver.
pub const QUEUE_DEPTH: u64 = 1024;
/// "No slot".
pub const NONE: u32 = u32::MAX;
/// Utilisation is sampled this often (6 times a second, as NVML does).
pub const SAMPLE_NS: u64 = 1_000_000_000 / 6;
/// Sampling periods that are remembered.
pub const SAMPLES: usize = 8;

/// What an operation in a stream does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Kind {
    /// Holds the device and counts as utilisation.
    Kernel = 1,
    /// Holds the device (a copy or a fill).
    Copy = 2,
    /// Stores the time in an event.
    Record = 3,
    /// Blocks its stream until another stream has reached a position.
    Wait = 4,
    /// Blocks its stream until its process has seen the value that it waits for.
    Value = 5,
    /// Has its process store a value in its memory.
    Write = 6,
    /// Holds the device until all members of its group have begun, and then for its time. Counts as
    /// utilisation.
    Collective = 7,
}

/// One queued operation.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Op {
    /// Order of submission over all streams.
    pub seq: u64,
    /// Kernel, copy, collective: nanoseconds left. Record: the event's record number. Wait: the position.
    pub value: u64,
    /// [`Kind`] as a number.
    pub kind: u32,
    /// Record: event slot. Wait: stream slot. Collective: group slot.
    pub target: u32,
    /// Generation of `target`.
    pub generation: u32,
    /// Kernel, copy, collective: whether it has begun to run. Value: whether the value was there when its
    /// process last checked.
    pub started: u32,
}

impl Op {
    /// Work that holds the device for `ns`.
    #[must_use]
    pub fn work(kind: Kind, ns: u64) -> Self {
        Self { seq: 0, value: ns, kind: kind as u32, target: NONE, generation: 0, started: 0 }
    }

    /// A wait until another stream has reached a position.
    #[must_use]
    pub fn wait(stream: StreamId, position: u64) -> Self {
        Self {
            seq: 0,
            value: position,
            kind: Kind::Wait as u32,
            target: stream.slot,
            generation: stream.generation,
            started: 0,
        }
    }

    /// A wait for a value in the process's memory, which may be there already.
    #[must_use]
    pub fn value(there: bool) -> Self {
        let started = u32::from(there);
        Self { seq: 0, value: 0, kind: Kind::Value as u32, target: NONE, generation: 0, started }
    }

    /// A value that the process is to store in its memory.
    #[must_use]
    pub fn write() -> Self {
        Self { kind: Kind::Write as u32, ..Self::value(false) }
    }

    /// Whether it holds the device.
    #[must_use]
    pub fn is_work(&self) -> bool {
        self.kind == Kind::Copy as u32 || self.is_kernel()
    }

    /// Whether it counts as utilisation.
    #[must_use]
    pub fn is_kernel(&self) -> bool {
        self.kind == Kind::Kernel as u32 || self.kind == Kind::Collective as u32
    }
}

/// A stream's relation to its context's legacy stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Order {
    /// Waits for the legacy stream and is waited for by it.
    Blocking = 0,
    /// Is the legacy stream.
    Legacy = 1,
    /// Independent of it.
    NonBlocking = 2,
}

/// A stream. Its queue is in [`State::queues`], so that searching the streams stays cheap.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Stream {
    /// 0 free, 1 in use, 2 destroyed with work left.
    pub state: u32,
    /// Counts the uses of this slot.
    pub generation: u32,
    /// Slot of the owner.
    pub process: u32,
    /// Device ordinal on the node.
    pub device: u32,
    /// The owner's own number for the context.
    pub context: u64,
    /// [`Order`] as a number.
    pub order: u32,
    /// Lower runs first.
    pub priority: i32,
    /// Next stream with work of the same client; next free slot while free.
    pub next: u32,
    /// Whether it is in its client's list.
    pub listed: u32,
    /// Operations finished so far.
    pub head: u64,
    /// Operations submitted so far.
    pub tail: u64,
    /// When the cost of its last event record has passed. Nothing goes on before.
    pub open_at: u64,
    /// When the results of its last work are visible. No event is reached before.
    pub settled_at: u64,
    /// When the gap after its last kernel has passed. No work begins before.
    pub work_at: u64,
    /// Its hardware queue.
    pub queue: u32,
    /// Keeps the layout free of padding.
    pub reserved: u32,
}

/// A stream's operations, at position modulo [`QUEUE_DEPTH`].
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Queue {
    /// A ring.
    pub ops: [Op; QUEUE_DEPTH as usize],
}

/// An event.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Event {
    /// 0 free, 1 in use.
    pub state: u32,
    /// Counts the uses of this slot.
    pub generation: u32,
    /// Slot of the owner.
    pub process: u32,
    /// Next free slot.
    pub next: u32,
    /// How often it was recorded.
    pub records: u64,
    /// Stream of the last record.
    pub stream: u32,
    /// Generation of that stream.
    pub stream_generation: u32,
    /// The stream's position after that record.
    pub position: u64,
    /// When the last record was reached.
    pub time: u64,
}

/// Time used within one sampling period.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Sample {
    /// Which period.
    pub period: u64,
    /// Nanoseconds in which a kernel ran.
    pub busy: u64,
}

/// One process on one device.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Client {
    /// Bytes of device memory.
    pub memory: u64,
    /// Contexts.
    pub contexts: u32,
    /// First stream that has work.
    pub first: u32,
    /// The stream whose head runs (or would run) next.
    pub choice: u32,
    /// Whether `choice` has to be found anew.
    pub dirty: u32,
    /// Whether an event's cost delays something that it would run.
    pub held: u32,
    /// Streams made so far.
    pub streams: u32,
    /// Whether a stream has come to a wait for a value that is not there.
    pub waiting: u32,
    /// Keeps the layout free of padding.
    pub reserved: u32,
    /// When `choice` has to be found anew even if nothing else happens.
    pub wake: u64,
    /// Nanoseconds for which its work has held the device, in all.
    pub worked_ns: u64,
    /// Utilisation.
    pub samples: [Sample; SAMPLES],
}

/// A process that uses the node.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Process {
    /// 0 free, 1 in use, 2 dead with its work still on the device.
    pub state: u32,
    /// Process id.
    pub pid: u32,
    /// Start time in clock ticks since boot. It tells a reused id apart.
    pub start: u64,
    /// Dead: when its work is taken off the device.
    pub gone_at: u64,
    /// Hardware queues on each device.
    pub queues: u32,
    /// Keeps the layout free of padding.
    pub reserved: u32,
    /// Per device.
    pub clients: [Client; MAX_DEVICES],
}

/// A device.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Device {
    /// Bytes taken by all clients.
    pub used: u64,
    /// End of the current client's slice.
    pub slice_end: u64,
    /// End of the switch in progress. Nothing runs before.
    pub ready_at: u64,
    /// Slot of the process whose work is on the device.
    pub current: u32,
    /// Length of `queue`.
    pub queued: u32,
    /// Processes with work, in order of arrival.
    pub queue: [u32; MAX_PROCESSES],
    /// Nanoseconds for which anybody's work has held it, in all.
    pub worked_ns: u64,
    /// Utilisation of all processes together.
    pub samples: [Sample; SAMPLES],
}

/// The whole state. An all-zero value becomes valid by [`State::init`].
#[repr(C)]
pub struct State {
    /// Fixed properties.
    pub config: Config,
    /// The time up to which the simulation has run (`CLOCK_MONOTONIC`, nanoseconds).
    pub now: u64,
    /// When dead processes were last looked for.
    pub reaped: u64,
    /// When they were last looked for in `/proc`.
    pub checked: u64,
    /// When the next dead process's work is taken off the device.
    pub next_gone: u64,
    /// Submissions so far.
    pub seq: u64,
    /// First free stream slot below the mark.
    pub free_streams: u32,
    /// First free event slot below the mark.
    pub free_events: u32,
    /// Stream slots that were ever used. Slots beyond this mark need no check.
    pub stream_mark: u32,
    /// Event slots that were ever used.
    pub event_mark: u32,
    /// Process slots that were ever used.
    pub process_mark: u32,
    /// Block slots that were ever used.
    pub block_mark: u32,
    /// Group slots that were ever used.
    pub group_mark: u32,
    /// Keeps the layout free of padding.
    pub reserved: u32,
    /// Groups of collective kernels.
    pub groups: [Group; MAX_GROUPS],
    /// Devices.
    pub devices: [Device; MAX_DEVICES],
    /// Processes.
    pub processes: [Process; MAX_PROCESSES],
    /// Memory that several processes hold.
    pub blocks: [Block; MAX_BLOCKS],
    /// Events.
    pub events: [Event; MAX_EVENTS],
    /// Streams.
    pub streams: [Stream; MAX_STREAMS],
    /// The streams' operations. Memory pages of streams that were never used are never touched.
    pub queues: [Queue; MAX_STREAMS],
}

/// Names a stream for as long as it exists.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StreamId {
    /// Slot number.
    pub slot: u32,
    /// Generation of the slot.
    pub generation: u32,
}

/// Names an event for as long as it exists.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EventId {
    /// Slot number.
    pub slot: u32,
    /// Generation of the slot.
    pub generation: u32,
}

impl State {
    /// An idle node at time `now`, in this process's own memory.
    #[must_use]
    pub fn boxed(config: Config, now: u64) -> Box<Self> {
        let layout = Layout::new::<Self>();
        // SAFETY: the layout is that of `Self` and not empty, and all-zero bytes are a valid `Self` (plain integers).
        let mut state = unsafe {
            let bytes = alloc_zeroed(layout);
            if bytes.is_null() {
                handle_alloc_error(layout);
            }
            Box::from_raw(bytes.cast::<Self>())
        };
        state.init(config, now);
        state
    }

    /// Makes an all-zero value an idle node at time `now`.
    pub fn init(&mut self, config: Config, now: u64) {
        self.config = config;
        self.now = now;
        self.next_gone = u64::MAX;
        self.rebuild();
    }

    /// Recomputes every list and sum from the processes, streams and events.
    pub fn rebuild(&mut self) {
        for device in &mut self.devices {
            device.queued = 0;
            device.used = 0;
        }
        for slot in 0..self.process_mark as usize {
            let live = self.processes[slot].state == 1;
            for device in 0..MAX_DEVICES {
                let client = &mut self.processes[slot].clients[device];
                client.first = NONE;
                client.choice = NONE;
                client.dirty = 1;
                client.held = 0;
                client.wake = u64::MAX;
                if live {
                    self.devices[device].used += client.memory;
                }
            }
        }
        self.rebuild_blocks();
        self.free_events = NONE;
        for slot in (0..self.event_mark as usize).rev() {
            let owner = self.events[slot].process as usize;
            if self.events[slot].state == 1 && self.processes[owner].state != 0 {
                continue;
            }
            let event = &mut self.events[slot];
            event.state = 0;
            event.next = self.free_events;
            self.free_events = slot as u32;
        }
        self.free_streams = NONE;
        for slot in (0..self.stream_mark as usize).rev() {
            let stream = &mut self.streams[slot];
            stream.listed = 0;
            let owned = stream.state != 0 && self.processes[stream.process as usize].state != 0;
            if owned && !(stream.state == 2 && stream.head == stream.tail) {
                if stream.head != stream.tail {
                    self.enlist(slot as u32);
                }
                continue;
            }
            if stream.state != 0 {
                stream.state = 0;
                stream.generation = stream.generation.wrapping_add(1);
            }
            stream.next = self.free_streams;
            self.free_streams = slot as u32;
        }
        self.rebuild_groups();
        for device in &mut self.devices {
            let current = device.current as usize;
            if current >= MAX_PROCESSES || self.processes[current].state == 0 {
                device.current = NONE;
            }
        }
    }
}
