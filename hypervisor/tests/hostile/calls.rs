//! Calls with any values in them.

use http_bidir_comm::client::{BlockingHttpClient, ClientError};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use protocol::path;
use serde_json::{Value, json};

use crate::process::{Daemon, GPU, PATIENCE, place, register};

fn numbers() -> impl Strategy<Value = Value> {
    prop_oneof![
        any::<u64>().prop_map(Value::from),
        (0u64..2_000_000).prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        Just(Value::Null),
        Just(json!(u64::MAX)),
        Just(json!("1")),
    ]
}

fn texts() -> impl Strategy<Value = Value> {
    prop_oneof![
        4 => "[a-z]{1,3}".prop_map(Value::from),
        1 => ".{0,300}".prop_map(Value::from),
        1 => Just(json!("x".repeat(9_000))),
        1 => Just(json!("\u{202e}\u{1b}[2J\n")),
    ]
}

fn uuids() -> impl Strategy<Value = Value> {
    prop_oneof![
        4 => Just(json!(GPU)),
        2 => "GPU-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}".prop_map(Value::from),
        1 => texts(),
    ]
}

fn quotas() -> impl Strategy<Value = Value> {
    let policy = prop::sample::select(vec!["fixed", "balance", "none", "", "low"]);
    (uuids(), numbers(), policy, numbers(), numbers()).prop_map(|(uuid, share, policy, soft, weight)| {
        json!({"uuid": uuid, "share_ppm": share, "policy": policy, "soft_ppm": soft, "weight": weight})
    })
}

fn registrations() -> impl Strategy<Value = Value> {
    let version = prop_oneof![9 => Just(json!(2)), 1 => numbers()];
    (version, texts(), prop::collection::vec(quotas(), 0..6)).prop_map(|(protocol, session, devices)| {
        json!({"protocol": protocol, "session": session, "devices": devices})
    })
}

fn admissions(worker: u64) -> impl Strategy<Value = Value> {
    let worker = prop_oneof![9 => Just(json!(worker)), 1 => numbers()];
    // Not long: each call that waits takes its time.
    let ask = prop_oneof![Just(json!(0)), Just(json!(100)), Just(Value::Null), Just(json!(-1))];
    let report = (numbers(), numbers(), numbers(), any::<bool>()).prop_map(|(lease, held, used, done)| {
        json!({"lease": lease, "held_us": held, "estimated_us": used, "backlogged_us": held, "done": done})
    });
    let report = prop_oneof![report, Just(Value::Null)];
    let quota = prop_oneof![Just(Value::Null), quotas()];
    (worker, uuids(), report, ask, quota).prop_map(|(worker, uuid, report, ask, quota)| {
        json!({"worker": worker, "uuid": uuid, "report": report, "ask": ask, "quota": quota})
    })
}

/// It is answered, or refused with a reason.
#[track_caller]
fn answered(client: &BlockingHttpClient, path: &str, call: &Value) {
    match client.post::<_, Value>(path, call, PATIENCE) {
        Ok(_) => {}
        Err(ClientError::Refused { status, message }) => {
            assert!([400, 403, 404, 413, 429].contains(&status), "{status}: {message}");
            assert!(!message.is_empty() && message.len() < 4_000, "{call}: {message:?}");
            assert!(!message.chars().any(char::is_control), "{call}: {message:?}");
        }
        Err(other) => panic!("{path} {call}: {other}"),
    }
}

#[test]
fn any_call_is_answered_or_refused_with_a_reason() {
    let (_dir, socket) = place();
    let mut daemon = Daemon::start(&socket);
    let client = daemon.client();
    let mut runner = TestRunner::new(Config::with_cases(400));
    let worker = register(&client, "a", 500_000).unwrap();
    let call = (registrations(), prop::collection::vec(admissions(worker), 1..4));
    runner
        .run(&call, |(registration, admissions)| {
            answered(&client, path::REGISTER, &registration);
            for admission in &admissions {
                answered(&client, path::ADMISSION, admission);
                answered(&client, path::REPORT, admission);
            }
            Ok(())
        })
        .unwrap();
    register(&client, "a", 500_000).unwrap();
    assert!(daemon.devices() <= 256);
    assert!(daemon.process.try_wait().unwrap().is_none());
}
