//! Callers that register without end, and what a caller can make grow.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use http_bidir_comm::client::{BlockingHttpClient, ClientError};
use limits::GpuId;
use protocol::{DeviceQuota, Register, Registered, VERSION, path};

use crate::process::{Daemon, PATIENCE, place, register};

pub(crate) const MIB: u64 = 1 << 20;

/// The most memory that the daemon has had, in bytes.
pub(crate) fn memory(daemon: &Daemon) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", daemon.process.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

fn devices(first: u32, count: u32) -> Vec<DeviceQuota> {
    let uuid = |n: u32| {
        let mut bytes = [0x70; 16];
        bytes[12..].copy_from_slice(&n.to_be_bytes());
        GpuId::from_bytes(bytes)
    };
    (first..first + count).map(|n| DeviceQuota::fixed(uuid(n), 1000)).collect()
}

fn named(client: &BlockingHttpClient, session: &str, first: u32) -> Result<u64, ClientError> {
    let session = session.to_owned();
    let registration =
        Register { protocol: VERSION, session, devices: devices(first, 64), gates: None };
    let registered: Registered = client.post(path::REGISTER, &registration, PATIENCE)?;
    Ok(registered.worker)
}

/// The median of what a registration takes.
pub(crate) fn registration_takes(client: &BlockingHttpClient) -> Duration {
    // The places of those that have left may have to be found first.
    let start = Instant::now();
    while let Err(refused) = register(client, "somebody", 1000) {
        assert!(start.elapsed() < PATIENCE, "{refused}");
        std::thread::sleep(Duration::from_millis(20));
    }
    let mut times: Vec<_> = (0..101)
        .map(|_| {
            let start = Instant::now();
            register(client, "somebody", 1000).unwrap();
            start.elapsed()
        })
        .collect();
    times.sort_unstable();
    times[50]
}

#[test]
fn new_devices_in_each_message_change_nothing() {
    const ROUNDS: u32 = 1000;
    let (_dir, socket) = place();
    let daemon = Daemon::start(&socket);
    let client = daemon.client();
    let before = (memory(&daemon), registration_takes(&client));
    for (what, session) in [("one session", None), ("a session each", Some(()))] {
        let mut refusals = Vec::new();
        for n in 0..ROUNDS {
            let name = session.map_or("one".to_owned(), |()| format!("{n}"));
            if let Err(refused) = named(&client, &name, n * 64) {
                refusals.push(refused.to_string());
            }
        }
        let after = (memory(&daemon), registration_takes(&client));
        println!("{what}: {} refused, {before:?} became {after:?}", refusals.len());
        assert!(after.0 < before.0 + 16 * MIB, "{what}: {before:?} became {after:?}");
        // 32 ms before devices were bounded.
        assert!(after.1 < before.1 + Duration::from_millis(5), "{before:?} became {after:?}");
        let words = match session {
            None => r#"session "one" has 64 devices and asks for 64 more; expected at most 64"#,
            Some(()) => "devices, as many as are left for all other users",
        };
        let refusal = refusals.last().unwrap();
        assert!(refusal.contains(words), "{refusal}");
    }
    assert!(daemon.devices() <= 256);
}

/// The longest names, in as many sessions as one user may have.
#[test]
fn long_names_take_little() {
    let (_dir, socket) = place();
    let daemon = Daemon::start(&socket);
    let client = daemon.client();
    let before = memory(&daemon);
    for n in 0..5000 {
        let name = format!("{n:0>253}");
        register(&client, &name, 1000).unwrap();
    }
    assert!(memory(&daemon) < before + 16 * MIB, "{} MiB", memory(&daemon) / MIB);
}

/// Opens connections and sends as much of `bytes` on each as is taken.
fn send(socket: &Path, connections: usize, bytes: &[u8]) -> Vec<UnixStream> {
    let mut all: Vec<_> = (0..connections)
        .map(|_| {
            let connection = UnixStream::connect(socket).unwrap();
            connection.set_nonblocking(true).unwrap();
            (connection, 0)
        })
        .collect();
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(1000) {
        for (connection, sent) in &mut all {
            match connection.write(&bytes[*sent..]) {
                Ok(count) => *sent += count,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(_) => *sent = bytes.len(),
            }
        }
    }
    all.into_iter().map(|(connection, _)| connection).collect()
}

const GET: &[u8] = b"GET /api/v1/sessions HTTP/1.1\r\nhost: x\r\n\r\n";

/// Each of 400 connections may take 64 KiB of the daemon: what hyper has read, what is done with it.
#[test]
fn what_is_half_sent_or_not_read_takes_little() {
    const CONNECTIONS: usize = 400;
    let huge_head = [b"POST /v1/register HTTP/1.1\r\nx: ".as_slice(), &[b'a'; 420_000]].concat();
    let body = |length: usize| {
        let head =
            format!("POST /v1/register HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n\r\n");
        [head.as_bytes(), &vec![b' '; length - 1]].concat()
    };
    let chunks = [
        b"POST /v1/register HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n".as_slice(),
        &b"400\r\n"
            .iter()
            .chain(&[b' '; 1024])
            .chain(b"\r\n")
            .copied()
            .collect::<Vec<_>>()
            .repeat(400),
    ]
    .concat();
    let upgrade = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec();
    for (what, bytes) in [
        ("heads", huge_head),
        ("bodies", body(16_000)),
        ("long bodies", body(1_000_000_000 / 1024)),
        ("chunks", chunks),
        ("calls in a row", GET.repeat(10_000)),
        ("answers", GET.to_vec()),
        ("HTTP/2", upgrade),
    ] {
        let (_dir, socket) = place();
        let daemon = Daemon::start(&socket);
        let client = daemon.client();
        // A long state.
        for n in 0..60 {
            named(&client, &n.to_string(), 0).unwrap();
        }
        let alone = registration_takes(&client);
        let before = memory(&daemon);
        let connections = send(&socket, CONNECTIONS, &bytes);
        let grown = memory(&daemon) - before;
        println!("{what}: {} KiB each", grown / 1024 / CONNECTIONS as u64);
        assert!(grown < CONNECTIONS as u64 * 72 * 1024, "{what}: {} MiB", grown / MIB);
        let beside = registration_takes(&client);
        println!("{what}: a registration takes {beside:?}, {alone:?} alone");
        assert!(beside < alone * 20 + Duration::from_millis(10), "{what}: {beside:?}, {alone:?}");
        drop(connections);
    }
}

/// A user's calls of the API come no faster than its line lets them, and its programs do not wait in that line.
#[test]
fn who_asks_without_end_waits_and_its_own_programs_do_not() {
    const CALLS: u32 = 1_500;
    let (_dir, socket) = place();
    let daemon = Daemon::start(&socket);
    let client = daemon.client();
    let alone = registration_takes(&client);
    let start = Instant::now();
    let asking = std::thread::spawn({
        let client = daemon.client();
        move || {
            (0..CALLS).for_each(|_| client.reach(api::path::HEALTH, PATIENCE).map(drop).unwrap())
        }
    });
    let beside = registration_takes(&client);
    println!("a registration takes {beside:?}, {alone:?} alone");
    asking.join().unwrap();
    // 500 at once, and 500 a second.
    assert!(start.elapsed() > Duration::from_millis(1_900), "{:?}", start.elapsed());
    assert!(beside < alone * 20 + Duration::from_millis(10), "{beside:?}, {alone:?}");
}

/// Reads what comes until the daemon hangs up, and for how long that takes.
fn hung_up(mut connection: UnixStream) -> (String, Duration) {
    let start = Instant::now();
    connection.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut answer = Vec::new();
    let end = connection.read_to_end(&mut answer);
    assert!(start.elapsed() < PATIENCE, "{end:?}");
    (String::from_utf8_lossy(&answer).into_owned(), start.elapsed())
}

#[test]
fn an_unfinished_call_ends_in_time() {
    let (_dir, socket) = place();
    let _daemon = Daemon::start(&socket);
    let start = |bytes: &[u8]| {
        let mut connection = UnixStream::connect(&socket).unwrap();
        connection.write_all(bytes).unwrap();
        std::thread::spawn(move || hung_up(connection))
    };
    let head = start(b"POST /v1/register HTTP/1.1\r\nhost:");
    let idle = start(b"");
    let body = start(b"POST /v1/register HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{");
    let (answer, took) = body.join().unwrap();
    assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
    assert!(answer.contains("did not arrive within 2s"), "{answer}");
    assert!(took < Duration::from_secs(8), "{took:?}");
    for connection in [head, idle] {
        let (_, took) = connection.join().unwrap();
        assert!((Duration::from_secs(8)..Duration::from_secs(30)).contains(&took), "{took:?}");
    }
}

/// Who has asked for the state four times without reading is refused; who reads is served.
#[test]
fn answers_that_are_not_read_are_counted() {
    let (_dir, socket) = place();
    let daemon = Daemon::start(&socket);
    let client = daemon.client();
    for n in 0..60 {
        named(&client, &n.to_string(), 0).unwrap();
    }
    let mut unread = send(&socket, 12, GET);
    let refused = client.get::<serde_json::Value>(api::path::SESSIONS, PATIENCE).unwrap_err();
    assert!(refused.to_string().contains("has 4 unread answers"), "{refused}");
    let mut first = [0; 20];
    let answers: Vec<_> = unread
        .iter_mut()
        .map(|connection| {
            connection.set_nonblocking(false).unwrap();
            connection.set_read_timeout(Some(PATIENCE)).unwrap();
            connection.read_exact(&mut first).unwrap();
            String::from_utf8_lossy(&first[9..12]).into_owned()
        })
        .collect();
    assert_eq!(answers.iter().filter(|status| *status == "200").count(), 4, "{answers:?}");
    assert_eq!(answers.iter().filter(|status| *status == "429").count(), 8, "{answers:?}");
    drop(unread);
    let start = Instant::now();
    while client.get::<serde_json::Value>(api::path::SESSIONS, PATIENCE).is_err() {
        assert!(start.elapsed() < PATIENCE);
    }
}
