//! The time from one program's last work to the opening of the next one's gate.

use super::daemon::{daemon, limited, socket};
use crate::common::{Outcome, Running, Stage, start};
use limits::env::{GATES, LOG};

/// The opening of a gate and when its governor saw it; or the end of its work.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Seen {
    Open(u64, u64),
    Drained(u64),
}

impl Seen {
    fn at(self) -> u64 {
        match self {
            Self::Open(at, _) | Self::Drained(at) => at,
        }
    }
}

/// The number behind some words of a line.
fn number(line: &str, after: &str) -> Option<u64> {
    let digits = line.split_once(after)?.1;
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    digits[..end].parse().ok()
}

/// The trace of a governor.
fn seen(outcome: &Outcome) -> Vec<Seen> {
    let line = |line: &str| {
        let open = || Some(Seen::Open(number(line, ": open at ")?, number(line, ", seen at ")?));
        open().or_else(|| Some(Seen::Drained(number(line, ": drained at ")?)))
    };
    outcome.stderr.lines().filter_map(line).collect()
}

/// Starts a tenant of half a device with its gates in its streams.
fn in_stream(stage: &Stage, name: &str, arguments: &str) -> Running {
    let mut command = limited(stage, name, 50, &socket(stage));
    command.env(GATES, "stream").env(LOG, "trace");
    start(command.args(arguments.split(' ')))
}

/// Twenty requests a second.
const REQUESTS: &str = "requests --burst-ms 4 --rate 20 --kernel-us 100 --seconds 3";

/// A program that pauses keeps its lease while no other session waits for it, and its next request finds an open gate.
#[test]
fn a_lease_that_nobody_waits_for_is_kept() {
    let stage = Stage::new();
    let daemon = daemon(&stage);
    let outcome = in_stream(&stage, "one", REQUESTS).end();
    assert_eq!(outcome.code(), 0, "{outcome:#?}");
    let opened = seen(&outcome).iter().filter(|seen| matches!(seen, Seen::Open(..))).count();
    // Sixty requests. One in a hundred arrives after the lease was given up, and so do the first ones.
    assert!((1..15).contains(&opened), "{opened}");
    daemon.kill();
}

/// Microseconds from each request for a lease to the open gate, in order.
fn waits_us(outcome: &Outcome) -> Vec<u64> {
    let (mut asked, mut all) = (None, Vec::new());
    for line in outcome.stderr.lines() {
        asked = number(line, ": asked at ").or(asked);
        if let Some(open) = number(line, ": open at ")
            && let Some(asked) = asked.take()
        {
            all.push(open.saturating_sub(asked) / 1_000);
        }
    }
    all.sort_unstable();
    all
}

/// A session that comes to wait for a kept, unused lease gets the device at once, not when that lease ends.
#[test]
fn a_kept_lease_is_over_once_it_is_waited_for() {
    let stage = Stage::new();
    let daemon = daemon(&stage);
    let often = "requests --burst-ms 1 --rate 30 --kernel-us 100 --seconds 6";
    let rarely = "requests --burst-ms 2 --rate 10 --kernel-us 100 --seconds 5";
    let programs = [("one", often), ("two", rarely)]
        .map(|(name, arguments)| in_stream(&stage, name, arguments));
    let [often, rarely] = programs.map(|program| program.end().succeeded());
    let [kept, taken] = [&often, &rarely].map(waits_us);
    println!("{kept:?}, {taken:?}");
    // It has 180 requests, and each request of the other session may take its lease away.
    assert!(kept.len() < 140 && taken.len() >= 20, "{} {}", kept.len(), taken.len());
    // As long as without kept leases, which is 0.4 ms. A lease would last 30 ms.
    assert!(taken[taken.len() / 2] < 2_000, "{taken:?}");
    daemon.kill();
}

/// A program that pauses has no work left when its gate closes, and its governor knows that: it does not wait for the
/// estimated time of the last launches.
#[test]
fn an_idle_device_is_handed_over_at_once() {
    let stage = Stage::new();
    let daemon = daemon(&stage);
    // Otherwise it keeps its lease.
    let other = in_stream(&stage, "two", "dense --kernel-us 100 --seconds 4");
    let outcome = in_stream(&stage, "one", REQUESTS).end();
    assert_eq!((outcome.code(), other.end().code()), (0, 0), "{outcome:#?}");
    let closed_to_done = |line: &str| {
        let at = number(line, ": drained at ")?;
        number(line, &format!(": drained at {at}, "))
    };
    let mut all_us: Vec<_> = outcome.stderr.lines().filter_map(closed_to_done).collect();
    all_us.sort_unstable();
    assert!(all_us.len() >= 20, "{all_us:?}");
    // Once that is known, it takes no time. Waiting takes a millisecond here.
    assert!(all_us[all_us.len() / 2] < 100, "{all_us:?}");
    daemon.kill();
}

/// The daemon opens the next gate long before the governor behind it has its answer.
#[test]
fn the_next_gate_is_open_before_the_answer_is_there() {
    let stage = Stage::new();
    let daemon = daemon(&stage);
    let tenants = ["one", "two"].map(|name| {
        let mut command = limited(&stage, name, 50, &socket(&stage));
        command.env(GATES, "stream").env(LOG, "trace");
        start(command.args(["dense", "--kernel-us", "200", "--seconds", "4"]))
    });
    let (mut all, mut more): (Vec<(u64, usize, Seen)>, f64) = (Vec::new(), 1.0);
    for (number, tenant) in tenants.into_iter().enumerate() {
        let outcome = tenant.end();
        assert_eq!(outcome.code(), 0, "{outcome:#?}");
        more = more.max(outcome.busy.more());
        all.extend(seen(&outcome).into_iter().map(|seen| (seen.at(), number, seen)));
    }
    all.sort_unstable();
    // At first the daemon measures each of them alone.
    let first = all[0].0 + 1_000_000_000;
    let (mut opened, mut answered) = (Vec::new(), Vec::new());
    for pair in all.windows(2) {
        if let [(_, a, Seen::Drained(done)), (_, b, Seen::Open(open, answer))] = pair
            && a != b
            && *done > first
        {
            opened.push(open - done);
            answered.push(answer - done);
        }
    }
    // A thousand on a quiet machine. On a machine so busy that there are few, they say nothing.
    if opened.len() <= 100 {
        assert!(more > 1.3, "{} handovers", opened.len());
        return crate::common::skipped(&format!(
            "the machine is too busy: {} handovers",
            opened.len()
        ));
    }
    for (name, list) in [("open", &mut opened), ("answer", &mut answered)] {
        list.sort_unstable();
        let part = |n: usize| list[list.len() * n / 100] / 1_000;
        println!(
            "{name}: 10 % {}, 50 % {}, 75 % {}, 90 % {} us",
            part(10),
            part(50),
            part(75),
            part(90)
        );
    }
    let middle = opened.len() / 2;
    // As promised.
    assert!(opened[middle] * 3 < answered[middle] * 2, "{} {}", opened[middle], answered[middle]);
    daemon.kill();
}
