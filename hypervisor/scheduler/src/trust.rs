//! Sessions whose reports do not add up with those of others.
//!
//! Such a session is treated like one of which nothing is known: it takes turns and pays by the
//! clock. After a while it may share the device again. Only one does so at a time, so that it can
//! be told who is the cause.

use super::account::Paid;
use super::audit::{Claim, Finding};
use super::worker::Held;
use super::{ScheduleError, Scheduler, SessionId, WorkerId, share_of};

/// So much device time has to be missing.
const FOUND_OUT_NS: i64 = 15_000_000;
/// What adds up counts up to this much in a session's favour.
const CREDIT_NS: i64 = 10_000_000;
/// For how long a session takes turns at first, and at most.
const FIRST_NS: u64 = 1_000_000_000;
const LONGEST_NS: u64 = 64_000_000_000;
/// For how long a session that may share again is watched before the next one.
const WATCHED_NS: u64 = 300_000_000;
/// Of all time, so much may be kept from others and paid by word.
const ON_WORD_PPM: u64 = 20_000;
const ON_WORD_MOST_NS: u64 = 100_000_000;
/// How far an observation from outside may be off, in millionths of the time, and how long it counts.
const OBSERVED_ERROR_PPM: u64 = 50_000;
const OBSERVED_FOR_NS: u64 = 2_000_000_000;

/// What is held against a session.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Doubt {
    missing_ns: i64,
    /// It takes turns until then, at least.
    until: Option<u64>,
    lasts_ns: u64,
    /// When it last began to share again.
    free_since: u64,
}

impl Doubt {
    pub(super) fn is_found_out(&self) -> bool {
        self.until.is_some()
    }

    /// Takes a finding down. If the session is found out by it, returns until when it takes turns.
    fn learn(&mut self, missing_ns: i64, now: u64) -> Option<u64> {
        self.missing_ns = self.missing_ns.saturating_add(missing_ns).max(-CREDIT_NS);
        if self.missing_ns < FOUND_OUT_NS || self.is_found_out() {
            return None;
        }
        Some(self.find_out(now))
    }

    fn find_out(&mut self, now: u64) -> u64 {
        let good_for = now.saturating_sub(self.free_since);
        self.lasts_ns = if good_for > self.lasts_ns.saturating_mul(8) {
            FIRST_NS
        } else {
            self.lasts_ns.saturating_mul(2).clamp(FIRST_NS, LONGEST_NS)
        };
        let until = now.saturating_add(self.lasts_ns);
        self.until = Some(until);
        self.missing_ns = 0;
        until
    }
}

/// What was seen of a worker from outside.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Seen {
    /// When, last.
    at: u64,
    /// What the worker had been charged by then, and the time that it had not reported yet.
    charged_ns: u64,
    unreported_ns: u64,
}

impl Scheduler {
    /// Says whose a session is. What is found out of one session is held against the next ones of
    /// its owner: a new name is no new beginning.
    pub fn belongs_to(&mut self, session: SessionId, owner: u64, now: u64) {
        self.owners.retain(|_, until| *until > now);
        let is_known = self.owners.contains_key(&owner);
        let Some(state) = self.sessions.get_mut(&session) else { return };
        let is_new = state.owner.replace(owner).is_none();
        if is_new && is_known && !state.doubt.is_found_out() {
            let until = state.doubt.find_out(now);
            self.shares_at = until.min(self.shares_at);
            self.distrust(session, true);
        }
    }

    /// What was seen from outside of a worker since the last call for it: it kept the device busy
    /// for `busy_ns`. This outranks what anybody reports. To be called for each worker again and
    /// again, every second or more often. The first call only begins.
    ///
    /// # Errors
    /// [`ScheduleError::UnknownWorker`].
    pub fn observe(
        &mut self,
        worker: WorkerId,
        busy_ns: u64,
        now: u64,
    ) -> Result<(), ScheduleError> {
        let session = self.session_of(worker)?;
        self.settle(session, now);
        let Some(state) = self.workers.get_mut(&worker) else { return Ok(()) };
        // What it has not reported yet is charged later.
        let unreported_ns = state.held.map_or(0, |held| held.unreported_ns(now));
        let seen = Seen { at: now, charged_ns: state.charged_ns, unreported_ns };
        let then = state.seen.replace(seen);
        let Some(then) = then else { return Ok(()) };
        let over_ns = now.saturating_sub(then.at);
        let busy_ns = busy_ns.min(over_ns).saturating_sub(share_of(over_ns, OBSERVED_ERROR_PPM));
        let charged = state.charged_ns.saturating_sub(then.charged_ns);
        let charged = charged.saturating_add(unreported_ns).saturating_sub(then.unreported_ns);
        let more_ns = busy_ns.saturating_sub(charged);
        let paid = state.held.map_or(Paid::Own, |held| held.paid);
        let turn = state.takes_turns;
        state.charged_ns = state.charged_ns.saturating_add(more_ns);
        if let Some(seen) = &mut state.seen {
            seen.charged_ns = state.charged_ns;
        }
        if let Some(session) = self.sessions.get_mut(&session) {
            session.account.charge_more(more_ns, paid, turn);
        }
        Ok(())
    }

    /// Whether all that the session's workers do was seen from outside lately.
    fn is_observed(&self, session: SessionId, now: u64) -> bool {
        let lately = |seen: &Seen| now.saturating_sub(seen.at) < OBSERVED_FOR_NS;
        self.members(session).all(|(_, worker)| worker.seen.as_ref().is_some_and(lately))
    }

    /// Whether the session's word does not count.
    pub(super) fn is_found_out(&self, session: SessionId) -> bool {
        self.sessions.get(&session).is_some_and(|session| session.doubt.is_found_out())
    }

    /// Takes down what a worker's report says of the time since its last one.
    pub(super) fn claim(&mut self, worker: WorkerId, held: Held, mut claim: Claim, now: u64) {
        let Some(state) = self.workers.get(&worker) else { return };
        claim.kept_ns = held.kept_away_ns(now);
        if !state.takes_turns {
            claim.sparse_ns = claim.held_ns;
        }
        // After others no longer waited for it, the time is theirs to claim.
        let until = if held.is_apart() { held.ends_at.min(now) } else { now };
        let whole = now.saturating_sub(held.told_at);
        let claim = claim.portion(until.saturating_sub(held.told_at), whole);
        self.audit.claim(state.session, held.paid, held.told_at, until, claim);
    }

    /// Judges the time on which all holders have reported.
    pub(super) fn judge(&mut self, now: u64) {
        let told = self.holding.iter().filter_map(|&id| self.held(id));
        let unclaimed =
            |held: &Held| !(held.revoked || held.is_apart() && held.told_at >= held.ends_at);
        let told = told.filter(unclaimed).map(|held| held.told_at).min();
        for finding in self.audit.judge(told.unwrap_or(now)) {
            self.take_to_heart(finding, now);
        }
        self.let_one_share(now);
    }

    fn take_to_heart(&mut self, finding: Finding, now: u64) {
        let Finding { session, paid, missing_ns, took_turn, .. } = finding;
        // What it used is known better.
        if !took_turn && self.is_observed(session, now) {
            return;
        }
        let mut more_ns = self.more_ns(finding);
        if took_turn && !self.is_found_out(session) {
            more_ns -= self.on_its_word(more_ns, now);
        }
        if more_ns > 0 {
            self.settle(session, now);
        }
        let Some(state) = self.sessions.get_mut(&session) else { return };
        if more_ns > 0 {
            state.account.charge_more(more_ns, paid, took_turn);
        }
        if let Some(until) = state.doubt.learn(missing_ns, now) {
            self.shares_at = until.min(self.shares_at);
            if let Some(owner) = state.owner {
                self.owners.insert(owner, now.saturating_add(LONGEST_NS));
            }
            self.distrust(session, true);
        }
    }

    /// How much of a turn that others waited for is paid by its worker's word. New and suspected
    /// workers show in a turn what they are. All of them together have a small part of the device
    /// for it.
    fn on_its_word(&mut self, ns: u64, now: u64) -> u64 {
        let earned = share_of(now.saturating_sub(self.word_at), ON_WORD_PPM);
        self.word_at = now.max(self.word_at);
        self.word_ns = self.word_ns.saturating_add(earned).min(ON_WORD_MOST_NS);
        let free = ns.min(self.word_ns);
        self.word_ns -= free;
        free
    }

    /// What a session is charged on top of its word. While a dense session gets less than its share,
    /// that is twice what is missing, but at most so much that it can still hold half of the time.
    fn more_ns(&self, finding: Finding) -> u64 {
        let Finding { session, unsaid_ns, charged_ns, held_ns, .. } = finding;
        let Some(state) = self.sessions.get(&session) else { return 0 };
        // The word of one whose reports added up until now counts as much as another's.
        let doubted = finding.took_turn || state.doubt.missing_ns >= 0;
        let more_ns = if doubted { finding.more_ns } else { finding.slicing_ns };
        if unsaid_ns == 0 || !self.wrongs_a_dense_one(session) {
            return more_ns;
        }
        let most = share_of(held_ns, u64::from(state.account.guaranteed_ppm()) * 2);
        unsaid_ns.saturating_mul(2).min(most.saturating_sub(charged_ns)).max(more_ns)
    }

    fn distrust(&mut self, session: SessionId, distrusted: bool) {
        let members = self.sessions.get(&session).map(|session| session.members.clone());
        for member in members.unwrap_or_default() {
            if let Some(worker) = self.workers.get_mut(&member) {
                worker.density.distrust(distrusted);
            }
        }
    }

    /// Lets the session whose time of turns was over first share the device again.
    fn let_one_share(&mut self, now: u64) {
        if now < self.shares_at.max(self.watched_until) {
            return;
        }
        let until = |session: &super::Session| session.doubt.until;
        let waiting = self.sessions.iter().filter_map(|(&id, session)| Some((until(session)?, id)));
        let mut waiting: Vec<(u64, SessionId)> = waiting.collect();
        waiting.sort_unstable();
        self.shares_at = waiting.get(1).map_or(u64::MAX, |&(until, _)| until);
        let Some(&(until, session)) = waiting.first() else { return };
        if until > now {
            self.shares_at = until;
            return;
        }
        if let Some(state) = self.sessions.get_mut(&session) {
            state.doubt.until = None;
            state.doubt.free_since = now;
        }
        self.watched_until = now.saturating_add(WATCHED_NS);
        self.distrust(session, false);
    }

    /// Takes down, for each holder, whether it keeps a worker away that could begin a turn.
    pub(super) fn notice_who_waits(&mut self, now: u64) {
        let keeps_away = |id: &WorkerId| {
            self.workers.get(id).is_some_and(|worker| {
                worker.density.is_dense() && worker.held.is_some_and(|held| !held.passed)
            })
        };
        let any_keeps = self.holding.iter().any(keeps_away);
        let ready = |id: &WorkerId| {
            let worker = self.workers.get(id).filter(|worker| worker.density.is_dense())?;
            let account = &self.sessions.get(&worker.session)?.account;
            let able = |paid| {
                account.not_before(paid) <= now
                    && account.ready_at(paid).is_some_and(|at| at <= now)
            };
            let able = able(Paid::Own) || able(Paid::Spare);
            able.then_some(worker.session)
        };
        // Only those that fill the device keep each other away.
        let mut ready = self.asking.iter().filter(|_| any_keeps).filter_map(ready);
        // Of those that wait, any two sessions tell for each holder whether it keeps another one away.
        let first = ready.next();
        let waiting = [first, ready.find(|&session| Some(session) != first)];
        for id in &self.holding {
            let Some(worker) = self.workers.get_mut(id) else { continue };
            let keeps = worker.density.is_dense()
                && waiting.iter().flatten().any(|other| *other != worker.session);
            if let Some(held) = worker.held.as_mut().filter(|held| !held.passed) {
                held.keeps_away(keeps, now);
            }
        }
    }
}
