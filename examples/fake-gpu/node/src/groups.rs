//! Collective kernels: each kernel of a group holds its device until all members' kernels have begun, and then runs for
//! its time, like those of a communication library.
//!
//! Members share a group number; they may be on several devices and in several processes. A spinning kernel is work
//! like any other: it is charged, and spins in its process's time slices. If a member dies before its kernel has begun,
//! the others spin until their processes end, as on real devices, where only a time-out of the library ends them. If it
//! dies later, the others continue.

use crate::layout::{Kind, NONE, Op, QUEUE_DEPTH, State, StreamId};
use crate::queue::QueueError;

/// Most groups with queued or running kernels, of all processes.
pub const MAX_GROUPS: usize = 1024;

/// A group.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Group {
    /// The members' number for the group.
    pub number: u64,
    /// 0 free, 1 in use.
    pub state: u32,
    /// Kernels in the group.
    pub members: u32,
    /// Kernels queued so far.
    pub joined: u32,
    /// Kernels that have begun.
    pub begun: u32,
    /// Kernels that have ended.
    pub ended: u32,
    /// Avoids padding in the layout.
    pub reserved: u32,
}

impl State {
    /// Queues a kernel of a group of `members`: it waits on its device for the others, and then takes `ns`. Returns the
    /// stream's position after it.
    ///
    /// # Errors
    /// As [`State::push`], and [`QueueError::NoSlot`].
    pub fn push_collective(
        &mut self,
        id: StreamId,
        ns: u64,
        number: u64,
        members: u32,
    ) -> Result<u64, QueueError> {
        let used = &self.groups[..self.group_mark as usize];
        let open = used.iter().position(|group| {
            group.state == 1 && group.number == number && group.joined < group.members
        });
        let slot = open
            .or_else(|| self.groups.iter().position(|group| group.state == 0))
            .ok_or(QueueError::NoSlot)?;
        let op = Op { target: slot as u32, ..Op::work(Kind::Collective, ns.max(1)) };
        let position = self.push(id, op)?;
        self.group_mark = self.group_mark.max(slot as u32 + 1);
        let group = &mut self.groups[slot];
        if open.is_none() {
            let members = members.max(1);
            *group =
                Group { number, state: 1, members, joined: 0, begun: 0, ended: 0, reserved: 0 };
        }
        group.joined += 1;
        Ok(position)
    }

    /// Whether this is a collective kernel whose group has not completely begun.
    pub(crate) fn lacks_members(&self, op: &Op) -> bool {
        op.kind == Kind::Collective as u32
            && self.groups.get(op.target as usize).is_some_and(|group| group.begun < group.members)
    }

    /// Whether a stream has reached such a kernel.
    #[must_use]
    pub fn spins(&self, id: StreamId) -> bool {
        let stream = self.streams.get(id.slot as usize);
        stream.is_some_and(|stream| stream.generation == id.generation && stream.state != 0)
            && self.head(id.slot).is_some_and(|op| self.lacks_members(op))
    }

    /// Begins a collective kernel that has got its device.
    pub(crate) fn begin_collective(&mut self, slot: u32) {
        let Some(&op) = self.head(slot) else { return };
        if op.kind == Kind::Collective as u32 && op.started == 0 {
            self.head_mut(slot).started = 1;
            if let Some(group) = self.groups.get_mut(op.target as usize) {
                group.begun += 1;
            }
        }
    }

    pub(crate) fn end_collective(&mut self, op: &Op) {
        let collective = op.kind == Kind::Collective as u32;
        if let Some(group) = self.groups.get_mut(op.target as usize).filter(|_| collective) {
            group.ended += 1;
            if group.ended >= group.members {
                group.state = 0;
            }
        }
    }

    /// Part of [`State::rebuild`]: ends groups without kernels.
    pub(crate) fn rebuild_groups(&mut self) {
        let mut found = [false; MAX_GROUPS];
        for slot in 0..self.stream_mark {
            let stream = &self.streams[slot as usize];
            if stream.state == 0 || stream.listed == 0 {
                continue;
            }
            for at in stream.head..stream.tail {
                let op = &self.queues[slot as usize].ops[(at % QUEUE_DEPTH) as usize];
                if op.kind == Kind::Collective as u32 && op.target != NONE {
                    found[op.target as usize % MAX_GROUPS] = true;
                }
            }
        }
        for (group, found) in self.groups.iter_mut().zip(found) {
            if !found {
                group.state = 0;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::layout::Order;
    use crate::queue::EventState;
    use crate::tests::{MS, kernel, node, reached, stream};

    #[test]
    fn a_collective_runs_from_when_its_last_member_has_begun() {
        let mut s = node();
        let (p, q) = (s.add_process(1, 1).unwrap(), s.add_process(2, 1).unwrap());
        let a = stream(&mut s, p, Order::NonBlocking);
        let b = s.create_stream(q, 1, 1, Order::NonBlocking, 0).unwrap();
        for round in 0..2000 {
            let from = s.now;
            s.push_collective(a, MS, round, 2).unwrap();
            let first = reached(&mut s, p, a);
            s.push(b, kernel(3 * MS)).unwrap();
            s.push_collective(b, 2 * MS, round, 2).unwrap();
            let second = reached(&mut s, q, b);
            s.advance(from + 2 * MS);
            assert!(s.spins(a) && !s.spins(b));
            s.advance(from + 9 * MS);
            assert_eq!(s.event_state(first), Ok(EventState::Reached(from + 4 * MS)));
            assert_eq!(s.event_state(second), Ok(EventState::Reached(from + 5 * MS)));
            for event in [first, second] {
                s.destroy_event(event).unwrap();
            }
        }
        // A spinning kernel holds its device.
        assert_eq!((s.worked_ns(0), s.worked_ns(1)), (2000 * 4 * MS, 2000 * 5 * MS));
    }

    #[test]
    fn a_collective_spins_in_its_slices_and_for_ever_without_its_peer() {
        let mut s = node();
        let [p, q, r] = [1, 2, 3].map(|pid| s.add_process(pid, 1).unwrap());
        let [a, b] = [p, q].map(|of| stream(&mut s, of, Order::NonBlocking));
        let c = s.create_stream(r, 1, 1, Order::NonBlocking, 0).unwrap();
        s.push_collective(a, MS, 7, 2).unwrap();
        let never = reached(&mut s, p, a);
        for _ in 0..100 {
            s.push(b, kernel(10 * MS)).unwrap();
        }
        s.advance(440 * MS);
        let [spun, ran] = [1, 2].map(|pid| s.worked_ns_by(0, pid) as f64 / MS as f64);
        assert!((spun - 200.0).abs() < 3.0 && (ran - 200.0).abs() < 3.0, "{spun} {ran}");
        // The other member's kernel is queued, but never begins: the process dies behind other work.
        s.push(c, kernel(10 * MS)).unwrap();
        s.push_collective(c, MS, 7, 2).unwrap();
        s.drop_process(r);
        s.advance(10_000 * MS);
        assert_eq!(s.event_state(never), Ok(EventState::Pending));
        // The group's slot is freed; the next group with this number is a new one.
        let r = s.add_process(4, 1).unwrap();
        let c = s.create_stream(r, 1, 1, Order::NonBlocking, 0).unwrap();
        s.push_collective(c, MS, 7, 1).unwrap();
        let end = reached(&mut s, r, c);
        s.advance(10_002 * MS);
        assert_eq!(s.event_state(end), Ok(EventState::Reached(10_001 * MS)));
        s.drop_process(p);
        assert!(s.groups.iter().all(|group| group.state == 0));
    }
}
