//! Gangs: sessions that use several devices together. The daemon has one [`Gangs`] beside its schedulers. Work of a
//! gang on one device waits for its work on the others, so a gang gets leases on all of its devices at once, or on
//! none.
//!
//! * A gang is **due** once it can pay on each device for which it asks, and is before all singles (sessions that are
//!   no gangs) that wait there. Singles fall behind as they consume time, so every gang becomes due. Devices for which
//!   a gang does not ask delay nothing.
//! * A due gang **prepares**: its devices are reserved for it from the end of the last lease that it has to wait for.
//!   Until then others may use those that are free.
//! * When all are free, it gets leases on all of them at the same moment, with the same end: its **window**. Workers
//!   that ask later join. The window is extended if that is possible on all devices.
//! * A gang that leaves all of its devices idle part of the time is **sparse**. Like any sparse worker it takes no
//!   turns with single workers: it holds leases beside them, always on all of its devices, and nothing is reserved for
//!   it. If it needs more than its share, it takes turns with single workers that fill a device.
//! * Gangs take turns with other gangs, because slicing serves collectives badly. If all that use their devices are
//!   gangs with the same ones, the first of these is the **reference**: turns and leases at once are compared there
//!   ([`crate::way`]), and the gangs share all of their devices in the way that is chosen.
//!
//! Dense gangs begin in the order in which they became due, and a waiting gang excludes later ones from its devices. So
//! no two gangs wait for each other, and none waits for ever.

use std::collections::{BTreeMap, BTreeSet};

use crate::density::Sharing;
use crate::scheduler::together::Offer;
use crate::scheduler::{Reserved, Scheduler};
use crate::types::{Grant, LeaseId, SessionId, WorkerId};

/// The leases that a gang holds.
#[derive(Clone, Copy, Debug)]
struct Window {
    end: u64,
    /// While others wait, the window is not extended beyond this.
    turn_ends_at: u64,
    /// Whether the window will not be extended.
    is_last: bool,
}

impl Window {
    /// The ends of its leases and of its turn.
    const fn until(self) -> (u64, u64) {
        (self.end, self.turn_ends_at)
    }
}

#[derive(Debug)]
struct Gang<D> {
    devices: BTreeSet<D>,
    due_since: Option<u64>,
    window: Option<Window>,
    /// Whether the gang takes turns.
    dense: bool,
}

/// The gangs among the sessions of some devices.
#[derive(Debug)]
pub struct Gangs<D>(BTreeMap<SessionId, Gang<D>>);

impl<D> Default for Gangs<D> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

type Schedulers<D> = BTreeMap<D, Scheduler>;

/// The schedulers of some devices.
fn of<'a, D: Ord>(
    devices: &'a BTreeSet<D>,
    schedulers: &'a Schedulers<D>,
) -> impl Iterator<Item = &'a Scheduler> {
    devices.iter().filter_map(|device| schedulers.get(device))
}

fn of_mut<'a, D: Copy + Ord>(
    devices: &'a BTreeSet<D>,
    schedulers: &'a mut Schedulers<D>,
) -> impl Iterator<Item = (D, &'a mut Scheduler)> {
    let of = schedulers.iter_mut().filter(|(device, _)| devices.contains(device));
    of.map(|(&device, scheduler)| (device, scheduler))
}

impl<D: Copy + Ord> Gangs<D> {
    /// Whether there are no gangs.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Sets the devices that a session uses together. With fewer than two it is not a gang.
    pub fn set(
        &mut self,
        session: SessionId,
        devices: BTreeSet<D>,
        schedulers: &mut BTreeMap<D, Scheduler>,
    ) {
        let former = self.0.get(&session).map(|gang| gang.devices.clone()).unwrap_or_default();
        if former == devices || former.is_empty() && devices.len() < 2 {
            return;
        }
        let is_gang = devices.len() > 1;
        for (device, scheduler) in of_mut(&former.union(&devices).copied().collect(), schedulers) {
            scheduler.set_together(session, is_gang && devices.contains(&device));
            // Set again by the next decision, if the session is still a gang.
            scheduler.set_among_dense(session, false);
            scheduler.share_as(session, None);
            scheduler.reserved = None;
        }
        if !is_gang {
            self.0.remove(&session);
        } else if let Some(gang) = self.0.get_mut(&session) {
            gang.devices = devices;
        } else {
            self.0.insert(session, Gang { devices, due_since: None, window: None, dense: true });
        }
    }

    /// Grants what gangs can get now. Called before [`Scheduler::decide`].
    pub fn decide(&mut self, schedulers: &mut BTreeMap<D, Scheduler>, now: u64) -> Vec<(D, Grant)> {
        for gang in self.0.values() {
            of_mut(&gang.devices, schedulers).for_each(|(_, scheduler)| scheduler.reserved = None);
        }
        self.classify(schedulers, now);
        let (mut grants, mut taken) = (Vec::new(), BTreeSet::new());
        let mut order: Vec<(u64, SessionId)> = Vec::new();
        for (&session, gang) in &mut self.0 {
            let used = gang.used(session, schedulers, now);
            if !of(&used, schedulers).any(|scheduler| scheduler.is_held_by(session)) {
                gang.window = None;
            }
            match gang.window {
                // The window's work ends by itself, at different times on its devices.
                Some(window) if window.end <= now => {}
                Some(window) => {
                    for (device, scheduler) in of_mut(&used, schedulers) {
                        if gang.dense {
                            scheduler.reserved = Some(Reserved { session, from: now });
                        }
                        let joined = scheduler.grant_until(session, window.until(), now);
                        grants.extend(joined.into_iter().map(|grant| (device, grant)));
                    }
                    taken.extend(used.into_iter().filter(|_| gang.dense));
                }
                None => {
                    gang.note_whether_due(session, &used, schedulers, now);
                    order.extend(gang.due_since.map(|since| (since, session)));
                }
            }
        }
        order.sort_unstable();
        for (_, session) in order {
            let Some(gang) = self.0.get_mut(&session) else { continue };
            let used = gang.used(session, schedulers, now);
            if !gang.dense || used.is_disjoint(&taken) {
                grants.extend(gang.prepare(session, &used, schedulers, now));
            }
            taken.extend(used.into_iter().filter(|_| gang.dense));
        }
        self.note_who_is_shared(schedulers);
        grants
    }

    /// Decides which gangs take turns: those that fill a device, and those that would hold beside another gang or, with
    /// more than their share, beside a worker that fills a device, unless it was measured that more gets done at once.
    /// Slicing serves collectives badly: one gang's collective spins here, the other's there, and each waits for a time
    /// slice on all devices.
    fn classify(&mut self, schedulers: &mut BTreeMap<D, Scheduler>, now: u64) {
        let mut active: Vec<(SessionId, BTreeSet<D>, BTreeSet<D>)> = Vec::new();
        for (&session, gang) in &self.0 {
            let used = gang.used(session, schedulers, now);
            // A window ends on all devices at once. So a gang's turns are as long as the shortest rounds of its devices
            // make them, and nowhere does it wait for a longer one.
            if let Some(shortest) =
                of(&used, schedulers).map(|scheduler| scheduler.rounds.ns()).min()
            {
                of_mut(&used, schedulers)
                    .for_each(|(_, scheduler)| scheduler.set_longest_round(session, shortest));
            }
            active.push((session, used, gang.devices.clone()));
        }
        for (&session, gang) in &mut self.0 {
            let mut met = active
                .iter()
                .filter(|(other, used, _)| *other != session && !used.is_disjoint(&gang.devices));
            let own = || of(&gang.devices, schedulers);
            let fills = own().any(|scheduler| scheduler.is_filled_by(session));
            let among_dense = met.clone().next().is_some()
                || own().any(|scheduler| scheduler.is_crowded_for(session, now));
            let compares = met.all(|(.., devices)| *devices == gang.devices)
                && own().all(|scheduler| scheduler.is_only_for_gangs(session, now));
            let mut all = of_mut(&gang.devices, schedulers);
            let reference = all.next().map(|(_, scheduler)| scheduler);
            let sharing =
                reference.and_then(|scheduler| scheduler.set_reference(session, compares));
            all.for_each(|(_, scheduler)| {
                scheduler.set_reference(session, false);
                scheduler.share_as(session, sharing);
            });
            let at_once = sharing == Some(Sharing::Overlap);
            gang.dense = !at_once && (fills || among_dense);
            for (_, scheduler) in of_mut(&gang.devices, schedulers) {
                // The session may have been forgotten there and added again.
                scheduler.set_together(session, true);
                scheduler.set_among_dense(session, among_dense && !at_once);
            }
        }
    }

    /// A gang that shares one of its devices waits for it on all of them, so its time on the others says little either.
    fn note_who_is_shared(&self, schedulers: &mut BTreeMap<D, Scheduler>) {
        for (&session, gang) in self.0.iter().filter(|(_, gang)| gang.window.is_some()) {
            if of(&gang.devices, schedulers).any(|scheduler| scheduler.is_shared_by(session)) {
                of_mut(&gang.devices, schedulers)
                    .for_each(|(_, scheduler)| scheduler.set_shared(session));
            }
        }
    }

    /// Extends a worker's lease on a device; see [`Scheduler::renew`]. A gang's lease is extended only if that is
    /// possible on all of its devices.
    pub fn renew(
        &mut self,
        session: SessionId,
        device: D,
        (worker, lease): (WorkerId, LeaseId),
        schedulers: &mut BTreeMap<D, Scheduler>,
        now: u64,
    ) -> Option<Grant> {
        let gang = self.0.get_mut(&session);
        let Some((devices, window)) =
            gang.and_then(|gang| Some((&gang.devices, gang.window.as_mut()?)))
        else {
            return schedulers.get_mut(&device)?.renew(worker, lease, now);
        };
        let end = schedulers
            .get(&device)
            .and_then(|s| s.roster.held(worker))
            .map_or(0, |held| held.ends_at);
        if end >= window.end {
            let longer =
                if window.is_last { None } else { could_go_on(session, devices, schedulers, now) };
            window.is_last = longer.is_none();
            let (length, turn_ends_at) = longer?;
            window.end = window.end.max(now.saturating_add(length));
            window.turn_ends_at = turn_ends_at;
        }
        schedulers.get_mut(&device)?.renew_until(worker, lease, window.until(), now)
    }

    /// When [`Self::decide`] has something to do without a new event (ns).
    pub fn next_deadline(&self, now: u64) -> Option<u64> {
        let windows = self.0.values().filter_map(|gang| gang.window);
        windows.map(|window| window.end).filter(|&at| at > now).min()
    }
}

/// For how long the leases on all devices could be extended, and until when the turn lasts.
fn could_go_on<D: Copy + Ord>(
    session: SessionId,
    devices: &BTreeSet<D>,
    schedulers: &mut Schedulers<D>,
    now: u64,
) -> Option<(u64, u64)> {
    let mut least: Option<(u64, u64)> = None;
    for (_, scheduler) in of_mut(devices, schedulers) {
        for (length, turn) in scheduler.could_go_on(session, now)? {
            least = Some(least.map_or((length, turn), |(l, t)| (l.min(length), t.min(turn))));
        }
    }
    least
}

impl<D: Copy + Ord> Gang<D> {
    /// The devices that the session wants, or wanted just now.
    fn used(&self, session: SessionId, schedulers: &Schedulers<D>, now: u64) -> BTreeSet<D> {
        let wants =
            |device: &&D| schedulers.get(device).is_some_and(|s| s.roster.is_active(session, now));
        self.devices.iter().filter(wants).copied().collect()
    }

    /// Notes whether the gang is due: from when it can pay on each device for which it asks and is next there, until it
    /// begins or cannot pay.
    fn note_whether_due(
        &mut self,
        session: SessionId,
        used: &BTreeSet<D>,
        schedulers: &mut Schedulers<D>,
        now: u64,
    ) {
        let offers = offers(session, used, schedulers, now);
        let can_pay =
            !offers.is_empty() && offers.iter().all(|(_, offer)| offer.length_ns.is_some());
        let is_next = offers.iter().all(|(_, offer)| offer.is_next);
        self.due_since = match self.due_since {
            Some(since) if can_pay => Some(since),
            None if can_pay && is_next => Some(now),
            _ => None,
        };
    }

    /// Reserves the devices for the gang, and begins its window if they are free.
    fn prepare(
        &mut self,
        session: SessionId,
        used: &BTreeSet<D>,
        schedulers: &mut Schedulers<D>,
        now: u64,
    ) -> Vec<(D, Grant)> {
        let offers = offers(session, used, schedulers, now);
        let asked = offers.iter().map(|(device, _)| *device).collect();
        let ends = of(&asked, schedulers).map(|scheduler| scheduler.others_end_at(session));
        let from = ends.max().unwrap_or(0);
        if self.dense {
            of_mut(used, schedulers)
                .for_each(|(_, scheduler)| scheduler.reserved = Some(Reserved { session, from }));
        }
        let length = offers.iter().filter_map(|(_, offer)| offer.length_ns).min();
        let Some(length) = length.filter(|_| offers.iter().all(|(_, offer)| offer.is_free)) else {
            return Vec::new();
        };
        let turn = offers.iter().map(|(_, offer)| offer.turn_ns).min().unwrap_or(0);
        let window = Window {
            end: now.saturating_add(length),
            turn_ends_at: now.saturating_add(turn),
            is_last: false,
        };
        let mut grants = Vec::new();
        for (device, scheduler) in of_mut(&asked, schedulers) {
            let granted = scheduler.grant_until(session, window.until(), now);
            grants.extend(granted.into_iter().map(|grant| (device, grant)));
        }
        if !grants.is_empty() {
            self.due_since = None;
            self.window = Some(window);
        }
        grants
    }
}

/// The leases that the gang could get on each device for which it asks.
fn offers<D: Copy + Ord>(
    session: SessionId,
    used: &BTreeSet<D>,
    schedulers: &mut Schedulers<D>,
    now: u64,
) -> Vec<(D, Offer)> {
    let of = of_mut(used, schedulers);
    of.filter_map(|(device, scheduler)| Some((device, scheduler.offer(session, now)?))).collect()
}
