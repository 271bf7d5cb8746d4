//! Recent events, for `/api/v1/events`.
//!
//! All readers share one ring, and a reader is only a position in it: a slow reader takes no memory, and the events
//! that it misses are counted.

use std::collections::hash_map::RandomState;
use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasher;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ::limits::GpuId;
use api::EventKind;
use tokio::sync::watch;

use crate::identity::{Caller, Owner, Party};
use crate::limits::check_fair_part;
use crate::refused::CallRefused;

/// Events kept.
pub(crate) const KEPT: usize = 4096;

/// Most concurrent readers: each event wakes all of them.
const READERS: usize = 64;

/// Rate limit of events per party: burst, and time per event. Otherwise a session that keeps changing its limits would
/// displace all other events.
const AT_ONCE: u32 = 512;
const EACH: Duration = Duration::from_millis(20);

/// Shortest time between two reported refusals of a user.
const REFUSALS_EVERY: Duration = Duration::from_millis(100);

/// An event before it gets an id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Happened {
    pub(crate) kind: EventKind,
    /// The owner who may see it; `None`: visible to all.
    pub(crate) owner: Option<Owner>,
    pub(crate) session: Option<(u64, String)>,
    pub(crate) pid: Option<i32>,
    pub(crate) uuid: Option<GpuId>,
    pub(crate) message: Option<String>,
}

impl Happened {
    pub(crate) fn to_session(kind: EventKind, owner: &Owner, id: u64, name: &str) -> Self {
        let session = Some((id, name.to_owned()));
        Self { session, ..Self::for_owner(kind, Some(*owner)) }
    }

    /// An event without further details.
    pub(crate) const fn for_owner(kind: EventKind, owner: Option<Owner>) -> Self {
        Self { kind, owner, session: None, pid: None, uuid: None, message: None }
    }
}

/// The ring and its readers.
#[derive(Debug)]
pub(crate) struct Events {
    /// Distinguishes this daemon's event ids from an earlier daemon's.
    run: u32,
    started: Instant,
    ring: Mutex<Ring>,
    /// Time of each user's latest reported refusal.
    refusals: Mutex<HashMap<u32, Instant>>,
    /// Readers per user.
    readers: Mutex<HashMap<u32, usize>>,
    news: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Ring {
    /// Number of the next event.
    next: u64,
    kept: VecDeque<(u64, Happened)>,
    /// Rate limits by party; `None` is the one for events visible to all.
    flows: HashMap<Option<Party>, Flow>,
}

impl Ring {
    fn oldest(&self) -> u64 {
        self.next - self.kept.len() as u64
    }

    fn put(&mut self, at_us: u64, happened: Happened) {
        if self.kept.len() == KEPT {
            self.kept.pop_front();
        }
        self.kept.push_back((at_us, happened));
        self.next += 1;
    }

    /// The event; an event `lost` at the first one over the rate limit; `None` for further ones.
    fn or_too_many(&mut self, happened: Happened, now: Instant) -> Option<Happened> {
        let party = happened.owner.as_ref().map(Owner::party);
        if !self.flows.contains_key(&party) {
            self.flows.retain(|_, flow| flow.through_at > now);
        }
        let fresh = Flow { through_at: now, left_out: false };
        let flow = self.flows.entry(party).or_insert(fresh);
        let through_at = flow.through_at.max(now) + EACH;
        let ahead = through_at.duration_since(now);
        if ahead <= EACH * AT_ONCE {
            flow.through_at = through_at;
            flow.left_out &= ahead > EACH * (AT_ONCE / 2);
            return Some(happened);
        }
        let is_first = !core::mem::replace(&mut flow.left_out, true);
        let who = happened
            .owner
            .map_or("device events".to_owned(), |owner| format!("user {}", owner.uid));
        let message = format!("{who} causes too many events; some are left out from here on");
        is_first.then(|| Happened {
            message: Some(message),
            ..Happened::for_owner(EventKind::Lost, happened.owner)
        })
    }
}

/// Rate limit of one party's events.
#[derive(Debug)]
struct Flow {
    /// When all events so far would be through at the long-term rate.
    through_at: Instant,
    /// An event `lost` has been reported.
    left_out: bool,
}

/// A reader's place; released on drop.
#[derive(Debug)]
pub(crate) struct Place {
    events: Arc<Events>,
    uid: u32,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut readers = self.events.readers();
        if let Some(own) = readers.get_mut(&self.uid) {
            *own -= 1;
        }
        readers.retain(|_, own| *own > 0);
    }
}

/// The value is not an event id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NoEventId(pub(crate) String);

impl Events {
    pub(crate) fn new(started: Instant) -> Arc<Self> {
        let run = (RandomState::new().hash_one(0) >> 32) as u32;
        Arc::new(Self {
            run,
            started,
            ring: Mutex::default(),
            refusals: Mutex::default(),
            readers: Mutex::default(),
            news: watch::Sender::new(0),
        })
    }

    pub(crate) fn publish(&self, happened: Happened) {
        let at_us = u64::try_from(self.started.elapsed().as_micros()).unwrap_or(u64::MAX);
        let mut ring = self.ring();
        let Some(told) = ring.or_too_many(happened, Instant::now()) else { return };
        ring.put(at_us, told);
        self.news.send_replace(ring.next);
    }

    /// Takes a place for one more reader.
    pub(crate) fn place(self: &Arc<Self>, uid: u32) -> Result<Place, CallRefused> {
        let mut readers = self.readers();
        let own = readers.get(&uid).copied().unwrap_or(0);
        check_fair_part("event streams", uid, (own, readers.values().sum()), READERS)?;
        *readers.entry(uid).or_insert(0) += 1;
        Ok(Place { events: Arc::clone(self), uid })
    }

    /// Reports a refused call. Of each user's refusals only some are reported, because anyone can cause any number.
    pub(crate) fn refuse(&self, caller: &Caller, message: String) {
        {
            let mut refusals = self.refusals.lock().unwrap_or_else(PoisonError::into_inner);
            refusals.retain(|_, told| told.elapsed() < REFUSALS_EVERY);
            if refusals.contains_key(&caller.owner.uid) {
                return;
            }
            refusals.insert(caller.owner.uid, Instant::now());
        }
        self.publish(Happened {
            kind: EventKind::Refused,
            owner: Some(caller.owner),
            session: None,
            pid: Some(caller.pid),
            uuid: None,
            message: Some(message),
        });
    }

    /// Reads future events, or those after the given event. `only`: events that this owner may see.
    pub(crate) fn read(
        place: Place,
        only: Option<Owner>,
        after: Option<&str>,
    ) -> Result<Reader, NoEventId> {
        let events = &place.events;
        let (next, restarted) = match after {
            None => (events.ring().next, false),
            Some(id) => {
                let (run, number) = number(id).ok_or_else(|| NoEventId(shown(id)))?;
                let is_ours = run == events.run && number <= events.ring().next;
                if is_ours { (number, false) } else { (events.ring().oldest(), true) }
            }
        };
        let news = events.news.subscribe();
        Ok(Reader { place, only, next, restarted, news })
    }

    fn readers(&self) -> MutexGuard<'_, HashMap<u32, usize>> {
        self.readers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ring(&self) -> MutexGuard<'_, Ring> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn number(id: &str) -> Option<(u32, u64)> {
    let (run, number) = id.split_once('-')?;
    Some((u32::from_str_radix(run, 16).ok()?, number.parse().ok()?))
}

fn shown(id: &str) -> String {
    id.chars().take(80).collect()
}

/// A position in the ring.
#[derive(Debug)]
pub(crate) struct Reader {
    place: Place,
    only: Option<Owner>,
    next: u64,
    /// The reader continues from an earlier daemon.
    restarted: bool,
    news: watch::Receiver<u64>,
}

impl Reader {
    /// Waits for the next event that the reader may see.
    pub(crate) async fn next(&mut self) -> api::Event {
        loop {
            self.news.mark_unchanged();
            if let Some(event) = self.take() {
                return event;
            }
            // Fails only without a sender, which the reader itself holds.
            let _ = self.news.changed().await;
        }
    }

    fn take(&mut self) -> Option<api::Event> {
        let events = &self.place.events;
        let ring = events.ring();
        let oldest = ring.oldest();
        if self.restarted || self.next < oldest {
            let count = (!self.restarted).then(|| oldest - self.next);
            (self.next, self.restarted) = (oldest.max(self.next), false);
            return Some(api::Event { count, ..event(self.id(), events.started, EventKind::Lost) });
        }
        while self.next < ring.next {
            let index = usize::try_from(self.next - oldest).unwrap_or(usize::MAX);
            self.next += 1;
            let Some((at_us, happened)) = ring.kept.get(index) else { continue };
            let is_others = |only: &Owner| happened.owner.is_some_and(|owner| owner != *only);
            if self.only.as_ref().is_some_and(is_others) {
                continue;
            }
            let (session, name) = happened.session.clone().unzip();
            return Some(api::Event {
                at_us: *at_us,
                uid: happened.owner.map(|owner| owner.uid),
                session,
                name,
                pid: happened.pid,
                uuid: happened.uuid.map(|uuid| uuid.to_string()),
                message: happened.message.clone(),
                ..event(self.id(), events.started, happened.kind)
            });
        }
        None
    }

    /// Event id of the current position.
    fn id(&self) -> String {
        format!("{:08x}-{}", self.place.events.run, self.next)
    }
}

fn event(id: String, started: Instant, kind: EventKind) -> api::Event {
    let at_us = u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX);
    let (uid, session, name, pid) = (None, None, None, None);
    api::Event { id, at_us, kind, uid, session, name, pid, uuid: None, message: None, count: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn publish(events: &Events, uid: u32, from: u64, count: u64) {
        for id in from..from + count {
            let happened = Happened::to_session(EventKind::Frozen, &Owner::user(uid), id, "a");
            let mut ring = events.ring();
            ring.put(0, happened);
            events.news.send_replace(ring.next);
        }
    }

    fn read(
        events: &Arc<Events>,
        only: Option<Owner>,
        after: Option<&str>,
    ) -> Result<Reader, NoEventId> {
        Events::read(events.place(7).unwrap(), only, after)
    }

    fn all(reader: &mut Reader) -> Vec<api::Event> {
        std::iter::from_fn(|| reader.take()).collect()
    }

    fn sessions(reader: &mut Reader) -> Vec<u64> {
        all(reader).into_iter().filter_map(|event| event.session).collect()
    }

    #[test]
    fn a_slow_reader_is_told_how_many_it_missed() {
        let events = Events::new(Instant::now());
        let mut reader = read(&events, None, None).unwrap();
        publish(&events, 1, 0, KEPT as u64 + 7);
        let lost = reader.take().unwrap();
        assert_eq!((lost.kind, lost.count), (EventKind::Lost, Some(7)));
        assert_eq!(sessions(&mut reader), (7..KEPT as u64 + 7).collect::<Vec<_>>());
        assert_eq!(events.ring().kept.len(), KEPT);
    }

    #[test]
    fn who_causes_many_displaces_nobody_s() {
        let events = Events::new(Instant::now());
        let told = |uid| {
            events.publish(Happened::to_session(EventKind::Frozen, &Owner::user(uid), 1, "a"));
        };
        told(8);
        (0..2 * KEPT).for_each(|_| told(7));
        told(8);
        let mut reader = read(&events, None, Some("0-0")).unwrap();
        let mut seen = all(&mut reader);
        assert_eq!(seen.remove(0).kind, EventKind::Lost);
        let of = |uid| seen.iter().filter(move |event| event.uid == Some(uid)).count();
        let most = AT_ONCE as usize;
        assert!((most..2 * most).contains(&of(7)) && of(8) == 2, "{} {}", of(7), of(8));
        let lost: Vec<_> = seen.iter().filter(|event| event.kind == EventKind::Lost).collect();
        assert_eq!((lost.len(), lost[0].uid), (1, Some(7)));
        assert!(lost[0].message.as_ref().unwrap().contains("too many events"));
    }

    #[test]
    fn readers_are_bounded_for_each_user() {
        let events = Events::new(Instant::now());
        let mut own: Vec<Place> = core::iter::from_fn(|| events.place(7).ok()).collect();
        assert!((2..READERS).contains(&own.len()), "{}", own.len());
        drop(events.place(8).unwrap());
        own.pop();
        own.push(events.place(7).unwrap());
        drop(own);
        assert!(events.readers().is_empty());
    }

    #[test]
    fn who_comes_again_goes_on_where_it_was() {
        let events = Events::new(Instant::now());
        publish(&events, 1, 0, 5);
        let mut first = read(&events, None, None).unwrap();
        assert_eq!(first.take(), None);
        publish(&events, 1, 5, 3);
        let last = all(&mut first).pop().unwrap();
        publish(&events, 1, 8, 2);
        assert_eq!(sessions(&mut read(&events, None, Some(&last.id)).unwrap()), [8, 9]);
        // The id of a `lost` event continues with the oldest event kept.
        publish(&events, 1, 10, KEPT as u64);
        let lost = read(&events, None, Some(&last.id)).unwrap().take().unwrap();
        assert_eq!(lost.kind, EventKind::Lost);
        assert_eq!(sessions(&mut read(&events, None, Some(&lost.id)).unwrap()).len(), KEPT);
    }

    #[test]
    fn an_id_of_another_daemon_or_of_none() {
        let events = Events::new(Instant::now());
        publish(&events, 1, 0, 2);
        let other = format!("{:08x}-0", events.run.wrapping_add(1));
        let own_of_later = format!("{:08x}-99", events.run);
        for id in [other, own_of_later, format!("{:08x}-{}", events.run, u64::MAX)] {
            let read = all(&mut read(&events, None, Some(&id)).unwrap());
            let kinds: Vec<_> = read.iter().map(|event| (event.kind, event.count)).collect();
            assert_eq!(kinds[0], (EventKind::Lost, None), "{id}");
            assert_eq!(kinds.len(), 3);
        }
        for id in ["", "-", "x-1", "1-", "1-x", "100000000-1", "1--1"] {
            assert!(read(&events, None, Some(id)).is_err(), "{id}");
        }
    }

    #[tokio::test]
    async fn a_reader_sees_its_own_as_they_come() {
        let events = Events::new(Instant::now());
        let mut reader = read(&events, Some(Owner::user(7)), None).unwrap();
        let publisher = Arc::clone(&events);
        let publishing = tokio::spawn(async move {
            publish(&publisher, 8, 0, 3);
            tokio::task::yield_now().await;
            publish(&publisher, 7, 3, 1);
        });
        let event = reader.next().await;
        assert_eq!((event.session, event.uid), (Some(3), Some(7)));
        publishing.await.unwrap();
        assert_eq!(reader.take(), None);
    }
}
