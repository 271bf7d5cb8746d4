//! The world: runs a scenario as one event heap, from one seed.

use std::collections::{BTreeMap, BinaryHeap, VecDeque};

use fake_node::config::Config;
use fake_node::layout::{Order, State};
use limiter_core::{LeaseUtilization, Neighbours, Totals};
use limits::Limits;
use scheduler::{SessionId, WorkerId};
use session::layout::PageLayout;
use session::ledger::Ledger;

use crate::daemon::{Daemon, Gate, GatePage, Saved};
use crate::dice::Dice;
use crate::node::{Answer, Event, Governor, Kind, Phase, Planned, Process, Session, Thread, Work};
use crate::program::Step;
use crate::scenario::Scenario;
use crate::watch::{Got, Promise, Violation, Watch};

const US: u64 = 1_000;
/// If this many events happen at one moment, the moment never ends.
const MOST_AT_ONCE: u32 = 100_000;

/// The result of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// A digest of all events; equal for equal scenarios.
    pub digest: u64,
    /// Number of events.
    pub events: u64,
    /// The first promise that was not kept.
    pub violation: Option<Violation>,
    /// The time that each session got of each device.
    pub got: BTreeMap<(usize, u32), Got>,
}

/// The state of a run.
pub(crate) struct World {
    pub(crate) scenario: Scenario,
    pub(crate) now: u64,
    heap: BinaryHeap<Planned>,
    planned: u64,
    pub(crate) dice: Dice,
    pub(crate) devices: Box<State>,
    /// Whether work that may take no time was handed to the devices.
    pub(crate) at_once: bool,
    pub(crate) daemon: Option<Daemon>,
    pub(crate) saved: Option<(Saved, std::collections::BTreeSet<SessionId>, u64)>,
    pub(crate) pages: BTreeMap<Gate, GatePage>,
    pub(crate) sessions: Vec<Session>,
    pub(crate) processes: Vec<Process>,
    pub(crate) governors: Vec<Governor>,
    /// For each governor: the device's work for it, and the work done, when last seen (ns).
    seen_ns: Vec<(u64, u64)>,
    /// The daemon's timer.
    pub(crate) alarm_at: u64,
    /// The largest delay of messages and of wake-ups, and until when it applies.
    pub(crate) late_messages: (u64, u64),
    pub(crate) late_wakeups: (u64, u64),
    pub(crate) watch: Watch,
    violation: Option<Violation>,
    digest: u64,
    events: u64,
}

/// Runs a scenario.
pub fn run(scenario: &Scenario) -> Outcome {
    let mut world = World::new(scenario.clone());
    world.happen();
    let World { digest, events, violation, watch, .. } = world;
    Outcome { digest, events, violation, got: watch.got }
}

impl World {
    fn new(scenario: Scenario) -> Self {
        let config = Config { devices: scenario.devices, ..Config::default() };
        let sessions = scenario.tenants.iter().map(|tenant| {
            let (pages, slots, stopped_until) = (BTreeMap::new(), 0, 0);
            Session { quota: tenant.quota, pages, slots, stopped_until }
        });
        let sessions = sessions.collect();
        let watch = Watch::new(&scenario);
        let mut world = Self {
            now: 0,
            heap: BinaryHeap::new(),
            planned: 0,
            dice: Dice::new(scenario.seed ^ 0x5eed),
            devices: State::boxed(config, 0),
            at_once: false,
            daemon: Some(Daemon::new(scenario.way)),
            saved: None,
            pages: BTreeMap::new(),
            sessions,
            processes: Vec::new(),
            governors: Vec::new(),
            seen_ns: Vec::new(),
            alarm_at: u64::MAX,
            late_messages: (0, 0),
            late_wakeups: (0, 0),
            watch,
            violation: None,
            digest: 0xcbf2_9ce4_8422_2325,
            events: 0,
            scenario,
        };
        for tenant in 0..world.scenario.tenants.len() {
            for _ in 0..world.scenario.tenants[tenant].processes {
                let at = world.scenario.tenants[tenant].comes_at;
                world.plan(at, Event::Comes(tenant));
            }
        }
        for (number, (at, _)) in world.scenario.troubles.clone().into_iter().enumerate() {
            world.plan(at, Event::Trouble(number));
        }
        world
    }

    pub(crate) fn plan(&mut self, at: u64, event: Event) {
        self.planned += 1;
        self.heap.push(Planned { at: at.max(self.now), number: self.planned, event });
    }

    /// Plans a governor's next wake-up; it replaces an earlier one.
    pub(crate) fn arm(&mut self, g: usize, at: u64) {
        let late = self.lag();
        let governor = &mut self.governors[g];
        governor.alarm += 1;
        governor.wakes_at = Some(at);
        let alarm = governor.alarm;
        self.plan(at + late, Event::Wakes(g, alarm));
    }

    pub(crate) fn disarm(&mut self, g: usize) {
        self.governors[g].alarm += 1;
        self.governors[g].wakes_at = None;
    }

    /// The time that a message takes (ns).
    pub(crate) fn way(&mut self) -> u64 {
        let usual = self.dice.between(60 * US, 250 * US);
        let (most, until) = self.late_messages;
        usual + if self.now < until { self.dice.up_to(most) } else { 0 }
    }

    /// How late a thread wakes up (ns).
    pub(crate) fn lag(&mut self) -> u64 {
        let usual = self.dice.up_to(10 * US);
        let (most, until) = self.late_wakeups;
        usual + if self.now < until { self.dice.up_to(most) } else { 0 }
    }

    fn happen(&mut self) {
        let end = self.scenario.length;
        let (mut at, mut at_once) = (0, 0);
        while self.violation.is_none() {
            if core::mem::take(&mut self.at_once) {
                self.devices.step(self.now);
                self.settle_all();
                continue;
            }
            let next = self.heap.peek().map_or(u64::MAX, |planned| planned.at);
            let worked = self.devices.step(next.min(end));
            self.now = self.devices.now;
            if worked {
                self.settle_all();
            } else if next > end {
                break;
            } else if let Some(Planned { event, .. }) = self.heap.pop() {
                self.events += 1;
                self.handle(event);
            }
            at_once = if self.now == at { at_once + 1 } else { 0 };
            if at_once > MOST_AT_ONCE {
                self.breaks(Promise::Progress, "events without end at one moment".to_owned());
            }
            if self.now > at {
                at = self.now;
                self.check();
            }
        }
    }

    pub(crate) fn breaks(&mut self, promise: Promise, what: String) {
        let at = self.now;
        self.violation.get_or_insert(Violation { at, promise, what });
    }

    pub(crate) fn note(&mut self, words: [u64; 3]) {
        for word in [self.now].into_iter().chain(words) {
            self.digest = (self.digest ^ word).wrapping_mul(0x0100_0000_01b3).rotate_left(23);
        }
    }

    fn settle_all(&mut self) {
        for g in 0..self.governors.len() {
            if !self.governors[g].begun.is_empty() && self.settle(g) {
                self.note([1, g as u64, self.governors[g].activity]);
                self.wake_waiting(self.governors[g].process);
            }
        }
    }

    /// Continues a thread that waited for all that it had launched.
    fn wake_waiting(&mut self, p: usize) {
        let process = &self.processes[p];
        let idle = || process.governors.iter().all(|&g| self.governors[g].is_idle());
        if process.thread == Thread::Waits && idle() {
            self.processes[p].thread = Thread::Runs;
            let lag = self.lag();
            self.plan(self.now + lag, Event::Goes(p));
        }
    }

    pub(crate) fn stopped_until(&self, tenant: usize) -> Option<u64> {
        Some(self.sessions[tenant].stopped_until).filter(|&until| until > self.now)
    }

    fn handle(&mut self, event: Event) {
        if let Event::Goes(p) = event
            && let Some(until) = self.stopped_until(self.processes[p].tenant)
        {
            return self.plan(until, event);
        }
        if let Event::Wakes(g, _) | Event::Answers(g, ..) = event
            && let Some(until) = self.stopped_until(self.governors[g].tenant)
        {
            return self.plan(until, event);
        }
        match event {
            Event::Comes(tenant) => self.start(tenant),
            Event::Goes(p) => self.go(p),
            Event::Wakes(g, alarm) => {
                if self.governors[g].alarm == alarm {
                    self.governors[g].wakes_at = None;
                    self.govern(g);
                }
            }
            Event::Arrives(g, message) => self.arrives(g, message),
            Event::Answers(g, call, answer) => {
                if self.governors[g].phase != Phase::Dead {
                    self.answered(g, call, answer);
                } else if let Answer::Granted(grant, opened) = answer {
                    self.give_back(self.governors[g].gate(), grant.lease, opened.is_some());
                }
            }
            Event::PollEnds(g, call) => {
                let gate = self.governors[g].gate();
                let now = self.now;
                if self.daemon.as_mut().is_some_and(|daemon| daemon.give_up(gate, call, now)) {
                    self.answer_not_yet(g, call);
                    self.decide();
                }
            }
            Event::GateOpens(g, lease) => self.gate_opens(g, lease),
            Event::GateCloses(g, lease) => self.gate_closes(g, lease),
            Event::Ended(g, lease) => {
                let (gate, now) = (self.governors[g].gate(), self.now);
                if let Some(daemon) = &mut self.daemon {
                    daemon.ended(gate, lease, now);
                    self.decide();
                }
            }
            Event::Gone(p) => self.gone(p),
            Event::Alarm(at) => {
                if at == self.alarm_at {
                    self.alarm_at = u64::MAX;
                    self.decide();
                }
            }
            Event::Trouble(number) => self.trouble(number),
            Event::Better(number) => self.better(number),
        }
    }

    /// Starts a process of a session.
    fn start(&mut self, tenant: usize) {
        let its = self.scenario.tenants[tenant].clone();
        let p = self.processes.len();
        let worker = WorkerId(p as u64 + 1);
        let pid = p as u32 + 1;
        let Ok(slot) = self.devices.add_process(pid, 1) else { return };
        let now = self.now;
        let page_slot = self.sessions[tenant].slots;
        self.sessions[tenant].slots += 1;
        let estimates = self.dice.between(970, 1_030);
        let mut own = Vec::new();
        for &device in &its.devices {
            let Ok(stream) = self.devices.create_stream(slot, device, 1, Order::NonBlocking, 0)
            else {
                return;
            };
            let quota = self.sessions[tenant].quota;
            let pages = &mut self.sessions[tenant].pages;
            let page = pages.entry(device).or_insert_with(PageLayout::blank);
            page.set_limits(&Limits { memory: None, compute: quota });
            Ledger::new(page).enroll(page_slot, pid, 1, now);
            own.push(self.governors.len());
            self.seen_ns.push((0, 0));
            self.governors.push(Governor {
                tenant,
                process: p,
                worker,
                session: SessionId(tenant as u64),
                device,
                stream,
                slot: page_slot,
                in_stream: its.in_stream,
                words: its.words,
                estimates,
                phase: Phase::Idle,
                gate_open: false,
                shared: false,
                tenure: None,
                utilization: LeaseUtilization::default(),
                neighbours: Neighbours::default(),
                absence: None,
                report: None,
                told: None,
                outside_ns: 0,
                own_ns: 0,
                queued_ns: 0,
                closed: None,
                call: 0,
                alarm: 0,
                wakes_at: None,
                held: VecDeque::new(),
                held_ns: 0,
                begun: VecDeque::new(),
                totals: Totals::default(),
                before: Totals::default(),
                busy_from: None,
                done_ns: 0,
                activity: 0,
                collectives: 0,
                closed_at: 0,
                told_at: 0,
                called_until: 0,
                dependent: false,
            });
        }
        self.processes.push(Process {
            tenant,
            program: its.program,
            slot,
            governors: own,
            thread: Thread::Runs,
            steps: 0,
            alive: true,
            collectives: 0,
            arrives_at: now,
        });
        self.plan(now, Event::Goes(p));
    }

    /// Runs a process's thread until it waits for something.
    fn go(&mut self, p: usize) {
        let now = self.now;
        while self.processes[p].alive && self.processes[p].thread == Thread::Runs {
            let process = &mut self.processes[p];
            let step = process.program.step(process.steps, now, &mut self.dice);
            process.steps += 1;
            match step {
                Step::Launch(ns) => self.launch(p, ns, Kind::Kernel),
                Step::Collective(ns) => {
                    self.processes[p].collectives += 1;
                    let number = (p as u64) << 40 | self.processes[p].collectives;
                    self.launch(p, ns, Kind::Collective(number));
                }
                Step::Hold => self.launch(p, 0, Kind::Value(false)),
                Step::Release => self.release(p),
                Step::Wait => {
                    self.processes[p].thread = Thread::Waits;
                    self.wake_waiting(p);
                }
                Step::Cpu(ns) => {
                    let lag = self.lag();
                    return self.plan(now + ns + lag, Event::Goes(p));
                }
                Step::Request(ns) => {
                    self.processes[p].arrives_at += ns;
                    let at = self.processes[p].arrives_at.max(now);
                    let lag = self.lag();
                    return self.plan(at + lag, Event::Goes(p));
                }
            }
        }
    }

    fn launch(&mut self, p: usize, ns: u64, kind: Kind) {
        for g in self.processes[p].governors.clone() {
            let estimated_ns = ns * self.governors[g].estimates / 1_000;
            self.governors[g].hold(Work { ns, estimated_ns, kind });
            self.pump(g);
            self.want(g);
        }
        if self.processes[p].governors.iter().any(|&g| self.is_full(g)) {
            self.processes[p].thread = Thread::Blocked;
        }
    }

    /// Writes the values for which a process's streams wait.
    fn release(&mut self, p: usize) {
        for g in self.processes[p].governors.clone() {
            let governor = &mut self.governors[g];
            for work in &mut governor.held {
                if let Kind::Value(there) = &mut work.kind {
                    *there = true;
                }
            }
            for begun in &governor.begun {
                if let Kind::Value(false) = begun.work.kind {
                    self.at_once = true;
                    self.devices.tell(governor.stream, begun.position, true);
                }
            }
        }
    }

    /// Checks the promises.
    fn check(&mut self) {
        let now = self.now;
        for (g, governor) in self.governors.iter().enumerate() {
            let process = &self.devices.processes[self.processes[governor.process].slot as usize];
            if u64::from(process.pid) != governor.worker.0 {
                continue;
            }
            let worked = process.clients[governor.device as usize].worked_ns;
            let seen = core::mem::replace(&mut self.seen_ns[g], (worked, governor.done_ns));
            let more = worked - seen.0;
            // A collective that spins because another session shares another device is not charged.
            let several = self.processes[governor.process].governors.len() > 1;
            let counts = if several { governor.done_ns - seen.1 } else { more };
            self.watch.used(governor.tenant, governor.device, more, counts, now);
        }
        for device in 0..self.scenario.devices {
            let of_device = self.watch.got.iter().filter(|((_, other), _)| *other == device);
            let used: u64 = of_device.map(|(_, got)| got.used_ns).sum();
            let worked = self.devices.worked_ns(device);
            if used != worked || worked > now {
                let what = format!("device {device}: {used} used, {worked} worked, {now} passed");
                self.breaks(Promise::Time, what);
            }
        }
        let unattended = self.governors.iter().position(|governor| {
            governor.is_wanted() && governor.phase != Phase::Dead && governor.wakes_at.is_none()
        });
        if let Some(g) = unattended {
            let what = format!("{:?}", self.governors[g]);
            self.breaks(Promise::LookedAfter, what);
        }
        let governors = &self.governors;
        let wants = |tenant: usize, device: u32| {
            let mut own =
                governors.iter().filter(|one| (one.tenant, one.device) == (tenant, device));
            own.any(|one| !one.is_idle())
        };
        let sessions = &self.sessions;
        let quotas = |tenant: usize| sessions[tenant].quota;
        let violation = self.watch.check(now, &self.scenario.tenants, quotas, wants);
        if let Some(violation) = violation {
            self.violation.get_or_insert(violation);
        }
    }
}
