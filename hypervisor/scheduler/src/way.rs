//! The way in which sessions share the device: in turns, or at once. The scheduler asks at each decision.
//!
//! Turns cost handovers, and the time in which the holder leaves the device idle. At once, the hardware slices the
//! device: that costs a tenth where all sessions fill it, and wins where each has gaps. Which is better depends on the
//! programs together. So both ways are tried, and what each session gets done in them is compared: **the way in which
//! more gets done holds, unless a session gets less than it is guaranteed.** The other way is tried again now and then,
//! and when sessions come, go or change.
//!
//! Only sessions that **contend** are part of this: that want the device for most of the time. A session that wants it
//! now and then is served promptly in either way.

use std::collections::BTreeMap;

use limits::turns::{DENSE_PPM, Handover, ratio_ppm};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::account::Account;
use crate::density::Sharing;
use crate::roster::{Roster, Session, Worker};
use crate::tuning::{
    CONTENDS_PPM, GAIN_PPM, GUARANTEE_ERROR_PPM, HOLD_NS, LEAST_HOLDS, LONG_MEASURE, LOOK_NS,
    MOST_HOLDS, NOTABLE_PPM, PIECE_NS, PIECES, SETTLE_NS, WANTS_OVER_NS,
};
use crate::types::{SessionId, WHOLE, Way, portion, share_of};

/// What a session gets done in a way, per unit of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Completed launches in a thousand seconds.
    pub launches: u64,
    /// The charge, in millionths of the time.
    pub charged_ppm: u64,
}

impl Rate {
    fn mean(self, other: Self) -> Self {
        Self {
            launches: self.launches.midpoint(other.launches),
            charged_ppm: self.charged_ppm.midpoint(other.charged_ppm),
        }
    }

    /// What would get done for a charge of at most this much: who may not have more has saved up what is beyond.
    fn at_most(self, most_ppm: u64) -> u64 {
        portion(self.launches, most_ppm.min(self.charged_ppm), self.charged_ppm.max(1))
    }
}

/// Why a way was chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reason {
    /// The ways were not compared: not yet, or because nobody could get more.
    #[default]
    NotCompared,
    /// More gets done than in the other way.
    MoreDone,
    /// In the other way a session would get less than it is guaranteed.
    Guarantee,
}

/// The way that holds for some sessions, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chosen {
    /// The way.
    pub way: Way,
    /// Why it was chosen.
    pub reason: Reason,
    /// Since when it holds (ns).
    pub since: u64,
    /// What each session gets done in turns and at once, as far as it was measured.
    pub rates: Vec<(SessionId, [Option<Rate>; 2])>,
}

/// What a session had got done at a moment.
#[derive(Clone, Copy, Debug, Default)]
struct Mark {
    launches: u64,
    charged_ns: u64,
    at: u64,
}

impl Mark {
    fn until(self, end: Self) -> Rate {
        let took_ns = end.at.saturating_sub(self.at).max(1);
        let launches = end.launches.saturating_sub(self.launches);
        Rate {
            launches: portion(launches, 1_000_000_000_000, took_ns),
            charged_ppm: ratio_ppm(end.charged_ns.saturating_sub(self.charged_ns), took_ns),
        }
    }
}

/// A session that contends.
#[derive(Clone, Copy, Debug, Default)]
struct Contender {
    mark: Mark,
    /// How often it was checked since then whether the session wants the device, and how often it did.
    looks: u64,
    wanted: u64,
    rates: [Option<Rate>; 2],
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    /// The sessions take turns, which show how much of the device each uses by itself.
    Probes,
    /// The way was begun; what goes on from before is not counted.
    Settles,
    /// What each session gets done is measured, to compare the ways; the number of pieces so far.
    Measures(u64),
    /// The way holds; the number of holds since the last trial.
    Holds(u64),
}

/// The choice for a device.
#[derive(Debug, Default)]
pub(crate) struct Choice {
    /// When it is next checked who contends (ns).
    look_at: u64,
    /// Those that contend, or did last: what is known of them stays known while they pause for a moment.
    among: BTreeMap<SessionId, Contender>,
    /// When they last contended (ns).
    contended_at: u64,
    /// The present phase and its end (ns). `None`: fewer than two sessions contend.
    phase: Option<(Phase, u64)>,
    /// The way now.
    way: Way,
    /// The way that was chosen, and since when (ns).
    chosen: Way,
    reason: Reason,
    since: u64,
    /// How often each way was chosen anew.
    changes: [u64; 2],
    /// For how many holds the next chosen way will hold.
    holds: u64,
    /// Whether the ways were compared since the last call of [`Self::take_news`].
    news: bool,
    /// The only way, if nothing is to be chosen.
    only: Option<Way>,
}

impl Choice {
    /// How often each way was chosen anew.
    pub(crate) fn changes(&self) -> [u64; 2] {
        self.changes
    }

    /// The choice, if the ways were compared since the last call.
    pub(crate) fn take_news(&mut self) -> Option<Chosen> {
        core::mem::take(&mut self.news).then(|| self.chosen())?
    }

    /// Sets the only way.
    pub(crate) fn only(&mut self, way: Way) {
        self.only = Some(way);
    }

    /// Forgets what the ways gave: under other limits others are better.
    pub(crate) fn begin_anew(&mut self) {
        (self.phase, self.contended_at) = (None, 0);
    }

    /// The way that holds, if sessions contend.
    pub(crate) fn chosen(&self) -> Option<Chosen> {
        self.phase?;
        let rates = self.among.iter().map(|(&id, contender)| (id, contender.rates)).collect();
        let Self { chosen: way, reason, since, .. } = *self;
        Some(Chosen { way, reason, since, rates })
    }

    /// When [`Self::set`] has something to do (ns): always soon, if several sessions want the device.
    pub(crate) fn next_at(&self, roster: &Roster) -> Option<u64> {
        let asking = roster.asking().map(|(_, own, _)| own.session);
        let mut wanting = roster.holding().map(|(_, own, _)| own.session).chain(asking);
        let first = wanting.next()?;
        let until = self.phase.map_or(u64::MAX, |(_, until)| until);
        wanting.any(|other| other != first).then_some(self.look_at.min(until))
    }

    /// Continues the trial of the ways, if that is due. Called before anything is granted.
    pub(crate) fn set(&mut self, roster: &mut Roster, now: u64) {
        let until = self.phase.map_or(u64::MAX, |(_, until)| until);
        if now < until.min(self.look_at) {
            return;
        }
        if now >= self.look_at {
            // Nobody looks while fewer than two sessions want the device.
            let paused_ns = now.saturating_sub(self.look_at);
            if paused_ns >= WANTS_OVER_NS {
                self.phase = None;
                for (_, session) in roster.sessions_mut() {
                    session.wants.add(0, paused_ns, WANTS_OVER_NS);
                }
            }
            self.look_at = now.saturating_add(LOOK_NS);
            let among = contenders(roster, &self.among, self.phase.is_some());
            if among.is_empty() {
                // Otherwise another device's choice may hold here: that of a gang's reference.
                if self.phase.take().is_some() {
                    impose(roster, &self.among, None);
                }
                return;
            }
            if self.phase.is_none() || !among.iter().eq(self.among.keys()) {
                self.begin(among, roster, now);
                return self.impose(roster);
            }
            self.contended_at = now;
            for (&id, contender) in &mut self.among {
                contender.looks += 1;
                contender.wanted += u64::from(roster.members(id).any(|(_, own)| wants(own)));
            }
            if self.way == Way::Overlap && self.has_several(roster) {
                self.among.values_mut().for_each(|it| it.rates[Way::Overlap as usize] = None);
                (self.chosen, self.reason, self.since) = (Way::Turns, Reason::NotCompared, now);
                self.way = self.only.unwrap_or(Way::Turns);
                self.phase = Some((Phase::Settles, now.saturating_add(SETTLE_NS)));
            }
        }
        if let Some((phase, _)) = self.phase.filter(|_| until <= now) {
            let (next, for_ns) = self.after(phase, roster, now);
            self.phase = Some((next, now.saturating_add(for_ns)));
        }
        // Processes may have joined the sessions.
        self.impose(roster);
    }

    /// Sessions begin to contend, or others than before.
    fn begin(&mut self, among: Vec<SessionId>, roster: &mut Roster, now: u64) {
        impose(roster, &self.among, None);
        let paused_ns = now.saturating_sub(self.contended_at);
        if paused_ns < HOLD_NS && among.iter().eq(self.among.keys()) {
            self.way = self.only.unwrap_or(self.chosen);
            self.phase = Some((Phase::Settles, now.saturating_add(SETTLE_NS)));
            return;
        }
        // While sessions come and go, nothing is tried.
        let settles_ns = if self.phase.is_some() { HOLD_NS } else { SETTLE_NS };
        self.among = among.into_iter().map(|id| (id, Contender::default())).collect();
        (self.chosen, self.since, self.holds) = (Way::Turns, now, LEAST_HOLDS);
        self.reason = Reason::NotCompared;
        self.way = self.only.unwrap_or(Way::Turns);
        self.phase = Some((Phase::Settles, now.saturating_add(settles_ns)));
    }

    /// What follows a phase, and for how long (ns).
    fn after(&mut self, phase: Phase, roster: &mut Roster, now: u64) -> (Phase, u64) {
        match phase {
            Phase::Probes => (Phase::Settles, SETTLE_NS),
            Phase::Settles => {
                self.mark(roster, now);
                if self.way == self.chosen && self.is_compared() {
                    (Phase::Holds(0), HOLD_NS)
                } else {
                    (Phase::Measures(0), self.piece_ns(roster))
                }
            }
            Phase::Measures(pieces) => {
                self.measure(roster, now);
                let pieces = pieces + 1;
                if pieces < PIECES && !self.is_dear(roster) {
                    return (Phase::Measures(pieces), self.piece_ns(roster));
                }
                self.mark(roster, now);
                if self.holds == LEAST_HOLDS && self.is_unclear(roster) {
                    return self.probes(roster);
                }
                if !self.is_compared() && self.may_gain(roster) {
                    return self.tries(self.way.other(), roster);
                }
                self.choose(roster, now)
            }
            Phase::Holds(times) => {
                let changed = self.measure(roster, now);
                self.mark(roster, now);
                if self.best(roster).0 != self.chosen {
                    return self.choose(roster, now);
                }
                let may_try = times >= self.holds / LEAST_HOLDS;
                if may_try && self.is_unclear(roster) {
                    return self.probes(roster);
                }
                if (may_try && changed || times >= self.holds) && self.may_gain(roster) {
                    return self.tries(self.way.other(), roster);
                }
                (Phase::Holds(times + 1), HOLD_NS)
            }
        }
    }

    fn probes(&mut self, roster: &Roster) -> (Phase, u64) {
        self.rest_longer();
        self.tries(Way::Turns, roster)
    }

    /// Trials that show nothing new become rare.
    fn rest_longer(&mut self) {
        self.holds = (self.holds * 4).min(MOST_HOLDS);
    }

    /// Whether a session that would not take turns always has work queued, beside others. Turns show what it is.
    fn is_unclear(&self, roster: &Roster) -> bool {
        self.way == Way::Turns && self.workers(roster).any(|own| own.density.is_unclear())
    }

    /// The workers of the sessions that contend.
    fn workers<'a>(&'a self, roster: &'a Roster) -> impl Iterator<Item = &'a Worker> {
        self.among.keys().flat_map(|&id| roster.members(id)).map(|(_, own)| own)
    }

    /// Whether both ways were measured for every session.
    fn is_compared(&self) -> bool {
        self.among.values().all(|contender| contender.rates.iter().all(Option::is_some))
    }

    /// Whether those that contend hold several devices each.
    fn is_of_gangs(&self, roster: &Roster) -> bool {
        self.among.keys().any(|&id| roster.session(id).is_some_and(|session| session.together))
    }

    /// How long a way is measured at a time (ns). Turns of gates on threads are long, and so are steps and turns of gangs.
    fn piece_ns(&self, roster: &Roster) -> u64 {
        let on_thread = |own: &Worker| own.handover != Handover::InStream;
        let long = self.way == Way::Turns && self.workers(roster).any(on_thread)
            || self.is_of_gangs(roster);
        PIECE_NS * if long { LONG_MEASURE } else { 1 }
    }

    /// Compares the ways, and continues with the better one.
    fn choose(&mut self, roster: &mut Roster, now: u64) -> (Phase, u64) {
        self.news = true;
        let (best, reason) = self.best(roster);
        self.reason = reason;
        if best == self.chosen && self.is_compared() {
            self.rest_longer();
        } else if best != self.chosen {
            (self.chosen, self.since, self.holds) = (best, now, LEAST_HOLDS);
            self.changes[best as usize] += 1;
        }
        if best == self.way {
            return (Phase::Holds(0), HOLD_NS);
        }
        self.way = self.only.unwrap_or(best);
        (Phase::Settles, SETTLE_NS)
    }

    /// Whether a trial of holding at once may end early, because it costs a session far more than is allowed.
    fn is_dear(&self, roster: &Roster) -> bool {
        self.way == Way::Overlap
            && self.among.iter().any(|(&id, contender)| {
                let [Some(turns), Some(overlap)] = contender.rates else { return false };
                let Some(session) = roster.session(id) else { return false };
                let due = self.due(roster, session, turns);
                overlap.at_most(session.account.most_ppm().into()) < due / 4 * 3
            })
    }

    /// What is due to a session of what it gets done in turns.
    fn due(&self, roster: &Roster, session: &Session, turns: Rate) -> u64 {
        let most_ppm = session.account.most_ppm().into();
        let entitled_ppm = entitled_ppm(&self.among, roster, session);
        let least_ppm = entitled_ppm.saturating_sub(GUARANTEE_ERROR_PPM);
        let all = turns.charged_ppm.min(most_ppm).max(entitled_ppm);
        portion(turns.at_most(most_ppm), least_ppm, all)
    }

    /// Whether several processes of a session want the device. At once they would get more than its limit.
    fn has_several(&self, roster: &Roster) -> bool {
        let wanting = |id: &SessionId| roster.members(*id).filter(|(_, own)| wants(own)).count();
        self.among.keys().any(|id| wanting(id) > 1)
    }

    /// Whether the other way is worth a trial. Not if the sessions have in turns nearly all that they may have at most,
    /// nor if equal slices cannot be enough for one that fills the device.
    fn may_gain(&self, roster: &Roster) -> bool {
        if self.way == Way::Overlap {
            return true;
        }
        if self.has_several(roster) {
            return false;
        }
        let most =
            |id: &SessionId| roster.account(*id).map_or(0, |account| u64::from(account.most_ppm()));
        let charged = |it: &Contender| it.rates[Way::Turns as usize].map_or(0, |it| it.charged_ppm);
        let most: u64 = self.among.keys().map(most).sum();
        let charged: u64 = self.among.values().map(charged).sum();
        if charged + share_of(charged, 2 * GAIN_PPM) >= most {
            return false;
        }
        let use_of = |id: &SessionId| {
            let users = roster.users(*id).map(|own| own.density.assumed_ppm());
            users.sum::<u64>().min(WHOLE)
        };
        let all: u64 = self.among.keys().map(use_of).sum();
        let slice_ppm = WHOLE / self.among.len() as u64;
        self.among.keys().all(|id| {
            let (own, session) = (use_of(id), roster.session(*id));
            let gets_ppm = slice_ppm.max(WHOLE.saturating_sub(all - own));
            let entitled_ppm = session.map_or(0, |it| entitled_ppm(&self.among, roster, it));
            own < DENSE_PPM || gets_ppm + GUARANTEE_ERROR_PPM >= entitled_ppm
        })
    }

    /// The way in which more gets done, if every session gets what it is entitled to.
    fn best(&self, roster: &Roster) -> (Way, Reason) {
        let (mut gain, mut weights) = (0, 0);
        for (&id, contender) in &self.among {
            let ([Some(turns), Some(overlap)], Some(session)) =
                (contender.rates, roster.session(id))
            else {
                return (Way::Turns, Reason::NotCompared);
            };
            let most_ppm = session.account.most_ppm().into();
            let [in_turns, at_once] = [turns, overlap].map(|rate| rate.at_most(most_ppm));
            let share_ppm = entitled_ppm(&self.among, roster, session);
            if at_once < self.due(roster, session, turns) {
                return (Way::Turns, Reason::Guarantee);
            }
            let part = |ppm| portion(share_ppm, ppm, in_turns.max(at_once)) as i64;
            gain += part(at_once) - part(in_turns);
            weights += share_ppm as i64;
        }
        let stays = self.chosen == Way::Overlap;
        let least = if stays { 0 } else { weights * GAIN_PPM as i64 / WHOLE as i64 };
        // Those that leave the device idle do not take turns with each other, unless what each does on one device waits
        // for another.
        let same =
            !self.is_of_gangs(roster) && !self.workers(roster).any(|own| own.density.fills());
        (if same || gain > least { Way::Overlap } else { Way::Turns }, Reason::MoreDone)
    }

    /// Begins a trial of a way.
    fn tries(&mut self, way: Way, roster: &Roster) -> (Phase, u64) {
        self.way = self.only.unwrap_or(way);
        match self.way {
            Way::Turns => (Phase::Probes, PIECES * self.piece_ns(roster)),
            Way::Overlap => (Phase::Settles, SETTLE_NS),
        }
    }

    /// Tells the workers of the sessions what to do.
    fn impose(&self, roster: &mut Roster) {
        let sharing = match (self.way, self.phase) {
            (Way::Overlap, _) => Some(Sharing::Overlap),
            (Way::Turns, Some((Phase::Probes, _))) => Some(Sharing::Alone),
            (Way::Turns, _) => None,
        };
        impose(roster, &self.among, sharing);
    }

    fn mark(&mut self, roster: &Roster, now: u64) {
        for (&id, contender) in &mut self.among {
            (contender.mark, contender.looks, contender.wanted) = (mark(roster, id, now), 0, 0);
        }
    }

    /// Measures what each session has got done in the present way. Returns whether that differs much from before.
    fn measure(&mut self, roster: &Roster, now: u64) -> bool {
        let mut changed = false;
        for (&id, contender) in &mut self.among {
            // Nothing is learned from a program that does something else for most of the time.
            if contender.wanted * 4 < contender.looks {
                continue;
            }
            let rate = contender.mark.until(mark(roster, id, now));
            let before = contender.rates[self.way as usize];
            // While a way holds, single measurements must not change it.
            let holds = matches!(self.phase, Some((Phase::Holds(_), _)));
            let mean = before.filter(|_| holds).map_or(rate, |before| before.mean(rate));
            contender.rates[self.way as usize] = Some(mean);
            changed |= before.is_some_and(|before| {
                before.launches.abs_diff(rate.launches) > share_of(before.launches, NOTABLE_PPM)
            });
        }
        changed
    }
}

/// What a session has got done until its last report.
fn mark(roster: &Roster, session: SessionId, now: u64) -> Mark {
    let Some(state) = roster.session(session) else { return Mark { at: now, ..Mark::default() } };
    let told = roster.members(session).filter_map(|(_, worker)| Some(worker.held?.told_at));
    let charged_ns = state.account.charged().all_ns;
    Mark { launches: state.launches, charged_ns, at: told.min().unwrap_or(now) }
}

/// Whether a worker waits for the device or uses it.
fn wants(worker: &Worker) -> bool {
    worker.asks || worker.held.is_some_and(|held| !held.phase.revoked && !held.idle)
}

/// The sessions that want the device most of the time and could hold it at once, if there are several. Who did
/// `contend` goes on to do so until it wants the device for much less.
fn contenders(
    roster: &mut Roster,
    before: &BTreeMap<SessionId, Contender>,
    contend: bool,
) -> Vec<SessionId> {
    // Gangs disturb each other however little they use.
    let (mut among, mut filled_ppm, mut is_filled) = (Vec::new(), 0, false);
    let of = |which: &dyn Fn(&Worker) -> bool| -> FxHashSet<SessionId> {
        roster.workers().filter(|(_, own)| which(own)).map(|(_, own)| own.session).collect()
    };
    let (wanting, apart) = (of(&wants), of(&|own| own.density.is_distrusted()));
    let mut fills = FxHashMap::default();
    for (_, own) in roster.workers() {
        *fills.entry(own.session).or_insert(0) += own.density.wants_ppm();
    }
    for (id, session) in roster.sessions_mut() {
        let wants_ppm = if wanting.contains(&id) { WHOLE } else { 0 };
        session.wants.add(wants_ppm, LOOK_NS, WANTS_OVER_NS);
        let least_ppm =
            if contend && before.contains_key(&id) { CONTENDS_PPM / 2 } else { CONTENDS_PPM };
        // An early limiter does not report what is done.
        let elsewhere = session.together && !session.is_reference;
        let may_overlap = !(elsewhere || session.frozen || session.launches == 0);
        if may_overlap && !apart.contains(&id) && session.wants.ppm >= least_ppm {
            among.push((id, session.account.quota().priority, session.together));
            is_filled |= session.together;
            filled_ppm += fills.get(&id).copied().unwrap_or(0);
        }
    }
    among.sort_unstable_by_key(|(id, ..)| *id);
    // Preferred sessions do not get slices.
    let alike = among.windows(2).all(|two| (two[0].1, two[0].2) == (two[1].1, two[1].2));
    // Those that do not fill the device together do not disturb each other.
    is_filled |= filled_ppm >= DENSE_PPM;
    if among.len() > 1 && alike && is_filled {
        among.into_iter().map(|(id, ..)| id).collect()
    } else {
        Vec::new()
    }
}

/// Tells the workers of these sessions what to do. `None`: their class decides.
fn impose(roster: &mut Roster, among: &BTreeMap<SessionId, Contender>, sharing: Option<Sharing>) {
    let members = roster.workers_mut().filter(|worker| among.contains_key(&worker.session));
    members.for_each(|worker| worker.density.share(sharing));
}

/// The part of the device's time to which a session is entitled, in millionths: its guarantee, and its part of what
/// the guarantees of all that contend leave.
fn entitled_ppm(among: &BTreeMap<SessionId, Contender>, roster: &Roster, session: &Session) -> u64 {
    let contend = || among.keys().filter_map(|&id| Some(&roster.session(id)?.account));
    let guaranteed: u64 = contend().map(|account| u64::from(account.guaranteed_ppm())).sum();
    let takes = |account: &&Account| account.quota().takes_spare();
    let weight = |account: &Account| u64::from(account.quota().weight);
    let weights: u64 = contend().filter(takes).map(weight).sum();
    let account = &session.account;
    let more = match account.quota() {
        quota if quota.takes_spare() => {
            portion(WHOLE.saturating_sub(guaranteed), quota.weight.into(), weights)
        }
        _ => 0,
    };
    (u64::from(account.guaranteed_ppm()) + more).min(account.most_ppm().into())
}
