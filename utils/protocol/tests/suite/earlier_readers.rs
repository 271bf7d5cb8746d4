//! New data, old reader: earlier versions' types, which have fewer fields, parse today's messages. A program built with
//! them must not fail.

use limits::Policy;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::golden;
use crate::samples::GPU;

#[track_caller]
fn read<T: DeserializeOwned>(name: &str) -> T {
    serde_json::from_str(&golden(name)).unwrap()
}

#[derive(Deserialize)]
struct Register {
    protocol: u32,
    devices: Vec<DeviceQuota>,
}

#[derive(Deserialize)]
struct DeviceQuota {
    uuid: String,
    share_ppm: u32,
    policy: Policy,
}

#[derive(Deserialize)]
struct Admission {
    worker: u64,
    uuid: String,
    report: Option<LeaseReport>,
    ask: Option<u64>,
}

#[derive(Deserialize)]
struct LeaseReport {
    lease: u64,
    held_us: u64,
}

#[derive(Deserialize)]
struct Decision {
    lease: Option<Lease>,
}

#[derive(Deserialize)]
struct Lease {
    id: u64,
    length_us: u64,
}

#[test]
fn messages() {
    let register: Register = read("register.json");
    let quota = &register.devices[0];
    assert_eq!((register.protocol, register.devices.len()), (2, 2));
    assert_eq!((&*quota.uuid, quota.share_ppm, quota.policy), (GPU, 250_000, Policy::Balance));
    let admission: Admission = read("admission.json");
    let report = admission.report.unwrap();
    assert_eq!((admission.worker, &*admission.uuid), (3_298_534_883_329, GPU));
    assert_eq!((report.lease, report.held_us, admission.ask), (17, 20_000, Some(1_000_000)));
    let lease = read::<Decision>("decision.json").lease.unwrap();
    assert_eq!((lease.id, lease.length_us), (18, 20_000));
    assert!(read::<Decision>("decision-none.json").lease.is_none());
}

/// Fields that a later version adds to a quota are siblings of the limit's fields.
#[test]
fn a_quota_with_fields_that_are_not_known_here() {
    let later = r#"{"uuid":"GPU-5a1ce000-0000-4000-8000-000000000000","share_ppm":1,"burst":[1,2],
        "policy":"none","priority":"low","window":{"ms":5}}"#;
    let quota: protocol::DeviceQuota = serde_json::from_str(later).unwrap();
    assert_eq!((quota.limit.policy, quota.limit.weight), (Policy::None, 1));
}

#[derive(Deserialize)]
struct StatusReport {
    sessions: Vec<SessionReport>,
}

#[derive(Deserialize)]
struct SessionReport {
    uid: u32,
    devices: Vec<DeviceReport>,
}

#[derive(Deserialize)]
struct DeviceReport {
    memory: MemoryReport,
    processes: Vec<ProcessReport>,
}

#[derive(Deserialize)]
struct MemoryReport {
    limit: Option<u64>,
    by_kind: ByKind,
}

#[derive(Deserialize)]
struct ByKind {
    data: u64,
    driver: u64,
}

#[derive(Deserialize)]
struct ProcessReport {
    pid: u32,
    waiting: bool,
}

#[test]
fn the_sessions() {
    let report: StatusReport = read("sessions.json");
    let session = &report.sessions[0];
    let device = &session.devices[0];
    let memory = &device.memory;
    assert_eq!((session.uid, memory.limit), (1000, Some(1 << 30)));
    assert_eq!((memory.by_kind.data, memory.by_kind.driver), (1 << 30, 7 << 20));
    assert_eq!((device.processes[0].pid, device.processes[0].waiting), (7, true));
}
