//! Who may have spare time: time that no session has a right to.

use limits::units::PPM_ONE;
use limits::{Priority, turns};

use super::account::{Account, Paid};
use super::worker::Worker;
use super::{Scheduler, Session, SessionId, WorkerId};

/// A holder whose account stays full counts as slowed down if it uses less than this part of what
/// it would use alone. Slicing alone costs a sparse worker up to a tenth. Keeping others away would
/// cost them more than this worker gains.
const SLOWED_OF_DENSITY_PPM: u64 = 850_000;
/// Use alone is measured in short moments, which show up to a twentieth too little.
const TOLD_TOO_LITTLE_PPM: u64 = 1_060_000;
/// A session needs clearly less than its share if it needs at most this part of it.
const LESS_THAN_SHARE_PPM: u64 = 800_000;
/// An account this full is not being used up.
const FULL_PPM: u64 = 750_000;
/// An account fuller than this is used too little if others are in the way. The bound is low, so
/// that the others have paid before anything earned is lost.
const FILLING_PPM: u64 = 400_000;

impl Scheduler {
    /// Whether the other sessions leave spare time for a worker of this session.
    pub(super) fn may_have_spare(&self, session: SessionId, now: u64) -> bool {
        if self.priority(session) == Priority::Low && self.high_wants(session, now) {
            return false;
        }
        if self.wrongs_a_dense_one(session) {
            return false;
        }
        self.sessions_that_miss_their_share().iter().all(|other| *other == session)
    }

    /// The sessions that get less than their share at present. No other session is to have spare
    /// time.
    pub(super) fn sessions_that_miss_their_share(&self) -> Vec<SessionId> {
        let mut missing = Vec::new();
        for id in self.asking.iter().chain(&self.holding) {
            let Some(worker) = self.workers.get(id) else { continue };
            let waits = worker.held.is_none();
            if worker.held.is_none_or(|held| held.counts())
                && self.misses_its_share(worker.session, waits)
            {
                missing.push(worker.session);
            }
        }
        missing
    }

    /// How long a dense worker's turn of spare time is: by its session's weight among those that would have some, and shorter
    /// where it has had more than they. The order of turns alone does not say so: who has just handed the device over does
    /// not ask yet.
    pub(super) fn spare_turn(&self, worker: WorkerId, now: u64) -> u64 {
        const FULL_NS: u64 = turns::COMFORTABLE_TURN_NS;
        let of = |worker| self.sessions.get(&self.session_of(worker).ok()?);
        let Some(own) = of(worker).map(|session| &session.account) else { return FULL_NS };
        if !self.is_dense(worker) {
            return FULL_NS;
        }
        let weight_of = |account: &Account| u128::from(account.quota().weight.max(1));
        let competes = |session: &Session| {
            let quota = session.account.quota();
            let wants = |worker: &Worker| {
                let active = worker.asks || worker.held.is_some();
                worker.density.is_dense()
                    && (active || worker.was_active_within(turns::PERIOD_NS, now))
            };
            quota.takes_spare()
                && quota.priority == own.quota().priority
                && session.members.iter().filter_map(|id| self.workers.get(id)).any(wants)
        };
        let (mut all, mut weights, mut least) = (1, weight_of(own), None::<u128>);
        for (_, other) in self.sessions.iter().filter(|(id, _)| !self.is_of(worker, **id)) {
            if competes(other) {
                all += 1;
                weights += weight_of(&other.account);
                let used = other.account.virtual_time(Paid::Spare);
                least = Some(least.map_or(used, |least| least.min(used)));
            }
        }
        let Some(least) = least else { return FULL_NS };
        let turn = u128::from(FULL_NS) * weight_of(own) * all / weights;
        let turn = turn.clamp(turns::SHORTEST_TURN_NS.into(), (2 * FULL_NS).into());
        let really = |virtually: u128| virtually * weight_of(own) / u128::from(PPM_ONE);
        let used = own.virtual_time(Paid::Spare);
        let turn_ns = turn
            .saturating_sub(really(used.saturating_sub(least)))
            .max(turn / 4)
            .max(turns::SHORTEST_TURN_NS.into());
        u64::try_from(turn_ns).unwrap_or(FULL_NS)
    }

    fn is_of(&self, worker: WorkerId, session: SessionId) -> bool {
        self.session_of(worker).is_ok_and(|of| of == session)
    }

    /// Whether a sparse session keeps a dense worker of another session from its share, or would do
    /// so.
    pub(super) fn wrongs_a_dense_one(&self, session: SessionId) -> bool {
        let active = |id: &WorkerId, worker: &super::worker::Worker| {
            worker.held.is_some() || self.asking.contains(id)
        };
        let mut members = self.members(session).filter(|(id, worker)| active(id, worker));
        if members.any(|(_, worker)| worker.density.is_dense()) {
            return false;
        }
        self.holding.iter().filter_map(|id| self.workers.get(id)).any(|worker| {
            worker.session != session
                && worker.density.is_dense()
                && worker.held.is_some_and(|held| held.counts())
                && self.is_kept_from_its_share(worker.session)
        })
    }

    /// Whether a session's account fills up although one of its workers holds, because it gets less
    /// than its share whenever others hold as well.
    fn is_kept_from_its_share(&self, session: SessionId) -> bool {
        let Some(account) = self.sessions.get(&session).map(|session| &session.account) else {
            return false;
        };
        let holders = self.members(session).filter(|(_, worker)| worker.held.is_some());
        let rate: u64 = holders.map(|(_, worker)| worker.density.crowded_ppm()).sum();
        account.fullness_ppm() >= FILLING_PPM && rate < account.guaranteed_ppm().into()
    }

    pub(super) fn priority(&self, session: SessionId) -> Priority {
        self.sessions
            .get(&session)
            .map_or(Priority::High, |session| session.account.quota().priority)
    }

    /// Whether spare time that this worker gives up would come back to it before the session gets
    /// it.
    pub(super) fn yields_to(&self, session: SessionId, worker: WorkerId) -> bool {
        let high = |session| self.priority(session) == Priority::High;
        !high(session) && self.workers.get(&worker).is_some_and(|worker| high(worker.session))
    }

    /// Whether another session of high priority holds, or asks for time that it could have now. A
    /// session that has used up its share, and may have no more, leaves the rest to those of low
    /// priority.
    pub(super) fn high_wants(&self, except: SessionId, now: u64) -> bool {
        let high =
            |session: SessionId| session != except && self.priority(session) == Priority::High;
        let holds = self.holding.iter().any(|id| {
            self.workers.get(id).is_some_and(|worker| {
                high(worker.session) && worker.held.is_some_and(|held| held.counts())
            })
        });
        holds
            || self.asking.iter().any(|id| {
                let session = self.workers.get(id).map(|worker| worker.session);
                session.filter(|&session| high(session)).is_some_and(|session| {
                    self.sessions.get(&session).is_some_and(|session| {
                        let account = &session.account;
                        [Paid::Own, Paid::Spare]
                            .iter()
                            .any(|&paid| account.ready_at(paid).is_some_and(|at| at <= now))
                    })
                })
            })
    }

    /// Whether a session gets less than its share: a worker waits while the account fills up, or a
    /// worker holds and others slow it down. A session that needs no more fills its account as
    /// well, but at its own pace.
    fn misses_its_share(&self, session: SessionId, waits: bool) -> bool {
        let Some(account) = self.sessions.get(&session).map(|session| &session.account) else {
            return false;
        };
        if account.fullness_ppm() < FULL_PPM {
            return false;
        }
        if waits {
            return true;
        }
        let (mut rate, mut density) = (0, 0);
        for (_, worker) in self.members(session).filter(|(_, worker)| worker.held.is_some()) {
            rate += worker.density.rate_ppm();
            density += worker.density.assumed_ppm();
        }
        let share = u64::from(account.guaranteed_ppm());
        // Slicing slows the session down, and keeping others away costs them more than it gains. So
        // a session that needs less than its share is guaranteed its share of its solo speed.
        let needs_less = density <= super::share_of(share, LESS_THAN_SHARE_PPM);
        let part = if needs_less {
            super::share_of(share, TOLD_TOO_LITTLE_PPM).min(SLOWED_OF_DENSITY_PPM)
        } else {
            SLOWED_OF_DENSITY_PPM
        };
        rate < super::share_of(density, part)
    }
}
