//! Old data, new reader: today's types read what earlier versions wrote. Those wrote UUIDs in lower
//! case.

use limits::{Policy, Priority};
use protocol::sessions::StatusReport;
use protocol::status::{Class, NodeStatus, SessionStatus};
use protocol::{Admission, Decision, DeviceQuota, Lease, Register};
use serde::de::DeserializeOwned;

use crate::golden;
use crate::samples::{self, GPU_ID};

#[track_caller]
fn read<T: DeserializeOwned>(name: &str) -> T {
    serde_json::from_str(&golden(&format!("earlier/{name}"))).unwrap()
}

/// Protocol 1 is no longer supported. A caller that uses it must be told so, and so its message has
/// to be understood.
#[test]
fn a_registration_of_protocol_1() {
    let read: Register = read("register-protocol-1.json");
    assert_eq!(read.protocol, 1);
    assert_eq!(read.devices, [DeviceQuota::fixed(GPU_ID, 250_000)]);
}

/// The first messages of protocol 2, whose fields have not changed since. A quota may be missing,
/// and so may a quota's fields that have defaults.
#[test]
fn messages_of_protocol_2() {
    let admission: Admission = read("admission-without-quota.json");
    assert_eq!(admission, Admission { quota: None, ..samples::admission() });
    let short: Register = read("register-with-defaults.json");
    assert_eq!(short.devices, [DeviceQuota::fixed(GPU_ID, 250_000)]);
    let without = Register { gates: None, ..samples::register() };
    assert_eq!(read::<Register>("register-before-gates.json"), without);
    let lease = |name| read::<Decision>(name).lease;
    let plain = Lease { id: 18, length_us: 20_000, shared: false, exclusive: false };
    // From protocol 1, and from before leases said whether they are exclusive.
    assert_eq!(lease("decision-protocol-1.json"), Some(plain));
    assert_eq!(lease("decision-before-exclusive.json"), Some(Lease { shared: true, ..plain }));
}

/// From when the daemon and the limiter wrote devices in lower case.
#[test]
fn devices_in_lower_case() {
    let expected = Register { gates: None, ..samples::register() };
    assert_eq!(read::<Register>("register-lower-case.json"), expected);
    // Nor did the daemon count lines of its log.
    let expected = NodeStatus { log_lines_lost: 0, ..samples::status() };
    assert_eq!(read::<NodeStatus>("status-lower-case.json"), expected);
}

/// From before quotas had policies.
#[test]
fn a_status_of_the_first_daemon() {
    let mut expected = NodeStatus { log_lines_lost: 0, ..samples::status() };
    let device = &mut expected.devices[0];
    device.sessions[0] = SessionStatus {
        policy: Policy::Fixed,
        soft_ppm: None,
        weight: 0,
        priority: Priority::High,
        spare_us: 0,
        density_ppm: None,
        class: Class::Dense,
        ..device.sessions[0].clone()
    };
    device.leases[0].spare = false;
    assert_eq!(read::<NodeStatus>("status-first.json"), expected);
}

/// From before `headroom` existed, and while a session might not be counted.
#[test]
fn sessions_of_the_first_command() {
    let mut expected = samples::sessions();
    let device = &mut expected.sessions[0].devices[0];
    device.memory.by_kind.headroom = 0;
    device.processes[0].by_kind.headroom = 0;
    assert_eq!(read::<StatusReport>("sessions-counted.json"), expected);
    let device = &mut expected.sessions[0].devices[0];
    device.compute.density_ppm = None;
    device.processes[0].charged_us = 0;
    assert_eq!(read::<StatusReport>("sessions-first.json"), expected);
}
