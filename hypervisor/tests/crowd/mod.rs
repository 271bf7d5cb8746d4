//! Many processes that ask a daemon for leases, each for itself: one process is one worker. And callers that mean harm.
//! The benchmark `load` and the shortened tests use the same ones.

use std::fs;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::ops::Range;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use http_bidir_comm::client::{BlockingHttpClient, ClientError, Endpoint};
use limits::GpuId;
use protocol::{
    Admission, Decision, DeviceQuota, LeaseReport, Register, Registered, VERSION, path,
};
use serde::{Deserialize, Serialize};

/// What a process of the crowd is to do.
const WORK: &str = "CROWD_WORK";
const PATIENCE: Duration = Duration::from_secs(20);
/// How long a process keeps a lease.
const HOLD: Duration = Duration::from_millis(1);

/// How a crowd is made up. Sessions and processes are spread evenly.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) workers: u32,
    pub(crate) sessions: u32,
    pub(crate) devices: u32,
    /// How often each process asks for a lease.
    pub(crate) every: Duration,
    pub(crate) lasts: Duration,
}

#[derive(Debug, Serialize, Deserialize)]
enum Role {
    Worker {
        session: String,
        device: u32,
        share_ppm: u32,
        begin_us: u64,
        every_us: u64,
        end_us: u64,
    },
    /// Sends calls that make no sense.
    Malformed { calls: u32, connections: u32 },
    /// Sends calls that are served, on all connections at once, until it is ended.
    Greedy { connections: u32 },
    /// Asks for leases and reports them without a pause, until it is ended.
    Asking { workers: u32 },
    /// Keeps a CPU busy, and calls nobody, until it is ended.
    Busy,
}

#[derive(Debug, Serialize, Deserialize)]
struct Work {
    socket: PathBuf,
    /// Where it says how it went.
    told: PathBuf,
    role: Role,
}

/// How it went.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Told {
    /// When it asked, and how long the grant took; microseconds.
    pub(crate) granted: Vec<(u64, u64)>,
    /// The same for calls that are answered at once.
    pub(crate) answered: Vec<(u64, u64)>,
    /// When it registered.
    pub(crate) registered: Vec<u64>,
    /// Asks that ended without a lease.
    pub(crate) in_vain: u64,
    /// Calls that failed: the daemon was not there, or new.
    pub(crate) failed: u64,
    /// Answers by the first digit of their status; `0`: the connection was closed without one.
    pub(crate) statuses: [u64; 6],
}

impl Told {
    pub(crate) fn and(mut self, other: Self) -> Self {
        self.granted.extend(other.granted);
        self.answered.extend(other.answered);
        self.registered.extend(other.registered);
        self.in_vain += other.in_vain;
        self.failed += other.failed;
        self.statuses.iter_mut().zip(other.statuses).for_each(|(sum, more)| *sum += more);
        self
    }
}

/// What began within a span of time, as sorted durations.
pub(crate) fn durations(of: &[(u64, u64)], within_us: Range<u64>) -> Vec<u64> {
    let mut all: Vec<u64> =
        of.iter().filter(|(at, _)| within_us.contains(at)).map(|(_, took)| *took).collect();
    all.sort_unstable();
    all
}

/// The value below which so much of sorted values is.
pub(crate) fn quantile(sorted: &[u64], part: f64) -> u64 {
    let at = (sorted.len().saturating_sub(1) as f64 * part) as usize;
    sorted.get(at).copied().unwrap_or(0)
}

/// Processes that run until they are collected.
pub(crate) struct Crowd {
    children: Vec<(Child, PathBuf)>,
    pub(crate) begin_us: u64,
    pub(crate) end_us: u64,
}

impl Crowd {
    /// Starts the processes. `helper` is a command that calls [`play`].
    pub(crate) fn start(
        plan: &Plan,
        socket: &Path,
        folder: &Path,
        helper: &dyn Fn() -> Command,
    ) -> Self {
        // Until all are there: starting one takes some milliseconds.
        let begin_us = now_us() + 2_000_000 + u64::from(plan.workers) * 8_000;
        let end_us = begin_us + micros(plan.lasts);
        let every_us = micros(plan.every);
        let per_device = plan.sessions.div_ceil(plan.devices);
        let children = (0..plan.workers).map(|n| {
            let session = n % plan.sessions;
            let phase = every_us * u64::from(n) / u64::from(plan.workers);
            let role = Role::Worker {
                session: format!("session-{session}"),
                device: session % plan.devices,
                share_ppm: 1_000_000 / per_device,
                begin_us: begin_us + phase,
                every_us,
                end_us,
            };
            started(helper(), socket, folder.join(format!("worker-{n}")), role)
        });
        Self { children: children.collect(), begin_us, end_us }
    }

    /// What they have to say at their end.
    pub(crate) fn collect(self) -> Vec<Told> {
        self.children.into_iter().map(ended).collect()
    }
}

/// A process that sends calls that make no sense.
pub(crate) fn malformed(
    calls: u32,
    connections: u32,
    socket: &Path,
    folder: &Path,
    helper: Command,
) -> (Child, PathBuf) {
    started(helper, socket, folder.join("malformed"), Role::Malformed { calls, connections })
}

/// The same without end.
pub(crate) fn nonsensical(connections: u32, socket: &Path, folder: &Path, helper: Command) -> Harm {
    Harm(malformed(u32::MAX, connections, socket, folder, helper).0)
}

/// A process whose workers take a lease, give it back and take the next one, each on a device of its own.
pub(crate) fn asking(workers: u32, socket: &Path, folder: &Path, helper: Command) -> Harm {
    Harm(started(helper, socket, folder.join("asking"), Role::Asking { workers }).0)
}

/// A process that calls on all its connections at once, again and again, and is answered.
pub(crate) fn greedy(connections: u32, socket: &Path, folder: &Path, helper: Command) -> Harm {
    Harm(started(helper, socket, folder.join("greedy"), Role::Greedy { connections }).0)
}

/// A process that only keeps a CPU busy: what it does to others is not the daemon's doing.
pub(crate) fn busy(socket: &Path, folder: &Path, helper: Command) -> Harm {
    Harm(started(helper, socket, folder.join("busy"), Role::Busy).0)
}

/// A process that goes on until this is dropped.
pub(crate) struct Harm(Child);

impl Drop for Harm {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn started(mut helper: Command, socket: &Path, told: PathBuf, role: Role) -> (Child, PathBuf) {
    // It may run as another user.
    fs::write(&told, "").unwrap();
    fs::set_permissions(&told, std::os::unix::fs::PermissionsExt::from_mode(0o666)).unwrap();
    let work = Work { socket: socket.to_owned(), told: told.clone(), role };
    helper.env(WORK, serde_json::to_string(&work).unwrap()).stdout(Stdio::null());
    (helper.spawn().unwrap(), told)
}

pub(crate) fn ended((mut child, told): (Child, PathBuf)) -> Told {
    assert!(child.wait().unwrap().success(), "a helper failed");
    serde_json::from_str(&fs::read_to_string(told).unwrap()).unwrap()
}

/// Plays the part that this process was started for. `false`: it was started for none.
pub(crate) fn play() -> bool {
    let Ok(work) = std::env::var(WORK) else { return false };
    let Work { socket, told, role } = serde_json::from_str(&work).unwrap();
    let said = match role {
        Role::Worker { session, device, share_ppm, begin_us, every_us, end_us } => {
            let client = BlockingHttpClient::new(Endpoint::Unix(socket));
            let mut worker =
                Worker { client, session, device, share_ppm, id: None, told: Told::default() };
            worker.register();
            let mut next = begin_us;
            while next < end_us {
                thread::sleep(Duration::from_micros(next.saturating_sub(now_us())));
                worker.turn();
                next += every_us;
            }
            worker.told
        }
        Role::Malformed { calls, connections } => send_malformed(&socket, calls, connections),
        Role::Greedy { connections } => send_without_pause(&socket, connections),
        Role::Asking { workers } => ask_without_pause(&socket, workers),
        Role::Busy => loop {
            std::hint::spin_loop();
        },
    };
    fs::write(told, serde_json::to_string(&said).unwrap()).unwrap();
    true
}

/// A process that asks for leases as the limiter does: registers, asks, holds, reports.
pub(crate) struct Worker {
    pub(crate) client: BlockingHttpClient,
    pub(crate) session: String,
    pub(crate) device: u32,
    pub(crate) share_ppm: u32,
    id: Option<u64>,
    pub(crate) told: Told,
}

impl Worker {
    pub(crate) fn new(socket: &Path, session: &str, share_ppm: u32) -> Self {
        let client = BlockingHttpClient::new(Endpoint::Unix(socket.to_owned()));
        let session = session.to_owned();
        Self { client, session, device: 0, share_ppm, id: None, told: Told::default() }
    }

    fn register(&mut self) -> u64 {
        let register = Register {
            protocol: VERSION,
            session: self.session.clone(),
            devices: vec![DeviceQuota::fixed(device(self.device), self.share_ppm)],
            gates: None,
        };
        let (start, mut pause) = (Instant::now(), Duration::from_millis(20));
        loop {
            match self.client.post::<_, Registered>(path::REGISTER, &register, PATIENCE) {
                Ok(registered) => {
                    self.told.registered.push(now_us());
                    self.id = Some(registered.worker);
                    return registered.worker;
                }
                Err(ClientError::Refused { status, message }) => panic!("{status}: {message}"),
                Err(error) => assert!(start.elapsed() < PATIENCE, "{error}"),
            }
            // As the limiter tries again.
            thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(320));
        }
    }

    fn call(
        &self,
        worker: u64,
        report: Option<LeaseReport>,
        ask: Option<u64>,
    ) -> Result<Decision, ClientError> {
        let uuid = device(self.device);
        let admission = Admission { report, ask, ..Admission::of(worker, uuid) };
        self.client.post(path::ADMISSION, &admission, PATIENCE)
    }

    /// Asks for a lease, keeps it for a moment and gives it back.
    pub(crate) fn turn(&mut self) {
        self.turn_of(HOLD);
    }

    fn turn_of(&mut self, hold: Duration) {
        let worker = self.id.unwrap_or_else(|| self.register());
        let asked = now_us();
        let lease = match self.call(worker, None, Some(1_000_000)) {
            Ok(Decision { lease: Some(lease), .. }) => lease,
            Ok(_) => return self.told.in_vain += 1,
            Err(_) => return self.lost(),
        };
        let granted = now_us();
        self.told.granted.push((asked, granted - asked));
        thread::sleep(hold);
        let reported = now_us();
        // It used a tenth of the time: others need not wait for it.
        let held_us = reported - granted;
        let report = LeaseReport {
            lease: lease.id,
            held_us,
            estimated_us: held_us / 10,
            backlogged_us: 0,
            idle_us: 0,
            launches: 1,
            done: true,
        };
        match self.call(worker, Some(report), None) {
            Ok(_) => self.told.answered.push((reported, now_us() - reported)),
            Err(_) => self.lost(),
        }
    }

    fn lost(&mut self) {
        self.told.failed += 1;
        self.register();
    }
}

/// Calls that make no sense, over connections that are kept as long as the daemon keeps them.
fn send_malformed(socket: &Path, calls: u32, connections: u32) -> Told {
    let mut told = Told::default();
    let mut open: Vec<Option<UnixStream>> = (0..connections).map(|_| None).collect();
    for n in 0..calls {
        let place = &mut open[n as usize % connections as usize];
        let mut connection = match place.take() {
            Some(connection) => connection,
            None => {
                let connection = UnixStream::connect(socket).unwrap();
                connection.set_read_timeout(Some(PATIENCE)).unwrap();
                connection
            }
        };
        let (bytes, ends) = nonsense(n);
        let mut answer = vec![0; 16 * 1024];
        // The daemon may have closed it: too many calls, or what was wrong with the last one.
        let sent = connection.write_all(&bytes);
        if ends {
            let _ = connection.shutdown(Shutdown::Write);
        }
        let count = sent.and_then(|()| connection.read(&mut answer)).unwrap_or(0);
        let digit = if count > 12 { answer[9].wrapping_sub(b'0') } else { 0 };
        told.statuses[usize::from(digit).min(5)] += 1;
        if digit != 0
            && !ends
            && !answer[..count].windows(5).any(|part| part.eq_ignore_ascii_case(b"close"))
        {
            *place = Some(connection);
        }
    }
    told
}

/// Calls on all connections at once, and again when all are answered.
fn send_without_pause(socket: &Path, connections: u32) -> ! {
    let open = |_| UnixStream::connect(socket).unwrap();
    let mut open: Vec<_> = (0..connections).map(open).collect();
    let call = format!("GET {} HTTP/1.1\r\nhost: x\r\n\r\n", api::path::HEALTH);
    let mut answer = [0; 4096];
    loop {
        for connection in &mut open {
            connection.write_all(call.as_bytes()).unwrap();
        }
        for connection in &mut open {
            assert!(connection.read(&mut answer).unwrap() > 0, "it was not served");
        }
    }
}

/// Each worker asks on its own connection, for a device that nobody else wants.
fn ask_without_pause(socket: &Path, workers: u32) -> ! {
    let ask = |n: u32| {
        let mut worker = Worker::new(socket, &format!("asking-{n}"), 1_000_000);
        worker.device = n + 1;
        loop {
            worker.turn_of(Duration::ZERO);
            worker.told = Told::default();
        }
    };
    thread::scope(|scope| {
        (1..workers).for_each(|n| drop(scope.spawn(move || ask(n))));
        ask(0)
    })
}

/// A call that makes no sense. `true`: nothing comes after it.
fn nonsense(n: u32) -> (Vec<u8>, bool) {
    let mut dice = u64::from(n).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut any = |most: u64| {
        dice ^= dice << 13;
        dice ^= dice >> 7;
        dice ^= dice << 17;
        dice % most
    };
    let call = |method: &str, path: &str, body: &str| {
        let length = body.len();
        format!("{method} {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n\r\n{body}")
            .into_bytes()
    };
    let paths = [path::REGISTER, path::ADMISSION, path::REPORT];
    let path = paths[any(3) as usize];
    match n % 10 {
        0 => (call("POST", path, "{"), false),
        1 => (call("POST", path, &"[".repeat(any(3_000) as usize)), false),
        2 => (call("POST", path, r#"{"protocol":2,"session":"","devices":[]}"#), false),
        3 => {
            let body = format!(r#"{{"worker":{},"uuid":"{}","ask":-1}}"#, any(u64::MAX), any(99));
            (call("POST", path, &body), false)
        }
        4 => (call("POST", path, &"\u{0}".repeat(any(2_000) as usize)), false),
        5 => (call("PUT", &format!("/api/v1/sessions/{}/limits", any(u64::MAX)), "{}"), false),
        6 => (call("GET", &format!("/{}", "%ff/..".repeat(any(200) as usize)), ""), false),
        7 => ((0..any(600)).map(|_| any(256) as u8).collect(), true),
        8 => (
            b"POST /v1/register HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999999\r\n\r\n{"
                .to_vec(),
            true,
        ),
        _ => {
            let header =
                format!("GET / HTTP/1.1\r\n{}: \u{7f}\r\n\r\n", "x".repeat(any(400) as usize));
            (header.into_bytes(), true)
        }
    }
}

/// Connections that send a part of a call and then nothing.
pub(crate) fn slow(socket: &Path, count: usize) -> Vec<UnixStream> {
    let open = |n: usize| {
        let mut connection = UnixStream::connect(socket).ok()?;
        let part = b"POST /v1/register HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{";
        connection.write_all(&part[..n % part.len()]).ok()?;
        Some(connection)
    };
    (0..count).filter_map(open).collect()
}

fn device(number: u32) -> GpuId {
    let mut bytes = [0x70; 16];
    bytes[12..].copy_from_slice(&number.to_be_bytes());
    GpuId::from_bytes(bytes)
}

/// The most memory that a process has had, in bytes.
pub(crate) fn most_memory(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

/// What a process has used of all CPUs.
pub(crate) fn cpu_time(pid: u32) -> Duration {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let of = |task: PathBuf| {
        let stat = fs::read_to_string(task.join("schedstat")).unwrap_or_default();
        stat.split(' ').next().and_then(|ns| ns.parse().ok()).unwrap_or(0)
    };
    Duration::from_nanos(tasks.flatten().map(|task| of(task.path())).sum())
}

/// Microseconds of a clock that all processes share.
pub(crate) fn now_us() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000 + now.tv_nsec as u64 / 1_000
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
