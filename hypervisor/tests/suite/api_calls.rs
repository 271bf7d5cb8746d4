//! The API, as its callers see it.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use api::{Event, EventKind, LimitsChanged, Session, SessionAction, SessionState};
use http_bidir_comm::client::ClientError;
use limits::Policy;
use protocol::{DeviceQuota, Register};
use serde_json::Value;

use crate::call::call;
use crate::process::{Daemon, GPU_ID, PATIENCE, admission, place, register, registration};

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// Compares with a checked-in file, or writes it with `UPDATE_DOCS=1`.
#[track_caller]
fn is_written(path: &Path, text: &str) {
    if env::var_os("UPDATE_DOCS").is_some() {
        fs::write(path, text).unwrap();
    }
    let found = fs::read_to_string(path).unwrap_or_default();
    assert_eq!(found, text, "{}: write it with UPDATE_DOCS=1", path.display());
}

fn session(daemon: &Daemon, name: &str) -> Session {
    daemon.sessions().into_iter().find(|session| session.name == name).unwrap()
}

fn act(daemon: &Daemon, id: u64, action: &str) -> Result<SessionAction, ClientError> {
    daemon.client().post(&api::path::session(id, action), &(), PATIENCE)
}

/// An answer without what differs from run to run.
fn steady(mut value: Value) -> Value {
    match &mut value {
        Value::Object(all) => {
            // Where the tests run.
            for key in ["container", "pod", "unit"] {
                all.remove(key);
            }
            for (key, value) in all {
                let same = match key.as_str() {
                    "id" | "session" | "pid" | "uid" | "uptime_us" | "at_us" => 1.into(),
                    "pids" => Value::from([1]),
                    // A lease that is not reported is revoked after a while.
                    "revoked" => false.into(),
                    "state" if value == "revoked" => "holding".into(),
                    "leases" if value.is_number() => 1.into(),
                    "balance_us" | "charged_us" | "held_us" | "log_lines_lost" | "mean_ppm"
                    | "recent_ppm" | "waited_us" => 0.into(),
                    _ => steady(value.take()),
                };
                *value = same;
            }
        }
        Value::Array(all) => all.iter_mut().for_each(|value| *value = steady(value.take())),
        _ => {}
    }
    value
}

#[test]
fn the_description_is_the_one_that_is_checked_in() {
    let (_dir, socket) = place();
    let _daemon = Daemon::start(&socket);
    let (status, text) = call(&socket, "GET", api::path::DESCRIPTION, None);
    assert_eq!(status, 200);
    let description: Value = serde_json::from_str(&text).unwrap();
    let text = serde_json::to_string_pretty(&description).unwrap() + "\n";
    is_written(&folder("../docs/api/openapi.json"), &text);
}

#[test]
fn answers_are_their_golden() {
    let (_dir, socket) = place();
    let daemon = Daemon::start(&socket);
    let worker = register(&daemon.client(), "a", 300_000).unwrap();
    admission(&daemon.client(), worker, None, Some(PATIENCE)).unwrap().unwrap();
    let id = session(&daemon, "a").id;
    let one = |action: &str| api::path::session(id, action);
    let uuid = format!("/api/v1/devices/{GPU_ID}");
    let limits = one("/limits");
    let calls = [
        ("GET", "/healthz", None),
        ("GET", "/readyz", None),
        ("GET", "/api/v1/devices", None),
        ("GET", uuid.as_str(), None),
        ("GET", "/api/v1/sessions", None),
        ("GET", &one(""), None),
        ("GET", "/api/v1/workers", None),
        ("GET", "/api/v1/leases", None),
        ("POST", &one("/freeze"), None),
        ("POST", &one("/freeze"), None),
        ("GET", &one(""), None),
        ("PUT", limits.as_str(), Some(r#"{"policy": "none"}"#)),
        ("POST", &one("/thaw"), None),
        ("PUT", &limits, Some(r#"{"share_ppm": 400000}"#)),
        ("PUT", &limits, Some("{}")),
        ("PUT", &limits, Some(r#"{"share": 1}"#)),
        ("PUT", &limits, Some(r#"{"share_ppm": "much"}"#)),
        ("PUT", &limits, Some(r#"{"share_ppm": 0}"#)),
        ("PUT", &limits, Some(r#"{"no_memory_limit": true, "memory_bytes": 5}"#)),
        ("GET", "/api/v1/sessions/0", None),
        ("GET", "/api/v1/sessions/a", None),
        ("GET", "/api/v1/devices/x", None),
        ("POST", "/api/v1/sessions/0/freeze", None),
        ("DELETE", "/api/v1/sessions", None),
        ("GET", "/api/v1/nothing", None),
    ];
    let mut text = String::new();
    for (method, path, body) in calls {
        let (status, answer) = call(&socket, method, path, body);
        let answer: Value = serde_json::from_str(&answer).unwrap();
        let name = path.replace(&id.to_string(), "1");
        text += &format!("{method} {name} {}\n{status} ", body.unwrap_or(""));
        let answer = steady(answer).to_string();
        text += &(answer.replace(&id.to_string(), "1") + "\n\n");
    }
    let home = format!("user {}", rustix::process::getuid().as_raw());
    is_written(&folder("tests/golden/answers.txt"), &text.replace(&home, "user 1000"));
}

#[test]
fn a_frozen_session_gets_nothing_until_it_is_thawed() {
    let (_dir, socket) = place();
    let daemon = Daemon::start(&socket);
    let client = daemon.client();
    let worker = register(&client, "a", 500_000).unwrap();
    let id = session(&daemon, "a").id;
    let frozen = act(&daemon, id, "/freeze").unwrap();
    assert_eq!((frozen.state, frozen.changed), (SessionState::Frozen, true));
    assert!(!act(&daemon, id, "/freeze").unwrap().changed);
    let moment = Some(Duration::from_millis(300));
    assert_eq!(admission(&client, worker, None, moment).unwrap(), None);
    // Processes that come later are of a frozen session, too, and a device that is new.
    register(&client, "a", 600_000).unwrap();
    assert_eq!(session(&daemon, "a").state, SessionState::Frozen);
    assert_eq!(admission(&client, worker, None, moment).unwrap(), None);
    let waits = thread::spawn({
        let client = daemon.client();
        move || admission(&client, worker, None, Some(PATIENCE)).unwrap()
    });
    while !session(&daemon, "a").devices[0].asks {
        thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(act(&daemon, id, "/thaw").unwrap().state, SessionState::Running);
    assert!(waits.join().unwrap().is_some());
    assert_eq!(session(&daemon, "a").state, SessionState::Running);
}

#[test]
fn a_session_without_a_time_limit_cannot_be_frozen() {
    let (_dir, socket) = place();
    let daemon = Daemon::start(&socket);
    let mut quota = DeviceQuota::fixed(GPU_ID, 0);
    quota.limit.policy = Policy::None;
    let message = Register { devices: vec![quota], ..registration("free", 1) };
    let _: Value = daemon.client().post(protocol::path::REGISTER, &message, PATIENCE).unwrap();
    let id = session(&daemon, "free").id;
    let (status, text) = call(&socket, "POST", &api::path::session(id, "/freeze"), None);
    let problem: api::Problem = serde_json::from_str(&text).unwrap();
    assert_eq!((status, problem.code), (409, api::ProblemCode::NoTimeLimit));
    assert!(problem.message.contains(&GPU_ID.to_string()), "{text}");
    assert!(problem.accepted.contains("a compute share on each of its devices"), "{text}");
    assert_eq!(session(&daemon, "free").state, SessionState::Running);
}

/// A limit that was set since is known to the daemon when a program next uses the device.
#[test]
fn a_limit_that_the_daemon_was_not_told_of_is_named_as_the_cause() {
    let owned = session::directory::OwnedSession::create().unwrap();
    let mut limits = limits::Limits { memory: None, compute: limits::ComputeLimit::fixed(0) };
    limits.compute.policy = Policy::None;
    let _page = session::Page::open(owned.path(), GPU_ID, &limits).unwrap();
    let name = session::directory::shown_name(Path::new(owned.path().file_name().unwrap()));
    let (_dir, socket) = place();
    let daemon = Daemon::start(&socket);
    let mut quota = DeviceQuota::fixed(GPU_ID, 0);
    quota.limit.policy = Policy::None;
    let message = Register { devices: vec![quota], ..registration(&name, 1) };
    let _: Value = daemon.client().post(protocol::path::REGISTER, &message, PATIENCE).unwrap();
    let id = session(&daemon, &name).id;
    let freeze = || -> (u16, api::Problem) {
        let (status, text) = call(&socket, "POST", &api::path::session(id, "/freeze"), None);
        (status, serde_json::from_str(&text).unwrap())
    };
    let (status, problem) = freeze();
    assert!(status == 409 && problem.message.contains("has no compute share"), "{problem:?}");
    let change = r#"{"share_ppm": 300000, "policy": "fixed"}"#;
    let (status, text) = call(&socket, "PUT", &api::path::session(id, "/limits"), Some(change));
    assert_eq!(status, 200, "{text}");
    let (status, problem) = freeze();
    assert_eq!((status, problem.code), (409, api::ProblemCode::NoTimeLimit));
    assert!(problem.message.contains("cannot be frozen yet"), "{problem:?}");
    assert!(
        problem.accepted.contains("once a program of the session has used the device"),
        "{problem:?}"
    );
    register(&daemon.client(), &name, 300_000).unwrap();
    assert_eq!(act(&daemon, id, "/freeze").unwrap().state, SessionState::Frozen);
}

#[test]
fn limits_are_changed_in_the_pages_and_nobody_is_late() {
    let owned = session::directory::OwnedSession::create().unwrap();
    let before = limits::Limits { memory: None, compute: limits::ComputeLimit::fixed(200_000) };
    let page = session::Page::open(owned.path(), GPU_ID, &before).unwrap();
    let name = session::directory::shown_name(Path::new(owned.path().file_name().unwrap()));
    let (_dir, socket) = place();
    let daemon = Daemon::start(&socket);
    register(&daemon.client(), &name, 200_000).unwrap();
    let path = api::path::session(session(&daemon, &name).id, "/limits?wait_ms=50");
    let change = r#"{"share_ppm": 250000, "policy": "balance", "memory_bytes": 1048576}"#;
    let (status, text) = call(&socket, "PUT", &path, Some(change));
    assert_eq!(status, 200, "{text}");
    let changed: LimitsChanged = serde_json::from_str(&text).unwrap();
    let [device] = &changed.devices[..] else { panic!("{changed:?}") };
    assert!(changed.taken_by_all && device.processes.is_empty());
    let after = page.layout().limits();
    assert_eq!(after.compute.share_ppm, 250_000);
    assert_eq!(after.memory.unwrap().limit, device.memory_bytes.unwrap());
    // A member that computes nothing on the device is not expected to follow.
    let member = session::Membership::claim(page).unwrap();
    let (_, text) = call(&socket, "PUT", &path, Some(change));
    let changed: LimitsChanged = serde_json::from_str(&text).unwrap();
    assert!(changed.taken_by_all && changed.devices[0].processes.is_empty(), "{text}");
    // One that does, and does not follow, is named, and is not waited for longer than was asked.
    let context = session::layout::MemoryKind::Context as usize;
    let bytes = &member.look().unwrap().slots[member.slot()].bytes[context];
    bytes.store(1, core::sync::atomic::Ordering::Relaxed);
    let start = Instant::now();
    let (_, text) = call(&socket, "PUT", &path, Some(change));
    let changed: LimitsChanged = serde_json::from_str(&text).unwrap();
    let process = &changed.devices[0].processes[0];
    assert_eq!(
        (process.pid, process.taken, changed.taken_by_all),
        (std::process::id(), false, false)
    );
    assert!(start.elapsed() >= Duration::from_millis(50));
    // One that does is named, too.
    let follow = thread::spawn(move || {
        let layout = member.look().unwrap();
        let count = || layout.limit_changes.load(core::sync::atomic::Ordering::Acquire);
        let before = count();
        while count() == before {
            thread::sleep(Duration::from_millis(1));
        }
        layout.take_change(member.slot(), count());
        member
    });
    let path = path.replace("=50", "=1000");
    let mut took = false;
    while !follow.is_finished() {
        let (_, text) = call(&socket, "PUT", &path, Some(change));
        took = serde_json::from_str::<LimitsChanged>(&text).unwrap().taken_by_all;
    }
    assert!(took);
    drop(follow.join().unwrap());
    let wrong = call(&socket, "PUT", &path, Some(r#"{"soft_ppm": 1}"#));
    assert!(wrong.0 == 400 && wrong.1.contains("bad_limits"), "{wrong:?}");
    let other = r#"{"share_ppm": 1, "device": "GPU-5a1ce000-0000-4000-8000-000000000009"}"#;
    assert_eq!(call(&socket, "PUT", &path, Some(other)).0, 404);
}

/// A stream of events.
struct Stream(BufReader<UnixStream>);

impl Stream {
    fn open(socket: &Path, after: Option<&str>) -> Self {
        let mut connection = UnixStream::connect(socket).unwrap();
        connection.set_read_timeout(Some(PATIENCE)).unwrap();
        let after = after.map_or(String::new(), |id| format!("Last-Event-ID: {id}\r\n"));
        let head = format!("GET /api/v1/events HTTP/1.1\r\nhost: x\r\n{after}\r\n");
        connection.write_all(head.as_bytes()).unwrap();
        let mut reader = BufReader::new(connection);
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        assert!(line.starts_with("HTTP/1.1 200"), "{line}");
        while line != "\r\n" {
            line.clear();
            reader.read_line(&mut line).unwrap();
        }
        Self(reader)
    }

    fn next(&mut self) -> Event {
        let mut line = String::new();
        loop {
            line.clear();
            assert!(self.0.read_line(&mut line).unwrap() > 0, "the stream ended");
            if let Some(text) = line.strip_prefix("data:") {
                return serde_json::from_str(text.trim()).unwrap();
            }
        }
    }

    fn until(&mut self, kind: EventKind) -> Event {
        loop {
            let event = self.next();
            if event.kind == kind {
                return event;
            }
        }
    }
}

#[test]
fn events_are_read_as_they_come_and_from_where_one_was() {
    let (_dir, socket) = place();
    let daemon = Daemon::start(&socket);
    let mut stream = Stream::open(&socket, None);
    register(&daemon.client(), "a", 500_000).unwrap();
    let came = stream.until(EventKind::SessionCame);
    assert_eq!(came.name.as_deref(), Some("a"));
    let id = came.session.unwrap();
    act(&daemon, id, "/freeze").unwrap();
    let frozen = stream.next();
    assert_eq!((frozen.kind, frozen.session), (EventKind::Frozen, Some(id)));
    drop(stream);
    act(&daemon, id, "/thaw").unwrap();
    register(&daemon.client(), "a", 600_000).unwrap();
    let _ = register(&daemon.client(), "", 1).unwrap_err();
    let mut again = Stream::open(&socket, Some(&frozen.id));
    let kinds: Vec<_> = (0..3).map(|_| again.next().kind).collect();
    assert_eq!(kinds, [EventKind::Thawed, EventKind::LimitsChanged, EventKind::Refused]);
    // An event of another daemon.
    let mut other = Stream::open(&socket, Some("00000000-5"));
    assert_eq!((other.next().kind, other.next().kind), (EventKind::Lost, EventKind::SessionCame));
    let wrong = "GET /api/v1/events HTTP/1.1\r\nhost: x\r\nlast-event-id: yesterday\r\n\r\n";
    let mut connection = UnixStream::connect(&socket).unwrap();
    connection.write_all(wrong.as_bytes()).unwrap();
    let mut line = String::new();
    BufReader::new(connection).read_line(&mut line).unwrap();
    assert!(line.starts_with("HTTP/1.1 400"), "{line}");
}

#[test]
fn ids_of_a_daemon_before_are_not_known() {
    let (_dir, socket) = place();
    let daemon = Daemon::start(&socket);
    register(&daemon.client(), "a", 500_000).unwrap();
    let former = session(&daemon, "a").id;
    drop(daemon);
    let daemon = Daemon::start(&socket);
    register(&daemon.client(), "a", 500_000).unwrap();
    let refused = act(&daemon, former, "/freeze").unwrap_err();
    assert!(matches!(refused, ClientError::Refused { status: 404, .. }), "{refused}");
}

#[test]
fn who_knows_no_device_is_not_ready() {
    let (_dir, socket) = place();
    let daemon = Daemon::start(&socket);
    if Path::new("/proc/driver/nvidia/gpus").exists() {
        return crate::skipped::skipped("this machine has a GPU");
    }
    let (status, text) = call(&socket, "GET", api::path::READY, None);
    assert_eq!(status, 503);
    let readiness: api::Readiness = serde_json::from_str(&text).unwrap();
    assert_eq!(readiness.reasons[0].code, api::ReasonCode::NoDevice);
    register(&daemon.client(), "a", 500_000).unwrap();
    assert_eq!(call(&socket, "GET", api::path::READY, None).0, 200);
    assert_eq!((daemon.devices(), daemon.log_lines_lost()), (1, 0));
}
