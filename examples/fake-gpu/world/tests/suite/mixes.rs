//! Programs beside each other, in each way to share a device. `fake-world --mixes` runs more of them.

use fake_world::Mix;

const SECOND: u64 = 1_000_000_000;

/// What is got done in the chosen way, in relation to the better one: the least and the median.
fn chosen(seeds: core::ops::Range<u64>, programs: usize) -> (f64, f64) {
    let mixes = seeds.map(|seed| Mix::random(seed, programs, 12 * SECOND));
    let mut parts: Vec<f64> = mixes.map(|mix| mix.of_the_better()).collect();
    parts.sort_by(f64::total_cmp);
    (parts[0], parts[parts.len() / 2])
}

#[test]
fn two_programs_share_in_the_better_way() {
    let (least, median) = chosen(1..41, 2);
    assert!(least >= 0.9 && median >= 0.99, "{least}, {median}");
}

#[test]
fn four_programs_share_in_the_better_way() {
    let (least, median) = chosen(1..11, 4);
    assert!(least >= 0.9 && median >= 0.98, "{least}, {median}");
}

/// Otherwise the tests above could not fail.
#[test]
fn the_ways_differ() {
    let mixes = (1..41).map(|seed| Mix::random(seed, 2, 12 * SECOND));
    let sum = |parts: &[f64]| parts.iter().sum::<f64>();
    let gains = mixes.map(|mix| sum(&mix.overlap) / sum(&mix.turns));
    let (mut better, mut worse) = (0, 0);
    for gain in gains {
        better += usize::from(gain > 1.05);
        worse += usize::from(gain < 0.97);
    }
    assert!(better >= 5 && worse >= 5, "{better}, {worse}");
}
