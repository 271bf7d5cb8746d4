//! Utilization: how much of the time that a worker holds the device it uses, and the class that follows from it.

use limits::turns::{self, DENSE_PPM, MEMORY_NS, Mean, ratio_ppm};

use crate::tuning::{CALIBRATION_PPM, HOLDS_OVER_NS, SHORTEST_REST_NS, TAKES_TURNS_PPM};
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
}

/// The utilization of one worker without co-holders: time used relative to time held.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Density {
    alone: Mean,
    class: Class,
    imposed: Imposed,
    measured_at: u64,
    seen: Seen,
    /// Recent use and backlog, with or without co-holders.
    lately: Lately,
    /// Recent use and backlog, with co-holders.
    crowded: Lately,
    /// Factor for the worker's estimates, in millionths.
    calibration: Mean,
}

/// What a worker does beside others that want the device as much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sharing {
    /// It takes turns, which show its utilization, unless it hardly uses the device.
    Alone,
    /// It holds leases beside the others.
    Overlap,
}

/// What decides about a worker besides its own class.
#[derive(Clone, Copy, Debug, Default)]
struct Imposed {
    /// Whether its session was found out, so its reports do not count.
    distrusted: bool,
    /// Whether its session takes turns with another one that holds several devices and fills one of them.
    among_dense: bool,
    /// What its session does beside others that want the device as much. `None`: its class decides.
    sharing: Option<Sharing>,
}

/// When a worker reported.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    /// Times of the first and the last report.
    began_at: u64,
    told_at: u64,
    /// Number of launches that were completed until then; `None`: no report yet.
    launches: Option<u64>,
    /// The part of all time for which the worker holds the device; known for workers that release it when they do not
    /// use it.
    holds: Option<Mean>,
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
            imposed: Imposed::default(),
            measured_at: 0,
            seen: Seen::default(),
            lately: Lately::default(),
            crowded: Lately::default(),
            calibration: Mean { ppm: WHOLE, weight_ns: 0 },
        }
    }
}

impl Density {
    pub(crate) fn is_dense(&self) -> bool {
        let Imposed { distrusted, among_dense, sharing } = self.imposed;
        let by_itself = match sharing {
            None => self.class == Class::Dense,
            Some(Sharing::Alone) => self.wants_ppm() >= TAKES_TURNS_PPM,
            Some(Sharing::Overlap) => false,
        };
        distrusted || among_dense || by_itself
    }

    /// Whether the worker is dense by itself.
    pub(crate) fn fills(&self) -> bool {
        self.class == Class::Dense || self.imposed.distrusted
    }

    pub(crate) fn set_among_dense(&mut self, among_dense: bool) {
        self.imposed.among_dense = among_dense;
    }

    /// Sets whether the worker's reports count for its class.
    pub(crate) fn distrust(&mut self, distrusted: bool) {
        self.imposed.distrusted = distrusted;
    }

    pub(crate) fn is_distrusted(&self) -> bool {
        self.imposed.distrusted
    }

    /// Sets what the worker does beside others. `None`: its class decides.
    pub(crate) fn share(&mut self, sharing: Option<Sharing>) {
        let before = core::mem::replace(&mut self.imposed.sharing, sharing);
        if sharing == Some(Sharing::Alone) && before != sharing {
            // The next turn replaces what was known.
            self.measured_at = 0;
        }
    }

    /// What it does beside others, if that is set.
    pub(crate) fn sharing(&self) -> Option<Sharing> {
        self.imposed.sharing
    }

    /// Whether the worker holds leases at once with others that want the device as much.
    pub(crate) fn is_chosen_to_overlap(&self) -> bool {
        self.imposed.sharing == Some(Sharing::Overlap) && !self.is_dense()
    }

    /// The utilization in millionths; `None`: unknown.
    pub(crate) fn known_ppm(&self) -> Option<u64> {
        (self.alone.weight_ns >= turns::COMFORTABLE_TURN_NS).then_some(self.alone.ppm)
    }

    /// The utilization in millionths, or 1 while it is unknown.
    pub(crate) fn assumed_ppm(&self) -> u64 {
        self.known_ppm().unwrap_or(WHOLE).min(WHOLE)
    }

    /// The part of the device's time that the worker would use, as far as is known: beside others it has work queued
    /// for longer than it takes.
    pub(crate) fn wants_ppm(&self) -> u64 {
        self.assumed_ppm().max(self.lately.backlog.ppm).min(WHOLE)
    }

    /// Whether the worker always has work queued, beside others, although it is sparse.
    pub(crate) fn is_unclear(&self) -> bool {
        !self.is_dense() && self.lately.backlog.ppm >= DENSE_PPM
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
        // An old measurement is replaced by the next one.
        let stale = now.saturating_sub(self.measured_at) >= MEMORY_NS;
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

    fn classify(&mut self) {
        if let Some(ppm) = self.known_ppm() {
            // Decisive is for how much of all time the device would be idle because of this worker.
            let holds_ppm = self.seen.holds.map_or(WHOLE, |holds| holds.ppm);
            let idle_ppm = share_of(WHOLE.saturating_sub(ppm), holds_ppm);
            let fills = turns::is_dense(Some(WHOLE.saturating_sub(idle_ppm)));
            self.class = if fills { Class::Dense } else { Class::Sparse };
        }
    }

    /// Records the number of launches completed so far. Returns how many are new.
    pub(crate) fn launched(&mut self, launches: u64) -> u64 {
        let before = *self.seen.launches.get_or_insert(launches);
        self.seen.launches = Some(launches.max(before));
        launches.saturating_sub(before)
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
        assert!(observe(&mut density, 7, Some(700_000), 60) > 650_000);
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
