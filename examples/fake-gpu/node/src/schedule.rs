//! Scheduling of the devices: which work runs when. Pure arithmetic on [`State`].
//!
//! * A stream's operations run in order. A kernel or copy fills the device, so one runs at a time.
//! * Among a process's streams, the one with the higher priority runs next; at equal priority, the one whose head was
//!   submitted first.
//! * Processes that want the device at the same time are time-sliced. A switch away from a process with unfinished work
//!   costs `switch_ns`, during which nothing runs; away from a process without work it costs `yield_ns`.
//! * Event records never occupy the device. Without a cost (`event_ns` 0) they happen exactly when the preceding work
//!   ends. With a cost, whatever follows a record starts that much later. A record after work happens 7/8 of the cost
//!   after the work's end, but at most 1 us. Measured on H200s: an empty pair of events takes 1.25 or 2.9 us, and a
//!   pair around a kernel about 1 us more than the empty pair and the kernel. The process keeps the device meanwhile.
//! * Work after a kernel in the same stream begins `gap_ns` after the kernel's end; the process keeps the device
//!   meanwhile. An event between the two is reached before the gap.
//! * A collective kernel runs for its time once all members of its group have begun ([`crate::groups`]).
//! * Work behind another stream's wait for a value in their hardware queue does not begin ([`crate::held`]).
//! * A stream that waits for another stream, by an event or by the legacy stream's rule, keeps the process's time
//!   slices as if it had work: measured on an H100, where another process then had 0.54 of the device. A stream that
//!   waits for a value does not.
//! * A wait for a value ends when its process has seen the value in its memory, not earlier. A write of a value ends at
//!   once; its process stores the value when it notices that.

use crate::layout::{Kind, MAX_DEVICES, NONE, Op, Order, QUEUE_DEPTH, State};

/// Longest delay of a record after the end of the work before it, in nanoseconds.
const DEAREST_LAUNCH_NS: u64 = 1_000;

impl State {
    /// Advances the simulation to `target` (nanoseconds), never backwards.
    pub fn advance(&mut self, target: u64) {
        while self.step(target) {}
    }

    /// Advances the simulation to the next moment at which something may end, but at most to `target`. Returns whether
    /// there was such a moment: more may happen until `target`.
    pub fn step(&mut self, target: u64) -> bool {
        if self.step_alive(target.min(self.next_gone)) {
            return true;
        }
        let gone = self.next_gone <= target;
        if gone {
            self.drop_gone();
        }
        gone
    }

    fn step_alive(&mut self, target: u64) -> bool {
        let devices = (self.config.devices as usize).min(MAX_DEVICES);
        self.settle(devices);
        let mut next = u64::MAX;
        for device in 0..devices {
            if self.devices[device].queued > 0 {
                self.dispatch(device);
                self.begin(device);
            }
        }
        for device in 0..devices {
            if self.devices[device].queued > 0 {
                next = next.min(self.next_event(device)).min(self.next_wake(device));
            }
        }
        let to = next.min(target).max(self.now);
        for device in 0..devices {
            if self.devices[device].queued > 0 {
                self.run(device, to);
            }
        }
        self.now = to;
        if next > target {
            return false;
        }
        for device in 0..devices {
            if self.devices[device].queued > 0 {
                self.complete(device);
            }
        }
        true
    }

    pub(crate) fn head(&self, slot: u32) -> Option<&Op> {
        let stream = self.streams.get(slot as usize)?;
        (stream.head < stream.tail)
            .then(|| &self.queues[slot as usize].ops[(stream.head % QUEUE_DEPTH) as usize])
    }

    pub(crate) fn head_mut(&mut self, slot: u32) -> &mut Op {
        let stream = &self.streams[slot as usize];
        &mut self.queues[slot as usize].ops[(stream.head % QUEUE_DEPTH) as usize]
    }

    /// Completes everything that takes no time, and chooses each client's next operation.
    fn settle(&mut self, devices: usize) {
        loop {
            let mut again = false;
            for device in 0..devices {
                let mut at = 0;
                while at < self.devices[device].queued as usize {
                    let process = self.devices[device].queue[at];
                    let client = &self.processes[process as usize].clients[device];
                    if client.dirty != 0 || client.wake <= self.now {
                        again |= self.settle_client(process, device);
                    }
                    // A client without work has left the queue.
                    if self.devices[device].queue[at] == process {
                        at += 1;
                    }
                }
            }
            if !again {
                return;
            }
        }
    }

    /// Returns whether an operation ended, for which others may have waited.
    fn settle_client(&mut self, process: u32, device: usize) -> bool {
        self.processes[process as usize].clients[device].dirty = 0;
        self.note_waiting(process, device);
        let mut ended = false;
        let mut slot = self.processes[process as usize].clients[device].first;
        while slot != NONE {
            let next = self.streams[slot as usize].next;
            while self.pass_instant(slot) {
                ended = true;
            }
            slot = next;
        }
        let (choice, held, wake) = self.choose(process, device);
        let client = &mut self.processes[process as usize].clients[device];
        client.choice = choice;
        client.held = held.into();
        client.wake = wake;
        if ended {
            self.touch(process);
        }
        ended
    }

    /// Ends the head of a stream if it takes no time and may proceed.
    fn pass_instant(&mut self, slot: u32) -> bool {
        let Some(&op) = self.head(slot) else { return false };
        if op.is_work() || !self.in_turn(slot, op.seq) {
            return false;
        }
        if op.kind == Kind::Wait as u32 {
            if !self.passed(op.target, op.generation, op.value) {
                return false;
            }
        } else if op.kind == Kind::Value as u32 {
            if op.started == 0 {
                let stream = &self.streams[slot as usize];
                let (process, device) = (stream.process as usize, stream.device as usize);
                self.processes[process].clients[device].waiting = 1;
                return false;
            }
            self.delay(slot, self.config.wait_ns);
        } else if op.kind == Kind::Write as u32 {
            self.delay(slot, self.config.write_ns);
        } else {
            let now = self.now;
            if now < self.begins_at(slot, &op) {
                return false;
            }
            self.streams[slot as usize].open_at = now + self.config.event_ns;
            let event = &mut self.events[op.target as usize];
            if event.state == 1 && event.generation == op.generation && event.records == op.value {
                event.time = now;
            }
        }
        self.pop(slot);
        true
    }

    /// Delays a stream's further operations by `ns`.
    fn delay(&mut self, slot: u32, ns: u64) {
        let now = self.now;
        let stream = &mut self.streams[slot as usize];
        stream.open_at = stream.open_at.max(now) + ns;
    }

    /// Whether the legacy stream's rule and the hardware queue allow operation `seq` at the head of `slot`.
    fn in_turn(&self, slot: u32, seq: u64) -> bool {
        !self.held_back(slot, seq) && self.legacy_lets(slot, seq)
    }

    /// Whether the head of a stream waits for another stream.
    fn waits_for_another(&self, slot: u32, op: &Op) -> bool {
        !self.held_back(slot, op.seq)
            && (op.kind == Kind::Wait as u32 && !self.passed(op.target, op.generation, op.value)
                || !self.legacy_lets(slot, op.seq))
    }

    /// Whether the legacy stream's rule allows operation `seq` at the head of `slot`.
    fn legacy_lets(&self, slot: u32, seq: u64) -> bool {
        let stream = &self.streams[slot as usize];
        if stream.order == Order::NonBlocking as u32 {
            return true;
        }
        let legacy = stream.order == Order::Legacy as u32;
        let mut at = self.processes[stream.process as usize].clients[stream.device as usize].first;
        while at != NONE {
            let other = &self.streams[at as usize];
            let opposed = if legacy {
                other.order == Order::Blocking as u32
            } else {
                other.order == Order::Legacy as u32
            };
            if opposed
                && other.context == stream.context
                && self.head(at).is_some_and(|op| op.seq < seq)
            {
                return false;
            }
            at = other.next;
        }
        true
    }

    /// Earliest time at which a stream's head (work or a record) can begin, considering only events.
    fn begins_at(&self, slot: u32, op: &Op) -> u64 {
        let stream = &self.streams[slot as usize];
        stream.open_at.max(if op.is_work() { stream.work_at } else { stream.settled_at })
    }

    /// The stream whose head a client runs next, whether an event delays an operation that could run, and when to
    /// choose again for that reason.
    fn choose(&self, process: u32, device: usize) -> (u32, bool, u64) {
        let mut running = NONE;
        let (mut best, mut rank) = (NONE, (i32::MAX, u64::MAX));
        let (mut held, mut wake) = (false, u64::MAX);
        let mut slot = self.processes[process as usize].clients[device].first;
        while slot != NONE {
            let stream = &self.streams[slot as usize];
            held |= self.head(slot).is_some_and(|op| self.waits_for_another(slot, op));
            if let Some(op) = self.head(slot)
                && (op.is_work() || op.kind == Kind::Record as u32)
            {
                let begins = self.begins_at(slot, op);
                let own = (stream.priority, op.seq);
                if op.is_work() && op.started != 0 {
                    running = slot;
                } else if begins > self.now {
                    if self.in_turn(slot, op.seq) {
                        wake = wake.min(begins);
                        // A record with nothing after it does not need the device.
                        held |= op.is_work() || stream.tail - stream.head > 1;
                    }
                } else if op.is_work() && (best == NONE || own < rank) && self.in_turn(slot, op.seq)
                {
                    (best, rank) = (slot, own);
                }
            }
            slot = stream.next;
        }
        (if running == NONE { best } else { running }, held, wake)
    }

    /// When a client of the device must next choose again without another cause.
    fn next_wake(&self, device: usize) -> u64 {
        let queue = &self.devices[device].queue[..self.devices[device].queued as usize];
        let clients = queue.iter().map(|&p| &self.processes[p as usize].clients[device]);
        clients.map(|client| client.wake).min().unwrap_or(u64::MAX)
    }

    fn pop(&mut self, slot: u32) {
        let stream = &mut self.streams[slot as usize];
        stream.head += 1;
        if stream.head == stream.tail {
            let destroyed = stream.state == 2;
            self.delist(slot);
            if destroyed {
                self.release_stream(slot);
            }
        }
    }

    /// Something of this process ended: recompute its next operation.
    fn touch(&mut self, process: u32) {
        for client in &mut self.processes[process as usize].clients {
            if client.first != NONE {
                client.dirty = 1;
            }
        }
    }

    fn choice(&self, device: usize, process: u32) -> u32 {
        if process == NONE {
            return NONE;
        }
        self.processes[process as usize].clients[device].choice
    }

    /// Whether a process has something to run, now or after an event's delay.
    fn wants(&self, device: usize, process: u32) -> bool {
        if process == NONE {
            return false;
        }
        let client = &self.processes[process as usize].clients[device];
        client.choice != NONE || client.held != 0
    }

    /// The next process after `current`, in turn, with something to run.
    fn next_runnable(&self, device: usize, current: u32) -> u32 {
        let queue = &self.devices[device].queue[..self.devices[device].queued as usize];
        let start = queue.iter().position(|&p| p == current).map_or(0, |at| at + 1);
        (0..queue.len())
            .map(|step| queue[(start + step) % queue.len()])
            .find(|&p| p != current && self.wants(device, p))
            .unwrap_or(NONE)
    }

    /// Decides which process has the device.
    fn dispatch(&mut self, device: usize) {
        let now = self.now;
        let slice = self.config.slice_ns;
        let Device { current, mut slice_end, .. } = Device::of(self, device);
        if now > slice_end {
            // No other process wanted the device, otherwise this would have been called in time: the current process's
            // slices are consecutive.
            slice_end += (now - slice_end).div_ceil(slice) * slice;
            self.devices[device].slice_end = slice_end;
        }
        let runnable = self.wants(device, current);
        if runnable && now < slice_end {
            return;
        }
        let next = self.next_runnable(device, current);
        if next == NONE {
            return;
        }
        let cost = match (current, runnable) {
            (NONE, _) => 0,
            (_, true) => self.config.switch_ns,
            (_, false) => self.config.yield_ns,
        };
        let state = &mut self.devices[device];
        state.current = next;
        state.ready_at = now + cost;
        state.slice_end = now + cost + slice;
    }

    /// When something next happens on a device without another cause.
    fn next_event(&self, device: usize) -> u64 {
        let Device { current, slice_end, ready_at } = Device::of(self, device);
        if !self.wants(device, current) {
            return u64::MAX;
        }
        let choice = self.choice(device, current);
        // A delayed operation does not end before the client chooses again.
        let left = self.head(choice).map_or(u64::MAX, |op| self.left(op));
        let end = self.now.max(ready_at).saturating_add(left);
        if slice_end < end && self.next_runnable(device, current) != NONE {
            slice_end.max(self.now)
        } else {
            end
        }
    }

    /// Begins a collective kernel that has got the device; others may wait for that.
    fn begin(&mut self, device: usize) {
        let Device { current, ready_at, .. } = Device::of(self, device);
        let choice = self.choice(device, current);
        if choice != NONE && self.now >= ready_at {
            self.begin_collective(choice);
        }
    }

    /// Least time for which work on the device will still hold it.
    fn left(&self, op: &Op) -> u64 {
        match self.lacks_members(op) {
            // Its beginning matters to other members.
            true if op.started == 0 => 0,
            true => u64::MAX,
            false => op.value,
        }
    }

    /// Runs the device from now to `to`.
    fn run(&mut self, device: usize, to: u64) {
        let Device { current, ready_at, .. } = Device::of(self, device);
        let choice = self.choice(device, current);
        let from = self.now.max(ready_at);
        if choice == NONE || to <= from {
            return;
        }
        let spins = self.head(choice).is_some_and(|op| self.lacks_members(op));
        let op = self.head_mut(choice);
        if !spins {
            op.value = op.value.saturating_sub(to - from);
        }
        op.started = 1;
        let counts = op.is_kernel();
        self.devices[device].worked_ns += to - from;
        self.processes[current as usize].clients[device].worked_ns += to - from;
        if counts {
            self.count_busy(device, current, from, to);
        }
    }

    /// Ends the work whose time has passed.
    fn complete(&mut self, device: usize) {
        let Device { current, ready_at, .. } = Device::of(self, device);
        let choice = self.choice(device, current);
        if choice == NONE || self.now < ready_at {
            return;
        }
        if let Some(&op) = self.head(choice).filter(|op| op.value == 0) {
            self.end_collective(&op);
            let gap = if op.is_kernel() { self.config.gap_ns } else { 0 };
            let stream = &mut self.streams[choice as usize];
            stream.settled_at = self.now + (self.config.event_ns * 7 / 8).min(DEAREST_LAUNCH_NS);
            stream.work_at = self.now + gap;
            self.pop(choice);
            self.touch(current);
        }
    }
}

/// The few numbers that the decisions above need.
struct Device {
    current: u32,
    slice_end: u64,
    ready_at: u64,
}

impl Device {
    fn of(state: &State, device: usize) -> Self {
        let device = &state.devices[device];
        Self { current: device.current, slice_end: device.slice_end, ready_at: device.ready_at }
    }
}
