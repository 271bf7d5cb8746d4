//! Utilization: how much of the time that a worker holds the device it uses, and the class that follows from it.

use limits::turns::{self, DENSE_PPM, MEMORY_NS, Mean, ratio_ppm};

use crate::tuning::{
    ALONE_EVERY_NS, CALIBRATION_PPM, ERROR_PPM, HOLDS_OVER_NS, LONGEST_REST, NOTABLE_PPM,
    SHORTEST_REST_NS,
};
use crate::types::{WHOLE, portion, share_of};

/// Whether a worker fills the device by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// The worker fills the device, or may do so. Two dense workers at once only slow each other down.
    Dense,
    /// The worker leaves the device idle part of the time, which others can use.
    Sparse,
}

/// A worker's co-holders: the other workers that held leases during an interval, or a part of it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Company {
    /// Their largest number at one moment. Revoked leases do not count.
    pub(crate) others: u64,
    /// The sum of their utilizations, in millionths.
    pub(crate) rates_ppm: u64,
    /// Whether one of them fills the device.
    pub(crate) dense: bool,
    /// Whether another session's work may have been on the device; revoked leases count too.
    pub(crate) shared: bool,
}

impl Company {
    pub(crate) fn add(&mut self, density: &Density) {
        self.others += 1;
        self.rates_ppm = self.rates_ppm.saturating_add(density.rate_ppm());
        self.dense |= density.is_dense();
    }
}

/// How much of its recent held time a worker used, and had work queued for.
#[derive(Clone, Copy, Debug, Default)]
struct Lately {
    rate: Mean,
    backlog: Mean,
}

impl Lately {
    fn add(&mut self, used_ppm: u64, backlog_ppm: u64, held_ns: u64) {
        self.rate.add(used_ppm, held_ns, MEMORY_NS / 2);
        self.backlog.add(backlog_ppm, held_ns, MEMORY_NS / 2);
    }

    /// Whether the worker's program has changed its behavior. Busier co-holders lower a worker's use and raise its
    /// backlog; a program that has changed moves both in the same direction.
    fn differs_from(&self, then: &Self) -> bool {
        let more = |was: Mean, is: Mean| is.ppm > was.ppm.saturating_add(NOTABLE_PPM);
        let less = |was: Mean, is: Mean| is.ppm.saturating_add(ERROR_PPM) < was.ppm;
        let rose = |was: &Self, is: &Self| {
            (more(was.rate, is.rate) || more(was.backlog, is.backlog))
                && !(less(was.rate, is.rate) || less(was.backlog, is.backlog))
        };
        rose(then, self) || rose(self, then)
    }
}

/// The utilization of one worker without co-holders: time used relative to time held.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Density {
    alone: Mean,
    class: Class,
    /// Whether its session was found out, so its reports do not count.
    distrusted: bool,
    /// Whether its session takes turns with another one that holds several devices and fills one of them.
    among_dense: bool,
    measured_at: u64,
    seen: Seen,
    /// Recent use and backlog, with or without co-holders.
    lately: Lately,
    /// Recent use and backlog, with co-holders.
    crowded: Lately,
    /// Set while the worker is treated as dense without a measurement.
    suspected: Option<Suspicion>,
    /// Whether the last report says little about the utilization.
    in_doubt: bool,
    turns_alone: TurnsAlone,
    /// Factor for the worker's estimates, in millionths.
    calibration: Mean,
}

/// When a worker reported.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    /// Times of the first and the last report.
    began_at: u64,
    told_at: u64,
    /// The part of all time for which the worker holds the device; known for workers that release it when they do not
    /// use it.
    holds: Option<Mean>,
}

/// A worker's turns alone.
#[derive(Clone, Copy, Debug)]
struct TurnsAlone {
    /// Its behavior before the last one.
    then: Option<Lately>,
    every_ns: u64,
}

/// A suspicion that the worker may have begun to fill the device. Its next turn is measured to find out.
#[derive(Clone, Copy, Debug)]
struct Suspicion {
    /// The class before the suspicion.
    before: Class,
    /// When the suspicion is dropped.
    until: u64,
    /// Held time alone that suffices for a decision (ns).
    wanted_ns: u64,
    /// Held time alone reported since the suspicion began (ns).
    alone_ns: u64,
}

/// One interval of a lease, with the reported values as far as they are believed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Interval {
    pub(crate) held_ns: u64,
    /// Calibrated if there were co-holders.
    pub(crate) worked_ns: u64,
    pub(crate) backlogged_ns: u64,
    pub(crate) company: Company,
}

impl Default for Density {
    fn default() -> Self {
        Self {
            alone: Mean::default(),
            class: Class::Dense,
            distrusted: false,
            among_dense: false,
            measured_at: 0,
            seen: Seen::default(),
            lately: Lately::default(),
            crowded: Lately::default(),
            suspected: None,
            in_doubt: false,
            turns_alone: TurnsAlone { then: None, every_ns: ALONE_EVERY_NS },
            calibration: Mean { ppm: WHOLE, weight_ns: 0 },
        }
    }
}

impl Density {
    pub(crate) fn is_dense(&self) -> bool {
        self.fills() || self.among_dense
    }

    /// Whether the worker is dense by itself.
    pub(crate) fn fills(&self) -> bool {
        self.class == Class::Dense || self.distrusted
    }

    pub(crate) fn set_among_dense(&mut self, among_dense: bool) {
        self.among_dense = among_dense;
    }

    /// Sets whether the worker's reports count for its class.
    pub(crate) fn distrust(&mut self, distrusted: bool) {
        self.distrusted = distrusted;
    }

    /// The utilization in millionths; `None`: unknown.
    pub(crate) fn known_ppm(&self) -> Option<u64> {
        (self.alone.weight_ns >= turns::COMFORTABLE_TURN_NS).then_some(self.alone.ppm)
    }

    /// The utilization in millionths, or 1 while it is unknown.
    pub(crate) fn assumed_ppm(&self) -> u64 {
        self.known_ppm().unwrap_or(WHOLE).min(WHOLE)
    }

    /// The recently used part of held time, in millionths.
    pub(crate) fn rate_ppm(&self) -> u64 {
        if self.lately.rate.weight_ns == 0 { WHOLE } else { self.lately.rate.ppm }
    }

    /// The recently used part of time held together with others, in millionths.
    pub(crate) fn crowded_ppm(&self) -> u64 {
        if self.crowded.rate.weight_ns == 0 { self.rate_ppm() } else { self.crowded.rate.ppm }
    }

    /// An estimate, corrected by the known error of this worker's estimates.
    pub(crate) fn calibrated(&self, estimated_ns: u64) -> u64 {
        portion(estimated_ns, self.calibration.ppm, WHOLE)
    }

    /// Learns the error of this worker's estimates from an interval in which it had the device to itself and kept it
    /// busy, so that the true value is known.
    pub(crate) fn calibrate(&mut self, held_ns: u64, estimated_ns: u64) {
        // A large difference is no estimation error: the device had other work, or unreported work.
        if held_ns >= SHORTEST_REST_NS && estimated_ns >= held_ns / 2 {
            let ratio = ratio_ppm(held_ns, estimated_ns)
                .clamp(*CALIBRATION_PPM.start(), *CALIBRATION_PPM.end());
            self.calibration.add(ratio, held_ns, MEMORY_NS);
        }
    }

    /// Learns from one interval.
    pub(crate) fn observe(&mut self, seen: Interval, now: u64) {
        if seen.held_ns == 0 {
            return;
        }
        self.seen.add(seen.held_ns, now);
        let used = ratio_ppm(seen.worked_ns, seen.held_ns).min(WHOLE);
        let backlog = ratio_ppm(seen.backlogged_ns, seen.held_ns);
        self.lately.add(used, backlog, seen.held_ns);
        if seen.company.others > 0 {
            self.crowded.add(used, backlog, seen.held_ns);
        }
        let undisturbed = self.is_undisturbed(seen.company);
        self.in_doubt = !(undisturbed || self.wants_less_than_a_slice(seen.company));
        // An old measurement is replaced by the next one.
        let stale = now.saturating_sub(self.measured_at) >= MEMORY_NS
            || self.suspected.is_some_and(|suspicion| suspicion.alone_ns == 0);
        // A very short interval is not enough to replace what was known.
        let counts = undisturbed && (!stale || seen.held_ns >= turns::SHORTEST_TURN_NS);
        if counts && stale {
            renew(&mut self.alone, used, seen.held_ns, turns::COMFORTABLE_TURN_NS);
        } else if counts {
            self.alone.add(used, seen.held_ns, MEMORY_NS);
        } else if self.crowded_ppm() > self.alone.ppm && self.known_ppm().is_some() {
            // A worker that is slowed down can only look sparser than it is.
            self.alone.add(self.crowded_ppm(), seen.held_ns, MEMORY_NS);
        }
        if counts {
            self.measured_at = now;
        }
        self.classify();
        if seen.company.others == 0
            && let Some(suspicion) = &mut self.suspected
        {
            suspicion.alone_ns = suspicion.alone_ns.saturating_add(seen.held_ns);
            if suspicion.alone_ns >= suspicion.wanted_ns {
                self.end_suspicion(now);
            }
        }
    }

    /// Whether the worker behaves beside its co-holders as it would alone, because none had to wait for the others:
    /// together they left the device idle at times, and queued work was executed. Judged by several recent intervals,
    /// because a single one is too little evidence. The time slices of a dense co-holder delay every launch.
    fn is_undisturbed(&self, company: Company) -> bool {
        let (used, queued) = (self.crowded.rate.ppm, self.crowded.backlog.ppm);
        let as_alone = company.rates_ppm.saturating_add(used) < DENSE_PPM
            && queued < used.saturating_add(WHOLE - DENSE_PPM);
        company.others == 0 || !company.dense && as_alone
    }

    /// The hardware gives equal slices to all workers that want the whole device, so a worker that gets less wants
    /// less.
    fn wants_less_than_a_slice(&self, company: Company) -> bool {
        let slice = WHOLE / (company.others + 1);
        self.crowded.rate.ppm < slice / 5 * 3
            && self.crowded.backlog.ppm < WHOLE / 2
            && self.known_ppm().is_some_and(|known| known < self.crowded.rate.ppm * 2)
    }

    /// Whether only a turn alone can show the utilization, and one is due.
    pub(crate) fn wants_turn_alone(&self, now: u64) -> bool {
        let every = match self.turns_alone.then {
            Some(then) if !self.lately.differs_from(&then) => self.turns_alone.every_ns,
            _ => ALONE_EVERY_NS,
        };
        let due = || now.saturating_sub(self.measured_at) >= every;
        self.in_doubt && (self.known_ppm().is_none() || due())
    }

    /// When the utilization was last known for certain (ns).
    pub(crate) fn measured_at(&self) -> u64 {
        self.measured_at
    }

    /// Whether the worker may have begun to fill the device: it did not before, and now always has work queued.
    pub(crate) fn is_suspect(&self) -> bool {
        let before = self.turns_alone.then.map_or(0, |then| then.backlog.ppm);
        let comes = before < DENSE_PPM && self.lately.backlog.ppm >= DENSE_PPM;
        let may_be = !self.is_dense() || self.known_ppm().is_none();
        may_be && self.in_doubt && comes
    }

    pub(crate) fn suspected_until(&self) -> Option<u64> {
        self.suspected.map(|suspicion| suspicion.until)
    }

    pub(crate) fn is_suspected(&self) -> bool {
        self.suspected.is_some()
    }

    /// Treats the worker as dense until it was measured for `wanted_ns` of an exclusive turn, or until `until`. Its
    /// current behavior is kept for comparison.
    pub(crate) fn suspect(&mut self, wanted_ns: u64, until: u64) {
        self.turns_alone.then = Some(self.lately);
        self.suspected = Some(Suspicion { before: self.class, until, wanted_ns, alone_ns: 0 });
        self.class = Class::Dense;
    }

    /// Ends the suspicion if the turn alone did not come in time.
    pub(crate) fn end_overdue_suspicion(&mut self, now: u64) {
        if self.suspected.is_some_and(|suspicion| suspicion.until <= now) {
            self.end_suspicion(now);
        }
    }

    /// Ends the suspicion after a turn alone. If the turn showed nothing new, the next one can wait longer.
    fn end_suspicion(&mut self, now: u64) {
        let Some(Suspicion { before, .. }) = self.suspected.take() else { return };
        self.class = before;
        self.classify();
        self.measured_at = now;
        // A program's first second is not typical: it loads and warms up.
        let begins = now.saturating_sub(self.seen.began_at) < ALONE_EVERY_NS;
        self.turns_alone.every_ns = if self.class == before && !begins {
            self.turns_alone.every_ns.saturating_mul(2).min(ALONE_EVERY_NS * LONGEST_REST)
        } else {
            ALONE_EVERY_NS
        };
    }

    fn classify(&mut self) {
        if self.suspected.is_some() {
            return;
        }
        if let Some(ppm) = self.known_ppm() {
            // Decisive is for how much of all time the device would be idle because of this worker.
            let holds_ppm = self.seen.holds.map_or(WHOLE, |holds| holds.ppm);
            let idle_ppm = share_of(WHOLE.saturating_sub(ppm), holds_ppm);
            let fills = turns::is_dense(Some(WHOLE.saturating_sub(idle_ppm)));
            self.class = if fills { Class::Dense } else { Class::Sparse };
        }
    }

    /// Whether the worker releases the device as soon as it does not use it.
    pub(crate) fn lets_go(&mut self, lets_go: bool) {
        let all = Mean { ppm: WHOLE, weight_ns: HOLDS_OVER_NS };
        self.seen.holds = lets_go.then(|| self.seen.holds.unwrap_or(all));
    }
}

impl Seen {
    fn add(&mut self, held_ns: u64, now: u64) {
        if self.began_at == 0 {
            self.began_at = now;
        } else if let Some(holds) = &mut self.holds {
            let since = now.saturating_sub(self.told_at).max(held_ns);
            holds.add(ratio_ppm(held_ns, since), since, HOLDS_OVER_NS);
        }
        self.told_at = now;
    }
}

/// Adds a value to a mean with a weight that makes the earlier mean hardly count. A mean that was known stays known.
fn renew(mean: &mut Mean, ppm: u64, for_ns: u64, known_ns: u64) {
    let known = mean.weight_ns >= known_ns;
    mean.weight_ns = mean.weight_ns.min(for_ns / 8);
    mean.add(ppm, for_ns, u64::MAX);
    if known {
        mean.weight_ns = mean.weight_ns.max(known_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn interval(used_ms: u64, others_ppm: Option<u64>) -> Interval {
        let (held_ns, worked_ns) = (10 * MS, used_ms * MS);
        let others = u64::from(others_ppm.is_some());
        let rates_ppm = others_ppm.unwrap_or(0);
        let company = Company { others, rates_ppm, ..Company::default() };
        Interval { held_ns, worked_ns, backlogged_ns: 0, company }
    }

    fn observe(density: &mut Density, used_ms: u64, others: Option<u64>, times: u64) -> u64 {
        for n in 1..=times {
            let now = density.measured_at + if others.is_none() { 10 * MS } else { n };
            density.observe(interval(used_ms, others), now);
        }
        density.alone.ppm
    }

    #[test]
    fn unknown_is_dense_and_the_mean_decides() {
        let mut density = Density::default();
        assert!(density.is_dense() && density.known_ppm().is_none());
        assert_eq!(observe(&mut density, 5, None, 1), 500_000);
        assert!(!density.is_dense());
        // 200 ms of held time are enough to forget most of it.
        assert!(observe(&mut density, 8, None, 40) < 850_000);
        assert!(!density.is_dense());
        observe(&mut density, 10, None, 40);
        assert!(density.is_dense());
        observe(&mut density, 8, None, 60);
        assert!(!density.is_dense());
    }

    #[test]
    fn beside_others_it_is_measured_only_where_nobody_waits() {
        let mut density = Density::default();
        observe(&mut density, 6, None, 20);
        // 300 + 300 thousandths: undisturbed.
        assert!(observe(&mut density, 3, Some(300_000), 60) < 330_000);
        // 300 + 700 thousandths: does not count, unless it exceeds the known value.
        assert!(observe(&mut density, 3, Some(700_000), 60) < 330_000);
        assert!(!density.wants_turn_alone(density.measured_at + 999 * MS));
        assert!(density.wants_turn_alone(density.measured_at + 1_000 * MS));
        assert!(observe(&mut density, 7, Some(700_000), 60) > 650_000);
    }

    #[test]
    fn turns_alone_become_rare_while_nothing_changes() {
        let mut density = Density::default();
        observe(&mut density, 5, None, 20);
        observe(&mut density, 4, Some(600_000), 20);
        for every in [2, 4, 8, 8] {
            density.suspect(10 * MS, u64::MAX);
            density.observe(interval(5, None), density.measured_at + 1_000 * MS);
            observe(&mut density, 4, Some(600_000), 1);
            let at = density.measured_at;
            assert!(!density.wants_turn_alone(at + (every * 1_000 - 1) * MS));
            assert!(density.wants_turn_alone(at + every * 1_000 * MS));
        }
        // The behavior has changed, so a turn alone is due at once.
        observe(&mut density, 7, Some(600_000), 10);
        assert!(density.wants_turn_alone(density.measured_at + 1_000 * MS));
    }

    #[test]
    fn calibration_is_bounded() {
        let mut density = Density::default();
        assert_eq!(density.calibrated(100), 100);
        density.calibrate(10 * MS, 8 * MS);
        assert_eq!(density.calibrated(100), 125);
        for _ in 0..200 {
            density.calibrate(10 * MS, 5 * MS);
            density.calibrate(10 * MS, 4 * MS);
        }
        assert!((149..=150).contains(&density.calibrated(100)));
        for _ in 0..200 {
            density.calibrate(10 * MS, u64::MAX);
        }
        assert!((80..=81).contains(&density.calibrated(100)));
    }
}
