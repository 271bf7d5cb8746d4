//! What monitoring reads.

use std::thread;
use std::time::{Duration, Instant};

use limits::Limits;
use limits::{ComputeLimit, MemoryLimit};
use protocol::DeviceQuota;

use crate::call::{call, send};
use crate::process::{Daemon, GPU_ID, PATIENCE, admission, place, register, seen};
use crate::programs::{Program, Seen};

/// The value of the series with these labels.
fn value(text: &str, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
    let has =
        |line: &str, (name, value): &(&str, &str)| line.contains(&format!("{name}=\"{value}\""));
    let mut lines = text.lines().filter(|line| {
        line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' ']))
            && labels.iter().all(|label| has(line, label))
    });
    let line = lines.next()?;
    assert_eq!(lines.next(), None, "{name} {labels:?}");
    line.rsplit(' ').next()?.parse().ok()
}

#[track_caller]
fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(start.elapsed() < PATIENCE, "{what}");
        thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn what_a_session_gets_is_told_until_it_ends() {
    let (_dir, socket) = place();
    let daemon = Daemon::start(&socket);
    let metrics = || {
        let (status, text) = call(&socket, "GET", "/metrics", None);
        assert_eq!(status, 200, "{text}");
        text
    };
    // One that is here for as long as the test is, and waits while the other one holds.
    let worker = register(&daemon.client(), "stays", 300_000).unwrap();
    let goes = Program {
        session: "goes",
        quota: DeviceQuota::fixed(GPU_ID, 500_000),
        density: 1.0,
        length: Duration::from_secs(5),
    };
    let child = goes.start(&socket);
    let uuid = GPU_ID.to_string();
    let of = |session: &'static str| [("session", session), ("uuid", uuid.as_str())];
    eventually("the program gets turns", || {
        let turns = value(&metrics(), "sluice_session_turns_total", &of("goes"))?;
        (turns > 0.0).then_some(())
    });
    admission(&daemon.client(), worker, None, Some(PATIENCE)).unwrap().unwrap();
    let text = metrics();
    assert_eq!(value(&text, "sluice_session_share_ratio", &of("stays")), Some(0.3));
    assert_eq!(value(&text, "sluice_session_burst_limit_ratio", &of("goes")), Some(0.5));
    assert_eq!(value(&text, "sluice_session_turns_total", &of("stays")), Some(1.0));
    let on_device = [("uuid", uuid.as_str())];
    let turns = |name: &str, labels: &[(&str, &str)]| value(&text, name, labels).unwrap();
    let both = turns("sluice_session_turns_total", &of("goes")) + 1.0;
    assert_eq!(turns("sluice_device_turns_total", &on_device), both);
    assert_eq!(turns("sluice_device_turn_wait_seconds_count", &on_device), both);
    let pid = child.id().to_string();
    let of_worker = [("session", "goes"), ("pid", pid.as_str()), ("uuid", uuid.as_str())];
    assert_eq!(turns("sluice_worker_turns_total", &of_worker) + 1.0, both);
    // What it was charged is no less than what it reports, and a counter does not go back.
    let mut last = 0.0;
    eventually("the program is charged", || {
        let charged = value(&metrics(), "sluice_session_gpu_seconds_total", &of("goes"))?;
        assert!(charged >= last, "{charged} after {last}");
        last = charged;
        (charged > 0.3).then_some(())
    });
    seen::<Seen>(child);
    eventually("the series end with the session", || {
        let text = metrics();
        assert!(value(&text, "sluice_session_share_ratio", &of("stays")).is_some(), "{text}");
        (!text.contains("session=\"goes\"")).then_some(())
    });
    // The device has given what it has given.
    let given = value(&metrics(), "sluice_device_gpu_seconds_total", &on_device).unwrap();
    assert!(given >= last, "{given} of {last}");
    let refused = value(&metrics(), "sluice_refusals_total", &[("reason", "unknown_worker")]);
    assert_eq!(refused, Some(0.0));
    admission(&daemon.client(), worker + 1_000, None, None).unwrap_err();
    let refused = value(&metrics(), "sluice_refusals_total", &[("reason", "unknown_worker")]);
    assert_eq!(refused, Some(1.0));
    let (_, open) = send(
        &socket,
        b"GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\naccept: application/openmetrics-text\r\n\r\n",
    );
    assert!(open.ends_with("# EOF\n"), "{open}");
}

#[test]
fn memory_is_what_the_session_s_page_says() {
    let owned = session::directory::OwnedSession::create().unwrap();
    let limits = Limits {
        memory: Some(MemoryLimit { limit: 3 << 20, real: None }),
        compute: ComputeLimit::fixed(200_000),
    };
    session::Page::open(owned.path(), GPU_ID, &limits).unwrap();
    let name = owned.path().file_name().unwrap();
    let name = session::directory::shown_name(std::path::Path::new(name));
    let (_dir, socket) = place();
    let _daemon = Daemon::start(&socket);
    let metrics = || call(&socket, "GET", "/metrics", None).1;
    let labels = [("session", name.as_str())];
    let limit = eventually("the page is looked at", || {
        value(&metrics(), "sluice_session_memory_limit_bytes", &labels)
    });
    assert_eq!(limit, f64::from(3 << 20));
    let of_kind = [("session", name.as_str()), ("kind", "data")];
    assert_eq!(value(&metrics(), "sluice_session_memory_bytes", &of_kind), Some(0.0));
    drop(owned);
    eventually("the series end with the session", || {
        value(&metrics(), "sluice_session_memory_limit_bytes", &labels).is_none().then_some(())
    });
}
