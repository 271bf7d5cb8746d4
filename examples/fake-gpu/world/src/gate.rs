//! The work that passes a gate, and how far the device is with it. Models `lane` and `gate` of the limiter.

use fake_node::layout::{Kind as OpKind, Op};
use limiter_core::tuning::LEAST_OUTSTANDING_NS;

use crate::node::{Begun, Event, Governor, Kind, Phase, Thread};
use crate::world::World;

const MS: u64 = 1_000_000;
/// The most that may be queued ahead of a closed gate in a stream.
const AHEAD_NS: u64 = 100 * MS;
const AHEAD_LAUNCHES: usize = 900;
/// How long a device whose lease has ended may continue to launch what other devices' work waits for: after its lease,
/// and when it is called.
const CATCH_UP_NS: u64 = 15 * MS;
const CALL_NS: u64 = 20 * MS;

impl World {
    /// Opens a closed gate for a moment, because stuck work may wait for its program's next launches.
    pub(crate) fn glimpse(&mut self, g: usize) {
        let governor = &mut self.governors[g];
        governor.dependent = true;
        governor.closed_at = self.now;
        governor.gate_open = true;
        self.pump(g);
        self.governors[g].gate_open = false;
    }

    /// Whether a device that has begun fewer collectives than another one of its process may continue without a lease:
    /// for a while after the end of its lease, and when it is called.
    fn catches_up(&self, g: usize) -> bool {
        let own = &self.governors[g];
        let just_ended = own.phase == Phase::Draining && self.now < own.closed_at + CATCH_UP_NS;
        if !just_ended && self.now >= own.called_until {
            return false;
        }
        let peers = &self.processes[own.process].governors;
        peers.iter().any(|&peer| self.governors[peer].collectives > own.collectives)
    }

    /// Lets the other devices continue that have yet to begin a collective which is stuck here.
    pub(crate) fn call_others(&mut self, g: usize) {
        if !self.devices.spins(self.governors[g].stream) {
            return;
        }
        for peer in self.processes[self.governors[g].process].governors.clone() {
            self.governors[peer].called_until = self.now + CALL_NS;
            self.pump(peer);
        }
    }

    /// Lets work pass the gate as far as it may.
    pub(crate) fn pump(&mut self, g: usize) {
        let now = self.now;
        let mut begun_collective = false;
        while let Some(&work) = self.governors[g].held.front() {
            let catches_up = !self.governors[g].gate_open && self.catches_up(g);
            let governor = &mut self.governors[g];
            if governor.phase == Phase::Dead || !governor.gate_open && !catches_up {
                break;
            }
            if !has_room(governor, now) {
                break;
            }
            let pushed = match work.kind {
                Kind::Kernel => {
                    self.devices.push(governor.stream, Op::work(OpKind::Kernel, work.ns))
                }
                Kind::Value(there) => {
                    self.at_once |= there;
                    self.devices.push(governor.stream, Op::value(there))
                }
                Kind::Collective(number) => {
                    let members = self.processes[governor.process].governors.len() as u32;
                    governor.collectives += 1;
                    begun_collective = true;
                    self.devices.push_collective(governor.stream, work.ns, number, members)
                }
            };
            let Ok(position) = pushed else { break };
            governor.pass();
            governor.activity += 1;
            governor.totals.launched_ns += work.estimated_ns;
            governor.totals.outstanding_ns += work.estimated_ns;
            governor.begun.push_back(Begun { position, work });
            self.note_busy(g);
        }
        self.unblock(self.governors[g].process);
        if begun_collective {
            let peers = self.processes[self.governors[g].process].governors.clone();
            peers.into_iter().filter(|&peer| peer != g).for_each(|peer| self.pump(peer));
        }
    }

    /// Records what the device has done.
    pub(crate) fn settle(&mut self, g: usize) -> bool {
        let governor = &mut self.governors[g];
        let before = governor.begun.len();
        while let Some(begun) = governor.begun.front() {
            let (slot, generation) = (governor.stream.slot, governor.stream.generation);
            if !self.devices.passed(slot, generation, begun.position) {
                break;
            }
            governor.totals.outstanding_ns -= begun.work.estimated_ns;
            governor.done_ns += begun.work.ns;
            governor.totals.completed += 1;
            governor.begun.pop_front();
        }
        let ended = governor.begun.len() < before;
        if ended {
            self.note_busy(g);
            self.pump(g);
            self.drained(g);
        }
        ended
    }

    /// Records whether work is under way.
    fn note_busy(&mut self, g: usize) {
        let governor = &mut self.governors[g];
        let busy =
            governor.begun.front().is_some_and(|begun| !matches!(begun.work.kind, Kind::Value(_)));
        match (governor.busy_from, busy) {
            (None, true) => governor.busy_from = Some(self.now),
            (Some(from), false) => {
                governor.totals.backlogged_ns += self.now - from;
                governor.busy_from = None;
                if governor.tenure.is_none() && !governor.gate_open {
                    governor.outside_ns += self.now - from;
                    if governor.phase == Phase::Asking {
                        // A governor that others may call asks again within 3 ms.
                        self.tell(g, None);
                    }
                }
            }
            _ => {}
        }
    }

    /// Whether a launch has to wait on its thread.
    pub(crate) fn is_full(&self, g: usize) -> bool {
        let governor = &self.governors[g];
        if governor.in_stream {
            governor.held.len() >= AHEAD_LAUNCHES || governor.held_ns >= AHEAD_NS
        } else {
            !governor.held.is_empty()
        }
    }

    fn unblock(&mut self, p: usize) {
        let process = &self.processes[p];
        if process.thread == Thread::Blocked && !process.governors.iter().any(|&g| self.is_full(g))
        {
            self.processes[p].thread = Thread::Runs;
            let lag = self.lag();
            self.plan(self.now + lag, Event::Goes(p));
        }
    }
}

/// Whether more work may be outstanding. With a gate in streams, work that has begun ends before the gate is closed.
fn has_room(governor: &Governor, now: u64) -> bool {
    if governor.begun.is_empty() {
        return true;
    }
    if governor.in_stream {
        return false;
    }
    let left = governor.tenure.as_ref().map_or(0, |tenure| tenure.lease.end.saturating_sub(now));
    let overlaps = governor.tenure.as_ref().is_some_and(|tenure| tenure.lease.overlaps);
    let room = if governor.shared && !overlaps {
        LEAST_OUTSTANDING_NS
    } else {
        limiter_core::room_ns(left)
    };
    let room = if governor.begun.len() <= 1 { room.max(2 * LEAST_OUTSTANDING_NS) } else { room };
    governor.totals.outstanding_ns < room
}
