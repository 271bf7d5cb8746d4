//! The shared data: plain numbers at fixed offsets, valid in any process that maps the file.
//!
//! Records refer to each other by slot number and generation, never by address. If a process dies while it holds the
//! lock, [`State::rebuild`] recomputes everything derived (lists, sums).

use std::alloc::{Layout, alloc_zeroed, handle_alloc_error};

use crate::blocks::{Block, MAX_BLOCKS};
use crate::config::Config;
use crate::groups::{Group, MAX_GROUPS};

/// Most devices of a node.
pub const MAX_DEVICES: usize = 16;
/// Most processes that use the node at once.
pub const MAX_PROCESSES: usize = 1024;
/// Most streams of all processes.
pub const MAX_STREAMS: usize = 4096;
/// Most events of all processes.
pub const MAX_EVENTS: usize = 65_536;
/// Operations outstanding in a stream before a launch blocks, as with the real driver.
pub const QUEUE_DEPTH: u64 = 1024;
/// No slot.
pub const NONE: u32 = u32::MAX;
/// Period of utilization samples, in nanoseconds (6 per second, as in NVML).
pub const SAMPLE_NS: u64 = 1_000_000_000 / 6;
/// Number of periods kept.
pub const SAMPLES: usize = 8;

/// Kind of an operation in a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Kind {
    /// Holds the device; counts as utilization.
    Kernel = 1,
    /// Holds the device: a copy or fill.
    Copy = 2,
    /// Stores the time in an event.
    Record = 3,
    /// Blocks its stream until another stream has reached a position.
    Wait = 4,
    /// Blocks its stream until its process has seen the awaited value.
    Value = 5,
    /// Makes its process store a value in its memory.
    Write = 6,
    /// Holds the device until all members of its group have begun, and then for its time. Counts as utilization.
    Collective = 7,
}

/// One queued operation.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Op {
    /// Order of submission over all streams.
    pub seq: u64,
    /// Kernel, copy, collective: remaining nanoseconds. Record: number of the event's record. Wait: the position.
    pub value: u64,
    /// [`Kind`] as a number.
    pub kind: u32,
    /// Record: event slot. Wait: stream slot. Collective: group slot.
    pub target: u32,
    /// Generation of `target`.
    pub generation: u32,
    /// Kernel, copy, collective: whether it has begun. Value: whether the value was there at the process's last check.
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

    /// A wait for a value in the process's memory; `there`: whether the value is there already.
    #[must_use]
    pub fn value(there: bool) -> Self {
        let started = u32::from(there);
        Self { seq: 0, value: 0, kind: Kind::Value as u32, target: NONE, generation: 0, started }
    }

    /// A write of a value to the process's memory.
    #[must_use]
    pub fn write() -> Self {
        Self { kind: Kind::Write as u32, ..Self::value(false) }
    }

    /// Whether the operation holds the device.
    #[must_use]
    pub fn is_work(&self) -> bool {
        self.kind == Kind::Copy as u32 || self.is_kernel()
    }

    /// Whether the operation counts as utilization.
    #[must_use]
    pub fn is_kernel(&self) -> bool {
        self.kind == Kind::Kernel as u32 || self.kind == Kind::Collective as u32
    }
}

/// A stream's relation to its context's legacy stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Order {
    /// Synchronizes with the legacy stream.
    Blocking = 0,
    /// The legacy stream itself.
    Legacy = 1,
    /// Independent of the legacy stream.
    NonBlocking = 2,
}

/// A stream. Its operations are in [`State::queues`], which keeps searches of streams cheap.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Stream {
    /// 0 free, 1 in use, 2 destroyed with work left.
    pub state: u32,
    /// Number of times this slot was used.
    pub generation: u32,
    /// Slot of the owning process.
    pub process: u32,
    /// Device ordinal on the node.
    pub device: u32,
    /// The owner's number for the context.
    pub context: u64,
    /// [`Order`] as a number.
    pub order: u32,
    /// Lower values run first.
    pub priority: i32,
    /// Next stream of the client's list; next free slot if free.
    pub next: u32,
    /// Whether the stream is in its client's list.
    pub listed: u32,
    /// Operations finished.
    pub head: u64,
    /// Operations submitted.
    pub tail: u64,
    /// End of the cost of the latest event record. Nothing continues earlier.
    pub open_at: u64,
    /// When the latest work's results are visible. No event is reached earlier.
    pub settled_at: u64,
    /// End of the gap after the latest kernel. No work begins earlier.
    pub work_at: u64,
    /// The stream's hardware queue.
    pub queue: u32,
    /// Avoids padding in the layout.
    pub reserved: u32,
}

/// A stream's operations, each at its position modulo [`QUEUE_DEPTH`].
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Queue {
    /// Ring buffer.
    pub ops: [Op; QUEUE_DEPTH as usize],
}

/// An event.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Event {
    /// 0 free, 1 in use.
    pub state: u32,
    /// Number of times this slot was used.
    pub generation: u32,
    /// Slot of the owning process.
    pub process: u32,
    /// Next free slot.
    pub next: u32,
    /// Number of records so far.
    pub records: u64,
    /// Stream of the latest record.
    pub stream: u32,
    /// Generation of that stream.
    pub stream_generation: u32,
    /// The stream's position after the latest record.
    pub position: u64,
    /// When the latest record was reached.
    pub time: u64,
}

/// Utilization in one sampling period.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Sample {
    /// Number of the period.
    pub period: u64,
    /// Nanoseconds in which a kernel ran.
    pub busy: u64,
}

/// A client: one process on one device.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Client {
    /// Device memory, in bytes.
    pub memory: u64,
    /// Number of contexts.
    pub contexts: u32,
    /// First stream with work.
    pub first: u32,
    /// Stream whose head runs next.
    pub choice: u32,
    /// Whether `choice` must be recomputed.
    pub dirty: u32,
    /// Whether an event's cost delays an operation that could run.
    pub held: u32,
    /// Streams created so far.
    pub streams: u32,
    /// Whether a stream has reached a wait whose value is not there.
    pub waiting: u32,
    /// Avoids padding in the layout.
    pub reserved: u32,
    /// When `choice` must be recomputed even without other changes.
    pub wake: u64,
    /// Total time in which the client's work held the device, in nanoseconds.
    pub worked_ns: u64,
    /// Utilization by period.
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
    /// Start time in clock ticks since boot; distinguishes a reused id.
    pub start: u64,
    /// For a dead process: when its work is removed from the device.
    pub gone_at: u64,
    /// Hardware queues per device.
    pub queues: u32,
    /// Avoids padding in the layout.
    pub reserved: u32,
    /// Per device.
    pub clients: [Client; MAX_DEVICES],
}

/// A device.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Device {
    /// Device memory in use, in bytes.
    pub used: u64,
    /// End of the current client's time slice.
    pub slice_end: u64,
    /// End of the current context switch. Nothing runs earlier.
    pub ready_at: u64,
    /// Slot of the process that has the device.
    pub current: u32,
    /// Length of `queue`.
    pub queued: u32,
    /// Processes with work, in order of arrival.
    pub queue: [u32; MAX_PROCESSES],
    /// Total time in which any work held the device, in nanoseconds.
    pub worked_ns: u64,
    /// Utilization by all processes, by period.
    pub samples: [Sample; SAMPLES],
}

/// The complete state. [`State::init`] makes all-zero memory valid.
#[repr(C)]
pub struct State {
    /// Fixed properties.
    pub config: Config,
    /// Time up to which the simulation has run (`CLOCK_MONOTONIC`, nanoseconds).
    pub now: u64,
    /// When dead processes were last searched for.
    pub reaped: u64,
    /// When dead processes were last searched for in `/proc`.
    pub checked: u64,
    /// When the next dead process's work is removed from the device.
    pub next_gone: u64,
    /// Number of submissions so far.
    pub seq: u64,
    /// First free stream slot below the mark.
    pub free_streams: u32,
    /// First free event slot below the mark.
    pub free_events: u32,
    /// Number of stream slots ever used; higher slots need no check.
    pub stream_mark: u32,
    /// Number of event slots ever used.
    pub event_mark: u32,
    /// Number of process slots ever used.
    pub process_mark: u32,
    /// Number of block slots ever used.
    pub block_mark: u32,
    /// Number of group slots ever used.
    pub group_mark: u32,
    /// Avoids padding in the layout.
    pub reserved: u32,
    /// Groups of collective kernels.
    pub groups: [Group; MAX_GROUPS],
    /// Devices.
    pub devices: [Device; MAX_DEVICES],
    /// Processes.
    pub processes: [Process; MAX_PROCESSES],
    /// Shared memory blocks.
    pub blocks: [Block; MAX_BLOCKS],
    /// Events.
    pub events: [Event; MAX_EVENTS],
    /// Streams.
    pub streams: [Stream; MAX_STREAMS],
    /// The streams' operations. Unused streams touch no memory pages.
    pub queues: [Queue; MAX_STREAMS],
}

/// Identifies a stream for as long as it exists.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StreamId {
    /// Slot number.
    pub slot: u32,
    /// Generation of the slot.
    pub generation: u32,
}

/// Identifies an event for as long as it exists.
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

    /// Initializes all-zero memory as an idle node at time `now`.
    pub fn init(&mut self, config: Config, now: u64) {
        self.config = config;
        self.now = now;
        self.next_gone = u64::MAX;
        self.rebuild();
    }

    /// Recomputes all lists and sums from the processes, streams and events.
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
