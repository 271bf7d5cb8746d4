//! How long launches have recently taken, absolutely and relative to their estimates. The governor measures this; batch
//! sizes and limits of outstanding work follow from it.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;
use limits::turns::ratio_ppm;

use crate::tuning::{FAR_OFF, LONG_NS, MOST_OFF_PPM, OFF_PPM, SURELY_SHORT_NS};

/// Work takes as long as estimated, in millionths.
const AS_ESTIMATED_PPM: u64 = 1_000_000;

/// Recent launch durations; shared by threads.
#[derive(Debug)]
pub struct LaunchTimes {
    /// Mean duration of a launch; 0: unknown.
    each_ns: AtomicU64,
    took_ppm: AtomicU64,
}

impl Default for LaunchTimes {
    fn default() -> Self {
        Self { each_ns: AtomicU64::new(0), took_ppm: AtomicU64::new(AS_ESTIMATED_PPM) }
    }
}

impl LaunchTimes {
    /// The recent mean duration of a launch in nanoseconds; 0: unknown.
    #[inline]
    pub fn each_ns(&self) -> u64 {
        self.each_ns.load(Relaxed)
    }

    /// Whether launches take notably longer or shorter than estimated.
    #[inline]
    pub fn estimates_are_off(&self) -> bool {
        let took = self.took_ppm.load(Relaxed);
        !(AS_ESTIMATED_PPM * AS_ESTIMATED_PPM / OFF_PPM..=OFF_PPM).contains(&took)
    }

    /// How much longer than estimated launches take, in millionths; insignificant differences count as none.
    #[inline]
    fn longer_ppm(&self) -> u64 {
        Some(self.took_ppm.load(Relaxed)).filter(|&took| took > OFF_PPM).unwrap_or(AS_ESTIMATED_PPM)
    }

    /// Converts estimated nanoseconds to expected real nanoseconds.
    #[inline]
    pub fn really(&self, estimated_ns: u64) -> u64 {
        estimated_ns.saturating_mul(self.longer_ppm()) / AS_ESTIMATED_PPM
    }

    /// Converts real nanoseconds to the estimated nanoseconds of the work done in them.
    #[inline]
    pub fn estimated(&self, ns: u64) -> u64 {
        ns.saturating_mul(AS_ESTIMATED_PPM) / self.longer_ppm()
    }

    /// Records that `launches` launches, estimated at `estimated_ns`, were done within `ns`. `busy`: the device always
    /// had work; otherwise `ns` is an upper bound for their time.
    pub fn add(&self, launches: u64, estimated_ns: u64, ns: u64, busy: bool) {
        let followed = |new: u64, old: u64, at_once: bool| match new > old {
            true if !busy => old,
            true if at_once => new,
            true => old + (new - old) / 4,
            false => old - (old - new) / 4,
        };
        if estimated_ns > 0 {
            let old = self.took_ppm.load(Relaxed);
            let new = ratio_ppm(ns, estimated_ns).min(MOST_OFF_PPM);
            // Work done in this time may have begun before it, so unless the device was busy all the time, the figure
            // is too low.
            let new = if busy { new } else { new.max(AS_ESTIMATED_PPM) };
            self.took_ppm.store(followed(new, old, new / 2 > old), Relaxed);
        }
        let Some(each_ns) = ns.checked_div(launches) else { return };
        let old = self.each_ns();
        if busy || old > 0 {
            // An increase counts at once: a batch of long launches delays others.
            self.each_ns.store(followed(each_ns, old, true).max(1), Relaxed);
        } else if each_ns <= SURELY_SHORT_NS {
            self.each_ns.store(each_ns.max(1), Relaxed);
        }
    }

    /// Records that work estimated at `estimated_ns` was not done after `ns`.
    pub fn took_at_least(&self, estimated_ns: u64, ns: u64) {
        if ns > LONG_NS && ns / FAR_OFF > estimated_ns {
            let took = ratio_ppm(ns, estimated_ns.max(1)).min(MOST_OFF_PPM);
            self.took_ppm.fetch_max(took, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn little_does_not_matter() {
        let times = LaunchTimes::default();
        (0..20).for_each(|_| times.add(10, 4 * MS, 4 * MS + MS / 2, true));
        assert!(!times.estimates_are_off());
        assert_eq!((times.really(MS), times.estimated(MS)), (MS, MS));
        assert_eq!(times.each_ns(), 450_000);
    }

    #[test]
    fn far_longer_ones_count_at_once_and_are_forgotten_slowly() {
        let times = LaunchTimes::default();
        times.add(10, MS, 4 * MS, true);
        assert!(times.estimates_are_off());
        assert_eq!((times.really(MS), times.estimated(40 * MS)), (4 * MS, 10 * MS));
        times.add(10, 4 * MS, 4 * MS, true);
        assert_eq!(times.really(MS), 3_250_000);
        (0..10).for_each(|_| times.add(10, 4 * MS, 4 * MS, true));
        assert!(!times.estimates_are_off());
    }

    /// A pause is not work, but the launches took at most the whole time.
    #[test]
    fn where_the_device_was_idle_they_took_no_longer() {
        let times = LaunchTimes::default();
        times.add(10, MS, 10 * MS, false);
        assert_eq!((times.really(MS), times.each_ns()), (MS, 0), "one may take 1 ms");
        times.took_at_least(MS, 1_000 * MS);
        assert_eq!(times.really(MS), 64 * MS);
        (0..20).for_each(|_| times.add(10, 4 * MS, 4 * MS, false));
        assert_eq!(times.really(MS), MS);
        (0..20).for_each(|_| times.add(10, 4 * MS, MS, false));
        assert!(!times.estimates_are_off(), "more was seen to be done than began meanwhile");
    }

    /// Otherwise its batches would be as small as those of unknown launches.
    #[test]
    fn a_program_that_waits_for_its_cpu_has_short_launches() {
        let times = LaunchTimes::default();
        times.add(200, 0, MS, false);
        assert_eq!(times.each_ns(), 5_000);
        times.add(2, 0, MS, false);
        assert_eq!(times.each_ns(), 5_000, "idle time is no launch's");
        times.add(1_000, 0, MS, false);
        assert_eq!(times.each_ns(), 4_000);
        times.add(2, 0, MS, true);
        assert_eq!(times.each_ns(), MS / 2);
        (0..20).for_each(|_| times.add(200, 0, MS, false));
        assert!(times.each_ns() < 10_000);
    }

    #[test]
    fn a_short_wait_tells_nothing() {
        let times = LaunchTimes::default();
        times.took_at_least(0, LONG_NS);
        times.took_at_least(10 * MS, 19 * MS);
        assert!(!times.estimates_are_off());
        times.took_at_least(10 * MS, 21 * MS);
        assert_eq!(times.really(10 * MS), 21 * MS);
    }
}
