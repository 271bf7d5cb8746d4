//! How much of the time that a worker holds the device it really uses.

use limits::units::PPM_ONE;

use super::tuning::Tuning;
use super::worker::Company;

/// Whether a worker fills the device by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// It does, or may do: two of them at once only slow each other down.
    Dense,
    /// It leaves the device idle part of the time, which others can use.
    Sparse,
}

/// A part in millionths; of nothing, none.
pub(super) fn ratio_ppm(part: u64, whole: u64) -> u64 {
    let ppm = (u128::from(part) * u128::from(PPM_ONE)).checked_div(u128::from(whole));
    u64::try_from(ppm.unwrap_or(0)).unwrap_or(u64::MAX)
}

/// A mean over the last so many nanoseconds, of values in millionths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Mean {
    ppm: u64,
    weight_ns: u64,
}

impl Mean {
    fn add(&mut self, ppm: u64, for_ns: u64, memory_ns: u64) {
        let kept = u128::from(self.weight_ns.min(memory_ns.saturating_sub(for_ns)));
        let sum = u128::from(self.ppm) * kept + u128::from(ppm) * u128::from(for_ns);
        let mean = sum.checked_div(kept + u128::from(for_ns)).unwrap_or(self.ppm.into());
        self.ppm = u64::try_from(mean).unwrap_or(u64::MAX);
        self.weight_ns = self.weight_ns.saturating_add(for_ns).min(memory_ns);
    }

    /// As [`Self::add`], but what was known before hardly counts. What was known stays so.
    fn renew(&mut self, ppm: u64, for_ns: u64, known_ns: u64) {
        let known = self.weight_ns >= known_ns;
        self.weight_ns = self.weight_ns.min(for_ns / 8);
        self.add(ppm, for_ns, u64::MAX);
        if known {
            self.weight_ns = self.weight_ns.max(known_ns);
        }
    }
}

/// The density of one worker: time used in relation to time held, while nobody slows it down.
#[derive(Clone, Copy, Debug)]
pub(super) struct Density {
    alone: Mean,
    class: Class,
    measured_at: u64,
    /// When it was first told of.
    began_at: u64,
    /// What it used and had queued lately, slowed down or not.
    rate: Mean,
    backlog: Mean,
    /// The same while others held as well.
    crowded: Mean,
    crowded_backlog: Mean,
    /// Rate and backlog at the last probe.
    at_probe: Option<(u64, u64)>,
    /// Whether it is taken for dense on suspicion.
    suspected: Option<Suspicion>,
    /// No suspicion before this.
    trusted_until: u64,
    /// Whether the last that was told of it says little about its density.
    in_doubt: bool,
    probe_every_ns: u64,
    /// Estimates are to be multiplied by this, in millionths.
    calibration: Mean,
}

/// It may have come to fill the device, and its next turn is to tell.
#[derive(Clone, Copy, Debug)]
struct Suspicion {
    /// What it was taken for.
    before: Class,
    /// When that is given up.
    until: u64,
    /// How much time alone tells enough.
    wanted_ns: u64,
    /// Time alone that was told of since.
    alone_ns: u64,
}

/// One interval of a lease, as it is believed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Interval {
    pub(super) held_ns: u64,
    /// Calibrated where other workers held as well.
    pub(super) worked_ns: u64,
    pub(super) backlogged_ns: u64,
    pub(super) company: Company,
}

impl Density {
    pub(super) fn unknown(tuning: &Tuning) -> Self {
        Self {
            alone: Mean::default(),
            class: Class::Dense,
            measured_at: 0,
            began_at: 0,
            rate: Mean::default(),
            backlog: Mean::default(),
            crowded: Mean::default(),
            crowded_backlog: Mean::default(),
            at_probe: None,
            suspected: None,
            trusted_until: 0,
            in_doubt: false,
            probe_every_ns: tuning.probe_every_ns,
            calibration: Mean { ppm: PPM_ONE.into(), weight_ns: 0 },
        }
    }

    pub(super) fn is_dense(&self) -> bool {
        self.class == Class::Dense
    }

    /// The density, as soon as it is known.
    pub(super) fn known_ppm(&self, tuning: &Tuning) -> Option<u64> {
        (self.alone.weight_ns >= tuning.known_ns).then_some(self.alone.ppm)
    }

    /// The density, or what is assumed until it is known.
    pub(super) fn assumed_ppm(&self, tuning: &Tuning) -> u64 {
        self.known_ppm(tuning).unwrap_or(PPM_ONE.into()).min(PPM_ONE.into())
    }

    /// What it has used lately of the time held.
    pub(super) fn rate_ppm(&self) -> u64 {
        if self.rate.weight_ns == 0 { PPM_ONE.into() } else { self.rate.ppm }
    }

    /// What it has used lately of the time in which others held as well.
    pub(super) fn crowded_ppm(&self) -> u64 {
        if self.crowded.weight_ns == 0 { self.rate_ppm() } else { self.crowded.ppm }
    }

    /// An estimate, corrected by what was learnt of this worker's estimates.
    pub(super) fn calibrated(&self, estimated_ns: u64) -> u64 {
        let ns = u128::from(estimated_ns) * u128::from(self.calibration.ppm);
        u64::try_from(ns / u128::from(PPM_ONE)).unwrap_or(u64::MAX)
    }

    /// The worker had the device to itself and kept it busy: what should have been estimated is known.
    pub(super) fn calibrate(&mut self, held_ns: u64, estimated_ns: u64, tuning: &Tuning) {
        const LEAST_NS: u64 = 500_000;
        // What is far off is no error of estimates: the device had other work, or work that nobody told of.
        if held_ns >= LEAST_NS && estimated_ns >= held_ns / 2 {
            let ratio = ratio_ppm(held_ns, estimated_ns).clamp(800_000, 1_500_000);
            self.calibration.add(ratio, held_ns, tuning.memory_ns);
        }
    }

    /// Learns from an interval.
    pub(super) fn observe(&mut self, seen: Interval, now: u64, tuning: &Tuning) {
        if seen.held_ns == 0 {
            return;
        }
        if self.began_at == 0 {
            self.began_at = now;
        }
        let used = ratio_ppm(seen.worked_ns, seen.held_ns).min(PPM_ONE.into());
        let backlog = ratio_ppm(seen.backlogged_ns, seen.held_ns);
        self.rate.add(used, seen.held_ns, tuning.memory_ns / 2);
        self.backlog.add(backlog, seen.held_ns, tuning.memory_ns / 2);
        let company = seen.company;
        if company.others > 0 {
            self.crowded.add(used, seen.held_ns, tuning.memory_ns / 2);
            self.crowded_backlog.add(backlog, seen.held_ns, tuning.memory_ns / 2);
        }
        // Where nobody had to wait for the others, what each did is what it would do alone: together they left
        // the device idle at times, and what was queued was being done. A single interval says too little.
        let alike = |used: u64, backlog: u64| {
            company.rates_ppm.saturating_add(used) < tuning.saturated_ppm
                && backlog < used.saturating_add(tuning.waiting_ppm)
        };
        let lately = || alike(self.crowded.ppm, self.crowded_backlog.ppm);
        // Slices of one that fills it are in the way of every single launch.
        let beside_sparse = || !company.dense && alike(used, backlog) && lately();
        let undisturbed = company.others == 0 || beside_sparse();
        // The hardware gives equal slices to those that want all of it: one that gets less wants less.
        let slice = u64::from(PPM_ONE) / (company.others + 1);
        let wants_less = self.crowded.ppm < slice / 5 * 3
            && self.crowded_backlog.ppm < u64::from(PPM_ONE) / 2
            && self.known_ppm(tuning).is_some_and(|known| known < self.crowded.ppm * 2);
        self.in_doubt = !(undisturbed || wants_less);
        let stale = now.saturating_sub(self.measured_at) >= tuning.stale_ns
            || self.suspected.is_some_and(|suspicion| suspicion.alone_ns == 0);
        // A moment says too little to replace what was known.
        let counts = undisturbed && (!stale || seen.held_ns >= tuning.shortest_ns);
        if counts && stale {
            self.alone.renew(used, seen.held_ns, tuning.known_ns);
        } else if counts {
            self.alone.add(used, seen.held_ns, tuning.memory_ns);
        } else if self.crowded_ppm() > self.alone.ppm && self.known_ppm(tuning).is_some() {
            // Slowed down, it can only look sparser than it is.
            self.alone.add(self.crowded_ppm(), seen.held_ns, tuning.memory_ns);
        }
        if counts {
            self.measured_at = now;
        }
        self.classify(tuning);
        if company.others == 0
            && let Some(suspicion) = &mut self.suspected
        {
            suspicion.alone_ns = suspicion.alone_ns.saturating_add(seen.held_ns);
            if suspicion.alone_ns >= suspicion.wanted_ns {
                self.end_suspicion(now, tuning);
            }
        }
    }

    /// Whether its density can only be learnt by giving it the device alone, and it is time to.
    pub(super) fn wants_probe(&self, now: u64, tuning: &Tuning) -> bool {
        // Busier neighbours make for less use and more waiting, a program that does something else for
        // more of both or less of both.
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
        let every = match self.at_probe {
            Some(then) if !changed(then) => self.probe_every_ns,
            _ => tuning.probe_every_ns,
        };
        let never = self.known_ppm(tuning).is_none();
        self.in_doubt && (never || now.saturating_sub(self.measured_at) >= every)
    }

    /// Since when its density is not known for sure.
    pub(super) fn measured_at(&self) -> u64 {
        self.measured_at
    }

    /// A probe begins: what is known before it is compared with later.
    pub(super) fn probe_begins(&mut self) -> Class {
        self.at_probe = Some((self.rate.ppm, self.backlog.ppm));
        self.class
    }

    /// Whether it did not fill the device, and has come to have work queued always: it may well do now.
    pub(super) fn is_suspect(&self, now: u64, tuning: &Tuning) -> bool {
        let (_, before) = self.at_probe.unwrap_or_default();
        let comes = before < tuning.sparse_ppm && self.is_backlogged(tuning);
        let lasts = now.saturating_sub(self.measured_at) >= tuning.suspicion_ns;
        let may_be = !self.is_dense() || self.known_ppm(tuning).is_none();
        may_be && self.in_doubt && comes && lasts && now >= self.trusted_until
    }

    /// Whether it may fill the device, for all that is known, and a probe is due.
    pub(super) fn is_unsure(&self, now: u64, tuning: &Tuning) -> bool {
        !self.is_dense() && self.is_backlogged(tuning) && self.wants_probe(now, tuning)
    }

    /// Whether it has work queued nearly always.
    pub(super) fn is_backlogged(&self, tuning: &Tuning) -> bool {
        self.backlog.ppm >= tuning.dense_ppm
    }

    /// Whether it has work queued more often than not.
    pub(super) fn is_often_backlogged(&self) -> bool {
        self.backlog.ppm >= u64::from(PPM_ONE) / 2
    }

    pub(super) fn is_suspected(&self) -> bool {
        self.suspected.is_some()
    }

    /// Takes it for dense until so much of a turn of its own has told.
    pub(super) fn suspect(&mut self, wanted_ns: u64, until: u64) {
        let before = self.probe_begins();
        self.suspected = Some(Suspicion { before, until, wanted_ns, alone_ns: 0 });
        self.class = Class::Dense;
    }

    /// Its turn did not come in time.
    pub(super) fn end_overdue_suspicion(&mut self, now: u64, tuning: &Tuning) {
        if self.suspected.is_some_and(|suspicion| suspicion.until <= now) {
            self.end_suspicion(now, tuning);
        }
    }

    fn end_suspicion(&mut self, now: u64, tuning: &Tuning) {
        let Some(Suspicion { before, .. }) = self.suspected.take() else { return };
        self.class = before;
        self.classify(tuning);
        self.probe_ends(before, now, tuning);
        self.trusted_until = now.saturating_add(self.probe_every_ns);
    }

    /// A probe is over. Where it told nothing new the next one can wait.
    pub(super) fn probe_ends(&mut self, before: Class, now: u64, tuning: &Tuning) {
        self.measured_at = now;
        // What programs do first says little of what they do later.
        let begins = now.saturating_sub(self.began_at) < tuning.beginning_ns;
        self.probe_every_ns = if self.class == before && !begins {
            self.probe_every_ns.saturating_mul(2).min(tuning.probe_rest_ns)
        } else {
            tuning.probe_every_ns
        };
        // The rates of the probe itself are not those beside others.
        if let Some((rate, backlog)) = self.at_probe {
            self.rate.ppm = rate;
            self.backlog.ppm = backlog;
        }
    }

    fn classify(&mut self, tuning: &Tuning) {
        if self.suspected.is_some() {
            return;
        }
        match self.known_ppm(tuning) {
            None => {}
            Some(ppm) if ppm >= tuning.dense_ppm => self.class = Class::Dense,
            Some(ppm) if ppm < tuning.sparse_ppm => self.class = Class::Sparse,
            Some(_) => {}
        }
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
    fn unknown_is_dense_and_a_class_has_hysteresis() {
        let tuning = Tuning::default();
        let mut density = Density::unknown(&tuning);
        assert!(density.is_dense() && density.known_ppm(&tuning).is_none());
        assert_eq!(observe(&mut density, 5, None, 1), 500_000);
        assert!(!density.is_dense());
        // 200 ms of held time are enough to forget most of it.
        assert!(observe(&mut density, 8, None, 40) < 850_000);
        assert!(!density.is_dense());
        observe(&mut density, 10, None, 40);
        assert!(density.is_dense());
        assert!(observe(&mut density, 8, None, 60) > 800_000);
        assert!(density.is_dense());
        observe(&mut density, 3, None, 40);
        assert!(!density.is_dense());
    }

    #[test]
    fn beside_others_it_is_measured_only_where_nobody_waits() {
        let tuning = Tuning::default();
        let mut density = Density::unknown(&tuning);
        observe(&mut density, 6, None, 20);
        // 300 + 300 thousandths: undisturbed.
        assert!(observe(&mut density, 3, Some(300_000), 60) < 330_000);
        // 300 + 700: says nothing, unless it is more than was known.
        assert!(observe(&mut density, 3, Some(700_000), 60) < 330_000);
        assert!(!density.wants_probe(density.measured_at + 999 * MS, &tuning));
        assert!(density.wants_probe(density.measured_at + 1_000 * MS, &tuning));
        assert!(observe(&mut density, 7, Some(700_000), 60) > 650_000);
    }

    #[test]
    fn probes_become_rare_while_nothing_changes() {
        let tuning = Tuning { beginning_ns: 0, ..Tuning::default() };
        let mut density = Density::unknown(&tuning);
        observe(&mut density, 5, None, 20);
        observe(&mut density, 4, Some(600_000), 20);
        for every in [2, 4, 8, 8] {
            let before = density.probe_begins();
            density.observe(interval(5, None), density.measured_at + 1_000 * MS, &tuning);
            density.probe_ends(before, density.measured_at, &tuning);
            observe(&mut density, 4, Some(600_000), 1);
            let at = density.measured_at;
            assert!(!density.wants_probe(at + (every * 1_000 - 1) * MS, &tuning));
            assert!(density.wants_probe(at + every * 1_000 * MS, &tuning));
        }
        // It does something else now: at once.
        observe(&mut density, 7, Some(600_000), 10);
        assert!(density.wants_probe(density.measured_at + 1_000 * MS, &tuning));
    }

    #[test]
    fn calibration_is_bounded() {
        let tuning = Tuning::default();
        let mut density = Density::unknown(&tuning);
        assert_eq!(density.calibrated(100), 100);
        density.calibrate(10 * MS, 8 * MS, &tuning);
        assert_eq!(density.calibrated(100), 125);
        for _ in 0..200 {
            density.calibrate(10 * MS, 5 * MS, &tuning);
            density.calibrate(10 * MS, 4 * MS, &tuning);
        }
        assert!((149..=150).contains(&density.calibrated(100)));
        for _ in 0..200 {
            density.calibrate(10 * MS, u64::MAX, &tuning);
        }
        assert!((80..=81).contains(&density.calibrated(100)));
    }
}
