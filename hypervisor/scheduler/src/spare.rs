//! Spare time: time that no session has a right to, and which sessions may use it.

use limits::Priority;
use limits::turns::{self, COMFORTABLE_TURN_NS};

use crate::roster::{Roster, Session, Worker};
use crate::tuning::{FILLING_PPM, FULL_PPM, LESS_THAN_SHARE_PPM, SLICE_PPM, TOLD_TOO_LITTLE_PPM};
use crate::types::{Paid, SessionId, WHOLE, WorkerId, share_of};

/// Whether the other sessions leave spare time for a worker of this session.
pub(crate) fn may_have(roster: &Roster, session: SessionId, now: u64) -> bool {
    let low = priority(roster, session) == Priority::Low;
    !(low && high_wants(roster, session, now)) && is_left_by_others(roster, session)
}

/// Whether no other session misses its share.
pub(crate) fn is_left_by_others(roster: &Roster, session: SessionId) -> bool {
    !wrongs_a_dense_one(roster, session)
        && sessions_that_miss_their_share(roster).iter().all(|other| *other == session)
}

/// The sessions that get less than their share at present. While there are any, no other session may have spare time.
pub(crate) fn sessions_that_miss_their_share(roster: &Roster) -> Vec<SessionId> {
    let holding = roster.holding().filter(|(_, _, held)| held.counts());
    // Sessions that hold leases at once get what they are guaranteed, or would take turns.
    let misses = |worker: &Worker, waits| {
        let misses = !worker.density.is_chosen_to_overlap()
            && misses_its_share(roster, worker.session, waits);
        misses.then_some(worker.session)
    };
    let waiting = roster.asking().filter_map(|(_, worker, _)| misses(worker, true));
    waiting.chain(holding.filter_map(|(_, worker, _)| misses(worker, false))).collect()
}

/// The length of a dense worker's turn of spare time (ns): by its session's weight among the sessions that would use
/// some, and shorter if it has had more than they. The order of turns alone does not ensure this, because a session
/// that has just handed over the device does not ask yet.
pub(crate) fn turn_ns(roster: &Roster, worker: WorkerId, now: u64) -> u64 {
    let Some((worker, own)) = roster.of(worker).filter(|(worker, _)| worker.is_dense()) else {
        return COMFORTABLE_TURN_NS;
    };
    let weight_of = |session: &Session| u128::from(session.account.quota().weight.max(1));
    let used_by = |session: &Session| session.account.order().virtual_time(Paid::Spare);
    let competes = |id: SessionId, session: &Session| {
        let quota = session.account.quota();
        quota.takes_spare()
            && quota.priority == own.account.quota().priority
            && roster.members(id).any(|(_, member)| {
                member.is_dense() && member.is_active_within(turns::PERIOD_NS, now)
            })
    };
    let others = roster.sessions().filter(|(id, _)| *id != worker.session);
    let (mut all, mut weights, mut least) = (1, weight_of(own), None::<u128>);
    for (_, other) in others.filter(|(id, other)| competes(*id, other)) {
        all += 1;
        weights += weight_of(other);
        least = Some(least.map_or(used_by(other), |least| least.min(used_by(other))));
    }
    let Some(least) = least else { return COMFORTABLE_TURN_NS };
    let turn = u128::from(COMFORTABLE_TURN_NS) * weight_of(own) * all / weights;
    let turn = turn.clamp(turns::SHORTEST_TURN_NS.into(), (2 * COMFORTABLE_TURN_NS).into());
    let ahead = used_by(own).saturating_sub(least) * weight_of(own) / u128::from(WHOLE);
    let turn = turn.saturating_sub(ahead).max(turn / 4).max(turns::SHORTEST_TURN_NS.into());
    u64::try_from(turn).unwrap_or(COMFORTABLE_TURN_NS)
}

/// Whether a sparse session keeps a dense worker of another session from its share, or would do so.
pub(crate) fn wrongs_a_dense_one(roster: &Roster, session: SessionId) -> bool {
    let mut active = roster.members(session).filter(|(_, own)| own.held.is_some() || own.asks);
    !active.any(|(_, worker)| worker.is_dense())
        && roster.holding().any(|(_, worker, held)| {
            worker.session != session
                && worker.is_dense()
                && held.counts()
                && is_kept_from_its_share(roster, worker.session)
        })
}

/// Whether a session's account fills up although one of its workers holds a lease, because it gets less than its share
/// whenever others hold as well.
fn is_kept_from_its_share(roster: &Roster, session: SessionId) -> bool {
    let Some(account) = roster.account(session) else { return false };
    let holders = roster.members(session).filter(|(_, worker)| worker.held.is_some());
    let rate: u64 = holders.map(|(_, worker)| worker.density.crowded_ppm()).sum();
    account.fullness_ppm() >= FILLING_PPM && rate < account.guaranteed_ppm().into()
}

pub(crate) fn priority(roster: &Roster, session: SessionId) -> Priority {
    roster.account(session).map_or(Priority::High, |account| account.quota().priority)
}

/// Whether another session of high priority holds a lease, or asks for time that it could have now. A session that has
/// used up its share, and may not exceed it, leaves the rest to low priority.
pub(crate) fn high_wants(roster: &Roster, except: SessionId, now: u64) -> bool {
    let high = |worker: &Worker| {
        worker.session != except && priority(roster, worker.session) == Priority::High
    };
    roster.holding().any(|(_, worker, held)| held.counts() && high(worker))
        || roster.asking().any(|(_, worker, session)| {
            let ready = |paid| session.account.is_ready(paid, now);
            high(worker) && (ready(Paid::Own) || ready(Paid::Spare))
        })
}

/// Whether a session gets less than its share: a worker waits while the account fills up, or a worker holds a lease and
/// others slow it down. A session that needs no more also fills its account, but at its own pace.
fn misses_its_share(roster: &Roster, session: SessionId, waits: bool) -> bool {
    let Some(account) = roster.account(session) else { return false };
    if account.fullness_ppm() < FULL_PPM {
        return false;
    }
    if waits {
        return true;
    }
    let (mut rate, mut density) = (0, 0);
    for (_, worker) in roster.members(session).filter(|(_, worker)| worker.held.is_some()) {
        rate += worker.density.rate_ppm();
        density += worker.density.assumed_ppm();
    }
    let share = u64::from(account.guaranteed_ppm());
    // Slicing slows the session down, and excluding others costs them more than it gains. So a session that needs less
    // than its share is guaranteed its share of its solo speed.
    let needs_less = density <= share_of(share, LESS_THAN_SHARE_PPM);
    let part =
        if needs_less { share_of(share, TOLD_TOO_LITTLE_PPM).min(SLICE_PPM) } else { SLICE_PPM };
    rate < share_of(density, part)
}
