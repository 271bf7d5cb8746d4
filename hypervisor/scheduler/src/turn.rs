//! The lengths of leases and turns. `decision` and `together` ask for them.

use limits::turns;

use crate::roster::{Roster, Worker};
use crate::spare;
use crate::tuning::SHORTEST_REST_NS;
use crate::types::{Paid, SessionId, WHOLE, WorkerId};

/// How long a lease the worker can pay for (ns), as of the last settlement. `None`: too short to start a lease, or to
/// prolong one.
pub(crate) fn length(roster: &Roster, worker: WorkerId, paid: Paid, going_on: bool) -> Option<u64> {
    let (own, session) = roster.of(worker)?;
    // At once, idle time is used first: there is some, as long as all get what they are guaranteed.
    if paid == Paid::Own
        && own.density.is_chosen_to_overlap()
        && session.account.quota().takes_spare()
        && spare::is_left_by_others(roster, own.session)
    {
        return None;
    }
    // Beside a member that holds a lease, a sparse worker may start before it can pay for a whole turn.
    let joins = !own.is_dense() && roster.is_held_by(own.session);
    let kept_ns = match paid {
        Paid::Own => kept_for_a_turn(roster, own),
        Paid::Spare => 0,
    };
    if !session.account.can_pay(paid, going_on || joins, kept_ns) {
        return None;
    }
    let length = session.account.affordable_ns(paid, drain_ppm(roster, worker, own), kept_ns);
    let length = length.min(turns::LONGEST_LEASE_NS);
    (length >= SHORTEST_REST_NS).then_some(length)
}

/// Guaranteed time that a sparse worker must not use (ns). It is kept for the turn of a dense worker of the same
/// session that was served longer ago and also has to wait for other sessions.
fn kept_for_a_turn(roster: &Roster, own: &Worker) -> u64 {
    if own.is_dense() {
        return 0;
    }
    let since = own.held.map_or(own.served_at, |held| held.granted_at);
    let waits = roster
        .members(own.session)
        .any(|(_, other)| other.is_dense() && other.asks && other.served_at < since);
    roster.account(own.session).filter(|_| waits).map_or(0, |account| account.entry_ns())
}

/// The part of a lease's time that the session will use, if this worker and the session's current holders hold, in
/// millionths.
fn drain_ppm(roster: &Roster, worker: WorkerId, own: &Worker) -> u64 {
    if own.is_dense() {
        return WHOLE;
    }
    let holders =
        roster.members(own.session).filter(|(id, member)| *id == worker || member.held.is_some());
    let used = |member: &Worker| {
        if member.is_dense() { WHOLE } else { member.density.assumed_ppm() }
    };
    holders.fold(0u64, |sum, (_, member)| sum.saturating_add(used(member))).min(WHOLE)
}

/// The longest lease (ns). Turns are for dense workers, which exclude each other. A sparse worker's lease only has a
/// maximum: others may have to wait for its end if the worker turns out to be dense.
pub(crate) fn longest(roster: &Roster, worker: WorkerId, paid: Paid, now: u64) -> u64 {
    let Some((own, session)) = roster.of(worker) else { return turns::LONGEST_LEASE_NS };
    let order = session.account.order();
    // A worker that holds is not at the beginning of a turn: for it, a turn's full length counts.
    let turn_ns = || if own.held.is_none() { order.next_turn_ns() } else { order.full_turn_ns() };
    match paid {
        _ if own.density.is_chosen_to_overlap() => turns::LONGEST_LEASE_NS,
        Paid::Spare => spare::turn_ns(roster, worker, now),
        Paid::Own if own.is_dense() => beside_others(roster, worker, own, turn_ns()),
        Paid::Own => turns::LONGEST_LEASE_NS,
    }
}

/// The length of a turn's lease (ns). Work that runs past the lease's end belongs to the turn. Beside sparse workers,
/// the lease is longer by as much as they slow this worker down: otherwise a session with a small share would not get
/// its share.
fn beside_others(roster: &Roster, worker: WorkerId, own: &Worker, turn: u64) -> u64 {
    let alone = roster.present(worker).next().is_none();
    let rate = if alone { WHOLE } else { own.density.crowded_ppm().max(1) };
    let stretched = turn.saturating_mul(WHOLE) / rate;
    let turn = stretched.clamp(turn, turns::LONGEST_LEASE_NS.max(turn));
    // Including the work that runs past the lease.
    let lease = turn.saturating_sub(own.overrun_ns);
    lease.max(turns::SHORTEST_TURN_NS).min(turn)
}

/// The budget from which a worker's next lease can be paid.
pub(crate) fn way_to_pay(
    roster: &Roster,
    worker: WorkerId,
    going_on: bool,
) -> impl Iterator<Item = (Paid, u64)> {
    let ways = [Paid::Own, Paid::Spare].into_iter();
    ways.filter_map(move |paid| Some((paid, length(roster, worker, paid, going_on)?)))
}

/// Whether another session that asks and could begin comes before this one.
pub(crate) fn is_others(roster: &Roster, session: SessionId, paid: Paid, now: u64) -> bool {
    let own = roster.account(session).map(|account| account.order().place(paid));
    roster.asking().any(|(id, other, theirs)| {
        let pays = |paid| length(roster, id, paid, false).is_some();
        let stronger = paid == Paid::Spare && pays(Paid::Own);
        other.session != session
            && other.is_dense()
            && !theirs.together
            && (stronger || pays(paid) && Some(theirs.account.order().place(paid)) < own)
            && (paid == Paid::Own || stronger || spare::may_have(roster, other.session, now))
    })
}
