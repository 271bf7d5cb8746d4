//! Old data, new reader: today's types parse earlier versions' messages, with UUIDs in lower case.

use protocol::sessions::StatusReport;
use protocol::{Admission, Decision, DeviceQuota, Lease, Register};
use serde::de::DeserializeOwned;

use crate::golden;
use crate::samples::{self, GPU_ID};

#[track_caller]
fn read<T: DeserializeOwned>(name: &str) -> T {
    serde_json::from_str(&golden(&format!("earlier/{name}"))).unwrap()
}

/// Protocol 1 is no longer supported. The daemon must tell its callers so, and must therefore understand the message.
#[test]
fn a_registration_of_protocol_1() {
    let read: Register = read("register-protocol-1.json");
    assert_eq!(read.protocol, 1);
    assert_eq!(read.devices, [DeviceQuota::fixed(GPU_ID, 250_000)]);
}

/// The first messages of protocol 2, whose fields have not changed since. A quota may be missing, as may a quota's
/// fields with defaults.
#[test]
fn messages_of_protocol_2() {
    let admission: Admission = read("admission-without-quota.json");
    assert_eq!(
        admission,
        Admission {
            quota: None,
            gate: None,
            together: false,
            outside_us: 0,
            queued_us: 0,
            ..samples::admission()
        }
    );
    let before_grants: Admission = read("admission-before-grants.json");
    let before = Admission {
        gate: None,
        together: false,
        outside_us: 0,
        queued_us: 0,
        ..samples::admission()
    };
    assert_eq!(before_grants, before);
    let short: Register = read("register-with-defaults.json");
    assert_eq!(short.devices, [DeviceQuota::fixed(GPU_ID, 250_000)]);
    let without = Register { gates: None, ..samples::register() };
    assert_eq!(read::<Register>("register-before-gates.json"), without);
    let lease = |name| read::<Decision>(name).lease;
    let plain = Lease { id: 18, length_us: 20_000, shared: false, exclusive: false };
    // From protocol 1, and from before leases had `exclusive`.
    assert_eq!(lease("decision-protocol-1.json"), Some(plain));
    assert_eq!(lease("decision-before-exclusive.json"), Some(Lease { shared: true, ..plain }));
}

/// From versions that wrote UUIDs in lower case.
#[test]
fn devices_in_lower_case() {
    let expected = Register { gates: None, ..samples::register() };
    assert_eq!(read::<Register>("register-lower-case.json"), expected);
}

/// From before `headroom`, when sessions were not always counted.
#[test]
fn sessions_of_the_first_command() {
    let mut expected = samples::sessions();
    let device = &mut expected.sessions[0].devices[0];
    device.memory.by_kind.headroom = 0;
    device.processes[0].by_kind.headroom = 0;
    // From before names, containers and delivered time.
    (device.index, device.memory.peak) = (None, 0);
    (device.age_us, device.refusals) = (None, 0);
    let compute = &mut device.compute;
    (compute.recent_ppm, compute.mean_ppm) = (None, None);
    (compute.delivered_us, compute.waited_us) = (0, 0);
    let session = &mut expected.sessions[0];
    (session.name, session.user, session.command) = (None, None, None);
    (session.container, session.pod, session.frozen) = (None, None, false);
    expected.elsewhere.clear();
    expected.gpus.clear();
    expected.overcommitted.clear();
    assert_eq!(read::<StatusReport>("sessions-counted.json"), expected);
    let device = &mut expected.sessions[0].devices[0];
    device.compute.density_ppm = None;
    device.processes[0].charged_us = 0;
    assert_eq!(read::<StatusReport>("sessions-first.json"), expected);
}
