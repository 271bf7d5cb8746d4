//! Device time used in each of the last seconds, for "recent" figures. Kept in the session's page and in the daemon's
//! accounts.

/// Number of seconds kept.
pub const KEPT: usize = 16;
/// Window of "recent" figures, in nanoseconds.
pub const WINDOW_NS: u64 = 10 * SECOND_NS;

const SECOND_NS: u64 = 1_000_000_000;
const PPM: u128 = 1_000_000;

/// Use in one second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Second {
    /// Index of the second on the clock.
    pub number: u64,
    /// Device time used in it, in nanoseconds.
    pub used_ns: u64,
}

/// Use in the last seconds, on one clock. A second is stored at its index modulo [`KEPT`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recent(pub [Second; KEPT]);

impl Recent {
    /// Records use of the device for the `used_ns` before `now_ns`.
    pub fn note(&mut self, now_ns: u64, used_ns: u64) {
        let (mut end, mut left) = (now_ns, used_ns.min(KEPT as u64 * SECOND_NS));
        while left > 0 && end > 0 {
            let number = (end - 1) / SECOND_NS;
            let part = left.min(end - number * SECOND_NS);
            self.add(number, part);
            left -= part;
            end -= part;
        }
    }

    fn add(&mut self, number: u64, part_ns: u64) {
        let Some(second) = self.0.get_mut(place(number)) else { return };
        if second.number != number {
            *second = Second { number, used_ns: 0 };
        }
        second.used_ns = second.used_ns.saturating_add(part_ns);
    }

    /// Fraction of the last `window_ns` in which the device was used, in millionths. `None`: no time has passed.
    /// Between 0 and 1 for any content.
    #[must_use]
    pub fn share_ppm(&self, now_ns: u64, window_ns: u64) -> Option<u32> {
        let from = now_ns.saturating_sub(window_ns.min((KEPT as u64 - 1) * SECOND_NS));
        let used: u128 = self.0.iter().map(|second| within(*second, from, now_ns)).sum();
        share_ppm(used, now_ns - from)
    }
}

/// `used_ns` as a fraction of `of_ns`, in millionths, at most 1. `None`: `of_ns` is 0.
#[must_use]
pub fn share_ppm(used_ns: u128, of_ns: u64) -> Option<u32> {
    let ppm = used_ns.saturating_mul(PPM).checked_div(of_ns.into())?.min(PPM);
    u32::try_from(ppm).ok()
}

fn place(number: u64) -> usize {
    usize::try_from(number % KEPT as u64).unwrap_or(0)
}

/// Use in a second between two moments, assuming even use within the second.
fn within(second: Second, from: u64, to: u64) -> u128 {
    let Some(begin) = second.number.checked_mul(SECOND_NS) else { return 0 };
    let end = begin.saturating_add(SECOND_NS).min(to);
    let (seen, counted) = (end.saturating_sub(begin), end.saturating_sub(begin.max(from)));
    let used = u128::from(second.used_ns.min(seen));
    (used * u128::from(counted)).checked_div(seen.into()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: u64 = 1_000_000;

    /// Uses a fraction of the time from `from` to `to`, recorded every 20 ms.
    fn use_part(recent: &mut Recent, from: u64, to: u64, percent: u64) {
        for end in (from + 20 * MS..=to).step_by(20 * MS as usize) {
            recent.note(end, 20 * MS * percent / 100);
        }
    }

    fn share(recent: &Recent, now: u64) -> f64 {
        f64::from(recent.share_ppm(now, WINDOW_NS).unwrap()) / 1e4
    }

    #[test]
    fn a_steady_use_is_its_share_at_any_moment() {
        let mut recent = Recent::default();
        use_part(&mut recent, 0, 60_000 * MS, 30);
        for late in [0, 13, 500, 987] {
            let now = 60_000 * MS + late * MS;
            let mut recent = recent;
            use_part(&mut recent, 60_000 * MS, now, 30);
            assert!((share(&recent, now) - 30.0).abs() < 0.5, "{late}: {}", share(&recent, now));
        }
    }

    #[test]
    fn what_is_past_is_forgotten() {
        let mut recent = Recent::default();
        use_part(&mut recent, 0, 30_000 * MS, 100);
        assert!((share(&recent, 30_000 * MS) - 100.0).abs() < 0.1);
        assert!((share(&recent, 35_000 * MS) - 50.0).abs() < 0.1);
        assert!(share(&recent, 41_000 * MS) < 0.1);
        // The window begins with the session.
        assert_eq!(Recent::default().share_ppm(0, WINDOW_NS), None);
        let mut young = Recent::default();
        young.note(90_000 * MS, 500 * MS);
        assert_eq!(young.share_ppm(90_000 * MS, 1_000 * MS), Some(500_000));
    }

    #[test]
    fn a_long_use_is_spread_over_its_seconds() {
        let mut recent = Recent::default();
        recent.note(20_250 * MS, 2_500 * MS);
        assert_eq!(recent.0[place(20)].used_ns, 250 * MS);
        assert_eq!(recent.0[place(19)].used_ns, 1_000 * MS);
        assert_eq!(recent.0[place(17)].used_ns, 250 * MS);
        assert_eq!(recent.share_ppm(20_250 * MS, WINDOW_NS), Some(250_000));
    }

    proptest! {
        /// A page may contain any numbers.
        #[test]
        fn any_numbers_are_a_share(
            numbers in prop::array::uniform16((any::<u64>(), any::<u64>())), now: u64, used: u64, window: u64
        ) {
            let mut recent = Recent(numbers.map(|(number, used_ns)| Second { number, used_ns }));
            recent.note(now, used);
            prop_assert!(recent.share_ppm(now, window).is_none_or(|share| share <= 1_000_000));
        }
    }
}
