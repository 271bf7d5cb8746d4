//! GPU time and waiting time mean the same in every view, with a daemon and without.

use std::io::{BufRead, BufReader, Write, read_to_string};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use api::SessionList;
use protocol::record::Sample;
use protocol::sessions::{DeviceReport, SessionReport, StatusReport};

use crate::freeze::{Daemon, PATIENCE};
use crate::support::{Sluice, outcome};

const SHARE: f64 = 0.25;

/// GPU time and waiting time, in seconds.
#[derive(Debug, Clone, Copy)]
struct Figures {
    used: f64,
    waited: f64,
}

impl Figures {
    fn from_us(used: u64, waited: u64) -> Self {
        Self { used: used as f64 / 1e6, waited: waited as f64 / 1e6 }
    }

    fn of(device: &DeviceReport) -> Self {
        Self::from_us(device.compute.delivered_us, device.compute.waited_us)
    }

    fn is_near(self, other: Self, part: f64) -> bool {
        let near = |a: f64, b: f64| (a - b).abs() <= part * a.max(b);
        near(self.used, other.used) && near(self.waited, other.waited)
    }
}

/// The value of a series with the label `uuid`.
fn series(metrics: &str, name: &str) -> f64 {
    let mut lines = metrics.lines().filter(|line| line.starts_with(&format!("{name}{{")));
    lines.next().unwrap().rsplit(' ').next().unwrap().parse().unwrap()
}

fn daemon_figures(daemon: &Daemon) -> [Figures; 2] {
    let list: SessionList = daemon.client.get(api::path::SESSIONS, PATIENCE).unwrap();
    let device = &list.sessions[0].devices[0];
    let mut stream = UnixStream::connect(&daemon.socket).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").unwrap();
    let metrics = read_to_string(stream).unwrap();
    let metrics = Figures {
        used: series(&metrics, "sluice_session_gpu_seconds_total"),
        waited: series(&metrics, "sluice_session_turn_wait_seconds_sum"),
    };
    [Figures::from_us(device.charged_us, device.waited_us), metrics]
}

/// As in `GPU-…: peak memory …; 1.234 GPU-seconds, 25.0 % of the time (limit: 25 %); waited 3.7 s`.
fn summary(line: &str) -> Figures {
    let number = |word: &str, step: isize| -> f64 {
        let words: Vec<&str> = line.split_whitespace().collect();
        let at = words.iter().position(|one| one.starts_with(word)).unwrap();
        words[at.strict_add_signed(step)].parse().unwrap()
    };
    Figures { used: number("GPU-seconds", -1), waited: number("waited", 1) }
}

fn named<'a>(status: &'a StatusReport, name: &str) -> &'a SessionReport {
    status.sessions.iter().find(|session| session.name.as_deref() == Some(name)).unwrap()
}

/// Runs a load for about four seconds, and returns the parts of the time that it used and waited.
fn look_everywhere(daemon: Option<&Daemon>, sluice: &Sluice) -> Figures {
    let socket = daemon.map_or_else(|| Path::new("none"), |daemon| &daemon.socket);
    // Other tests have sessions in the same place.
    let name = format!("figures-{}", std::process::id());
    let mut program = sluice
        .run(&[
            "--name",
            &name,
            "--fake-gpu",
            "--device",
            "0",
            "--compute",
            "25",
            "--summary",
            "--daemon",
        ])
        .arg(socket)
        .arg("--")
        .arg(sluice.built("tenant", "tenant"))
        .args(["dense", "--kernel-us", "2000", "--iterations", "1", "--seconds", "600"])
        .args(["--commands", "--progress"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = program.stdin.take().unwrap();
    let mut lines = BufReader::new(program.stdout.take().unwrap()).lines();
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(4) {
        lines.next().unwrap().unwrap();
    }
    // While it rests, the figures stand still.
    stdin.write_all(b"pause\n").unwrap();
    let running = start.elapsed().as_secs_f64();
    std::thread::sleep(Duration::from_millis(500));
    let ask = |command: &str| {
        let asked = [command, "--json", "--daemon", socket.to_str().unwrap()];
        let (code, stdout, stderr) = outcome(sluice.command().args(asked));
        assert_eq!((code, stderr.as_str()), (0, ""), "{command}");
        stdout
    };
    let status: StatusReport = serde_json::from_str(&ask("status")).unwrap();
    let sample: Sample = serde_json::from_str(&ask("top")).unwrap();
    let own = &named(&status, &name).devices[0];
    let seen = Figures::of(own);
    let of_processes: u64 = own.processes.iter().map(|process| process.charged_us).sum();
    assert!(of_processes.abs_diff(own.compute.delivered_us) <= 1, "{own:?}");
    let of_top = Figures::of(&named(&sample.status, &name).devices[0]);
    assert!(of_top.is_near(seen, 0.02), "{of_top:?} of top, {seen:?} of status");
    for told in daemon.iter().flat_map(|daemon| daemon_figures(daemon)) {
        assert!(told.is_near(seen, 0.15), "{told:?} of the daemon, {seen:?} of the page");
    }
    drop(stdin);
    lines.for_each(drop);
    let output = program.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let told = summary(text.lines().find(|line| line.contains("GPU-seconds")).unwrap());
    assert!(told.is_near(seen, 0.1), "{told:?} of run, {seen:?} of status: {text}");
    Figures { used: seen.used / running, waited: seen.waited / running }
}

#[test]
fn figures_mean_the_same_in_every_view() {
    let sluice = Sluice::new();
    let without = look_everywhere(None, &sluice);
    let with_daemon = look_everywhere(Some(&Daemon::start(&sluice)), &sluice);
    let both = format!("{without:?} without a daemon, {with_daemon:?} with one");
    println!("{both}");
    for parts in [without, with_daemon] {
        assert!((SHARE * 0.6..SHARE * 1.25).contains(&parts.used), "{both}");
        // It always has work: what it does not use it waits for.
        assert!((0.55..0.9).contains(&parts.waited), "{both}");
    }
    assert!(with_daemon.is_near(without, 0.2), "{both}");
}
