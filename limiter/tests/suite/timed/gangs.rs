//! Sessions that use several devices together: collective kernels spin on one device until those on the other have
//! begun. All of these measure, so run one test at a time. How jobs of several sessions share devices is tested in
//! virtual time (`fake-world`, `devices`).

use crate::common::{Outcome, Running, Stage, built, eventually, start};
use limits::env::GATES;
use rustix::process::{Pid, Signal, kill_process};
use std::fmt::Write;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

const DEVICES: u32 = 2;

/// Two devices, and optionally a daemon.
struct Node {
    stage: Stage,
    daemon: Option<Running>,
    runs: u32,
    /// Where work waits, if not as in the other tests.
    gates: Option<&'static str>,
    /// The name of the next session.
    name: Option<String>,
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(daemon) = &self.daemon {
            daemon.kill();
        }
    }
}

impl Node {
    fn new(with_daemon: bool) -> Self {
        let mut node = Self { stage: Stage::new(), daemon: None, runs: 0, gates: None, name: None };
        if with_daemon {
            let mut command = node.stage.native(built("hypervisor"));
            command.args(["daemon", "--log", "warn", "--socket"]).arg(node.socket());
            node.daemon = Some(start(command.env("SLUICE_FAKE_DEVICES", DEVICES.to_string())));
            eventually("the daemon listens", || UnixStream::connect(node.socket()).is_ok());
        }
        node
    }

    fn socket(&self) -> PathBuf {
        self.stage.folder().join("daemon.sock")
    }

    /// A shell script in a session of its own; `None`: without a compute limit.
    fn session(&self, compute: Option<u32>, script: &str) -> Running {
        let mut command: Command = self.stage.native(built("sluice"));
        command.env("SLUICE_FAKE_DEVICES", DEVICES.to_string()).env("SLUICE_LOG", "info");
        command.args(["run", "--fake-gpu", "--daemon"]);
        match self.daemon {
            Some(_) => command.arg(self.socket()),
            None => command.arg("none"),
        };
        if let Some(gates) = self.gates {
            command.env(GATES, gates);
        }
        if let Some(name) = &self.name {
            command.args(["--name", name]);
        }
        if let Some(percent) = compute {
            command.args(["--compute", &percent.to_string()]);
        }
        start(command.args(["--", "sh", "-c", script]))
    }

    /// Collective steps of 1.8 ms, by one process per device.
    fn ranks(&mut self, compute: Option<u32>, steps: u32, more: &str) -> Running {
        self.ranks_of(WORK, compute, steps, more)
    }

    fn ranks_of(&mut self, work: &str, compute: Option<u32>, steps: u32, more: &str) -> Running {
        self.runs += 1;
        let page = self.stage.folder().join(format!("page{}", self.runs));
        std::fs::File::create(&page).unwrap();
        let mut script = String::new();
        for rank in 0..DEVICES {
            write!(
                script,
                "{} {work} --steps {steps} --rank {rank} --ranks {DEVICES} --device {rank} --group {} --page {} {more} & ",
                built("tenant").display(),
                self.runs,
                page.display()
            )
            .unwrap();
        }
        // The last rank's process is known by its number.
        write!(script, "echo $! >{}; wait", self.last_rank().display()).unwrap();
        self.session(compute, &script)
    }

    /// Changes the limits of the session with this name.
    fn limit(&self, name: &str, limits: &[&str]) {
        let mut command: Command = self.stage.native(built("sluice"));
        command.env("SLUICE_FAKE_DEVICES", DEVICES.to_string());
        let told = command.args(["limit", name]).args(limits).output().unwrap();
        assert!(told.status.success(), "{name} {limits:?}: {told:?}");
    }

    fn last_rank(&self) -> PathBuf {
        self.stage.folder().join(format!("last{}", self.runs))
    }

    /// The same steps by one process with all devices.
    fn process(&mut self, compute: Option<u32>, steps: u32) -> Running {
        self.runs += 1;
        let tenant = built("tenant");
        let script = format!("{} {WORK} --steps {steps} --devices {DEVICES}", tenant.display());
        self.session(compute, &script)
    }
}

const WORK: &str = "collective --kernel-us 200 --kernels 8 --collective-us 200";
const WORK_US: f64 = 1800.0;
/// The same steps, with 1 ms of rest after each.
const WITH_RESTS: &str =
    "collective --kernel-us 200 --kernels 8 --collective-us 200 --wait-every 1 --rest-us 1000";
const WITH_RESTS_US: f64 = 2800.0;
/// Many short kernels, and awaited collectives.
const SHORT: &str = "collective --kernel-us 40 --kernels 4 --collective-us 40";
const SHORT_US: f64 = 200.0;

/// Collectives in a stream of their own.
const BESIDE: &str =
    "collective --kernel-us 500 --kernels 60 --collective-us 500 --buckets 12 --wait-every 3";
const BESIDE_US: f64 = 30_500.0;

/// Two jobs whose processes all launch short work need more than two cores: in some runs one of them had 0.17 and 0.34
/// of its speed while the other had 0.49. So this only checks that neither starves: if the gates of the devices are not
/// opened together, a job has less than 0.02.
const LEAST: f64 = 0.1;

/// Steps a second without a limit.
#[derive(Clone, Copy)]
struct Whole {
    /// The rate on this machine.
    here: f64,
    /// The devices' capacity, which no machine exceeds.
    most: f64,
}

impl Whole {
    fn of(outcome: Outcome, step_us: f64) -> Self {
        let here = outcome.succeeded().rate();
        println!("{here:.1} steps a second without a limit");
        Self { here, most: 1e6 / step_us }
    }
}

fn native_of(work: &str, steps: u32, step_us: f64) -> Whole {
    Whole::of(Node::new(false).ranks_of(work, None, steps, "").end(), step_us)
}

fn native() -> Whole {
    native_of(WORK, 1000, WORK_US)
}

/// Asserts that a job gets no more than `most` of the devices' capacity, and no less than `least` of its rate on this
/// machine without a limit, unless the machine is busier now.
#[track_caller]
fn within(what: &str, outcome: Outcome, whole: Whole, least: f64, most: f64) -> f64 {
    let outcome = outcome.succeeded();
    let (rate, busy) = (outcome.rate(), outcome.busy);
    let range = busy.least_in_turn(whole.here * least, 0.0)..=whole.most * most;
    let part = rate / whole.here;
    println!("{what}: {part:.3}, {rate:.1} of {range:.1?}, {busy:?}");
    assert!(range.contains(&rate), "{what}: {part:.3}, {rate:.1} not in {range:.1?}, {busy:?}");
    part
}

/// Fails if each device opens and closes by itself: below 0.02 there.
#[test]
fn ranks_have_their_share_of_the_devices_together() {
    let native = native();
    for with_daemon in [false, true] {
        let mut node = Node::new(with_daemon);
        let half = node.ranks(Some(50), 2000, "").end();
        within(&format!("50 %, daemon {with_daemon}"), half, native, 0.4, 0.55);
        let all = node.ranks(Some(100), 3000, "").end();
        within(&format!("100 %, daemon {with_daemon}"), all, native, 0.95, 1.03);
    }
}

/// A session that holds the devices pays, whatever it does with them; by estimates it could have 0.78. On a busy
/// machine some of the idle time is not charged under a daemon: 0.68 was seen on one core. The test requires no more
/// than the estimates allow; other tests check that it gets its share.
#[test]
fn idle_time_is_paid_while_nobody_else_is_there() {
    let native = native_of(WITH_RESTS, 800, WITH_RESTS_US);
    for with_daemon in [false, true] {
        let job = Node::new(with_daemon).ranks_of(WITH_RESTS, Some(50), 1200, "").end();
        let most = (0.54 * job.busy.more()).min(0.8);
        within(&format!("50 %, daemon {with_daemon}"), job, native, 0.3, most);
    }
}

/// They take turns, and each has 0.38 to 0.45 if the machine keeps up.
#[test]
fn two_jobs_that_leave_the_devices_idle() {
    let native = native_of(WITH_RESTS, 800, WITH_RESTS_US);
    let mut node = Node::new(true);
    let jobs = [0, 1].map(|_| node.ranks_of(WITH_RESTS, Some(50), 2000, ""));
    let [first, second] = jobs.map(Running::end);
    within("the first", first, native, LEAST, 0.85);
    within("the second", second, native, LEAST, 0.85);
}

/// Like tensor-parallel programs. Each launch takes processor time on the simulated device, so a slow machine has less
/// left for two jobs.
#[test]
fn many_short_collectives() {
    let native = native_of(SHORT, 6000, SHORT_US);
    let mut node = Node::new(true);
    let half = node.ranks_of(SHORT, Some(50), 6000, "").end();
    within("50 %", half, native, 0.4, 0.56);
    let jobs = [0, 1].map(|_| node.ranks_of(SHORT, Some(50), 8000, ""));
    let [first, second] = jobs.map(Running::end);
    within("the first", first, native, LEAST, 0.56);
    within("the second", second, native, LEAST, 0.56);
}

/// Its threads wait at the gates: if its streams did, a thread would be missing on one device while it waits for room on
/// the other.
#[test]
fn so_has_one_process_with_two_devices() {
    let native = native();
    for with_daemon in [false, true] {
        let mut node = Node::new(with_daemon);
        let half = node.process(Some(50), 2000).end();
        assert!(half.stderr.contains("its thread does: no stream of its device"), "{half:#?}");
        within(&format!("50 %, daemon {with_daemon}"), half, native, 0.4, 0.55);
    }
}

/// Like data-parallel training: collectives in a stream of their own, which waits for the previous kernels, and the
/// next step waits for them. If a held stream waits for another stream's event, the other job has only half of the
/// devices: 0.21 to 0.25 of its speed.
#[test]
fn collectives_beside_kernels() {
    let native = native_of(BESIDE, 100, BESIDE_US);
    for gates in ["stream", "thread"] {
        let mut node = Node::new(true);
        node.gates = Some(gates);
        let jobs = [0, 1].map(|_| node.ranks_of(BESIDE, Some(50), 150, ""));
        let [first, second] = jobs.map(Running::end);
        within(&format!("the first, {gates}"), first, native, 0.33, 0.56);
        within(&format!("the second, {gates}"), second, native, 0.33, 0.56);
    }
}

/// If the limit was removed while a device caught up with others, the device remained unlimited after the limit was
/// back, and collectives that were not counted meanwhile left some spinning in the other job's turns: 0.24 each.
#[test]
fn limits_that_come_back_hold_on_all_devices() {
    const NAMES: [&str; 2] = ["first", "second"];
    let native = native_of(SHORT, 6000, SHORT_US);
    for gates in ["stream", "thread"] {
        let mut node = Node::new(true);
        node.gates = Some(gates);
        let jobs = NAMES.map(|name| {
            node.name = Some(name.to_owned());
            node.ranks_of(SHORT, Some(50), 12_000, "")
        });
        for _ in 0..3 {
            sleep(Duration::from_millis(800));
            NAMES.iter().for_each(|name| node.limit(name, &["--policy", "none"]));
            sleep(Duration::from_millis(300));
            NAMES
                .iter()
                .for_each(|name| node.limit(name, &["--policy", "fixed", "--compute", "50%"]));
        }
        for (name, job) in NAMES.into_iter().zip(jobs) {
            within(&format!("the {name}, {gates}"), job.end(), native, 0.29, 0.62);
        }
    }
}

/// Like a pipeline of more than two stages, or groups of some of the ranks: one device launches more collectives than
/// another.
#[test]
fn numbers_of_collectives_may_differ() {
    let native = {
        let mut node = Node::new(false);
        Whole::of(node.ranks(None, 1000, "--alone-on-first 1").end(), WORK_US)
    };
    for with_daemon in [false, true] {
        let mut node = Node::new(with_daemon);
        let half = node.ranks(Some(50), 1500, "--alone-on-first 1").end();
        within(&format!("daemon {with_daemon}"), half, native, 0.4, 0.56);
    }
}

/// The others wait for it as they do natively, and the devices are free again when they have ended.
#[test]
fn a_rank_that_is_killed_leaves_the_devices_free() {
    for with_daemon in [false, true] {
        let mut node = Node::new(with_daemon);
        let job = node.ranks(Some(50), 100_000, "");
        sleep(Duration::from_millis(2500));
        let number = std::fs::read_to_string(node.last_rank()).unwrap();
        let pid = Pid::from_raw(number.trim().parse().unwrap()).unwrap();
        kill_process(pid, Signal::KILL).unwrap();
        sleep(Duration::from_millis(300));
        job.kill();
        let _ = job.end();
        let half = node.process(Some(50), 1500).end();
        within(&format!("afterwards, daemon {with_daemon}"), half, native(), 0.44, 0.54);
    }
}
