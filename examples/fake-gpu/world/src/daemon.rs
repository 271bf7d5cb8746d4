//! A model of the daemon around the product's own schedulers and gangs: registrations, waiting calls, gate pages.
//!
//! Messages and polls are modelled by the world, and so are the gate pages, which both sides write.

use std::collections::{BTreeMap, BTreeSet};

use limits::ComputeLimit;
use limits::turns::Handover;
use scheduler::{
    Class, Gangs, Grant, LeaseId, SavedBalance, Scheduler, SessionId, Told, Way, WorkerId,
};

/// A process's gate on a device.
pub(crate) type Gate = (WorkerId, u32);

/// A process's gate page for one device.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct GatePage {
    /// The lease that may be kept while it is not used.
    pub(crate) may_keep: Option<LeaseId>,
    /// The lease that is kept and not used.
    pub(crate) rests: Option<LeaseId>,
}

/// An action of the daemon after a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Answers a call with a lease.
    Grant(u32, Grant),
    /// Ends a lease early by closing its gate.
    Stop(Gate, LeaseId),
    /// Tells a process whether it may keep a lease.
    Keep(Gate, LeaseId, bool),
}

/// The contents of a registration.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Registration {
    pub(crate) session: SessionId,
    pub(crate) quota: ComputeLimit,
    pub(crate) in_stream: bool,
}

/// The saved accounts of sessions on devices, for the next daemon.
pub(crate) type Saved = BTreeMap<(SessionId, u32), SavedBalance>;

#[derive(Debug, Default)]
pub(crate) struct Daemon {
    pub(crate) schedulers: BTreeMap<u32, Scheduler>,
    gangs: Gangs<u32>,
    /// The devices that each session uses together.
    together: BTreeMap<SessionId, BTreeSet<u32>>,
    /// The waiting calls, by gate, with their numbers.
    waiting: BTreeMap<Gate, u64>,
    registered: BTreeSet<Gate>,
    frozen: BTreeSet<SessionId>,
    suspended: BTreeSet<u32>,
    /// A gate that got a lease beside a worker that excludes it.
    pub(crate) beside: Option<(Gate, WorkerId)>,
    /// Accounts from before a restart, and their time.
    saved: Option<(Saved, u64)>,
    /// The only way in which sessions share a device.
    way: Option<Way>,
}

impl Daemon {
    pub(crate) fn new(way: Option<Way>) -> Self {
        Self { way, ..Self::default() }
    }

    /// A daemon that continues where another one ended.
    pub(crate) fn restored(saved: Saved, at: u64, frozen: BTreeSet<SessionId>) -> Self {
        Self { saved: Some((saved, at)), frozen, ..Self::default() }
    }

    /// The state that survives a restart.
    pub(crate) fn save(&mut self, now: u64) -> (Saved, BTreeSet<SessionId>) {
        let mut saved = Saved::new();
        for (&device, scheduler) in &mut self.schedulers {
            let sessions = scheduler.view(now).sessions;
            saved.extend(sessions.iter().map(|view| ((view.session, device), view.left)));
        }
        (saved, self.frozen.clone())
    }

    pub(crate) fn knows(&self, gate: Gate) -> bool {
        self.registered.contains(&gate)
    }

    pub(crate) fn register(&mut self, gate: Gate, said: Registration, now: u64) {
        let (worker, device) = gate;
        let Registration { session, quota, in_stream } = said;
        let scheduler = self.schedulers.entry(device).or_default();
        if let Some(way) = self.way {
            scheduler.share_only(way);
        }
        if self.suspended.contains(&device) {
            scheduler.suspend(now);
        }
        scheduler.leave(worker, now);
        // Neither fails: the quota is in range, and the session exists.
        let _ = scheduler.set_session(session, quota, now);
        if let Some((saved, at)) = &mut self.saved
            && let Some(left) = saved.remove(&(session, device))
        {
            scheduler.restore(session, left, *at);
        }
        if self.frozen.contains(&session) {
            scheduler.freeze(session, now);
        }
        let _ = scheduler.join(worker, session);
        let handover = if in_stream { Handover::InStream } else { Handover::OnThread };
        let _ = scheduler.set_handover(worker, handover);
        self.registered.insert(gate);
    }

    pub(crate) fn set_quota(
        &mut self,
        session: SessionId,
        device: u32,
        quota: ComputeLimit,
        now: u64,
    ) {
        if let Some(scheduler) = self.schedulers.get_mut(&device)
            && scheduler.view(now).sessions.iter().any(|view| view.session == session)
        {
            let _ = scheduler.set_session(session, quota, now);
        }
    }

    pub(crate) fn set_together(&mut self, session: SessionId, device: u32) {
        let devices = self.together.entry(session).or_default();
        if devices.insert(device) {
            let devices = devices.clone();
            self.gangs.set(session, devices, &mut self.schedulers);
        }
    }

    /// Removes a process that has ended.
    pub(crate) fn leave(&mut self, worker: WorkerId, session: SessionId, now: u64) {
        self.registered.retain(|(other, _)| *other != worker);
        self.waiting.retain(|(other, _), _| *other != worker);
        self.together.remove(&session);
        self.gangs.set(session, BTreeSet::new(), &mut self.schedulers);
        for scheduler in self.schedulers.values_mut() {
            scheduler.leave(worker, now);
            scheduler.forget_idle(now);
        }
    }

    pub(crate) fn report(&mut self, (worker, device): Gate, lease: LeaseId, told: Told, now: u64) {
        if let Some(scheduler) = self.schedulers.get_mut(&device) {
            let _ = scheduler.report(worker, lease, told, now);
        }
    }

    pub(crate) fn used_outside(&mut self, (worker, device): Gate, ns: u64, now: u64) {
        if let Some(scheduler) = self.schedulers.get_mut(&device) {
            scheduler.used_outside(worker, ns, now);
        }
    }

    pub(crate) fn has_queued(&mut self, (worker, device): Gate, ns: u64) {
        if let Some(scheduler) = self.schedulers.get_mut(&device) {
            scheduler.has_queued(worker, ns);
        }
    }

    /// Records that call number `call` waits for a lease.
    pub(crate) fn ask(&mut self, gate: Gate, call: u64, now: u64) {
        if let Some(scheduler) = self.schedulers.get_mut(&gate.1) {
            let _ = scheduler.ask(gate.0, now);
            self.waiting.insert(gate, call);
        }
    }

    /// Ends the wait of a call whose time is over. Returns whether it still waited.
    pub(crate) fn give_up(&mut self, gate: Gate, call: u64, now: u64) -> bool {
        let waits = self.waiting.get(&gate) == Some(&call);
        if waits {
            self.waiting.remove(&gate);
            if let Some(scheduler) = self.schedulers.get_mut(&gate.1) {
                scheduler.withdraw(gate.0, now);
            }
        }
        waits
    }

    pub(crate) fn renew(
        &mut self,
        session: SessionId,
        gate: Gate,
        lease: LeaseId,
        now: u64,
    ) -> Option<Grant> {
        let (worker, device) = gate;
        let lease = (worker, lease);
        let renewed = self.gangs.renew(session, device, lease, &mut self.schedulers, now)?;
        let beside = holds_beside(self.schedulers.get(&device)?, worker);
        self.beside = self.beside.or(beside.map(|other| (gate, other)));
        Some(renewed)
    }

    /// The gate page reports that a lease is over.
    pub(crate) fn ended(&mut self, (worker, device): Gate, lease: LeaseId, now: u64) {
        if let Some(scheduler) = self.schedulers.get_mut(&device) {
            scheduler.ended(worker, lease, now);
        }
    }

    pub(crate) fn set_frozen(&mut self, session: SessionId, frozen: bool, now: u64) {
        if frozen {
            self.frozen.insert(session);
        } else {
            self.frozen.remove(&session);
        }
        for scheduler in self.schedulers.values_mut() {
            let change = if frozen { Scheduler::freeze } else { Scheduler::thaw };
            change(scheduler, session, now);
        }
    }

    pub(crate) fn set_suspended(&mut self, device: u32, suspended: bool, now: u64) {
        if suspended {
            self.suspended.insert(device);
        } else {
            self.suspended.remove(&device);
        }
        if let Some(scheduler) = self.schedulers.get_mut(&device) {
            let change = if suspended { Scheduler::suspend } else { Scheduler::resume };
            change(scheduler, now);
        }
    }

    /// Whether the session is granted nothing on a device for now.
    pub(crate) fn withholds(&self, session: SessionId, device: u32) -> bool {
        self.frozen.contains(&session) || self.suspended.contains(&device)
    }

    /// Ends leases early and grants what can be granted. A grant that no call takes is taken back, and the schedulers
    /// decide again.
    pub(crate) fn decide(&mut self, pages: &mut BTreeMap<Gate, GatePage>, now: u64) -> Vec<Effect> {
        let mut effects = Vec::new();
        self.say_who_keeps(pages, &mut effects, now);
        loop {
            let mut refused = false;
            let mut grants = self.gangs.decide(&mut self.schedulers, now);
            let mut stopped = BTreeSet::new();
            for (&device, scheduler) in &mut self.schedulers {
                let granted = scheduler.decide(now);
                for &Grant { worker, .. } in &granted {
                    let beside = holds_beside(scheduler, worker);
                    self.beside = self.beside.or(beside.map(|other| ((worker, device), other)));
                }
                grants.extend(granted.into_iter().map(|grant| (device, grant)));
                for (worker, lease) in scheduler.to_stop(now) {
                    stopped.insert(((worker, device), lease));
                }
            }
            effects.extend(stopped.iter().map(|&(gate, lease)| Effect::Stop(gate, lease)));
            for (device, grant) in grants {
                let gate = (grant.worker, device);
                let over = stopped.contains(&(gate, grant.lease));
                if self.waiting.remove(&gate).is_some() && !over {
                    effects.push(Effect::Grant(device, grant));
                } else if let Some(scheduler) = self.schedulers.get_mut(&device) {
                    scheduler.take_back(grant.worker, grant.lease, now);
                    refused = true;
                }
            }
            if !refused {
                break;
            }
        }
        self.say_who_keeps(pages, &mut effects, now);
        effects
    }

    /// Tells processes whether they may keep their leases. A lease that is kept unused is over once somebody waits.
    fn say_who_keeps(
        &mut self,
        pages: &mut BTreeMap<Gate, GatePage>,
        effects: &mut Vec<Effect>,
        now: u64,
    ) {
        for (&device, scheduler) in &mut self.schedulers {
            for (worker, lease, may) in scheduler.to_keep(now) {
                let page = pages.entry((worker, device)).or_default();
                page.may_keep = may.then_some(lease);
                if !may && page.rests == Some(lease) {
                    page.rests = None;
                    scheduler.ended(worker, lease, now);
                }
                effects.push(Effect::Keep((worker, device), lease, may));
            }
        }
    }

    pub(crate) fn next_deadline(&self, now: u64) -> Option<u64> {
        let devices = self.schedulers.values().filter_map(|device| device.next_deadline(now));
        devices.chain(self.gangs.next_deadline(now)).min()
    }
}

/// Another worker that takes turns and holds the device, beside a worker that has just got a lease and takes turns.
fn holds_beside(scheduler: &Scheduler, worker: WorkerId) -> Option<WorkerId> {
    let dense = || scheduler.holders().filter(|(_, class)| *class == Class::Dense);
    dense().find(|&(id, _)| id == worker)?;
    dense().map(|(id, _)| id).find(|&id| id != worker)
}
