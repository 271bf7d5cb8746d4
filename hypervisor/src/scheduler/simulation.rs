//! Tenants on a virtual clock. The simulation keeps its own books and compares: it fails as soon as
//! two sessions hold at once or a charge differs from what was held.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use super::*;

pub(super) const MS: u64 = 1_000_000;
pub(super) const SECOND: u64 = 1_000 * MS;

/// How a session behaves.
#[derive(Clone, Debug)]
pub(super) struct Tenant {
    pub(super) share_ppm: u32,
    pub(super) workers: u64,
    /// From the end of a lease to the next ask.
    pub(super) think_ns: u64,
    /// How far a holder runs past its lease, at most.
    pub(super) overrun_ns: u64,
    /// From a decision to its arrival, and from an end to its report, at most.
    pub(super) way_ns: u64,
    /// Wants the device for `.0`, then idles for `.1`, over and over. (0, 0): always busy.
    pub(super) phases: (u64, u64),
}

impl Tenant {
    pub(super) fn busy(share_ppm: u32) -> Self {
        let (think_ns, overrun_ns, way_ns) = (0, 0, 0);
        Self { share_ppm, workers: 1, think_ns, overrun_ns, way_ns, phases: (0, 0) }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Ask(WorkerId),
    Report(WorkerId, LeaseId, u64),
}

/// What was seen of one session.
#[derive(Clone, Debug, Default)]
pub(super) struct Books {
    /// When the session held, merged, in order.
    pub(super) held: Vec<(u64, u64)>,
    /// How long its asks waited.
    pub(super) waits: Vec<u64>,
    open: u32,
}

impl Books {
    pub(super) fn held_between(&self, from: u64, to: u64) -> u64 {
        let inside = |&(a, b): &(u64, u64)| b.min(to).saturating_sub(a.max(from));
        self.held.iter().map(inside).sum()
    }

    /// The 95th percentile of the waits.
    pub(super) fn wait_p95(&self) -> u64 {
        let mut waits = self.waits.clone();
        waits.sort_unstable();
        waits.get(waits.len() * 95 / 100).copied().unwrap_or(0)
    }
}

pub(super) struct Simulation {
    pub(super) scheduler: Scheduler,
    pub(super) books: BTreeMap<SessionId, Books>,
    pub(super) now: u64,
    tuning: Tuning,
    tenants: BTreeMap<SessionId, Tenant>,
    workers: BTreeMap<WorkerId, SessionId>,
    asked_at: BTreeMap<WorkerId, u64>,
    held: BTreeMap<WorkerId, (LeaseId, u64, u64)>,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    sequence: u64,
    random: u64,
}

impl Simulation {
    pub(super) fn new(tenants: &[Tenant], seed: u64) -> Self {
        let tuning = Tuning::default();
        let mut simulation = Self {
            scheduler: Scheduler::new(tuning),
            books: BTreeMap::new(),
            now: 5 * SECOND,
            tuning,
            tenants: BTreeMap::new(),
            workers: BTreeMap::new(),
            asked_at: BTreeMap::new(),
            held: BTreeMap::new(),
            events: BinaryHeap::new(),
            sequence: 0,
            random: seed,
        };
        for (index, tenant) in tenants.iter().enumerate() {
            let session = SessionId(index as u64);
            simulation.scheduler.set_session(session, tenant.share_ppm, simulation.now).unwrap();
            simulation.tenants.insert(session, tenant.clone());
            simulation.books.insert(session, Books::default());
            for number in 0..tenant.workers {
                let worker = WorkerId(index as u64 * 1000 + number);
                simulation.scheduler.join(worker, session).unwrap();
                simulation.workers.insert(worker, session);
                simulation.schedule(simulation.now, Event::Ask(worker));
            }
        }
        simulation
    }

    pub(super) fn run_for(&mut self, length: u64) {
        let end = self.now + length;
        loop {
            let event = self.events.peek().map(|Reverse((at, _, _))| *at);
            let deadline = self.scheduler.next_deadline(self.now);
            let Some(next) = event.into_iter().chain(deadline).min().filter(|&at| at <= end) else {
                break;
            };
            assert!(next > self.now || event == Some(next), "a deadline that is already over");
            self.now = next;
            while let Some(&Reverse((at, _, event))) = self.events.peek() {
                if at > self.now {
                    break;
                }
                self.events.pop();
                self.happen(event);
            }
            for grant in self.scheduler.decide(self.now) {
                self.granted(grant);
            }
        }
        self.now = end;
        self.check_charges();
    }

    /// A worker dies without a word.
    pub(super) fn kill(&mut self, worker: WorkerId) {
        self.scheduler.leave(worker, self.now);
        self.asked_at.remove(&worker);
        if self.held.remove(&worker).is_some() {
            let session = self.workers[&worker];
            self.close(session);
        }
        self.workers.remove(&worker);
        for grant in self.scheduler.decide(self.now) {
            self.granted(grant);
        }
    }

    /// A worker holds what it has, or gets next, and never reports.
    pub(super) fn freeze(&mut self, worker: WorkerId) {
        self.events.retain(|Reverse((_, _, event))| match event {
            Event::Ask(who) | Event::Report(who, _, _) => *who != worker,
        });
        self.tenants.get_mut(&self.workers[&worker]).unwrap().overrun_ns = u64::MAX;
    }

    pub(super) fn holder(&self) -> Option<WorkerId> {
        self.held.keys().next().copied()
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Ask(worker) if !self.workers.contains_key(&worker) => {}
            Event::Ask(worker) => {
                let (busy, idle) = self.tenants[&self.workers[&worker]].phases;
                let phase = self.now.checked_rem(busy + idle).unwrap_or(0);
                if phase > busy {
                    self.schedule(self.now + busy + idle - phase, Event::Ask(worker));
                    return;
                }
                self.scheduler.ask(worker, self.now).unwrap();
                self.asked_at.insert(worker, self.now);
            }
            Event::Report(worker, lease, held) => {
                if self.held.get(&worker).is_none_or(|&(current, _, _)| current != lease) {
                    return;
                }
                self.held.remove(&worker);
                let session = self.workers[&worker];
                self.close(session);
                assert!(self.scheduler.report(worker, lease, held, self.now).unwrap());
                // A second report of the same lease changes nothing.
                assert!(!self.scheduler.report(worker, lease, 0, self.now).unwrap());
                let think = self.tenants[&session].think_ns;
                let think = self.up_to(think);
                self.schedule(self.now + think, Event::Ask(worker));
            }
        }
    }

    fn granted(&mut self, grant: Grant) {
        let session = self.workers[&grant.worker];
        for (other, &(_, _, ends)) in &self.held {
            let revoked = ends + self.tuning.grace_ns <= self.now;
            assert!(
                self.workers[other] == session || revoked,
                "{session:?} and {:?} hold at the same time at {}",
                self.workers[other],
                self.now,
            );
        }
        assert!(grant.length_ns >= self.tuning.shortest_rest_ns, "{grant:?}");
        assert!(grant.length_ns <= self.tuning.quantum_ns, "{grant:?}");
        let asked = self.asked_at.remove(&grant.worker).expect("granted without asking");
        let books = self.books.get_mut(&session).unwrap();
        books.waits.push(self.now - asked);
        books.open += 1;
        if books.open == 1 {
            books.held.push((self.now, u64::MAX));
        }
        let end = self.now + grant.length_ns;
        self.held.insert(grant.worker, (grant.lease, self.now, end));
        let tenant = self.tenants[&session].clone();
        if tenant.overrun_ns == u64::MAX {
            return;
        }
        let way = self.up_to(tenant.way_ns);
        let back = self.up_to(tenant.way_ns);
        let overrun = self.up_to(tenant.overrun_ns);
        let held = grant.length_ns + overrun;
        self.schedule(end + overrun + way + back, Event::Report(grant.worker, grant.lease, held));
    }

    fn close(&mut self, session: SessionId) {
        let books = self.books.get_mut(&session).unwrap();
        books.open -= 1;
        if books.open == 0 {
            books.held.last_mut().unwrap().1 = self.now;
        }
    }

    /// Charged time is the union of what was held, where no messages were under way.
    fn check_charges(&mut self) {
        let view = self.scheduler.view(self.now);
        for session in view.sessions {
            let held = self.books[&session.session].held_between(0, self.now);
            if self.tenants[&session.session].way_ns == 0 {
                assert_eq!(session.charged_ns, held, "{session:?}");
            } else {
                assert!(session.charged_ns <= held && session.charged_ns >= held - held / 31);
            }
        }
    }

    fn schedule(&mut self, at: u64, event: Event) {
        self.sequence += 1;
        self.events.push(Reverse((at, self.sequence, event)));
    }

    /// A random number from 0 to `most` (splitmix64).
    fn up_to(&mut self, most: u64) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % (most + 1)
    }
}
