//! Calls that cannot be answered.

use std::thread;
use std::time::{Duration, Instant};

use http_bidir_comm::client::ClientError;
use protocol::path;
use serde_json::{Value, json};

use crate::holders::holder;
use crate::process::{Daemon, GPU, PATIENCE, admission, place, register, registration};

#[test]
fn bad_calls_are_refused_with_reasons() {
    let (_dir, socket) = place();
    let daemon = Daemon::start(&socket);
    let client = daemon.client();
    let refusal = |path: &str, body: Value| match client.post::<_, Value>(path, &body, PATIENCE) {
        Err(ClientError::Refused { status, message }) => (status, message),
        other => panic!("{path} {body}: {other:?}"),
    };
    let with = |change: Value| {
        let mut body = serde_json::to_value(registration("a", 250_000)).unwrap();
        body.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        refusal(path::REGISTER, body)
    };
    let device = |uuid: &str, share: u64, policy: &str| {
        with(json!({"devices": [{"uuid": uuid, "share_ppm": share, "policy": policy}]}))
    };
    let quota_of = |uuid: &str| json!({"uuid": uuid, "share_ppm": 1, "policy": "fixed"});
    let many: Vec<Value> =
        (0..65).map(|n| quota_of(&format!("{}{n:02}", &GPU[..GPU.len() - 2]))).collect();
    for (got, status, words) in [
        (with(json!({"protocol": 99})), 400, "protocol 99"),
        (with(json!({"session": ""})), 400, "session name"),
        (with(json!({"session": "x".repeat(1000)})), 400, "session name"),
        (with(json!({"devices": []})), 400, "0 devices"),
        (with(json!({"devices": many})), 400, "65 devices"),
        (
            with(json!({"devices": [quota_of(GPU), quota_of(&GPU.replace("gpu", "MIG"))]})),
            400,
            "is named twice",
        ),
        (with(json!({"session": "a\nb"})), 400, "session name"),
        (device("0", 1, "fixed"), 400, "UUID as NVML prints it"),
        (device(GPU, 0, "fixed"), 400, "share_ppm 0"),
        (device(GPU, 1_000_001, "fixed"), 400, "share_ppm 1000001"),
        (device(GPU, 1 << 40, "fixed"), 400, "not as expected"),
        (device(GPU, 1, "generous"), 400, "generous"),
        (refusal(path::REGISTER, json!("text")), 400, "not as expected"),
        (refusal(path::REGISTER, json!("x".repeat(70_000))), 413, "16384"),
        (refusal("/v1/nothing", json!({})), 404, ""),
    ] {
        assert_eq!(got.0, status, "{}", got.1);
        assert!(got.1.contains(words), "{:?} does not say {words:?}", got.1);
    }

    let worker = register(&client, "a", 250_000).unwrap();
    let quota = |change: Value| {
        let mut quota = json!({"uuid": GPU, "share_ppm": 250_000, "policy": "balance"});
        quota.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        let call = json!({"worker": worker, "uuid": GPU, "report": null, "ask": 0, "quota": quota});
        refusal(path::ADMISSION, call)
    };
    for (got, words) in [
        (quota(json!({"share_ppm": 0})), "share_ppm 0"),
        (quota(json!({"soft_ppm": 1_000_001})), "soft_ppm 1000001"),
        (quota(json!({"soft_ppm": 0})), "soft_ppm 0"),
        (quota(json!({"weight": 0})), "weight 0: expected 1 to 10000"),
        (quota(json!({"weight": 1_000_000})), "weight 1000000"),
        (quota(json!({"priority": "highest"})), "highest"),
        (quota(json!({"uuid": GPU.replace('5', "6")})), "carries the quota of device"),
    ] {
        assert_eq!(got.0, 400, "{}", got.1);
        assert!(got.1.contains(words), "{:?} does not say {words:?}", got.1);
    }

    let ask = |worker: u64, uuid: &str| {
        refusal(path::ADMISSION, json!({"worker": worker, "uuid": uuid, "report": null, "ask": 0}))
    };
    assert_eq!(ask(worker + 1, GPU).0, 404);
    assert_eq!(ask(worker, &GPU.replace('5', "6")).0, 404);
    // Process 1 is not ours, and neither is its worker. A helper registers, and we use its number.
    let mut other = holder(&socket, "other", 100_000, Duration::from_secs(60)).spawn().unwrap();
    let start = Instant::now();
    while daemon.sessions().len() < 2 {
        assert!(start.elapsed() < PATIENCE, "the helper does not register");
        thread::sleep(Duration::from_millis(10));
    }
    // Numbers cannot be probed: it is told as one that nobody has.
    let (unknown, others) = (ask(worker + 2, GPU), ask(worker + 1, GPU));
    assert_eq!((unknown.0, others.0), (404, 404));
    let without = |(_, said): (u16, String), number: u64| said.replace(&number.to_string(), "N");
    assert_eq!(without(unknown, worker + 2), without(others, worker + 1));
    other.kill().unwrap();
    other.wait().unwrap();
    // After all this, a valid call works, and an answer comes in the time asked for.
    let started = Instant::now();
    assert!(admission(&client, worker, None, Some(Duration::from_secs(10))).unwrap().is_some());
    assert!(started.elapsed() < Duration::from_secs(5));
}
