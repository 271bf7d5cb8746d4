//! Preemption: leases that end early because another worker should have the device now. The scheduler asks at each
//! decision.
//!
//! Only a worker whose gates are in its streams can be stopped: the device finishes the work that has begun and starts
//! no more. For others, a lease ends by not being prolonged.

use limits::Priority;

use crate::lease::Held;
use crate::roster::{Roster, Worker};
use crate::spare;
use crate::tuning::{MESSAGE_NS, SAVED_UP_PPM};
use crate::turn;
use crate::types::{Paid, SessionId, WorkerId};

/// The kind of session that gets the device after a lease that ends early.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// The next in turn. It waits a moment until the running work is done.
    InTurn,
    /// A preferred session, or one with savings. It begins beside the running work.
    Preferred,
}

/// The strongest claim among the dense workers that could have a turn if this dense worker released the device. A
/// worker whose poll ended within `linger_ns` counts as asking.
pub(crate) fn strongest_waiting(
    roster: &Roster,
    worker: WorkerId,
    linger_ns: u64,
    now: u64,
) -> Option<Paid> {
    let holder = roster.worker(worker).filter(|own| own.is_dense())?;
    let waits = |other: &Worker| {
        let gone = other.held.is_none_or(|held| held.phase.passed);
        other.asks || gone && other.was_active_within(linger_ns, now)
    };
    let waiting =
        roster.workers().filter(|(id, other)| *id != worker && other.is_dense() && waits(other));
    let high = |session| spare::priority(roster, session) == Priority::High;
    let claims = waiting.filter_map(|(_, other)| {
        let account = roster.account(other.session)?;
        // Spare time that a holder gives up comes back to it before one of lower priority gets it.
        let yields = !high(other.session) && high(holder.session);
        let spare = || account.could_begin(Paid::Spare, now) && !yields;
        let own = account.could_begin(Paid::Own, now);
        if own { Some(Paid::Own) } else { spare().then_some(Paid::Spare) }
    });
    claims.min()
}

/// Whether a lease has to end now, and for which kind of session.
pub(crate) fn has_to_stop(
    roster: &Roster,
    (worker, session): (WorkerId, SessionId),
    held: Held,
    now: u64,
) -> Option<Next> {
    let low = spare::priority(roster, session) == Priority::Low;
    if low && held.paid == Paid::Spare && spare::high_wants(roster, session, now) {
        return Some(Next::Preferred);
    }
    let saved_up = || {
        let next = next_in_line(roster, now);
        next.is_some_and(|next| has_saved_up(roster, next, session))
    };
    match (strongest_waiting(roster, worker, 0, now), held.paid) {
        (None, _) | (Some(Paid::Spare), Paid::Own) => None,
        (Some(Paid::Own), _) if saved_up() => Some(Next::Preferred),
        (Some(Paid::Own), Paid::Spare) => Some(Next::InTurn),
        (Some(_), _) if held.turn_ends_at <= now => Some(Next::InTurn),
        (Some(_), _) => None,
    }
}

/// The session that would begin a turn now if the device were free. A turn may be cut short only for this session:
/// otherwise another one would get the time, and would be stopped for the same reason.
fn next_in_line(roster: &Roster, now: u64) -> Option<SessionId> {
    let able = roster.asking().filter(|(id, worker, session)| {
        worker.is_dense()
            && session.account.is_ready(Paid::Own, now)
            && turn::length(roster, *id, Paid::Own, false).is_some()
            && !session.together
    });
    let place = able.map(|(_, worker, session)| {
        (session.account.order().next_deadline(), worker.served_at, worker.session)
    });
    place.min().map(|(.., session)| session)
}

/// Whether a waiting session has saved up half of what it may and the holder has not. Such a session uses less than its
/// share, a little at a time, so it need not wait for the end of a turn.
fn has_saved_up(roster: &Roster, session: SessionId, holder: SessionId) -> bool {
    let fullness = |session| roster.account(session).map_or(0, |own| own.fullness_ppm());
    let preferred = spare::priority(roster, session) == Priority::High
        || spare::priority(roster, holder) == Priority::Low;
    session != holder
        && preferred
        && fullness(session) >= SAVED_UP_PPM
        && fullness(holder) < SAVED_UP_PPM
}

/// Whether a worker waits for any reason, or did so just now, with its next request on its way.
pub(crate) fn anybody_waits(roster: &Roster, now: u64) -> bool {
    let comes_back = |own: &Worker| !own.counts() && own.was_active_within(MESSAGE_NS, now);
    roster.any_asks() || roster.workers().any(|(_, worker)| comes_back(worker))
}
