//! Turns alone: a worker gets the device to itself, to measure its utilization without co-holders. The scheduler asks
//! this module before each decision.
//!
//! A worker whose class is in doubt is treated as dense until it had such a turn. Its current co-holders are not
//! prolonged, and it excludes others while it holds a lease or could hold one. So it gets the device, pays as for any
//! turn, and its use of that time is its utilization.
//!
//! Workers that become backlogged at the same time, as programs do that start, are all treated as dense at once. To
//! re-check a known class, one worker after the other is suspected.

use limits::turns;

use crate::roster::{Roster, Worker};
use crate::tuning::ALONE_SPACING;
use crate::turn;
use crate::types::{Paid, SessionId, WorkerId};

/// The suspected workers of a device.
#[derive(Debug, Default)]
pub(crate) struct TurnsAlone {
    /// Since when some workers are suspected; `None`: none is.
    since: Option<u64>,
    /// The suspected workers, and those suspected since then.
    suspects: Vec<WorkerId>,
    /// Until this time no worker is suspected merely to re-check its class.
    sure_until: u64,
}

impl TurnsAlone {
    /// Whether another worker's turn alone excludes this worker.
    pub(crate) fn keep_away(&self, roster: &Roster, worker: WorkerId) -> bool {
        if self.since.is_none() {
            return false;
        }
        let is_suspected = roster.is_suspected(worker);
        let can_begin = |other: &Worker| {
            let account = roster.account(other.session);
            account.is_some_and(|account| account.can_pay(Paid::Own, false, 0))
        };
        self.suspected(roster).any(|(id, other)| {
            id != worker
                && match other.held {
                    Some(held) => held.counts(),
                    // Suspected workers do not exclude each other: they take ordinary turns.
                    None => !is_suspected && other.asks && can_begin(other),
                }
        })
    }

    fn suspected<'a>(&'a self, roster: &'a Roster) -> impl Iterator<Item = (WorkerId, &'a Worker)> {
        let suspects = self.suspects.iter().filter_map(|&id| Some((id, roster.worker(id)?)));
        suspects.filter(|(_, state)| state.density.is_suspected())
    }

    /// Suspects workers whose class is in doubt. Called before anything is granted, so that no current holder is
    /// prolonged beside them.
    pub(crate) fn suspect(&mut self, roster: &mut Roster, now: u64) {
        if let Some(since) = self.since {
            for &id in &self.suspects {
                if let Some(state) = roster.worker_mut(id) {
                    state.density.end_overdue_suspicion(now);
                }
            }
            if self.suspected(roster).next().is_some() {
                return;
            }
            self.suspects.clear();
            // During this time all other workers were excluded.
            let took = now.saturating_sub(since);
            self.since = None;
            self.sure_until = now.saturating_add(took.saturating_mul(ALONE_SPACING));
        }
        let single = || roster.holding().filter(|(id, ..)| !roster.is_of_several(*id));
        let begin = single().filter(|(_, worker, _)| worker.density.is_suspect());
        let mut suspects: Vec<WorkerId> = begin.map(|(id, ..)| id).collect();
        if suspects.is_empty() && now >= self.sure_until {
            let in_doubt = single().filter(|(_, worker, _)| worker.density.wants_turn_alone(now));
            let first = in_doubt.min_by_key(|(id, worker, _)| (worker.density.measured_at(), *id));
            suspects.extend(first.map(|(id, ..)| id));
        }
        self.begin(&suspects, roster, now);
    }

    /// Whether a new suspicion may begin.
    pub(crate) fn may_begin(&self) -> bool {
        self.since.is_none()
    }

    /// Whether the class of a worker of the session, which holds a lease, is in doubt, so that a turn alone is due.
    pub(crate) fn is_due(&self, roster: &Roster, session: SessionId, now: u64) -> bool {
        let in_doubt = |worker: &Worker| {
            let density = &worker.density;
            density.is_suspect() || now >= self.sure_until && density.wants_turn_alone(now)
        };
        self.may_begin()
            && roster.members(session).any(|(_, worker)| worker.counts() && in_doubt(worker))
    }

    /// Treats these workers as dense until they had a turn alone.
    pub(crate) fn begin(&mut self, suspects: &[WorkerId], roster: &mut Roster, now: u64) {
        if suspects.is_empty() {
            return;
        }
        let all: u64 = suspects.iter().map(|&id| turn::own_ns(roster, id)).sum();
        let until = now.saturating_add(all).saturating_add(turns::PERIOD_NS);
        self.since = Some(now);
        self.suspects.extend(suspects);
        for &id in suspects {
            // With a small share, a turn is shorter than a measurement should be; then one turn has to suffice.
            let wanted_ns = turn::own_ns(roster, id).min(turns::COMFORTABLE_TURN_NS);
            if let Some(state) = roster.worker_mut(id) {
                state.density.suspect(wanted_ns, until);
            }
        }
    }

    /// The latest end of the current suspicion.
    pub(crate) fn end_at(&self, roster: &Roster) -> Option<u64> {
        self.since?;
        self.suspected(roster).filter_map(|(_, state)| state.density.suspected_until()).min()
    }
}
