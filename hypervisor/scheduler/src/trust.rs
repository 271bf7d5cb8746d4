//! Trust: sessions whose reports do not add up with those of others (`audit`), and the consequences.
//!
//! Such a session is treated like an unknown one: it takes turns and pays by the clock. After a while it may overlap
//! again. Only one session does so at a time, so that the cause can be identified.

use std::collections::BTreeMap;

use limits::turns::PERIOD_NS;
use rustc_hash::FxHashMap;

use crate::audit::{Audit, Claim, Finding};
use crate::lease::Held;
use crate::roster::{Roster, Worker};
use crate::spare;
use crate::tuning::{DOUBT_NS, FOUND_OUT_NS, LONGEST_DOUBT_NS, ON_WORD_PPM, SPAN_NS, WATCHED_NS};
use crate::types::{Paid, SessionId, share_of};

/// The evidence against a session.
#[derive(Clone, Copy, Debug, Default)]
struct Doubt {
    missing_ns: i64,
    /// The earliest end of the time in which it takes turns.
    until: Option<u64>,
    lasts_ns: u64,
    /// When it last began to overlap again.
    free_since: u64,
}

impl Doubt {
    /// Adds a finding. If the session is found out by it, returns until when it takes turns.
    fn learn(&mut self, missing_ns: i64, now: u64) -> Option<u64> {
        self.missing_ns = self.missing_ns.saturating_add(missing_ns).max(-(SPAN_NS as i64));
        let is_found_out = self.missing_ns >= FOUND_OUT_NS && self.until.is_none();
        is_found_out.then(|| self.find_out(now))
    }

    fn find_out(&mut self, now: u64) -> u64 {
        let good_for = now.saturating_sub(self.free_since);
        self.lasts_ns = if good_for > self.lasts_ns.saturating_mul(8) {
            DOUBT_NS
        } else {
            self.lasts_ns.saturating_mul(2).clamp(DOUBT_NS, LONGEST_DOUBT_NS)
        };
        let until = now.saturating_add(self.lasts_ns);
        self.until = Some(until);
        self.missing_ns = 0;
        until
    }
}

/// Which sessions' reports count on a device.
#[derive(Debug, Default)]
pub(crate) struct Trust {
    audit: Audit,
    doubts: FxHashMap<SessionId, Doubt>,
    /// Until then one formerly found out session is watched while it overlaps again, and the next one has to wait.
    watched_until: u64,
    /// No session may overlap again before this.
    shares_at: u64,
    /// The owners of sessions that were found out, and until when each is remembered.
    owners: BTreeMap<u64, u64>,
    /// Exclusive time that may be charged by reports alone (ns), as of `word_at`.
    word_ns: u64,
    word_at: u64,
}

impl Trust {
    /// Sets a session's owner. If a session is found out, that also counts against the next sessions of its owner, so a
    /// new session is no fresh start.
    pub(crate) fn belongs_to(
        &mut self,
        roster: &mut Roster,
        session: SessionId,
        owner: u64,
        now: u64,
    ) {
        self.owners.retain(|_, until| *until > now);
        let is_known = self.owners.contains_key(&owner);
        let Some(state) = roster.session_mut(session) else { return };
        let is_new = state.owner.replace(owner).is_none();
        if is_new && is_known && !self.is_found_out(session) {
            let until = self.doubts.entry(session).or_default().find_out(now);
            self.takes_turns(roster, session, until);
        }
    }

    /// Drops the evidence against a session that leaves the device.
    pub(crate) fn forget(&mut self, session: SessionId) {
        self.doubts.remove(&session);
    }

    /// Whether the session is found out, so its reports do not count.
    pub(crate) fn is_found_out(&self, session: SessionId) -> bool {
        self.doubts.get(&session).is_some_and(|doubt| doubt.until.is_some())
    }

    /// Makes a session that was found out take turns, at least until `until`.
    fn takes_turns(&mut self, roster: &mut Roster, session: SessionId, until: u64) {
        self.shares_at = until.min(self.shares_at);
        distrust(roster, session, true);
    }

    /// Passes the claim of a worker's report, on the time since its last one, to the audit.
    pub(crate) fn claim(&mut self, worker: &Worker, held: Held, mut claim: Claim, now: u64) {
        claim.kept_ns = held.kept_away_ns(now);
        if !worker.takes_turns {
            claim.sparse_ns = claim.held_ns;
        }
        // Once others no longer waited for the lease, the time is theirs to claim.
        let until = if held.is_apart() { held.ends_at.min(now) } else { now };
        let whole = now.saturating_sub(held.told_at);
        let claim = claim.portion(until.saturating_sub(held.told_at), whole);
        self.audit.claim(worker.session, held.paid, held.told_at, until, claim);
    }

    /// Judges the time on which all holders have reported.
    pub(crate) fn judge(&mut self, roster: &mut Roster, now: u64) {
        let claims_more =
            |held: &Held| !(held.phase.revoked || held.is_apart() && held.told_at >= held.ends_at);
        let held = roster.holding().map(|(_, _, held)| held).filter(claims_more);
        let until = held.map(|held| held.told_at).min().unwrap_or(now);
        for finding in self.audit.judge(until) {
            self.apply(finding, roster, now);
        }
        self.let_one_share(roster, now);
    }

    fn apply(&mut self, finding: Finding, roster: &mut Roster, now: u64) {
        let Finding { session, paid, missing_ns, took_turn, .. } = finding;
        // A session without workers was charged by the clock at its end.
        if !took_turn && roster.members(session).next().is_none() {
            return;
        }
        let mut more_ns = self.more_ns(finding, roster);
        if took_turn && !self.is_found_out(session) {
            more_ns -= self.on_its_word(more_ns, now);
        }
        if more_ns > 0 {
            roster.settle(session, now);
        }
        let Some(state) = roster.session_mut(session) else { return };
        if more_ns > 0 {
            state.account.charge_more(more_ns, paid, took_turn);
        }
        if let Some(until) = self.doubts.entry(session).or_default().learn(missing_ns, now) {
            if let Some(owner) = state.owner {
                self.owners.insert(owner, now.saturating_add(LONGEST_DOUBT_NS));
            }
            self.takes_turns(roster, session, until);
        }
    }

    /// The part of a turn that others waited for which is charged by its worker's report alone. New and suspected
    /// workers show in such turns what they are; together they have a small part of the device for it.
    fn on_its_word(&mut self, ns: u64, now: u64) -> u64 {
        let earned = share_of(now.saturating_sub(self.word_at), ON_WORD_PPM);
        self.word_at = now.max(self.word_at);
        self.word_ns = self.word_ns.saturating_add(earned).min(PERIOD_NS);
        let free = ns.min(self.word_ns);
        self.word_ns -= free;
        free
    }

    /// The charge of a session in addition to its reports. While a dense session gets less than its share, that is
    /// twice the missing time, but at most so much that the session can still hold half of the time.
    fn more_ns(&self, finding: Finding, roster: &Roster) -> u64 {
        let Finding { session, unsaid_ns, charged_ns, held_ns, .. } = finding;
        let Some(account) = roster.account(session) else { return 0 };
        // The reports of a session that have added up until now count as much as another's.
        let missing = self.doubts.get(&session).is_none_or(|doubt| doubt.missing_ns >= 0);
        let doubted = finding.took_turn || missing;
        let more_ns = if doubted { finding.more_ns } else { finding.slicing_ns };
        if unsaid_ns == 0 || !spare::wrongs_a_dense_one(roster, session) {
            return more_ns;
        }
        let most = share_of(held_ns, u64::from(account.guaranteed_ppm()) * 2);
        unsaid_ns.saturating_mul(2).min(most.saturating_sub(charged_ns)).max(more_ns)
    }

    /// Lets the session whose time of turns ended first overlap again.
    fn let_one_share(&mut self, roster: &mut Roster, now: u64) {
        if now < self.shares_at.max(self.watched_until) {
            return;
        }
        let waiting = self.doubts.iter().filter_map(|(&id, doubt)| Some((doubt.until?, id)));
        let mut waiting: Vec<(u64, SessionId)> = waiting.collect();
        waiting.sort_unstable();
        self.shares_at = waiting.get(1).map_or(u64::MAX, |&(until, _)| until);
        let Some(&(until, session)) = waiting.first() else { return };
        if until > now {
            self.shares_at = until;
            return;
        }
        if let Some(doubt) = self.doubts.get_mut(&session) {
            (doubt.until, doubt.free_since) = (None, now);
        }
        self.watched_until = now.saturating_add(WATCHED_NS);
        distrust(roster, session, false);
    }
}

fn distrust(roster: &mut Roster, session: SessionId, distrusted: bool) {
    roster.members_mut(session).for_each(|worker| worker.density.distrust(distrusted));
}

/// Notes for each holder whether it excludes a worker that could begin a turn. Only dense workers exclude each other.
pub(crate) fn note_who_waits(roster: &mut Roster, now: u64) {
    let waiting = two_that_wait(roster, now);
    roster.for_each_holder(|_, worker| {
        let keeps = worker.is_dense() && waiting.iter().any(|other| *other != worker.session);
        if let Some(held) = worker.held.as_mut().filter(|held| !held.phase.passed) {
            held.keeps_away(keeps, now);
        }
    });
}

/// Two sessions that could begin a turn and are excluded; two suffice to tell for each holder whether it excludes
/// another session.
fn two_that_wait(roster: &Roster, now: u64) -> Vec<SessionId> {
    let keeps = |(_, worker, held): (_, &Worker, Held)| worker.is_dense() && !held.phase.passed;
    if !roster.holding().any(keeps) {
        return Vec::new();
    }
    let mut ready = roster.asking().filter_map(|(_, worker, session)| {
        let able = |paid| session.account.could_begin(paid, now);
        (worker.is_dense() && (able(Paid::Own) || able(Paid::Spare))).then_some(worker.session)
    });
    let first = ready.next();
    let other = ready.find(|&session| Some(session) != first);
    first.into_iter().chain(other).collect()
}
