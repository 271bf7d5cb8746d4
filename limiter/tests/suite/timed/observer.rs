//! How soon the daemon reports an unknown process.

use crate::common::{Measured, built, eventually};
use crate::observer::Observed;
use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::{Duration, Instant};

/// As promised.
const WITHIN: Duration = Duration::from_secs(2);

#[test]
fn a_stranger_is_told_within_two_seconds() {
    let observed = Observed::new("report");
    let mut command = observed.stage.native(built("tenant"));
    command.args(["dense", "--kernel-us", "2000", "--seconds", "60", "--progress"]);
    let mut stranger = command.stdout(Stdio::piped()).spawn().unwrap();
    // Its first line comes a quarter of a second after its first kernel.
    let mut lines = BufReader::new(stranger.stdout.take().unwrap()).lines();
    lines.next().unwrap().unwrap();
    let (start, measured) = (Instant::now(), Measured::begin());
    let pid = format!("\"pid\":{}", stranger.id());
    eventually("it is told", || observed.was_told("unknown_process", &[&pid]));
    let took = start.elapsed();
    let busy = measured.end();
    stranger.kill().unwrap();
    stranger.wait().unwrap();
    println!("told after {took:?}");
    let most = busy.most(WITHIN);
    assert!(took < most, "{took:?}, not {most:?}");
}
