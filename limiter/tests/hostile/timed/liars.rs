//! A session whose reports are false, beside an honest one. Other lies are tested in virtual time (`scheduler`,
//! `liars`).

use crate::common::{
    COMPUTE_LIMIT, Outcome, SESSION_DIR, Stage, built, eventually, first_device, start,
};
use serde_json::Value;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::spawn;

const HONEST: u32 = 50;
const LIAR: u32 = 1;
/// In percentage points.
const POINTS: f64 = 5.0;

/// A number of a JSON message, and its replacement.
type Lie = (&'static str, u32);

/// The share that the daemon is told for the liar. The liar's own page allows the whole device, so only the daemon
/// limits it.
const TOLD_SHARE: Lie = ("share_ppm", LIAR * 10_000);

/// Replaces a number of a JSON message, keeping the message's length.
fn falsify(message: &mut [u8], (key, value): Lie) {
    let key = format!("\"{key}\":");
    let Some(at) = message.windows(key.len()).position(|there| there == key.as_bytes()) else {
        return;
    };
    let digits = message[at + key.len()..].iter_mut().take_while(|byte| byte.is_ascii_digit());
    let mut digits: Vec<&mut u8> = digits.collect();
    let value = format!("{value:>length$}", length = digits.len());
    assert_eq!(value.len(), digits.len(), "{key}{value}");
    digits.iter_mut().zip(value.bytes()).for_each(|(digit, byte)| **digit = byte);
}

fn copy(mut from: UnixStream, mut to: UnixStream, lies: &[Lie]) {
    let mut message = [0; 16384];
    while let Ok(length @ 1..) = from.read(&mut message) {
        let message = &mut message[..length];
        lies.iter().for_each(|&lie| falsify(message, lie));
        if to.write_all(message).is_err() {
            break;
        }
    }
    let _ = to.shutdown(std::net::Shutdown::Both);
}

/// A proxy between a limiter and the daemon that falsifies these numbers in all reports.
fn lie(daemon: &Path, at: &Path, lies: &'static [Lie]) {
    let listener = UnixListener::bind(at).unwrap();
    let daemon = daemon.to_owned();
    spawn(move || {
        for limiter in listener.incoming().flatten() {
            let Ok(daemon) = UnixStream::connect(&daemon) else { continue };
            let back = (daemon.try_clone().unwrap(), limiter.try_clone().unwrap());
            spawn(move || copy(limiter, daemon, lies));
            spawn(move || copy(back.0, back.1, &[]));
        }
    });
}

fn tenant(stage: &Stage, session: &str, percent: u32, socket: &Path) -> Command {
    let mut command = stage.limited(built("tenant"));
    command
        .env(SESSION_DIR, stage.session(session))
        .env(COMPUTE_LIMIT, first_device(percent))
        .env("SLUICE_DAEMON", socket)
        .args(["dense", "--kernel-us", "2000", "--seconds", "12", "--progress"]);
    command
}

/// Kernels completed, reported four times a second. The last line is the result.
fn progress(outcome: &Outcome) -> Vec<u64> {
    let line = |line: &str| serde_json::from_str::<Value>(line).ok()?["kernels"].as_u64();
    let mut counts: Vec<u64> = outcome.stdout.lines().filter_map(line).collect();
    counts.pop();
    counts
}

/// Percentage of the device's time in ten seconds, with kernels of 2 ms.
#[track_caller]
fn delivered(outcome: &Outcome) -> f64 {
    let counts = progress(outcome);
    assert!(counts.len() > 44, "{outcome:#?}");
    (counts[44] - counts[4]) as f64 / 10.0 * 0.2
}

fn a_liar_beside_an_honest_one(lies: &'static [Lie]) {
    let stage = Stage::new();
    let [socket, lying] = ["daemon.sock", "lying.sock"].map(|name| stage.folder().join(name));
    let mut command = stage.native(built("hypervisor"));
    command.args(["daemon", "--log", "warn", "--socket"]).arg(&socket);
    let daemon = start(command.stdout(Stdio::null()));
    eventually("the daemon listens", || UnixStream::connect(&socket).is_ok());
    lie(&socket, &lying, lies);
    let honest = start(&mut tenant(&stage, "honest", HONEST, &socket));
    let liar = start(&mut tenant(&stage, "liar", 100, &lying));
    let [honest, liar] = [honest, liar].map(|tenant| tenant.end().succeeded());
    daemon.kill();
    let _ = daemon.end();

    let (counts, busy) = (progress(&honest), honest.busy);
    // A busy machine may stop everything for a quarter of a second.
    let stuck = counts[..45].windows(3).any(|three| three[0] == three[2]);
    let [honest, liar] = [&honest, &liar].map(delivered);
    println!("{lies:?}: honest {honest:.1}, liar {liar:.1}; {busy:?}");
    assert!(honest >= busy.least(f64::from(HONEST), POINTS), "honest {honest:.1}, {busy:?}");
    assert!(liar <= f64::from(LIAR) + POINTS, "liar {liar:.1}");
    assert!(!stuck, "{counts:?}");
}

#[test]
fn one_that_reports_that_it_used_nothing() {
    a_liar_beside_an_honest_one(&[TOLD_SHARE, ("estimated_us", 0), ("backlogged_us", 0)]);
}
