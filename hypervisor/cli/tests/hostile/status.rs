//! Pages that are full of what costs time.

use crate::support::{Sluice, outcome, text};
use core::sync::atomic::Ordering::Relaxed;
use limits::{GpuId, Limits};
use serde_json::Value;
use session::process::ProcessIdentity;
use session::{Page, directory};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Looking at each slot would take half a minute and more.
const BOUNDED: Duration = Duration::from_secs(10);

/// Processes with as many mappings as the kernel allows.
struct Mapped {
    child: Child,
    pids: Vec<u32>,
}

impl Mapped {
    fn new(sluice: &Sluice, mappings: u32, copies: u32) -> Self {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/mappings.c");
        let program = sluice.folder().join("mappings");
        let mut cc = Command::new("cc");
        cc.args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-o"]).args([&program, &source]);
        let said = cc.output().unwrap();
        assert!(said.status.success(), "{}", text(&said.stderr));
        let mut command = Command::new(program);
        command.args([mappings.to_string(), copies.to_string()]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let pids = lines.map_while(|line| line.unwrap().parse().ok()).collect();
        Self { child, pids }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A session whose page says that each of its slots belongs to one of these processes, in turn.
struct Full(PathBuf);

impl Full {
    fn new(name: &str, pids: &[u32]) -> Self {
        let uid = rustix::process::geteuid().as_raw();
        let path = directory::base(uid).join(format!("env-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        let page = Page::open(&path, GpuId::from_bytes([7; 16]), &Limits::NONE).unwrap();
        let layout = page.look().unwrap();
        let of = |pid| ProcessIdentity::of(pid).unwrap();
        let processes = pids.iter().copied().map(of).collect::<Vec<_>>();
        for (slot, process) in layout.slots.iter().zip(processes.iter().cycle()) {
            slot.start_time.store(process.start_time, Relaxed);
            slot.pid.store(process.pid, Relaxed);
        }
        layout.high_water.store(u32::try_from(layout.slots.len()).unwrap(), Relaxed);
        Self(path)
    }
}

impl Drop for Full {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// What `sluice status --json --all` says of a session, what the lines for people say, and how long it took.
fn status(sluice: &Sluice, session: &Full) -> (Value, String, Duration) {
    let begun = Instant::now();
    let (code, json, _) = outcome(sluice.command().args(["status", "--json", "--all"]));
    let took = begun.elapsed();
    assert_eq!(code, 0, "{json}");
    let json: Value = serde_json::from_str(&json).unwrap();
    let (code, lines, _) = outcome(sluice.command().args(["status", "--all"]));
    assert_eq!(code, 0, "{lines}");
    let name = session.0.file_name().unwrap().to_str().unwrap();
    let is_it = |found: &&Value| found["session"] == name;
    let found = json["sessions"].as_array().unwrap().iter().find(is_it).unwrap().clone();
    (found["devices"][0].clone(), lines, took)
}

/// Each slot names the same process. It is looked at once: it does not map the page.
#[test]
fn a_page_that_names_one_process_often() {
    let sluice = Sluice::new();
    let mapped = Mapped::new(&sluice, 60_000, 1);
    let full = Full::new("often", &mapped.pids);
    let (device, lines, took) = status(&sluice, &full);
    println!("{took:?}");
    let processes = device["processes"].as_array().unwrap().len();
    let unknown = device["unknown"].as_u64().unwrap_or(0);
    assert_eq!(processes as u64, unknown, "{lines}");
    assert!(took < BOUNDED, "{took:?}");
}

/// Each of many processes takes long to look at. The time is bounded, and what is not known is said.
#[test]
fn a_page_that_names_many_slow_processes() {
    let sluice = Sluice::new();
    let mapped = Mapped::new(&sluice, 60_000, 20);
    let full = Full::new("slow", &mapped.pids);
    let (device, lines, took) = status(&sluice, &full);
    let unknown = device["unknown"].as_u64().unwrap_or(0);
    println!("{took:?}, {unknown} unknown");
    assert!(took < BOUNDED, "{took:?}");
    assert!(unknown > 0, "all of them were looked at in {took:?}: too few");
    assert!(lines.contains(" of these may have ended (not visible from here)"), "{lines}");
}
