//! The daemon is killed again and again under running tenants, and hangs for long.
//!
//! `SLUICE_FAULTS=60` runs for a minute, with a hang of ten seconds: the full form, for an otherwise idle machine.
//! Without it the requirements allow for other work on the machine's CPUs.

use super::daemon::{daemon, limited, socket};
use crate::common::{Outcome, Stage, built, outcome, start};
use std::time::Duration;

/// The extent of the test.
struct Extent {
    /// How many times the daemon is killed, a second apart.
    kills: u32,
    /// How long it hangs.
    still: Duration,
    /// The part of its share that a tenant gets at least.
    least: f64,
    /// The longest pause, in milliseconds.
    longest: f64,
}

impl Extent {
    fn asked_for() -> Self {
        let kills = std::env::var("SLUICE_FAULTS").ok().and_then(|text| text.parse().ok());
        match kills {
            Some(kills) => {
                Self { kills, still: Duration::from_secs(10), least: 0.9, longest: 1_000.0 }
            }
            None => Self { kills: 6, still: Duration::from_secs(2), least: 0.4, longest: 10_000.0 },
        }
    }

    /// No program is unlimited, and none waits for a daemon that is gone.
    #[track_caller]
    fn holds(&self, share: f64, outcome: &Outcome, native: f64) {
        let longest = outcome.json()["pauses"]["longest_ms"].as_f64().unwrap();
        let delivered = outcome.rate() / native * 100.0;
        println!("{delivered:.2} of {share}, longest pause {longest:.1} ms");
        assert!(
            (share * self.least..=share + 5.0).contains(&delivered),
            "{delivered}: {outcome:#?}"
        );
        assert!(longest < self.longest, "{longest}: {outcome:#?}");
    }
}

fn rate(stage: &Stage) -> f64 {
    let options = ["dense", "--kernel-us", "2000", "--seconds", "1"];
    outcome(stage.native(built("tenant")).args(options)).silent().rate()
}

/// No program crashes or is unlimited, and none waits for a daemon that is gone.
#[test]
fn a_daemon_that_is_killed_every_second() {
    let extent = Extent::asked_for();
    let kills = extent.kills;
    let stage = Stage::new();
    let native = rate(&stage);
    let mut present = daemon(&stage);
    let seconds = (kills + 2).to_string();
    let shares = [("one", 50), ("two", 25)];
    let tenants = shares.map(|(name, share)| {
        let mut command = limited(&stage, name, share, &socket(&stage));
        start(command.args(["dense", "--kernel-us", "2000", "--seconds", &seconds]))
    });
    for _ in 0..kills {
        std::thread::sleep(Duration::from_secs(1));
        present.kill();
        present = daemon(&stage);
    }
    for ((_, share), tenant) in shares.into_iter().zip(tenants) {
        let outcome = tenant.end().succeeded();
        extent.holds(f64::from(share), &outcome, native);
        // One line when it goes and one when it is back, once in half a minute.
        let most = 4 + usize::try_from(kills).unwrap() / 15;
        assert!(outcome.complaints().len() <= most, "{outcome:#?}");
    }
    present.kill();
}

/// Alone, a tenant keeps its share on its own account while the daemon hangs, and afterwards.
#[test]
fn a_daemon_that_stands_still_for_long() {
    let extent = Extent::asked_for();
    let still = extent.still;
    let stage = Stage::new();
    let native = rate(&stage);
    let present = daemon(&stage);
    let seconds = (still.as_secs() + 3).to_string();
    let mut command = limited(&stage, "one", 40, &socket(&stage));
    let tenant = start(command.args(["dense", "--kernel-us", "2000", "--seconds", &seconds]));
    std::thread::sleep(Duration::from_secs(1));
    present.freeze();
    std::thread::sleep(still);
    present.thaw();
    let outcome = tenant.end().succeeded();
    extent.holds(40.0, &outcome, native);
    present.kill();
}

/// Two tenants of different sessions are sliced meanwhile: nothing keeps them apart. If the device has room for both,
/// each gets its share within 5 points.
#[test]
fn two_tenants_of_a_daemon_that_stands_still_for_long() {
    let extent = Extent::asked_for();
    let still = extent.still;
    let stage = Stage::new();
    let native = rate(&stage);
    let present = daemon(&stage);
    let seconds = (still.as_secs() + 3).to_string();
    let shares = [("one", 30), ("two", 20)];
    let tenants = shares.map(|(name, share)| {
        let mut command = limited(&stage, name, share, &socket(&stage));
        start(command.args(["dense", "--kernel-us", "2000", "--seconds", &seconds]))
    });
    std::thread::sleep(Duration::from_secs(1));
    present.freeze();
    std::thread::sleep(still);
    present.thaw();
    for ((_, share), tenant) in shares.into_iter().zip(tenants) {
        let (share, outcome) = (f64::from(share), tenant.end().succeeded());
        // Each pays for time in which the device was sliced.
        let least = extent.least.min((share - 5.0) / share);
        Extent { least, ..extent }.holds(share, &outcome, native);
    }
    present.kill();
}
