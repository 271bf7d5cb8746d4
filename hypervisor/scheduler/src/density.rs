//! Utilization: how much of the time that a worker holds the device it really uses.

use limits::turns::{self, DENSE_PPM, MEMORY_NS, Mean, ratio_ppm};

use crate::tuning::{
    ALONE_EVERY_NS, CALIBRATION_PPM, ERROR_PPM, HOLDS_OVER_NS, LONGEST_REST, NOTABLE_PPM,
    SHORTEST_REST_NS,
};
use crate::types::{WHOLE, portion, share_of};

/// Whether a worker fills the device by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// It does, or may do. Two of them at once only slow each other down.
    Dense,
    /// It leaves the device idle part of the time, and others can use that time.
    Sparse,
}

/// A worker's co-holders: the other workers that held during an interval, or a part of it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Company {
    /// How many they were at most. Workers with a revoked lease do not count.
    pub(crate) others: u64,
    /// The sum of what each uses of the time that it holds, in millionths.
    pub(crate) rates_ppm: u64,
    /// Whether one of them fills the device.
    pub(crate) dense: bool,
    /// Whether another session's work may have been on the device; a revoked lease counts, too.
    pub(crate) shared: bool,
}

impl Company {
    pub(crate) fn add(&mut self, density: &Density) {
        self.others += 1;
        self.rates_ppm = self.rates_ppm.saturating_add(density.rate_ppm());
        self.dense |= density.is_dense();
    }
}

/// What a worker used, and had queued, of the time that it held lately.
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

    /// Whether the worker does something else now. Busier co-holders lower a worker's use and raise its backlog. A program
    /// that now does something else changes both in the same direction.
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

/// The utilization of one worker while no other slows it down: time used in relation to time held.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Density {
    alone: Mean,
    class: Class,
    /// Its session's reports do not add up with those of others.
    distrusted: bool,
    /// Its session takes turns with another one that holds several devices and fills one of them.
    among_dense: bool,
    measured_at: u64,
    seen: Seen,
    /// Slowed down or not.
    lately: Lately,
    /// The same, while others held as well.
    crowded: Lately,
    /// Set while it is taken for dense without a measurement.
    suspected: Option<Suspicion>,
    /// Whether the last report says little about its utilization.
    in_doubt: bool,
    turns_alone: TurnsAlone,
    /// Estimates are multiplied by this, in millionths.
    calibration: Mean,
}

/// When a worker reported.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    /// When its first report came, and the last one.
    began_at: u64,
    told_at: u64,
    /// For what part of all time it holds the device. Known of workers that let go of it when they do not use it.
    holds: Option<Mean>,
}

/// A worker's turns alone.
#[derive(Clone, Copy, Debug)]
struct TurnsAlone {
    /// What it did before the last one.
    then: Option<Lately>,
    every_ns: u64,
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

    /// Whether it is dense by itself.
    pub(crate) fn fills(&self) -> bool {
        self.class == Class::Dense || self.distrusted
    }

    pub(crate) fn set_among_dense(&mut self, among_dense: bool) {
        self.among_dense = among_dense;
    }

    /// Its reports do not count for its class from now on, or they count again.
    pub(crate) fn distrust(&mut self, distrusted: bool) {
        self.distrusted = distrusted;
    }

    /// The utilization, if it is known.
    pub(crate) fn known_ppm(&self) -> Option<u64> {
        (self.alone.weight_ns >= turns::COMFORTABLE_TURN_NS).then_some(self.alone.ppm)
    }

    /// The utilization, or what is assumed until it is known.
    pub(crate) fn assumed_ppm(&self) -> u64 {
        self.known_ppm().unwrap_or(WHOLE).min(WHOLE)
    }

    /// What part of the time held it has used lately.
    pub(crate) fn rate_ppm(&self) -> u64 {
        if self.lately.rate.weight_ns == 0 { WHOLE } else { self.lately.rate.ppm }
    }

    /// What part of the time held together with others it has used lately.
    pub(crate) fn crowded_ppm(&self) -> u64 {
        if self.crowded.rate.weight_ns == 0 { self.rate_ppm() } else { self.crowded.rate.ppm }
    }

    /// An estimate, corrected by the error known of this worker's estimates.
    pub(crate) fn calibrated(&self, estimated_ns: u64) -> u64 {
        portion(estimated_ns, self.calibration.ppm, WHOLE)
    }

    /// Learns the error of this worker's estimates. The worker had the device to itself and kept it
    /// busy, so the right value is known.
    pub(crate) fn calibrate(&mut self, held_ns: u64, estimated_ns: u64) {
        // A large difference is no estimation error: the device had other work, or work that was
        // not reported.
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
        // What was last measured so long ago gives way to the next measurement.
        let stale = now.saturating_sub(self.measured_at) >= MEMORY_NS
            || self.suspected.is_some_and(|suspicion| suspicion.alone_ns == 0);
        // A very short interval says too little to replace what was known.
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

    /// Beside co-holders a worker behaves as it would alone if none had to wait for the others: together they left the
    /// device idle at times, and queued work was being executed. The last intervals count: a single one is too little
    /// evidence. The time slices of a dense co-holder delay every single launch.
    fn is_undisturbed(&self, company: Company) -> bool {
        let (used, queued) = (self.crowded.rate.ppm, self.crowded.backlog.ppm);
        let as_alone = company.rates_ppm.saturating_add(used) < DENSE_PPM
            && queued < used.saturating_add(WHOLE - DENSE_PPM);
        company.others == 0 || !company.dense && as_alone
    }

    /// The hardware gives equal slices to all that want the whole device. A worker that gets less wants less.
    fn wants_less_than_a_slice(&self, company: Company) -> bool {
        let slice = WHOLE / (company.others + 1);
        self.crowded.rate.ppm < slice / 5 * 3
            && self.crowded.backlog.ppm < WHOLE / 2
            && self.known_ppm().is_some_and(|known| known < self.crowded.rate.ppm * 2)
    }

    /// Whether only a turn alone can show its utilization, and one is due.
    pub(crate) fn wants_turn_alone(&self, now: u64) -> bool {
        let every = match self.turns_alone.then {
            Some(then) if !self.lately.differs_from(&then) => self.turns_alone.every_ns,
            _ => ALONE_EVERY_NS,
        };
        let due = || now.saturating_sub(self.measured_at) >= every;
        self.in_doubt && (self.known_ppm().is_none() || due())
    }

    /// When its utilization was last known for certain.
    pub(crate) fn measured_at(&self) -> u64 {
        self.measured_at
    }

    /// Whether it may have begun to fill the device: it did not, and now always has work queued.
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

    /// Takes it for dense until it was measured for `wanted_ns` of an exclusive turn, or until
    /// `until`. What it does at present is kept, to be compared with later.
    pub(crate) fn suspect(&mut self, wanted_ns: u64, until: u64) {
        self.turns_alone.then = Some(self.lately);
        self.suspected = Some(Suspicion { before: self.class, until, wanted_ns, alone_ns: 0 });
        self.class = Class::Dense;
    }

    /// Ends the suspicion if its turn did not come in time.
    pub(crate) fn end_overdue_suspicion(&mut self, now: u64) {
        if self.suspected.is_some_and(|suspicion| suspicion.until <= now) {
            self.end_suspicion(now);
        }
    }

    /// A turn alone is over. If it showed nothing new, the next one can wait longer.
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
            // What matters is how much of all time the device would be idle because of it.
            let holds_ppm = self.seen.holds.map_or(WHOLE, |holds| holds.ppm);
            let idle_ppm = share_of(WHOLE.saturating_sub(ppm), holds_ppm);
            let fills = turns::is_dense(Some(WHOLE.saturating_sub(idle_ppm)));
            self.class = if fills { Class::Dense } else { Class::Sparse };
        }
    }

    /// Whether the worker lets go of the device as soon as it does not use it.
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
        // 300 + 700: does not count, unless it is more than was known.
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
        // It does something else now: one is due at once.
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
