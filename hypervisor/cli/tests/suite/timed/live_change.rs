//! `sluice limit` on running programs takes effect within 100 ms. The tests measure what is
//! delivered between 100 and 300 ms after each change, by the device's clock.

use std::io::{BufRead, BufReader, Lines};
use std::path::Path;
use std::process::{Child, ChildStdout, Stdio};
use std::thread::sleep;
use std::time::Duration;

use crate::freeze::Daemon;
use crate::machine::Measured;
use crate::support::{Sluice, outcome};
use serde_json::Value;

/// A change has to be in effect after this many seconds, ...
const WITHIN: f64 = 0.1;
/// ... and from then on, delivery is measured for this long: two periods.
const LOOK: f64 = 0.2;
/// As a part of the device's time.
const TOLERANCE: f64 = 0.05;
/// Short ones: up to 64 of them are launched ahead of a change.
const KERNEL_US: &str = "250";
/// What the device completes in a second if it is never idle.
const KERNELS: f64 = 4000.0;
const WINDOW: f64 = 0.002;

/// Seconds on the clock that all processes share.
fn now() -> f64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}

fn pause(seconds: f64) {
    sleep(Duration::from_secs_f64(seconds));
}

/// A program that keeps the device busy, in a session of its own.
struct Tenant {
    child: Child,
    output: Lines<BufReader<ChildStdout>>,
}

impl Tenant {
    fn start(sluice: &Sluice, daemon: &Path, options: &[&str]) -> Self {
        let mut child = sluice
            .run(&["--fake-gpu", "--device", "0", "--daemon"])
            .arg(daemon)
            .args(options)
            .arg("--")
            .arg(sluice.built("tenant", "tenant"))
            .args(["dense", "--kernel-us", KERNEL_US, "--iterations", "250000", "--commands"])
            .args(["--seconds", "120", "--progress=0.1", "--windows", &WINDOW.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap()).lines();
        for _ in 0..2 {
            output.next().unwrap().unwrap();
        }
        Self { child, output }
    }

    /// Changes its limits, and returns when that was done.
    fn limit(&self, sluice: &Sluice, options: &[&str]) -> f64 {
        let session = self.child.id().to_string();
        let (code, _, stderr) = outcome(sluice.command().args(["limit", &session]).args(options));
        assert_eq!((code, stderr.as_str()), (0, ""), "{options:?}");
        now()
    }

    fn end(mut self) -> Delivered {
        // The program ends when its input ends.
        drop(self.child.stdin.take());
        let last = self.output.by_ref().last().unwrap().unwrap();
        let result: Value = serde_json::from_str(&last).unwrap();
        let windows = result["windows"].as_array().unwrap();
        Delivered {
            at: result["windows_at"].as_f64().unwrap(),
            windows: windows.iter().map(|window| window.as_f64().unwrap()).collect(),
        }
    }
}

impl Drop for Tenant {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// What the device did for a program.
struct Delivered {
    at: f64,
    windows: Vec<f64>,
}

impl Delivered {
    /// How many kernels were completed at a moment.
    fn until(&self, moment: f64) -> f64 {
        let position = (moment - self.at) / WINDOW;
        let whole = position as usize;
        let part = self.windows.get(whole).map_or(0.0, |window| window * position.fract());
        self.windows.iter().take(whole).sum::<f64>() + part
    }

    /// Kernels a second between two moments.
    fn rate(&self, from: f64, to: f64) -> f64 {
        (self.until(to) - self.until(from)) / (to - from)
    }
}

/// A change for the first program, and the part that it has to get from then on.
type Change = (&'static [&'static str], f64);

/// What the first program gets after each change, averaged over the rounds. Alone, it is in
/// relation to what the device can do. Beside others, it is in relation to what all got.
fn measure(tenants: &[&[&str]], with_daemon: bool, rounds: usize, changes: &[Change]) -> Vec<f64> {
    let sluice = Sluice::new();
    let daemon = with_daemon.then(|| Daemon::start(&sluice));
    let socket = daemon.as_ref().map_or(Path::new("none"), |daemon| &daemon.socket);
    let tenants: Vec<Tenant> =
        tenants.iter().map(|options| Tenant::start(&sluice, socket, options)).collect();
    // Beside others, the daemon first has to find out that each fills the device.
    if tenants.len() > 1 {
        pause(1.0);
    }
    let mut made = Vec::new();
    for _ in 0..rounds {
        for (options, _) in changes {
            made.push(tenants[0].limit(&sluice, options));
            pause(WITHIN + LOOK + 0.03);
        }
    }
    let delivered: Vec<Delivered> = tenants.into_iter().map(Tenant::end).collect();
    let part = |change: f64| {
        let rates: Vec<f64> =
            delivered.iter().map(|one| one.rate(change + WITHIN, change + WITHIN + LOOK)).collect();
        let whole = if rates.len() > 1 { rates.iter().sum() } else { KERNELS };
        rates[0] / whole
    };
    let of = |number: usize| {
        let moments = made.iter().skip(number).step_by(changes.len());
        let parts: Vec<f64> = moments.map(|&change| part(change)).collect();
        println!("{:?}: {parts:.3?}", changes[number].0);
        parts.iter().sum::<f64>() / parts.len() as f64
    };
    (0..changes.len()).map(of).collect()
}

/// Checks that each change has its effect. By how much less counts as enough depends on how busy the machine was
/// meanwhile: a program that is kept from running uses less than it may.
#[track_caller]
fn take_effect(tenants: &[&[&str]], with_daemon: bool, rounds: usize, changes: &[Change]) {
    let measured = Measured::begin();
    let parts = measure(tenants, with_daemon, rounds, changes);
    let busy = measured.end();
    for (part, &(options, expected)) in parts.into_iter().zip(changes) {
        let least = busy.least_in_turn(expected, TOLERANCE);
        // Others that are kept from running leave it more.
        let most = if tenants.len() > 1 {
            1.0 - busy.least_in_turn(1.0 - expected, TOLERANCE)
        } else {
            expected + TOLERANCE
        };
        assert!(
            (least..=most).contains(&part),
            "{part:.3} of {expected}, {WITHIN} s after {options:?}, allowed is {least:.3} to {most:.3}: {busy:?}"
        );
    }
}

#[test]
fn a_share() {
    let changes: [Change; 2] = [(&["--compute", "75"], 0.75), (&["--compute", "25"], 0.25)];
    take_effect(&[&[]], false, 5, &changes);
}

#[test]
fn a_share_under_the_daemon() {
    let changes: [Change; 2] = [(&["--compute", "75"], 0.75), (&["--compute", "25"], 0.25)];
    take_effect(&[&[]], true, 5, &changes);
}

#[test]
fn a_limit_where_there_was_none_and_none_again() {
    for with_daemon in [false, true] {
        // A session without a limit has saved up nothing.
        let changes: [Change; 2] = [(&["--compute", "75"], 0.75), (&["--policy", "none"], 1.0)];
        take_effect(&[&[]], with_daemon, 3, &changes);
    }
}

#[test]
fn a_policy() {
    let changes: [Change; 3] = [
        (&["--compute", "30", "--policy", "fixed"], 0.3),
        (&["--policy", "balance"], 1.0),
        (&["--burst", "60"], 0.6),
    ];
    take_effect(&[&[]], true, 4, &changes);
}

/// Divides the 80 % that are guaranteed to no session.
#[test]
fn a_weight() {
    let balanced: &[&str] = &["--compute", "10", "--policy", "balance", "--weight", "3"];
    let changes: [Change; 2] = [(&["--weight", "9"], 0.7), (&["--weight", "1"], 0.3)];
    take_effect(&[balanced, balanced], true, 5, &changes);
}
