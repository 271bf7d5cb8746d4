//! Devices, the sessions that hold several of them together, and their limiters, under a virtual clock.

use std::collections::{BTreeMap, BTreeSet};

use limits::ComputeLimit;
use scheduler::{Gangs, Grant, LeaseId, Scheduler, SessionId, Told, Way, WorkerId};

use super::{MS, SECOND};

/// How long work runs past the end of a lease.
const OVERRUN: u64 = 3 * MS / 10;
/// The daemon looks at its schedulers at least this often.
const TICK: u64 = 50 * MS;
pub(crate) const WHOLE: u64 = 1_000_000;

/// A session that always wants its devices. Its work on each waits for that on the others: it gets on where all of
/// those are open that it wants.
#[derive(Clone, Debug)]
pub(crate) struct Player {
    pub(crate) devices: Vec<u32>,
    pub(crate) quota: ComputeLimit,
    /// For which part of the time it keeps a device busy that it has to itself, in millionths.
    pub(crate) use_ppm: u64,
    /// What it gets beside another one that does the same: collectives of both spin on different devices.
    pub(crate) spins: bool,
    /// On its last device it wants something for this long only, and then rests as long.
    pub(crate) last_rests_every: Option<u64>,
    /// Before this it wants nothing (ns).
    pub(crate) from: u64,
}

pub(crate) fn player(devices: &[u32], share_ppm: u32) -> Player {
    let quota = ComputeLimit::fixed(share_ppm);
    Player {
        devices: devices.to_vec(),
        quota,
        use_ppm: WHOLE,
        spins: false,
        last_rests_every: None,
        from: 0,
    }
}

pub(crate) fn sparse(devices: &[u32], share_ppm: u32, use_ppm: u64) -> Player {
    Player { use_ppm, ..player(devices, share_ppm) }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Held {
    lease: LeaseId,
    told: u64,
    end: u64,
    renew_at: Option<u64>,
    /// Since it was told: what was used, and for how long work was queued.
    used: u64,
    queued: u64,
}

impl Held {
    /// When its limiter asks for more: at half of what is left, unless that is too little.
    fn renewal(now: u64, end: u64) -> Option<u64> {
        let early = (end - now) / 2;
        (early >= MS / 2).then_some(end - early)
    }

    /// When its limiter does something next.
    fn next(&self) -> u64 {
        self.renew_at.unwrap_or(self.end + OVERRUN)
    }
}

pub(crate) struct Node {
    pub(crate) players: Vec<Player>,
    pub(crate) schedulers: BTreeMap<u32, Scheduler>,
    gangs: Gangs<u32>,
    pub(crate) held: BTreeMap<(u64, u32), Held>,
    pub(crate) now: u64,
    /// How far each session got, as the time that this takes alone, and for how long it held only some of the devices
    /// that it wanted.
    done: Vec<u64>,
    pub(crate) part: Vec<u64>,
    /// The longest time for which each held nothing.
    pub(crate) hungry: Vec<u64>,
    hungry_since: Vec<u64>,
}

pub(crate) fn worker(session: u64) -> WorkerId {
    WorkerId(session)
}

impl Node {
    /// `together`: whether the sessions' devices are known to be used together.
    pub(crate) fn new(players: &[Player], together: bool) -> Self {
        let mut schedulers: BTreeMap<u32, Scheduler> = BTreeMap::new();
        let mut gangs = Gangs::default();
        for (session, player) in (0..).zip(players) {
            for &device in &player.devices {
                let scheduler = schedulers.entry(device).or_default();
                scheduler.set_session(SessionId(session), player.quota, 0).unwrap();
                scheduler.join(worker(session), SessionId(session)).unwrap();
                // Another process of the session, which uses another device.
                scheduler.join(WorkerId(1000 + session), SessionId(session)).unwrap();
            }
        }
        for (session, player) in (0..).zip(players).filter(|_| together) {
            let devices: BTreeSet<u32> = player.devices.iter().copied().collect();
            gangs.set(SessionId(session), devices, &mut schedulers);
        }
        let count = players.len();
        Self {
            players: players.to_vec(),
            schedulers,
            gangs,
            held: BTreeMap::new(),
            now: 0,
            done: vec![0; count],
            part: vec![0; count],
            hungry: vec![0; count],
            hungry_since: vec![0; count],
        }
    }

    fn wants(&self, session: u64, device: u32) -> bool {
        let player = &self.players[session as usize];
        let is_last = player.devices.last() == Some(&device);
        let comes = self.now >= player.from;
        comes
            && player
                .last_rests_every
                .is_none_or(|every| !is_last || (self.now / every).is_multiple_of(2))
    }

    /// In which way the sessions share each device, and since which second.
    pub(crate) fn ways(&mut self) -> Vec<Option<(Way, u64)>> {
        let now = self.now;
        let way = |device: &mut Scheduler| {
            device.view(now).way.map(|chosen| (chosen.way, chosen.since / SECOND))
        };
        self.schedulers.values_mut().map(way).collect()
    }

    fn take(&mut self, device: u32, grant: Grant) {
        let (now, end) = (self.now, self.now + grant.length_ns);
        let lease = grant.lease;
        let renew_at = Held::renewal(now, end);
        let held = Held { lease, told: now, end, renew_at, used: 0, queued: 0 };
        assert!(self.held.insert((grant.worker.0, device), held).is_none());
    }

    fn told(&self, session: u64, held: &Held, done: bool) -> Told {
        let held_ns = self.now - held.told;
        let (estimated_ns, backlogged_ns) = (held.used, held.queued);
        let launches = self.done[session as usize] / 1_000;
        Told { held_ns, estimated_ns, backlogged_ns, idle_ns: 0, launches, done }
    }

    /// What the limiters of the sessions do now, and what the schedulers make of it.
    pub(crate) fn happen(&mut self) {
        let now = self.now;
        for session in 0..self.players.len() as u64 {
            for at in 0..self.players[session as usize].devices.len() {
                let device = self.players[session as usize].devices[at];
                self.limiter(session, device);
            }
        }
        for (device, grant) in self.gangs.decide(&mut self.schedulers, now) {
            self.take(device, grant);
        }
        let mut granted = Vec::new();
        for (&device, scheduler) in &mut self.schedulers {
            granted.extend(scheduler.decide(now).into_iter().map(|grant| (device, grant)));
        }
        granted.into_iter().for_each(|(device, grant)| self.take(device, grant));
    }

    /// A session's limiter on one device: it asks, goes on or is done.
    fn limiter(&mut self, session: u64, device: u32) {
        let now = self.now;
        let wants = self.wants(session, device);
        let scheduler = self.schedulers.get_mut(&device).unwrap();
        let id = worker(session);
        let Some(mut held) = self.held.get(&(session, device)).copied() else {
            if wants {
                scheduler.ask(id, now).unwrap();
            } else {
                scheduler.withdraw(id, now);
            }
            return;
        };
        if wants && now < held.next() {
            return;
        }
        let done = !wants || now >= held.end + OVERRUN;
        let told = self.told(session, &held, done);
        let scheduler = self.schedulers.get_mut(&device).unwrap();
        scheduler.report(id, held.lease, told, now).unwrap();
        if done {
            self.held.remove(&(session, device));
            if wants {
                scheduler.ask(id, now).unwrap();
            }
            return;
        }
        let lease = (id, held.lease);
        let renewed =
            self.gangs.renew(SessionId(session), device, lease, &mut self.schedulers, now);
        (held.told, held.used, held.queued) = (now, 0, 0);
        match renewed {
            Some(grant) => {
                held.end = now + grant.length_ns;
                held.renew_at = Held::renewal(now, held.end);
            }
            None => held.renew_at = None,
        }
        self.held.insert((session, device), held);
    }

    /// When something happens next.
    pub(crate) fn next(&self) -> u64 {
        let now = self.now;
        let rests = self.players.iter().filter_map(|player| player.last_rests_every);
        let rests = rests.map(|every| (now / every + 1) * every);
        let held = self.held.values().flat_map(|held| [held.next(), held.end]);
        let schedulers = self.schedulers.values().filter_map(|each| each.next_deadline(now));
        let events = held.chain(rests).chain(schedulers).chain(self.gangs.next_deadline(now));
        events.filter(|&at| at > now).min().unwrap_or(u64::MAX).min(now + TICK)
    }

    /// How far a session gets on a device in so much time, in millionths of what it would get alone, and for which
    /// part of the time it has work queued there. The hardware gives equal slices to all that want more.
    fn pace(&self, session: u64, device: u32) -> (u64, u64) {
        let own = &self.players[session as usize];
        let others = self.held.keys().filter(|(other, on)| *on == device && *other != session);
        let others: Vec<&Player> =
            others.map(|(other, _)| &self.players[*other as usize]).collect();
        if own.spins && others.iter().any(|other| other.spins) {
            return (WHOLE / 20, WHOLE);
        }
        let all: u64 = own.use_ppm + others.iter().map(|other| other.use_ppm).sum::<u64>();
        let holders = others.len() as u64 + 1;
        let slice = (WHOLE / holders).max(WHOLE.saturating_sub(all - own.use_ppm));
        let pace = (slice * WHOLE / own.use_ppm).min(WHOLE);
        (pace, if pace < WHOLE { WHOLE } else { own.use_ppm })
    }

    /// Nothing changes until then.
    pub(crate) fn pass_until(&mut self, then: u64) {
        let (now, passed) = (self.now, then - self.now);
        let paces: Vec<((u64, u32), (u64, u64))> =
            self.held.keys().map(|&(s, device)| ((s, device), self.pace(s, device))).collect();
        for session in 0..self.players.len() {
            let own = &self.players[session];
            let (mut wanted, mut open) = (0, 0);
            for &device in &own.devices {
                let held = self.held.get(&(session as u64, device));
                wanted += u64::from(self.wants(session as u64, device));
                open += u64::from(held.is_some_and(|held| held.end > now));
            }
            let own_paces = || paces.iter().filter(|((other, _), _)| *other == session as u64);
            let slowest = own_paces().map(|(_, (pace, _))| *pace).min().unwrap_or(0);
            let gets_on = open > 0 && open >= wanted;
            if gets_on {
                self.done[session] += passed * slowest / WHOLE;
            } else if open > 0 {
                self.part[session] += passed;
            }
            for ((_, device), (_, queued)) in own_paces() {
                let Some(held) = self.held.get_mut(&(session as u64, *device)) else { continue };
                // Work that runs past the end of a lease, and what waits for other devices.
                let drains = !gets_on;
                held.used +=
                    if drains { passed } else { passed * slowest / WHOLE * own.use_ppm / WHOLE };
                held.queued += if drains { passed } else { passed * queued / WHOLE };
            }
            if open > 0 {
                self.hungry_since[session] = then;
            }
            self.hungry[session] = self.hungry[session].max(then - self.hungry_since[session]);
        }
        self.now = then;
    }

    /// How far each got in relation to what it gets alone, in millionths.
    pub(crate) fn rates(&mut self, length: u64) -> Vec<u64> {
        let before = self.done.clone();
        let end = self.now + length;
        let mut events = 0;
        while self.now < end {
            events += 1;
            assert!(
                events < 100_000,
                "events without end at {}: {:?} {:?}",
                self.now,
                self.players,
                self.held
            );
            self.happen();
            self.pass_until(self.next().min(end));
        }
        let rate = |(now, before): (&u64, &u64)| (now - before) * WHOLE / length;
        self.done.iter().zip(&before).map(rate).collect()
    }
}

/// Runs for long; part of the time in which each held all its devices.
pub(crate) fn run(players: &[Player]) -> (Node, Vec<u64>) {
    let mut node = Node::new(players, true);
    node.rates(3 * SECOND);
    node.hungry.fill(0);
    let rates = node.rates(20 * SECOND);
    (node, rates)
}

#[track_caller]
pub(crate) fn near(rates: &[u64], expected: &[u64], points: u64) {
    let off =
        rates.iter().zip(expected).any(|(rate, wanted)| rate.abs_diff(*wanted) > points * 10_000);
    assert!(!off, "{rates:?}, not {expected:?}");
}
