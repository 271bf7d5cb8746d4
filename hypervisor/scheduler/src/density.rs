//! Utilization: how much of the time that a worker holds the device it really uses.

use limits::turns::{self, Mean, ratio_ppm};
use limits::units::PPM_ONE;

use super::tuning::Tuning;
use super::worker::Company;

/// Whether a worker fills the device by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// It does, or may do. Two of them at once only slow each other down.
    Dense,
    /// It leaves the device idle part of the time, and others can use that time.
    Sparse,
}

/// A utilization that was last measured this long ago gives way to the next measurement.
const STALE_NS: u64 = turns::MEMORY_NS;
/// Time over which it is averaged for what part of it a worker holds the device.
const HOLDS_OVER_NS: u64 = 5 * turns::MEMORY_NS;
/// How much longer the time between turns alone becomes at most.
const LONGEST_REST: u64 = 8;

/// The utilization of one worker while no other slows it down: time used in relation to time held.
#[derive(Clone, Copy, Debug)]
pub(super) struct Density {
    alone: Mean,
    class: Class,
    /// Its session's reports do not add up with those of others.
    distrusted: bool,
    /// Its session takes turns with another one that holds several devices and fills one of them.
    among_dense: bool,
    measured_at: u64,
    /// When its first report came, and the last one.
    began_at: u64,
    told_at: u64,
    /// For what part of all time it holds the device. Known of workers that let go of it when they do not use it.
    holds: Option<Mean>,
    /// What it used and had queued lately, slowed down or not.
    rate: Mean,
    backlog: Mean,
    /// The same, while others held as well.
    crowded: Mean,
    crowded_backlog: Mean,
    /// Rate and backlog before its last turn alone.
    then: Option<(u64, u64)>,
    /// Set while it is taken for dense without a measurement.
    suspected: Option<Suspicion>,
    /// Whether the last report says little about its utilization.
    in_doubt: bool,
    alone_every_ns: u64,
    /// Estimates are multiplied by this, in millionths.
    calibration: Mean,
}

/// The worker may have begun to fill the device. Its next turn is measured to find out.
#[derive(Clone, Copy, Debug)]
struct Suspicion {
    /// What it was taken for before.
    before: Class,
    /// When the suspicion is dropped.
    until: u64,
    /// How much time alone is enough to decide.
    wanted_ns: u64,
    /// How much time alone has been reported since.
    alone_ns: u64,
}

/// One interval of a lease, with the reported values that are believed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Interval {
    pub(super) held_ns: u64,
    /// Calibrated if there were co-holders.
    pub(super) worked_ns: u64,
    pub(super) backlogged_ns: u64,
    pub(super) company: Company,
}

impl Density {
    pub(super) fn unknown(tuning: &Tuning) -> Self {
        Self {
            alone: Mean::default(),
            class: Class::Dense,
            distrusted: false,
            among_dense: false,
            measured_at: 0,
            began_at: 0,
            told_at: 0,
            holds: None,
            rate: Mean::default(),
            backlog: Mean::default(),
            crowded: Mean::default(),
            crowded_backlog: Mean::default(),
            then: None,
            suspected: None,
            in_doubt: false,
            alone_every_ns: tuning.alone_every_ns,
            calibration: Mean { ppm: PPM_ONE.into(), weight_ns: 0 },
        }
    }

    pub(super) fn is_dense(&self) -> bool {
        self.fills() || self.among_dense
    }

    /// Whether it is dense by itself.
    pub(super) fn fills(&self) -> bool {
        self.class == Class::Dense || self.distrusted
    }

    pub(super) fn set_among_dense(&mut self, among_dense: bool) {
        self.among_dense = among_dense;
    }

    /// Its reports do not count for its class from now on, or they count again.
    pub(super) fn distrust(&mut self, distrusted: bool) {
        self.distrusted = distrusted;
    }

    /// The utilization, if it is known.
    pub(super) fn known_ppm(&self) -> Option<u64> {
        (self.alone.weight_ns >= turns::COMFORTABLE_TURN_NS).then_some(self.alone.ppm)
    }

    /// The utilization, or what is assumed until it is known.
    pub(super) fn assumed_ppm(&self) -> u64 {
        self.known_ppm().unwrap_or(PPM_ONE.into()).min(PPM_ONE.into())
    }

    /// What part of the time held it has used lately.
    pub(super) fn rate_ppm(&self) -> u64 {
        if self.rate.weight_ns == 0 { PPM_ONE.into() } else { self.rate.ppm }
    }

    /// What part of the time held together with others it has used lately.
    pub(super) fn crowded_ppm(&self) -> u64 {
        if self.crowded.weight_ns == 0 { self.rate_ppm() } else { self.crowded.ppm }
    }

    /// An estimate, corrected by the error known of this worker's estimates.
    pub(super) fn calibrated(&self, estimated_ns: u64) -> u64 {
        let ns = u128::from(estimated_ns) * u128::from(self.calibration.ppm);
        u64::try_from(ns / u128::from(PPM_ONE)).unwrap_or(u64::MAX)
    }

    /// Learns the error of this worker's estimates. The worker had the device to itself and kept it
    /// busy, so the right value is known.
    pub(super) fn calibrate(&mut self, held_ns: u64, estimated_ns: u64) {
        const LEAST_NS: u64 = 500_000;
        // A large difference is no estimation error: the device had other work, or work that was
        // not reported.
        if held_ns >= LEAST_NS && estimated_ns >= held_ns / 2 {
            let ratio = ratio_ppm(held_ns, estimated_ns).clamp(800_000, 1_500_000);
            self.calibration.add(ratio, held_ns, turns::MEMORY_NS);
        }
    }

    /// Learns from one interval.
    pub(super) fn observe(&mut self, seen: Interval, now: u64, tuning: &Tuning) {
        if seen.held_ns == 0 {
            return;
        }
        if self.began_at == 0 {
            self.began_at = now;
        } else if let Some(holds) = &mut self.holds {
            let since = now.saturating_sub(self.told_at).max(seen.held_ns);
            holds.add(ratio_ppm(seen.held_ns, since), since, HOLDS_OVER_NS);
        }
        self.told_at = now;
        let used = ratio_ppm(seen.worked_ns, seen.held_ns).min(PPM_ONE.into());
        let backlog = ratio_ppm(seen.backlogged_ns, seen.held_ns);
        self.rate.add(used, seen.held_ns, turns::MEMORY_NS / 2);
        self.backlog.add(backlog, seen.held_ns, turns::MEMORY_NS / 2);
        let company = seen.company;
        if company.others > 0 {
            self.crowded.add(used, seen.held_ns, turns::MEMORY_NS / 2);
            self.crowded_backlog.add(backlog, seen.held_ns, turns::MEMORY_NS / 2);
        }
        // Beside co-holders a worker behaves as it would alone if none had to wait for the others:
        // together they left the device idle at times, and queued work was being executed. The last
        // intervals count: a single one is too little evidence.
        let (lately, queued) = (self.crowded.ppm, self.crowded_backlog.ppm);
        let as_alone = company.rates_ppm.saturating_add(lately) < turns::DENSE_PPM
            && queued < lately.saturating_add(u64::from(PPM_ONE) - turns::DENSE_PPM);
        // The time slices of a dense co-holder delay every single launch.
        let beside_sparse = !company.dense && as_alone;
        let undisturbed = company.others == 0 || beside_sparse;
        // The hardware gives equal slices to all that want the whole device. A worker that gets
        // less wants less.
        let slice = u64::from(PPM_ONE) / (company.others + 1);
        let wants_less = self.crowded.ppm < slice / 5 * 3
            && self.crowded_backlog.ppm < u64::from(PPM_ONE) / 2
            && self.known_ppm().is_some_and(|known| known < self.crowded.ppm * 2);
        self.in_doubt = !(undisturbed || wants_less);
        let stale = now.saturating_sub(self.measured_at) >= STALE_NS
            || self.suspected.is_some_and(|suspicion| suspicion.alone_ns == 0);
        // A very short interval says too little to replace what was known.
        let counts = undisturbed && (!stale || seen.held_ns >= turns::SHORTEST_TURN_NS);
        if counts && stale {
            renew(&mut self.alone, used, seen.held_ns, turns::COMFORTABLE_TURN_NS);
        } else if counts {
            self.alone.add(used, seen.held_ns, turns::MEMORY_NS);
        } else if self.crowded_ppm() > self.alone.ppm && self.known_ppm().is_some() {
            // A worker that is slowed down can only look sparser than it is.
            self.alone.add(self.crowded_ppm(), seen.held_ns, turns::MEMORY_NS);
        }
        if counts {
            self.measured_at = now;
        }
        self.classify();
        if company.others == 0
            && let Some(suspicion) = &mut self.suspected
        {
            suspicion.alone_ns = suspicion.alone_ns.saturating_add(seen.held_ns);
            if suspicion.alone_ns >= suspicion.wanted_ns {
                self.end_suspicion(now, tuning);
            }
        }
    }

    /// Whether only a turn alone can show its utilization, and one is due.
    pub(super) fn wants_turn_alone(&self, now: u64, tuning: &Tuning) -> bool {
        if !self.in_doubt {
            return false;
        }
        // Busier co-holders lower a worker's use and raise its backlog. A program that now does
        // something else changes both in the same direction.
        let changed = |(rate, backlog): (u64, u64)| {
            const NOTABLE_PPM: u64 = 150_000;
            const SLIGHT_PPM: u64 = 50_000;
            let differs = |was: u64, is: u64| {
                (is > was.saturating_add(NOTABLE_PPM), is.saturating_add(SLIGHT_PPM) < was)
            };
            let more = (differs(rate, self.rate.ppm), differs(backlog, self.backlog.ppm));
            let less = (differs(self.rate.ppm, rate), differs(self.backlog.ppm, backlog));
            [more, less].iter().any(|((a, not_a), (b, not_b))| (*a || *b) && !(*not_a || *not_b))
        };
        let every = match self.then {
            Some(before) if !changed(before) => self.alone_every_ns,
            _ => tuning.alone_every_ns,
        };
        let never = self.known_ppm().is_none();
        never || now.saturating_sub(self.measured_at) >= every
    }

    /// When its utilization was last known for certain.
    pub(super) fn measured_at(&self) -> u64 {
        self.measured_at
    }

    /// A turn alone begins. Present values are kept, to be compared with later ones.
    pub(super) fn begin_turn_alone(&mut self) -> Class {
        self.then = Some((self.rate.ppm, self.backlog.ppm));
        self.class
    }

    /// Whether it may have begun to fill the device: it did not, and now always has work queued.
    pub(super) fn is_suspect(&self) -> bool {
        let (_, before) = self.then.unwrap_or_default();
        let comes = before < turns::DENSE_PPM && self.is_backlogged();
        let may_be = !self.is_dense() || self.known_ppm().is_none();
        may_be && self.in_doubt && comes
    }

    /// Whether it has work queued nearly always.
    pub(super) fn is_backlogged(&self) -> bool {
        self.backlog.ppm >= turns::DENSE_PPM
    }

    pub(super) fn suspected_until(&self) -> Option<u64> {
        self.suspected.map(|suspicion| suspicion.until)
    }

    pub(super) fn is_suspected(&self) -> bool {
        self.suspected.is_some()
    }

    /// Takes it for dense until it was measured for `wanted_ns` of an exclusive turn, or until
    /// `until`.
    pub(super) fn suspect(&mut self, wanted_ns: u64, until: u64) {
        let before = self.begin_turn_alone();
        self.suspected = Some(Suspicion { before, until, wanted_ns, alone_ns: 0 });
        self.class = Class::Dense;
    }

    /// Ends the suspicion if its turn did not come in time.
    pub(super) fn end_overdue_suspicion(&mut self, now: u64, tuning: &Tuning) {
        if self.suspected.is_some_and(|suspicion| suspicion.until <= now) {
            self.end_suspicion(now, tuning);
        }
    }

    fn end_suspicion(&mut self, now: u64, tuning: &Tuning) {
        let Some(Suspicion { before, .. }) = self.suspected.take() else { return };
        self.class = before;
        self.classify();
        self.end_turn_alone(before, now, tuning);
    }

    /// A turn alone is over. If it showed nothing new, the next one can wait longer.
    pub(super) fn end_turn_alone(&mut self, before: Class, now: u64, tuning: &Tuning) {
        self.measured_at = now;
        // A program's first second is not typical: it loads and warms up.
        let begins = now.saturating_sub(self.began_at) < tuning.alone_every_ns;
        self.alone_every_ns = if self.class == before && !begins {
            self.alone_every_ns.saturating_mul(2).min(tuning.alone_every_ns * LONGEST_REST)
        } else {
            tuning.alone_every_ns
        };
    }

    fn classify(&mut self) {
        if self.suspected.is_some() {
            return;
        }
        if let Some(ppm) = self.known_ppm() {
            // What matters is how much of all time the device would be idle because of it.
            let holds_ppm = self.holds.map_or(u64::from(PPM_ONE), |holds| holds.ppm);
            let idle_ppm = super::share_of(u64::from(PPM_ONE).saturating_sub(ppm), holds_ppm);
            let fills = turns::is_dense(Some(u64::from(PPM_ONE).saturating_sub(idle_ppm)));
            self.class = if fills { Class::Dense } else { Class::Sparse };
        }
    }

    /// Whether the worker lets go of the device as soon as it does not use it.
    pub(super) fn lets_go(&mut self, lets_go: bool) {
        let all = Mean { ppm: PPM_ONE.into(), weight_ns: HOLDS_OVER_NS };
        self.holds = lets_go.then(|| self.holds.unwrap_or(all));
    }
}

/// Adds a value to a mean, so that the earlier mean hardly counts. A mean that was known stays known.
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
        let tuning = Tuning::default();
        for n in 1..=times {
            let now = density.measured_at + if others.is_none() { 10 * MS } else { n };
            density.observe(interval(used_ms, others), now, &tuning);
        }
        density.alone.ppm
    }

    #[test]
    fn unknown_is_dense_and_the_mean_decides() {
        let tuning = Tuning::default();
        let mut density = Density::unknown(&tuning);
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
        let tuning = Tuning::default();
        let mut density = Density::unknown(&tuning);
        observe(&mut density, 6, None, 20);
        // 300 + 300 thousandths: undisturbed.
        assert!(observe(&mut density, 3, Some(300_000), 60) < 330_000);
        // 300 + 700: does not count, unless it is more than was known.
        assert!(observe(&mut density, 3, Some(700_000), 60) < 330_000);
        assert!(!density.wants_turn_alone(density.measured_at + 999 * MS, &tuning));
        assert!(density.wants_turn_alone(density.measured_at + 1_000 * MS, &tuning));
        assert!(observe(&mut density, 7, Some(700_000), 60) > 650_000);
    }

    #[test]
    fn turns_alone_become_rare_while_nothing_changes() {
        let tuning = Tuning::default();
        let mut density = Density::unknown(&tuning);
        observe(&mut density, 5, None, 20);
        observe(&mut density, 4, Some(600_000), 20);
        for every in [2, 4, 8, 8] {
            let before = density.begin_turn_alone();
            density.observe(interval(5, None), density.measured_at + 1_000 * MS, &tuning);
            density.end_turn_alone(before, density.measured_at, &tuning);
            observe(&mut density, 4, Some(600_000), 1);
            let at = density.measured_at;
            assert!(!density.wants_turn_alone(at + (every * 1_000 - 1) * MS, &tuning));
            assert!(density.wants_turn_alone(at + every * 1_000 * MS, &tuning));
        }
        // It does something else now: one is due at once.
        observe(&mut density, 7, Some(600_000), 10);
        assert!(density.wants_turn_alone(density.measured_at + 1_000 * MS, &tuning));
    }

    #[test]
    fn calibration_is_bounded() {
        let tuning = Tuning::default();
        let mut density = Density::unknown(&tuning);
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
