//! Metrics of a node on which everything occurs.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::{env, fs};

use std::time::Instant;

use ::limits::{ComputeLimit, GpuId};
use observer::{
    Ailment, Clocks, DeviceReading, DeviceView, Ecc, GpuProcess, Health, Memory, ThrottleReason,
    UnknownProcess, Unread, Utilization, Xid,
};

use super::*;
use session::kubelet_logs::PodContainer;

use crate::identity::Owner;
use crate::node::measure::{AccountFigures, OnDevice, SessionFigures, WorkerFigures};
use crate::node::served::Served;
use crate::page_memory::{MemoryFigures, PageKey};

const UUID: GpuId =
    GpuId::from_bytes([0x5a, 0x1c, 0xe0, 0, 0, 0, 0x40, 0, 0x80, 0, 0, 0, 0, 0, 0, 0]);
const SECOND: u64 = 1_000_000_000;

/// All figures are different.
fn everything() -> Exposition {
    let owner = Owner::user(1000);
    let session = "train \"a\\b\"".to_owned();
    let mut waits = [0; 13];
    (waits[0], waits[3], waits[12]) = (5, 2, 1);
    let served = Served { turns: 8, waited_ns: 7 * SECOND, waits, stopped: 2 };
    let account = AccountFigures {
        uuid: UUID,
        limit: ComputeLimit { soft_ppm: Some(500_000), ..ComputeLimit::balance(250_000, 1) },
        balance_ns: -20_000_000,
        charged_ns: 90 * SECOND,
        spare_ns: 30 * SECOND,
        served,
    };
    let container = |runtime, id: &str| {
        let id = id.repeat(64).parse().unwrap();
        Owner { container: Some(crate::Container { runtime, id, user: None }), ..owner }
    };
    let in_container = container(crate::Runtime::Docker, "a");
    let in_pod = Owner {
        pod: Some("5a1ce000-0000-4000-8000-000000000001".parse().unwrap()),
        ..container(crate::Runtime::Containerd, "b")
    };
    let named = PodContainer {
        namespace: "shop".to_owned(),
        pod: "web-7".to_owned(),
        container: "main".to_owned(),
    };
    let names = in_pod.container.map(|container| (container.id, named)).into_iter().collect();
    let figures = SessionFigures {
        owner,
        name: session.clone(),
        frozen: true,
        pids: vec![4711, 4712],
        accounts: vec![account],
    };
    let other =
        SessionFigures { owner: in_container, pids: vec![], accounts: vec![], ..figures.clone() };
    let of_pod = SessionFigures { owner: in_pod, name: "main".to_owned(), ..other.clone() };
    let on_device = OnDevice {
        sessions: 3,
        asking: 1,
        leases: 2,
        way_changes: [3, 2],
        share_ppm: 1_250_000,
        charged_ns: 400 * SECOND,
        served,
    };
    let worker = WorkerFigures {
        owner,
        session: session.clone(),
        pid: 4711,
        uuid: UUID,
        charged_ns: 45 * SECOND,
        turns: 6,
        waited_ns: SECOND / 2,
    };
    let node = Figures {
        devices: BTreeMap::from([(UUID, on_device)]),
        sessions: vec![figures, other, of_pod],
        workers: vec![worker],
        left_out: 9,
    };
    let bytes = [1 << 30, 2 << 20, 0, 0, 0, 0, 4 << 20, 0];
    let memory = MemoryFigures {
        limit: Some(2 << 30),
        real: None,
        bytes,
        peak: 2 << 30,
        byte_seconds: 1.5e12,
        refused_for: [15, 16, 17, 18],
        limiter_cpu_ns: SECOND / 4,
        processes: BTreeMap::from([(4711, bytes)]),
    };
    let key = PageKey { owner, session, uuid: UUID };
    let own = BTreeMap::from([(key.session.clone(), "night \"run\"".to_owned())]);
    let called = BTreeMap::from([(owner, own)]);
    let memory = Sample { sessions: [(key, memory)].into(), left_out: 11, at: None, names, called };
    let refusals = vec![("too_many", 12), ("protocol", 13)];
    let daemon = DaemonFigures { ready: true, started_at: 1.8e9, log_lines_lost: 14, refusals };
    Exposition { daemon, node, view: view(), memory }
}

/// A second device has no readable figures.
fn view() -> View {
    let reading = |index, uuid| DeviceReading::unread(index, uuid, &Unread::NotSupported);
    let process = |pid, bytes| GpuProcess { pid, bytes: Some(bytes) };
    let shown = DeviceReading {
        memory: Ok(Memory { total: 80 << 30, reserved: 1 << 30, used: 5 << 30, free: 74 << 30 }),
        utilization: Ok(Utilization { sm: 71, memory: 17 }),
        power_mw: Ok(350_500),
        power_limit_mw: Ok(700_000),
        temperature_c: Ok(63),
        clocks: Clocks { sm_mhz: Ok(1_980), memory_mhz: Ok(2_619) },
        throttling: Ok([ThrottleReason::PowerCap].into()),
        ecc: Ecc { corrected: Ok(21), uncorrected: Ok(0) },
        processes: Ok(vec![process(4711, 3 << 30), process(4712, 1 << 30), process(9, 1 << 20)]),
        ..reading(0, UUID)
    };
    let unknown = UnknownProcess { pid: 9, started: None, uid: None, name: None, bytes: None };
    let device = |reading| DeviceView {
        reading,
        taken: Instant::now(),
        health: Health::Healthy,
        xids: BTreeMap::from([(Xid(31), 22)]),
        unknown: vec![unknown.clone()],
        unknown_seen: 23,
        cordoned: true,
        declared_healthy: 1,
    };
    let ailing = DeviceView {
        health: Health::Unhealthy(vec![Ailment::Lost]),
        xids: BTreeMap::new(),
        unknown: vec![],
        ..device(reading(1, GpuId::from_bytes([1; 16])))
    };
    View { blind: None, seen: Some(Instant::now()), devices: vec![device(shown), ailing] }
}

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// `scripts/test.sh` passes this file to promtool.
#[test]
fn the_older_format_is_the_one_that_is_checked_in() {
    let text = everything().written(Format::Classic);
    let is_build = |line: &&str| line.starts_with("sluice_build_info{");
    let build = text.lines().find(is_build).unwrap();
    assert!(build.contains(&format!("commit=\"{}\"", build_info::COMMIT)), "{build}");
    let text = text.replace(build, "sluice_build_info{version=\"1\",commit=\"2\",profile=\"3\"} 1");
    let path = folder("tests/golden/metrics.txt");
    if env::var_os("UPDATE_DOCS").is_some() {
        fs::write(&path, &text).unwrap();
    }
    let found = fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(found, text, "{}: write it with UPDATE_DOCS=1", path.display());
}

#[test]
fn open_metrics_has_the_same_series_and_an_end() {
    let open = everything().written(Format::OpenMetrics);
    assert!(open.ends_with("\n# EOF\n"), "{open}");
    let series = |text: &str| -> Vec<String> {
        text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
    };
    let classic = everything().written(Format::Classic);
    assert_eq!(series(&open), series(&classic));
    let once: BTreeSet<String> =
        series(&open).iter().filter_map(|line| Some(line.rsplit_once(' ')?.0.to_owned())).collect();
    assert_eq!(once.len(), series(&open).len(), "a series stands there twice");
    assert!(open.contains("# TYPE sluice_session_gpu_seconds counter\n"));
    assert!(classic.contains("# TYPE sluice_session_gpu_seconds_total counter\n"));
    assert!(!classic.contains("EOF"));
}

/// The words of a text that are names of metrics.
fn names(text: &str) -> BTreeSet<String> {
    let words =
        text.split(|letter: char| !(letter.is_ascii_alphanumeric() || "_:".contains(letter)));
    words
        .filter(|word| word.starts_with("sluice_") || word.starts_with("sluice:"))
        .map(str::to_owned)
        .collect()
}

#[test]
fn dashboard_and_rules_name_only_what_there_is() {
    let text = everything().written(Format::Classic);
    let series = text.lines().filter(|line| !line.starts_with('#'));
    let mut known: BTreeSet<String> =
        series.filter_map(|line| Some(line[..line.find(['{', ' '])?].to_owned())).collect();
    let rules = ["sluice", "compatibility"].map(|name| {
        fs::read_to_string(folder(&format!("../deploy/prometheus/{name}.rules.yml"))).unwrap()
    });
    let rules = rules.concat();
    let recorded = rules
        .lines()
        .filter_map(|line| line.trim().trim_start_matches("- ").strip_prefix("record: "));
    known.extend(recorded.map(|name| name.trim().to_owned()));
    let dashboard = fs::read_to_string(folder("../deploy/grafana/sluice.json")).unwrap();
    let dashboard: serde_json::Value = serde_json::from_str(&dashboard).unwrap();
    for (what, text) in [("rules", rules), ("dashboard", dashboard.to_string())] {
        let named = names(&text);
        assert!(named.len() > 5, "{what}: {named:?}");
        let unknown: Vec<_> = named.difference(&known).collect();
        assert!(unknown.is_empty(), "the {what} name what /metrics does not tell: {unknown:?}");
    }
}

#[test]
fn a_caller_gets_the_format_that_it_asks_for() {
    let prometheus =
        "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.4";
    assert_eq!(Format::accepted(Some(prometheus)), Format::OpenMetrics);
    for other in [None, Some("*/*"), Some("text/plain")] {
        assert_eq!(Format::accepted(other), Format::Classic);
    }
}
