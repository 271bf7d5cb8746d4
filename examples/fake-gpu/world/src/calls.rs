//! Calls from governors to the daemon, and the daemon's reactions. The world calls this when a message arrives.

use scheduler::{Grant, LeaseId};

use crate::daemon::{Effect, Gate, Registration};
use crate::governor::POLL_NS;
use crate::node::{Answer, Event, Message, MessageKind, Phase};
use crate::watch::Promise;
use crate::world::World;

const MS: u64 = 1_000_000;
/// The daemon reads its clock at least this often while it is in use.
const TICK_NS: u64 = 50 * MS;
/// How long a store into a gate page takes to reach streams, or a governor that sleeps on it.
const STORE_NS: u64 = 10_000;

impl World {
    pub(crate) fn arrives(&mut self, g: usize, message: Message) {
        let now = self.now;
        let governor = &self.governors[g];
        if governor.phase == Phase::Dead {
            return;
        }
        let (gate, session, tenant) = (governor.gate(), governor.session, governor.tenant);
        let in_stream = governor.in_stream;
        let several = self.processes[governor.process].governors.len() > 1;
        let Some(daemon) = &mut self.daemon else {
            if message.kind != MessageKind::Tell {
                let way = self.way();
                self.plan(now + way, Event::Answers(g, message.call, Answer::Lost));
            }
            return;
        };
        if daemon.knows(gate) {
            if let Some((lease, told)) = message.report {
                daemon.report(gate, lease, told, now);
            }
        } else {
            let quota = self.sessions[tenant].quota;
            daemon.register(gate, Registration { session, quota, in_stream }, now);
        }
        if several && message.kind == MessageKind::Ask {
            daemon.set_together(session, gate.1);
        }
        daemon.used_outside(gate, message.outside_ns, now);
        daemon.has_queued(gate, message.queued_ns);
        match message.kind {
            MessageKind::Ask => {
                daemon.ask(gate, message.call, now);
                self.plan(now + POLL_NS, Event::PollEnds(g, message.call));
            }
            MessageKind::Renew(lease) => {
                let renewed = daemon.renew(session, gate, lease, now);
                let way = self.way();
                self.plan(now + way, Event::Answers(g, message.call, Answer::Renewed(renewed)));
            }
            MessageKind::Tell => {}
        }
        self.decide();
    }

    pub(crate) fn answer_not_yet(&mut self, g: usize, call: u64) {
        let governor = &self.governors[g];
        let (session, device) = (governor.session, governor.device);
        let withheld = self.daemon.as_ref().is_some_and(|daemon| daemon.withholds(session, device));
        let way = self.way();
        self.plan(self.now + way, Event::Answers(g, call, Answer::NotYet(withheld)));
    }

    /// Returns a lease that its caller does not use to the daemon.
    pub(crate) fn give_back(&mut self, (worker, device): Gate, lease: LeaseId, opened: bool) {
        let now = self.now;
        let scheduler = self.daemon.as_mut().and_then(|daemon| daemon.schedulers.get_mut(&device));
        if let Some(scheduler) = scheduler {
            if opened {
                scheduler.end_unreported(worker, lease, now);
            } else {
                scheduler.take_back(worker, lease, now);
            }
            self.decide();
        }
    }

    fn governor_of(&self, (worker, device): Gate) -> Option<usize> {
        let process = self.processes.get(worker.0 as usize - 1)?;
        process.governors.iter().copied().find(|&g| self.governors[g].device == device)
    }

    /// Lets the daemon decide, and plans what follows from its decisions.
    pub(crate) fn decide(&mut self) {
        let now = self.now;
        let Some(daemon) = &mut self.daemon else { return };
        let effects = daemon.decide(&mut self.pages, now);
        if let Some((gate, other)) = daemon.beside {
            self.breaks(Promise::Exclusion, format!("{gate:?} got a lease beside {other:?}"));
        }
        for effect in effects {
            match effect {
                Effect::Grant(device, grant) => self.granted(device, grant),
                Effect::Stop(gate, lease) => {
                    if let Some(g) = self.governor_of(gate) {
                        self.note([2, g as u64, lease.0]);
                        self.plan(now + STORE_NS, Event::GateCloses(g, lease));
                    }
                }
                Effect::Keep(gate, _, may) => {
                    if let Some(g) = self.governor_of(gate)
                        && !may
                        && self.governors[g].phase == Phase::Open
                    {
                        self.arm(g, now + STORE_NS);
                    }
                }
            }
        }
        self.set_alarm();
    }

    fn set_alarm(&mut self) {
        let now = self.now;
        let Some(daemon) = &self.daemon else { return };
        let in_use = daemon.schedulers.values().any(scheduler::Scheduler::is_in_use);
        let tick = in_use.then_some(now + TICK_NS);
        let next = daemon.next_deadline(now).into_iter().chain(tick).min();
        if let Some(next) = next.filter(|&next| next < self.alarm_at) {
            self.alarm_at = next;
            self.plan(next, Event::Alarm(next));
        }
    }

    fn granted(&mut self, device: u32, grant: Grant) {
        let Some(g) = self.governor_of((grant.worker, device)) else { return };
        self.note([3, g as u64, grant.length_ns]);
        let governor = &self.governors[g];
        let (call, in_stream) = (governor.call, governor.in_stream);
        let way = self.way();
        let opens = self.now + STORE_NS;
        if in_stream {
            self.plan(opens, Event::GateOpens(g, grant.lease));
        }
        let opened = in_stream.then_some(opens);
        self.plan(
            opens.max(self.now + way),
            Event::Answers(g, call, Answer::Granted(grant, opened)),
        );
    }

    /// The daemon's store has opened a gate in streams: work begins before the answer arrives.
    pub(crate) fn gate_opens(&mut self, g: usize, lease: LeaseId) {
        let governor = &mut self.governors[g];
        if governor.phase == Phase::Asking && governor.closed != Some(lease) {
            governor.gate_open = true;
            self.pump(g);
        }
    }

    pub(crate) fn gate_closes(&mut self, g: usize, lease: LeaseId) {
        let stopped = self.stopped_until(self.governors[g].tenant).is_some();
        let governor = &mut self.governors[g];
        let own = governor.tenure.as_ref().and_then(|tenure| tenure.lease.id);
        match (governor.phase, own) {
            (Phase::Asking, _) => {
                governor.gate_open = false;
                governor.closed = Some(lease);
            }
            (Phase::Open, Some(id)) if id == lease.0 => {
                governor.gate_open = false;
                if stopped {
                    governor.closed = Some(lease);
                } else {
                    self.close(g);
                }
            }
            (Phase::Renewing, Some(id)) if id == lease.0 => {
                governor.gate_open = false;
                governor.closed = Some(lease);
            }
            _ => {}
        }
    }
}
