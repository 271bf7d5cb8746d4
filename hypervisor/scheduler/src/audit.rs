//! The audit: compares the reports of all holders with the time that passed. `trust` applies the findings.
//!
//! A device is busy while some holder has work queued. So the reports of all holders at a moment must add up to that
//! moment. Missing time was used by a session that did not report it, or was lost to slicing.
//!
//! Reports are spread over short spans of time. A span is judged when every holder has reported on all of it. For each
//! span and session there are two bounds on what the session used:
//!
//! * Others had work queued and report that they got little. The missing time was used by the sessions that held leases
//!   beside them.
//! * Others could have paid for a turn and were excluded. The time in which a session excludes others is its own, used
//!   or not.
//!
//! No session can claim that it lost everything: the hardware gives each holder with queued work about an equal slice.
//! So reports of less are no evidence.

use std::collections::BTreeMap;

use limits::turns::ratio_ppm;

use crate::tuning::{
    ERROR_PPM, LONGEST_DRAIN_NS, SLICE_PPM, SLICED_PPM, SLICING_PPM, SLICING_TIMES, SPAN_NS,
};
use crate::types::{Paid, SessionId, WHOLE, portion, share_of};

/// A report, or a part of one: what a session's worker did in an interval.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Claim {
    /// How long the worker held its lease.
    pub(crate) held_ns: u64,
    /// The part of `held_ns` in which the worker was classified as sparse.
    pub(crate) sparse_ns: u64,
    /// The use that it reported.
    pub(crate) said_ns: u64,
    /// The charge for the interval.
    pub(crate) charged_ns: u64,
    /// How long it had work queued.
    pub(crate) queued_ns: u64,
    /// The part of `queued_ns` that it would have used alone.
    pub(crate) wanted_ns: u64,
    /// How long it excluded others that could have paid for a turn.
    pub(crate) kept_ns: u64,
}

impl Claim {
    /// The part of the claim that falls into `part` of `whole` nanoseconds.
    pub(crate) fn portion(self, part: u64, whole: u64) -> Self {
        let of = |ns: u64| portion(ns, part, whole);
        Self {
            held_ns: of(self.held_ns),
            sparse_ns: of(self.sparse_ns),
            said_ns: of(self.said_ns),
            charged_ns: of(self.charged_ns),
            queued_ns: of(self.queued_ns),
            wanted_ns: of(self.wanted_ns),
            kept_ns: of(self.kept_ns),
        }
    }

    fn add(&mut self, more: Self) {
        self.held_ns += more.held_ns;
        self.sparse_ns += more.sparse_ns;
        self.said_ns += more.said_ns;
        self.charged_ns += more.charged_ns;
        self.queued_ns += more.queued_ns;
        self.wanted_ns += more.wanted_ns;
        self.kept_ns += more.kept_ns;
    }

    /// The additional charge if the session used `more_ns` more than it reported.
    fn owed_ns(&self, more_ns: u64) -> u64 {
        let used = self.said_ns.saturating_add(more_ns).min(self.held_ns);
        used.saturating_sub(self.charged_ns)
    }

    fn is_sparse(&self) -> bool {
        self.sparse_ns * 2 > self.held_ns
    }

    /// The weight with which missing time is attributed to the session, relative to others that do not take turns. A
    /// session with queued work was slowed down, so it may have used more than it reports.
    fn suspicion_ns(&self) -> u64 {
        if self.is_sparse() { self.held_ns / 4 + self.queued_ns.min(self.held_ns) } else { 0 }
    }

    /// The least that the session used, if the hardware gives equal slices to `holders_ppm` holders.
    fn credible_ns(&self, holders_ppm: u64) -> u64 {
        let slice = portion(self.queued_ns, SLICE_PPM, holders_ppm.max(WHOLE));
        self.said_ns.max(slice.min(self.wanted_ns))
    }
}

/// The evidence of a span about one session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(crate) session: SessionId,
    pub(crate) paid: Paid,
    /// The additional charge.
    pub(crate) more_ns: u64,
    /// Whether the session took a turn.
    pub(crate) took_turn: bool,
    /// The part of `more_ns` that slicing explains.
    pub(crate) slicing_ns: u64,
    /// The part of the missing time that a sharing session may have used.
    pub(crate) unsaid_ns: u64,
    /// The session's charge, and how long it held leases (ns).
    pub(crate) charged_ns: u64,
    pub(crate) held_ns: u64,
    /// For a sharing session: time missing beyond all that slicing and errors explain. Negative: that much to spare.
    pub(crate) missing_ns: i64,
}

type Span = BTreeMap<SessionId, (Claim, Paid)>;

/// The spans that were not judged yet.
#[derive(Debug, Default)]
pub(crate) struct Audit {
    spans: BTreeMap<u64, Span>,
    /// The first span that was not judged.
    next: u64,
}

impl Audit {
    /// Records a claim on the time from `from` to `to`.
    pub(crate) fn claim(&mut self, session: SessionId, paid: Paid, from: u64, to: u64, all: Claim) {
        let whole = to.saturating_sub(from);
        // Only the end of a longer interval counts.
        let mut at = from
            .max(to.saturating_sub(2 * LONGEST_DRAIN_NS))
            .max(self.next.saturating_mul(SPAN_NS));
        while at < to {
            let index = at / SPAN_NS;
            let end = (index + 1).saturating_mul(SPAN_NS).min(to);
            let (sum, budget) = self
                .spans
                .entry(index)
                .or_default()
                .entry(session)
                .or_insert((Claim::default(), paid));
            sum.add(all.portion(end - at, whole));
            *budget = paid;
            at = end;
        }
    }

    /// Judges the spans that ended by `until`. All claims on them must have been made.
    pub(crate) fn judge(&mut self, until: u64) -> Vec<Finding> {
        let end = until / SPAN_NS;
        let mut findings = Vec::new();
        while let Some(entry) = self.spans.first_entry().filter(|entry| *entry.key() < end) {
            judge(&entry.remove(), &mut findings);
        }
        self.next = self.next.max(end);
        findings
    }
}

/// Sums over a span.
#[derive(Debug, Default)]
struct Sums {
    /// Mean number of holders, in millionths.
    holders_ppm: u64,
    /// Use by all and by the sparse sessions, as far as it is credible.
    used_ns: u64,
    sparse_ns: u64,
    /// Sums over the sessions that take turns, which held one after the other: time with work queued, and time held.
    dense_queued_ns: u64,
    dense_held_ns: u64,
    /// The longest and the second longest time for which a sparse session had work queued.
    queued_ns: [u64; 2],
    suspicion_ns: u64,
}

impl Sums {
    fn of(span: &Span) -> Self {
        let claims = || span.values().map(|(claim, _)| claim);
        let held = claims().map(|claim| claim.held_ns).sum();
        let holders_ppm = ratio_ppm(held, SPAN_NS);
        let mut sums = Self { holders_ppm, ..Self::default() };
        for claim in claims() {
            let credible = claim.credible_ns(holders_ppm);
            sums.used_ns += credible;
            if claim.is_sparse() {
                sums.sparse_ns += credible;
                sums.suspicion_ns += claim.suspicion_ns();
                let [longest, second] = sums.queued_ns;
                sums.queued_ns =
                    [longest.max(claim.queued_ns), second.max(claim.queued_ns.min(longest))];
            } else {
                sums.dense_queued_ns += claim.queued_ns;
                sums.dense_held_ns += claim.held_ns;
            }
        }
        sums
    }

    /// The longest time for which another sparse session had work queued.
    fn queued_beside(&self, claim: &Claim) -> u64 {
        let [longest, second] = self.queued_ns;
        if claim.queued_ns == longest { second } else { longest }
    }
}

/// The evidence in a session's time.
#[derive(Clone, Copy, Debug)]
struct Evidence {
    /// How long the device was busy, and how much of that is missing in the reports.
    busy_ns: u64,
    unsaid_ns: u64,
    /// The most that slicing may have cost.
    slicing_ns: u64,
}

impl Evidence {
    /// For a device that was busy for `busy_ns`: its holders reported `said_ns` together, of it the sparse ones
    /// `sparse_ns`; `dense_ns` is the report of the dense ones, if any.
    fn new(busy_ns: u64, said_ns: u64, sparse_ns: u64, dense_ns: Option<u64>) -> Self {
        let error = share_of(busy_ns, ERROR_PPM);
        let slicing = sparse_ns.saturating_mul(SLICING_TIMES).saturating_add(error);
        let of_dense = dense_ns.map_or(u64::MAX, |ns| share_of(ns, SLICED_PPM));
        let slicing_ns = slicing.min(of_dense).min(share_of(busy_ns, SLICING_PPM)).max(error);
        Self { busy_ns, unsaid_ns: busy_ns.saturating_sub(said_ns), slicing_ns }
    }

    fn error_ns(&self) -> u64 {
        share_of(self.busy_ns, ERROR_PPM)
    }
}

fn judge(span: &Span, findings: &mut Vec<Finding>) {
    let kept = span.values().any(|(claim, _)| claim.kept_ns > 0);
    if span.len() < 2 && !kept {
        return;
    }
    let sums = Sums::of(span);
    for (&session, &(claim, paid)) in span {
        let finding = if claim.is_sparse() {
            overlapping(session, paid, &claim, span, &sums)
        } else {
            taking_turns(session, paid, &claim, span, &sums)
        };
        findings.extend(finding);
    }
}

/// A session that overlaps by its own reports pays for missing time, together with all that do so.
fn overlapping(
    session: SessionId,
    paid: Paid,
    claim: &Claim,
    span: &Span,
    sums: &Sums,
) -> Option<Finding> {
    let beside = sums.queued_beside(claim);
    let busy = sums.dense_queued_ns.max(beside).max(claim.kept_ns).min(SPAN_NS);
    // Reports of sparse sessions about time in which no dense session held a lease say nothing about this.
    let by_dense = busy == sums.dense_queued_ns.min(SPAN_NS);
    let window = if by_dense { sums.dense_held_ns.min(SPAN_NS) } else { SPAN_NS };
    let (mut said, mut sparse) = (0, 0);
    for (&other, (theirs, _)) in span {
        if theirs.is_sparse() {
            let there = theirs.held_ns.min(SPAN_NS);
            let within = theirs.portion(window.min(there), there);
            let believed = if other == session {
                within.said_ns
            } else {
                within.credible_ns(sums.holders_ppm)
            };
            sparse += believed;
            said += believed;
        } else {
            said += theirs.credible_ns(sums.holders_ppm);
        }
    }
    let evidence = Evidence::new(busy, said, sparse, (said > sparse).then_some(said - sparse));
    let part = |ns: u64| portion(ns, claim.suspicion_ns(), sums.suspicion_ns);
    let Evidence { unsaid_ns, slicing_ns, .. } = evidence;
    let more = part(unsaid_ns.saturating_sub(evidence.error_ns()));
    let more_ns = claim.owed_ns(more);
    let missing_ns = if busy > 0 { signed(unsaid_ns) - signed(slicing_ns) } else { 0 };
    (more_ns > 0 || missing_ns != 0).then_some(Finding {
        session,
        paid,
        took_turn: false,
        more_ns,
        slicing_ns: more_ns.min(part(slicing_ns - evidence.error_ns())),
        unsaid_ns: part(unsaid_ns),
        charged_ns: claim.charged_ns,
        held_ns: claim.held_ns,
        missing_ns,
    })
}

/// A session that takes turns pays for what slicing cannot explain. Other sessions that take turns held before or after
/// it; overlapping sessions held beside it, as far as they held for so long.
fn taking_turns(
    session: SessionId,
    paid: Paid,
    claim: &Claim,
    span: &Span,
    sums: &Sums,
) -> Option<Finding> {
    let held = claim.held_ns.min(SPAN_NS);
    let (mut said, mut sparse, mut queued) = (claim.said_ns, 0, claim.queued_ns);
    for (other, _) in span.values().filter(|(other, _)| other.is_sparse()) {
        let there = other.held_ns.min(SPAN_NS);
        let beside = other.portion(held.min(there), there);
        let credible = beside.credible_ns(sums.holders_ppm);
        said += credible;
        sparse += credible;
        queued = queued.max(beside.queued_ns);
    }
    // When the session itself reports queued work, the device was busy with its work or others'.
    let busy = queued.max(claim.kept_ns).min(held);
    let evidence = Evidence::new(busy, said, sparse, Some(claim.said_ns));
    let more_ns = claim.owed_ns(evidence.unsaid_ns.saturating_sub(evidence.slicing_ns));
    (more_ns > 0).then_some(Finding {
        session,
        paid,
        took_turn: true,
        more_ns,
        slicing_ns: 0,
        unsaid_ns: 0,
        charged_ns: claim.charged_ns,
        held_ns: claim.held_ns,
        missing_ns: 0,
    })
}

fn signed(ns: u64) -> i64 {
    i64::try_from(ns).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn dense(said_ms: u64, kept_ms: u64) -> Claim {
        let (said_ns, held_ns) = (said_ms * MS, 10 * MS);
        let queued = Claim { queued_ns: held_ns, wanted_ns: held_ns, ..Claim::default() };
        Claim { held_ns, said_ns, charged_ns: said_ns, kept_ns: kept_ms * MS, ..queued }
    }

    fn sparse(said_ms: u64) -> Claim {
        let (said_ns, held_ns) = (said_ms * MS, 10 * MS);
        Claim { held_ns, sparse_ns: held_ns, said_ns, charged_ns: said_ns, ..Claim::default() }
    }

    fn judged(claims: &[Claim]) -> Vec<(u64, u64, i64)> {
        let mut audit = Audit::default();
        for (session, claim) in (0..).zip(claims) {
            audit.claim(SessionId(session), Paid::Own, 20 * MS, 30 * MS, *claim);
        }
        assert!(audit.judge(29 * MS).is_empty());
        let found = audit.judge(30 * MS);
        // Later claims on a judged span do not count.
        audit.claim(SessionId(0), Paid::Own, 20 * MS, 30 * MS, dense(0, 10));
        assert!(audit.judge(40 * MS).is_empty());
        let us = |ns: i64| ns / 1000;
        found
            .iter()
            .map(|found| (found.session.0, found.more_ns / 1000, us(found.missing_ns)))
            .collect()
    }

    #[test]
    fn what_adds_up_costs_nothing() {
        assert!(judged(&[dense(10, 10)]).is_empty());
        // Slicing explains the rest: the sparse session pays it, less the error.
        assert_eq!(judged(&[dense(7, 0), sparse(2)]), [(1, 500, -1_200)]);
        assert_eq!(judged(&[dense(8, 0), sparse(2)]), [(1, 0, -2_200)]);
        // No session had work queued.
        assert!(judged(&[sparse(2), sparse(0)]).is_empty());
    }

    #[test]
    fn what_is_missing_is_paid_by_those_who_overlap() {
        let found = judged(&[dense(5, 0), sparse(0)]);
        assert_eq!(found.last(), Some(&(1, 4_500, 4_500)));
        let found = judged(&[dense(5, 0), sparse(1), sparse(0)]);
        assert_eq!(found[1..], [(1, 1_750, 2_000), (2, 1_750, 2_000)]);
        // A report of much less than an equal slice is not credible.
        let found = judged(&[dense(0, 0), sparse(4)]);
        assert_eq!(found.last(), Some(&(1, 1_250, 50)));
    }

    #[test]
    fn time_that_others_waited_is_its_own() {
        assert_eq!(judged(&[Claim { queued_ns: 0, ..dense(0, 10) }]), [(0, 9_500, 0)]);
        assert_eq!(judged(&[Claim { queued_ns: 0, ..dense(2, 4) }]), [(0, 1_800, 0)]);
        assert!(judged(&[Claim { queued_ns: 0, ..dense(2, 0) }]).is_empty());
    }
}
