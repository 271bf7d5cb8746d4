//! What the reports of all holders show together.
//!
//! A device is busy for as long as some holder has work queued. So what the holders of a moment
//! report must add up to that moment. What is missing was used by somebody who did not say so, or
//! was lost in slicing.
//!
//! Reports are spread over short spans of time. A span is judged when every holder has reported on
//! all of it. For each span and session there are two bounds on what it used:
//!
//! * Others had work queued and got no more than they say. What is missing was used by those who
//!   held beside them.
//! * Others could have paid for a turn and were kept away. Time in which a session keeps others away
//!   is its own, used or not.
//!
//! Nobody can say that it lost everything: the hardware gives each holder that has work queued about
//! an equal slice. So a report of less is no evidence.

use std::collections::BTreeMap;

use super::account::Paid;
use super::{SessionId, share_of};

/// The length of a span.
const SPAN_NS: u64 = 10_000_000;
/// Longer intervals count with their end.
const LONGEST_NS: u64 = 400 * SPAN_NS;
/// How far figures may be off without any doubt, in millionths of the time.
const ERROR_PPM: u64 = 50_000;
/// What slicing may cost at most, as measured, in millionths of the time ...
const SLICING_PPM: u64 = 220_000;
/// ... and for each unit that those use who do not fill the device.
const SLICING_TIMES: u64 = 2;
/// What is beyond that counts this many times, until all that is missing counts.
const BEYOND_TIMES: u64 = 3;
/// What a holder with work queued gets at least of an equal slice, in millionths.
const SLICE_PPM: u64 = 850_000;
const WHOLE: u64 = 1_000_000;

/// A report, or a part of one: what a session's worker did in an interval.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Claim {
    /// How long it held.
    pub(super) held_ns: u64,
    /// The part of it in which the worker was taken for one that does not fill the device.
    pub(super) sparse_ns: u64,
    /// What it says that it used.
    pub(super) said_ns: u64,
    /// What it was charged.
    pub(super) charged_ns: u64,
    /// How long it had work queued.
    pub(super) queued_ns: u64,
    /// What of that it would have used alone.
    pub(super) wanted_ns: u64,
    /// How long it kept others away who could have paid for a turn.
    pub(super) kept_ns: u64,
}

impl Claim {
    /// The part of the claim that falls into `part` of `whole` nanoseconds.
    fn portion(self, part: u64, whole: u64) -> Self {
        let of = |ns: u64| {
            let portion = (u128::from(ns) * u128::from(part)).checked_div(u128::from(whole));
            u64::try_from(portion.unwrap_or(0)).unwrap_or(u64::MAX)
        };
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

    fn is_sparse(&self) -> bool {
        self.sparse_ns * 2 > self.held_ns
    }

    /// How much of what is missing is put down to it, in relation to others that do not take turns.
    /// One that had work queued was slowed down, so it may have used more than it says.
    fn suspicion_ns(&self) -> u64 {
        if self.is_sparse() { self.held_ns / 4 + self.queued_ns.min(self.held_ns) } else { 0 }
    }

    /// What it used at least, if the hardware gives equal slices to `holders_ppm` holders.
    fn credible_ns(&self, holders_ppm: u64) -> u64 {
        let slice = u128::from(self.queued_ns) * u128::from(SLICE_PPM);
        let slice = slice.checked_div(u128::from(holders_ppm.max(WHOLE))).unwrap_or(0);
        let slice = u64::try_from(slice).unwrap_or(u64::MAX);
        self.said_ns.max(slice.min(self.wanted_ns))
    }
}

/// What a span shows of one session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Finding {
    pub(super) session: SessionId,
    pub(super) paid: Paid,
    /// What it is to be charged on top of what it was charged.
    pub(super) more_ns: u64,
    /// It took a turn.
    pub(super) took_turn: bool,
    /// The part of it that slicing explains.
    pub(super) slicing_ns: u64,
    /// The part of what is missing that it may have used, of one that shares the device.
    pub(super) unsaid_ns: u64,
    /// What it was charged, and how long it held.
    pub(super) charged_ns: u64,
    pub(super) held_ns: u64,
    /// What is missing beyond all that slicing and errors explain, of one that shared the device
    /// with others. Negative: there was that much to spare.
    pub(super) missing_ns: i64,
}

type Span = BTreeMap<SessionId, (Claim, Paid)>;

/// The spans that were not judged yet.
#[derive(Debug, Default)]
pub(super) struct Audit {
    spans: BTreeMap<u64, Span>,
    /// Spans before this one have been judged.
    next: u64,
}

impl Audit {
    /// Takes down a claim on the time from `from` to `to`.
    pub(super) fn claim(&mut self, session: SessionId, paid: Paid, from: u64, to: u64, all: Claim) {
        let whole = to.saturating_sub(from);
        let mut at = from.max(to.saturating_sub(LONGEST_NS)).max(self.next.saturating_mul(SPAN_NS));
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

    /// Judges the spans that ended at `until` or before. All claims on them have been made.
    pub(super) fn judge(&mut self, until: u64) -> Vec<Finding> {
        let end = until / SPAN_NS;
        let mut findings = Vec::new();
        while let Some(entry) = self.spans.first_entry().filter(|entry| *entry.key() < end) {
            judge(&entry.remove(), &mut findings);
        }
        self.next = self.next.max(end);
        findings
    }
}

fn judge(span: &Span, findings: &mut Vec<Finding>) {
    let claims = || span.values().map(|(claim, _)| claim);
    let kept = claims().any(|claim| claim.kept_ns > 0);
    if span.len() < 2 && !kept {
        return;
    }
    let held: u64 = claims().map(|claim| claim.held_ns).sum();
    let holders_ppm = super::density::ratio_ppm(held, SPAN_NS);
    let suspicion: u64 = claims().map(Claim::suspicion_ns).sum();
    for (&session, &(claim, paid)) in span {
        let others = || span.iter().filter(|(other, _)| **other != session).map(|(_, (c, _))| c);
        // Those that fill the device exclude each other: they hold one after the other, and never
        // with this one if it fills the device itself. The others may have held all the time.
        let beside = |other: &Claim| {
            if claim.is_sparse() {
                return *other;
            }
            if other.is_sparse() {
                let there = other.held_ns.min(SPAN_NS);
                return other.portion(claim.held_ns.min(there), there);
            }
            Claim::default()
        };
        let (mut dense, mut rest, mut said, mut sparse) = (0, 0, claim.said_ns, 0);
        if claim.is_sparse() {
            sparse += said;
        }
        for other in others() {
            let there = beside(other);
            let credible = there.credible_ns(holders_ppm);
            said += credible;
            if other.is_sparse() {
                sparse += credible;
                rest = there.queued_ns.max(rest);
            } else {
                dense += there.queued_ns;
            }
        }
        let longest = if claim.is_sparse() { SPAN_NS } else { claim.held_ns.min(SPAN_NS) };
        // If it says itself that it had work queued, the device was busy, with its work or others'.
        let own =
            if claim.is_sparse() { claim.kept_ns } else { claim.kept_ns.max(claim.queued_ns) };
        let busy = dense.max(rest).max(own).min(longest);
        let error = share_of(busy, ERROR_PPM);
        let slicing = (sparse * SLICING_TIMES + error).min(share_of(busy, SLICING_PPM)).max(error);
        let unsaid = busy.saturating_sub(said);
        let part = |ns: u64| {
            let part = u128::from(ns) * u128::from(claim.suspicion_ns());
            part.checked_div(suspicion.into()).and_then(|part| part.try_into().ok()).unwrap_or(0)
        };
        // One that overlaps with others by its own word pays for what slicing costs, together with
        // all that do so. One that takes turns pays for what slicing cannot explain.
        let more = if claim.is_sparse() {
            part(unsaid.saturating_sub(error))
        } else {
            unsaid
                .saturating_sub(slicing)
                .saturating_mul(BEYOND_TIMES)
                .min(unsaid - unsaid.min(error))
        };
        let owed = claim.said_ns.saturating_add(more).min(claim.held_ns);
        let more_ns = owed.saturating_sub(claim.charged_ns);
        let accused = claim.is_sparse() && busy > 0;
        let missing_ns = if accused { signed(unsaid) - signed(slicing) } else { 0 };
        if more_ns > 0 || missing_ns != 0 {
            let unsaid_ns = if accused { part(unsaid) } else { 0 };
            let Claim { charged_ns, held_ns, .. } = claim;
            let slicing_ns = more_ns.min(part(slicing - error));
            let finding = Finding {
                took_turn: !claim.is_sparse(),
                session,
                paid,
                more_ns,
                slicing_ns,
                unsaid_ns,
                charged_ns,
                held_ns,
                missing_ns,
            };
            findings.push(finding);
        }
    }
}

fn signed(ns: u64) -> i64 {
    i64::try_from(ns).unwrap_or(i64::MAX)
}
