//! A device, its tenants and their limiters in virtual time.
//!
//! The hardware is modelled as a fluid. Each holder gets what it can use, or an equal slice if all
//! together want more than there is. Slicing costs a tenth if two dense workers overlap, and a
//! twentieth if a dense one overlaps with sparse ones. `sparse_cost_ppm` and `sliced_ppm` add to
//! that. The simulation keeps its own records, and fails as soon as two dense workers hold at once.

#[path = "../../../../../examples/fake-gpu/world/src/dice.rs"]
#[allow(dead_code, unreachable_pub, reason = "the virtual world's, which needs more of it")]
mod dice;
pub(crate) mod node;
mod tenant;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

pub(crate) use dice::Dice;
use limits::ComputeLimit;
use scheduler::{Class, Grant, Handover, LeaseId, Scheduler, SessionId, Told, WorkerId};

pub(crate) use tenant::{Books, Tenant, Words};

pub(crate) const MS: u64 = 1_000_000;
pub(crate) const SECOND: u64 = 1_000 * MS;
const WHOLE: u64 = 1_000_000;
/// What it takes the daemon to see a gate page.
const PAGE_NS: u64 = 50_000;
/// How often a worker says that what it began is not done.
const STILL_DRAINS_NS: u64 = 10 * MS;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Ask(WorkerId),
    /// The worker reports on a lease while it lasts, or while its work drains.
    Tell(WorkerId, LeaseId),
    /// The lease's work is done.
    Stop(WorkerId, LeaseId),
    /// The daemon learns that by the worker's gate page.
    Ended(WorkerId, LeaseId),
    /// The daemon gets the report of that.
    Report(WorkerId, LeaseId),
    /// A request arrives.
    Arrive(WorkerId),
    /// A request may be done.
    Finish(WorkerId, LeaseId),
}

/// A lease as its worker sees it.
#[derive(Clone, Copy, Debug)]
struct Use {
    lease: LeaseId,
    told_at: u64,
    ends_at: u64,
    /// In millionths.
    rate: u64,
    /// In millionths of nanoseconds.
    used: u64,
    backlogged_ns: u64,
    stopped_at: Option<u64>,
    dense: bool,
    /// Its last report was planned, or its lease was ended early.
    ends: bool,
    /// No report on it was sent yet.
    first: bool,
}

#[derive(Clone, Copy, Debug)]
struct Request {
    arrived_at: u64,
    /// In millionths of nanoseconds.
    left: u64,
}

pub(crate) struct Simulation {
    pub(crate) scheduler: Scheduler,
    pub(crate) books: BTreeMap<SessionId, Books>,
    pub(crate) now: u64,
    /// Time in which the device did something, in millionths of nanoseconds.
    worked: u128,
    tenants: BTreeMap<SessionId, Tenant>,
    workers: BTreeMap<WorkerId, SessionId>,
    asked_at: BTreeMap<WorkerId, u64>,
    held: BTreeMap<WorkerId, Use>,
    /// The requests that wait or are being served, of each worker that serves requests.
    requests: BTreeMap<WorkerId, VecDeque<Request>>,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    sequence: u64,
    dice: Dice,
    /// Whether long lists are kept.
    pub(crate) keeps_lists: bool,
    /// What the device loses for each unit that sparse workers get beside a dense one, in
    /// millionths.
    pub(crate) sparse_cost_ppm: u64,
    /// How much of what it wants a sparse worker gets beside a dense one, in millionths.
    pub(crate) sliced_ppm: u64,
}

impl Simulation {
    pub(crate) fn empty(seed: u64) -> Self {
        Self {
            scheduler: Scheduler::default(),
            books: BTreeMap::new(),
            now: 5 * SECOND,
            worked: 0,
            tenants: BTreeMap::new(),
            workers: BTreeMap::new(),
            asked_at: BTreeMap::new(),
            held: BTreeMap::new(),
            requests: BTreeMap::new(),
            events: BinaryHeap::new(),
            sequence: 0,
            dice: Dice::new(seed),
            keeps_lists: true,
            sparse_cost_ppm: WHOLE,
            sliced_ppm: WHOLE,
        }
    }

    pub(crate) fn new(tenants: &[Tenant], seed: u64) -> Self {
        let mut simulation = Self::empty(seed);
        for tenant in tenants {
            simulation.arrive(*tenant);
        }
        simulation
    }

    /// Adds a session.
    pub(crate) fn arrive(&mut self, tenant: Tenant) -> SessionId {
        let session = SessionId(self.books.len() as u64);
        self.scheduler.set_session(session, tenant.quota, self.now).unwrap();
        for number in 0..tenant.workers {
            let worker = WorkerId(session.0 * 1000 + number);
            self.scheduler.join(worker, session).unwrap();
            self.scheduler.set_handover(worker, tenant.handover).unwrap();
            self.workers.insert(worker, session);
            let first = if tenant.requests.is_some() { Event::Arrive } else { Event::Ask };
            self.schedule(self.now, first(worker));
        }
        self.tenants.insert(session, tenant);
        self.books.insert(session, Books::default());
        session
    }

    /// Ends a session's processes.
    pub(crate) fn depart(&mut self, session: SessionId) {
        let workers: Vec<WorkerId> = self.workers.keys().copied().collect();
        for worker in workers {
            if self.workers[&worker] == session {
                self.kill(worker);
            }
        }
    }

    pub(crate) fn set_quota(&mut self, session: SessionId, quota: ComputeLimit) {
        self.scheduler.set_session(session, quota, self.now).unwrap();
        self.decide();
    }

    /// From now on a session is granted nothing, or is again.
    pub(crate) fn set_frozen(&mut self, session: SessionId, frozen: bool) {
        if frozen {
            self.scheduler.freeze(session, self.now);
        } else {
            self.scheduler.thaw(session, self.now);
        }
        self.decide();
    }

    /// Changes a session's utilization from now on.
    pub(crate) fn set_density(&mut self, session: SessionId, density_ppm: u64) {
        self.tenants.get_mut(&session).unwrap().density_ppm = density_ppm;
        self.share_out();
    }

    pub(crate) fn run_for(&mut self, length: u64) {
        let end = self.now + length;
        let (mut at, mut events) = (self.now, 0);
        loop {
            events = if self.now == at { events + 1 } else { 0 };
            at = self.now;
            assert!(events < 1_000, "events without end at one moment");
            let event = self.events.peek().map(|Reverse((at, _, _))| *at);
            let deadline = self.scheduler.next_deadline(self.now);
            let Some(next) = event.into_iter().chain(deadline).min().filter(|&at| at <= end) else {
                break;
            };
            assert!(next > self.now || event == Some(next), "a deadline that is already over");
            self.pass_until(next);
            while let Some(&Reverse((at, _, event))) = self.events.peek() {
                if at > self.now {
                    break;
                }
                self.events.pop();
                self.happen(event);
            }
            self.decide();
        }
        self.pass_until(end);
    }

    /// How long the device has worked since the beginning, in nanoseconds.
    pub(crate) fn worked_ns(&self) -> u64 {
        (self.worked / u128::from(WHOLE)) as u64
    }

    /// Lets a worker die without a report.
    pub(crate) fn kill(&mut self, worker: WorkerId) {
        self.scheduler.leave(worker, self.now);
        self.asked_at.remove(&worker);
        if let Some(mine) = self.held.remove(&worker) {
            let session = self.workers[&worker];
            self.books.get_mut(&session).unwrap().used_ns += mine.used / WHOLE;
            self.close(session);
        }
        self.workers.remove(&worker);
        self.decide();
    }

    /// From now on, a session's workers keep their leases, or the next ones, and never report.
    pub(crate) fn freeze(&mut self, session: SessionId) {
        self.tenants.get_mut(&session).unwrap().frozen = true;
    }

    pub(crate) fn holder(&self) -> Option<WorkerId> {
        self.held.keys().next().copied()
    }

    pub(crate) fn decide(&mut self) {
        let grants = self.scheduler.decide(self.now);
        for (worker, lease) in self.scheduler.to_stop(self.now) {
            self.stop_early(worker, lease);
        }
        for grant in grants {
            self.granted(grant);
        }
        self.share_out();
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Ask(worker) => self.ask(worker),
            Event::Tell(worker, lease) => self.tell(worker, lease),
            Event::Stop(worker, lease) => {
                let now = self.now;
                if let Some(mine) =
                    self.mine(worker, lease).filter(|mine| mine.stopped_at.is_none())
                {
                    mine.stopped_at = Some(now);
                    let way = self.tenants[&self.workers[&worker]].way_ns;
                    let way = self.up_to(way);
                    if self.is_in_stream(worker) {
                        self.schedule(self.now + PAGE_NS, Event::Ended(worker, lease));
                    }
                    self.schedule(self.now + way, Event::Report(worker, lease));
                }
            }
            Event::Ended(worker, lease) => _ = self.scheduler.ended(worker, lease, self.now),
            Event::Report(worker, lease) => {
                let Some(session) = self.report(worker, lease, true) else { return };
                self.held.remove(&worker);
                self.close(session);
                // A second report of the same lease changes nothing.
                assert!(!self.scheduler.report(worker, lease, Told::UNUSED, self.now).unwrap());
                let think = self.tenants[&session].think_ns;
                if self.requests.get(&worker).is_some_and(VecDeque::is_empty) {
                    // It asks when the next one arrives.
                } else if think == 0 {
                    self.ask(worker);
                } else {
                    let think = self.up_to(think);
                    self.schedule(self.now + think, Event::Ask(worker));
                }
            }
            Event::Arrive(worker) => self.request(worker),
            Event::Finish(worker, lease) => self.finish(worker, lease),
        }
    }

    fn request(&mut self, worker: WorkerId) {
        let Some(session) = self.workers.get(&worker) else { return };
        let Some((every, length)) = self.tenants[session].requests else { return };
        let next = self.dice.random_time(every);
        self.schedule(self.now + next, Event::Arrive(worker));
        let idle = self.requests.get(&worker).is_none_or(VecDeque::is_empty);
        let request = Request { arrived_at: self.now, left: length * WHOLE };
        self.requests.entry(worker).or_default().push_back(request);
        if idle && !self.held.contains_key(&worker) {
            self.ask(worker);
        }
    }

    /// The worker's present request is done, unless something has slowed it down.
    fn finish(&mut self, worker: WorkerId, lease: LeaseId) {
        let now = self.now;
        let Some(mine) = self.mine(worker, lease) else { return };
        if mine.stopped_at.is_some() {
            return;
        }
        let Some(requests) = self.requests.get_mut(&worker) else { return };
        let Some(request) = requests.pop_front_if(|request| request.left == 0) else { return };
        let is_last = requests.is_empty();
        let session = self.workers[&worker];
        let books = self.books.get_mut(&session).unwrap();
        books.latencies.push(now - request.arrived_at);
        if is_last && let Some(mine) = self.mine(worker, lease) {
            (mine.ends, mine.ends_at) = (true, now);
            self.schedule(now, Event::Stop(worker, lease));
        }
    }

    /// The scheduler ends a lease.
    fn stop_early(&mut self, worker: WorkerId, lease: LeaseId) {
        let now = self.now;
        let session = self.workers[&worker];
        let overrun = self.tenants[&session].overrun_ns;
        let overrun = overrun / 2 + self.up_to(overrun / 2);
        if let Some(mine) = self.mine(worker, lease) {
            (mine.ends, mine.ends_at) = (true, now);
            self.books.get_mut(&session).unwrap().stopped += 1;
            self.schedule(now + overrun, Event::Stop(worker, lease));
        }
    }

    fn ask(&mut self, worker: WorkerId) {
        let Some(session) = self.workers.get(&worker) else { return };
        if let Some(wait) = self.idles_for(*session) {
            self.schedule(self.now + wait, Event::Ask(worker));
            return;
        }
        self.scheduler.ask(worker, self.now).unwrap();
        self.asked_at.insert(worker, self.now);
    }

    fn idles_for(&self, session: SessionId) -> Option<u64> {
        let (busy, idle) = self.tenants[&session].phases;
        let phase = self.now.checked_rem(busy + idle).unwrap_or(0);
        (phase > busy).then(|| busy + idle - phase)
    }

    fn tell(&mut self, worker: WorkerId, lease: LeaseId) {
        if self.mine(worker, lease).is_none_or(|mine| mine.ends) && self.is_in_stream(worker) {
            return;
        }
        let Some(session) = self.report(worker, lease, false) else { return };
        let ends_at = self.held[&worker].ends_at;
        if ends_at <= self.now {
            // It drains: a `Stop` event is on its way.
            self.schedule(self.now + STILL_DRAINS_NS, Event::Tell(worker, lease));
            return;
        }
        let wants = self.idles_for(session).is_none();
        let renewed = wants.then(|| self.scheduler.renew(worker, lease, self.now)).flatten();
        match renewed {
            Some(grant) => {
                assert_eq!((grant.worker, grant.lease), (worker, lease));
                self.check_length(&grant);
                self.check_dense(worker);
                self.held.get_mut(&worker).unwrap().ends_at = self.now + grant.length_ns;
                self.plan(worker);
            }
            None => {
                if wants {
                    self.books.get_mut(&session).unwrap().stops += 1;
                }
                self.wind_up(worker, if wants { ends_at } else { self.now });
            }
        }
    }

    fn is_in_stream(&self, worker: WorkerId) -> bool {
        let session = self.workers.get(&worker);
        session.is_some_and(|session| self.tenants[session].handover == Handover::InStream)
    }

    /// Plans the worker's next report on its lease, in time to go on without a gap.
    fn plan(&mut self, worker: WorkerId) {
        let Use { lease, ends_at, .. } = self.held[&worker];
        let left = ends_at - self.now;
        let tell_ns = self.tenants[&self.workers[&worker]].tell_ns;
        if left > 2 * MS {
            let next = tell_ns.min(left - MS);
            self.schedule(self.now + next, Event::Tell(worker, lease));
        } else {
            self.wind_up(worker, ends_at);
        }
    }

    /// Plans the lease's end and the end of its work.
    fn wind_up(&mut self, worker: WorkerId, ends_at: u64) {
        let overrun_ns = self.tenants[&self.workers[&worker]].overrun_ns;
        // The kernel that runs, and most of the time one that was launched behind it.
        let overrun = overrun_ns / 2 + self.up_to(overrun_ns / 2);
        let mine = self.held.get_mut(&worker).unwrap();
        mine.ends_at = ends_at.min(self.now);
        let lease = mine.lease;
        if overrun > STILL_DRAINS_NS {
            self.schedule(ends_at + STILL_DRAINS_NS, Event::Tell(worker, lease));
        }
        self.schedule(ends_at + overrun, Event::Stop(worker, lease));
    }

    /// Reports what was used since the last report. `None`: it no longer holds that lease, or is
    /// frozen.
    fn report(&mut self, worker: WorkerId, lease: LeaseId, done: bool) -> Option<SessionId> {
        let session = *self.workers.get(&worker)?;
        if self.tenants[&session].frozen {
            return None;
        }
        let now = self.now;
        let rough = self.tenants[&session].rough;
        let (missing_ns, part) =
            if rough { (self.up_to(5 * MS), self.up_to(600) + 500) } else { (0, 1000) };
        let others = self.held.len() > 1;
        let before_ns = self.books[&session].used_ns;
        let mine = self.mine(worker, lease)?;
        let until = mine.stopped_at.unwrap_or(now);
        let used_ns = mine.used / WHOLE;
        let first = core::mem::take(&mut mine.first);
        let launches = (before_ns + used_ns) / 1_000;
        let told = Told {
            held_ns: until - mine.told_at,
            estimated_ns: if others { used_ns * part / 1000 } else { used_ns },
            backlogged_ns: mine.backlogged_ns.saturating_sub(if first { missing_ns } else { 0 }),
            idle_ns: 0,
            launches,
            done,
        };
        let from = mine.told_at;
        let alone = !others;
        mine.used -= used_ns * WHOLE;
        mine.backlogged_ns = 0;
        mine.told_at = until;
        let told = self.words(session).about(told, alone, &mut self.dice);
        assert!(self.scheduler.report(worker, lease, told, now).unwrap());
        let keeps = self.keeps_lists;
        let books = self.books.get_mut(&session).unwrap();
        books.used_ns += used_ns;
        if keeps {
            books.used.push((from, until, used_ns));
        }
        Some(session)
    }

    /// What the session says at present.
    fn words(&self, session: SessionId) -> Words {
        let tenant = &self.tenants[&session];
        let (honest, lying) = tenant.lies;
        let phase = self.now.checked_rem(honest + lying);
        if phase.is_some_and(|phase| phase < honest) { Words::True } else { tenant.words }
    }

    fn mine(&mut self, worker: WorkerId, lease: LeaseId) -> Option<&mut Use> {
        self.held.get_mut(&worker).filter(|mine| mine.lease == lease)
    }

    fn granted(&mut self, grant: Grant) {
        let session = self.workers[&grant.worker];
        self.check_length(&grant);
        self.check_dense(grant.worker);
        let asked = self.asked_at.remove(&grant.worker).expect("granted without asking");
        let books = self.books.get_mut(&session).unwrap();
        books.waits.push(self.now - asked);
        books.open += 1;
        if books.open == 1 && self.keeps_lists {
            books.held.push((self.now, u64::MAX));
        }
        let mine = Use {
            lease: grant.lease,
            told_at: self.now,
            ends_at: self.now + grant.length_ns,
            rate: 0,
            used: 0,
            backlogged_ns: 0,
            stopped_at: None,
            dense: false,
            ends: false,
            first: true,
        };
        self.held.insert(grant.worker, mine);
        self.plan(grant.worker);
    }

    fn check_length(&self, grant: &Grant) {
        assert!(grant.length_ns >= limits::turns::SHORTEST_TURN_NS / 2, "{grant:?}");
        assert!(grant.length_ns <= limits::turns::LONGEST_LEASE_NS, "{grant:?}");
    }

    /// Checks that no two workers that the scheduler takes for dense hold at once.
    fn check_dense(&self, worker: WorkerId) {
        let dense = || {
            let holders = self.scheduler.holders();
            holders.filter(|(_, class)| *class == Class::Dense).map(|(holder, _)| holder)
        };
        if !dense().any(|holder| holder == worker) {
            return;
        }
        for other in dense() {
            assert!(
                other == worker,
                "{worker:?} and {other:?} hold at the same time at {}",
                self.now,
            );
        }
    }

    fn close(&mut self, session: SessionId) {
        let books = self.books.get_mut(&session).unwrap();
        books.open -= 1;
        if books.open == 0 && self.keeps_lists {
            books.held.last_mut().unwrap().1 = self.now;
        }
    }

    /// Lets the holders work until `then`.
    fn pass_until(&mut self, then: u64) {
        let passed = then - self.now;
        self.now = then;
        for (worker, mine) in &mut self.held {
            if mine.stopped_at.is_none() {
                mine.used += passed * mine.rate;
                self.worked += u128::from(passed * mine.rate);
                if mine.dense {
                    mine.backlogged_ns += passed;
                }
                if let Some(request) = self.requests.get_mut(worker).and_then(VecDeque::front_mut) {
                    request.left = request.left.saturating_sub(passed * mine.rate);
                }
            }
        }
    }

    /// Divides the device among the holders.
    fn share_out(&mut self) {
        let mut wants: Vec<(u64, WorkerId)> = Vec::with_capacity(self.held.len());
        for (worker, mine) in &self.held {
            if mine.stopped_at.is_none() {
                wants.push((self.tenants[&self.workers[worker]].density_ppm, *worker));
            }
        }
        wants.sort_unstable();
        let dense = wants.iter().filter(|(want, _)| *want > 900_000).count();
        let mut left: u64 = match (dense, wants.len()) {
            (_, 0 | 1) => WHOLE,
            (2.., _) => 900_000,
            (1, _) => 950_000,
            _ => 980_000,
        };
        let count = wants.len() as u64;
        for (place, (want, worker)) in wants.into_iter().enumerate() {
            let sliced = dense == 1 && want <= 900_000;
            let cost = if sliced { self.sparse_cost_ppm } else { WHOLE };
            let can = if sliced { want * self.sliced_ppm / WHOLE } else { want };
            let taken = (can * cost / WHOLE).min(left / (count - place as u64));
            let rate = taken * WHOLE / cost;
            left -= taken;
            let mine = self.held.get_mut(&worker).unwrap();
            mine.rate = rate;
            mine.dense = want > 950_000 || rate < want;
            let lease = mine.lease;
            if let Some(request) = self.requests.get(&worker).and_then(VecDeque::front) {
                let done = self.now + request.left.div_ceil(rate.max(1));
                self.schedule(done, Event::Finish(worker, lease));
            }
        }
    }

    fn schedule(&mut self, at: u64, event: Event) {
        self.sequence += 1;
        self.events.push(Reverse((at, self.sequence, event)));
    }

    pub(crate) fn up_to(&mut self, most: u64) -> u64 {
        self.dice.up_to(most)
    }
}
