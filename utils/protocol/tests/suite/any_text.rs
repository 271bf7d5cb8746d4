//! Arbitrary text instead of a message is parsed or refused.

use proptest::prelude::*;
use protocol::{Admission, Decision, Register, Registered};
use serde_json::Value;

use crate::golden;

/// Parses the bytes as each type that the daemon or the limiter reads.
fn read(bytes: &[u8]) {
    if let Ok(register) = serde_json::from_slice::<Register>(bytes) {
        for device in &register.devices {
            // As the daemon does with each quota.
            let _ = (device.limit.check(), device.limit.in_range().check());
        }
    }
    if let Ok(admission) = serde_json::from_slice::<Admission>(bytes) {
        let _ = admission.quota.map(|quota| quota.limit.check());
    }
    let _ = serde_json::from_slice::<Registered>(bytes);
    let _ = serde_json::from_slice::<Decision>(bytes);
}

const GOLDEN: [&str; 4] = ["register.json", "registered.json", "admission.json", "decision.json"];

/// Hostile values.
fn values() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        ".{0,40}".prop_map(Value::from),
        "(GPU|gpu|MIG)-[0-9a-fA-F]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
            .prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 64, 8, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..8).prop_map(Value::from),
            prop::collection::btree_map("[a-z_]{0,12}", inner, 0..8).prop_map(Value::from_iter),
        ]
    })
}

/// Replaces the `n`th value in a message.
fn replace(value: &mut Value, n: &mut usize, by: &Value) {
    if *n == 0 {
        *value = by.clone();
    }
    *n = n.wrapping_sub(1);
    match value {
        Value::Array(all) => all.iter_mut().for_each(|value| replace(value, n, by)),
        Value::Object(all) => all.values_mut().for_each(|value| replace(value, n, by)),
        _ => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn bytes(bytes in prop::collection::vec(any::<u8>(), 0..256)) {
        read(&bytes);
    }

    #[test]
    fn a_value_in_the_place_of_another(which in 0..GOLDEN.len(), mut n in 0usize..40, by in values()) {
        let mut message: Value = serde_json::from_str(&golden(GOLDEN[which])).unwrap();
        replace(&mut message, &mut n, &by);
        read(message.to_string().as_bytes());
    }

    #[test]
    fn a_message_that_is_cut_or_has_another_byte(
        which in 0..GOLDEN.len(), at in any::<prop::sample::Index>(), by in any::<u8>(), cut in any::<bool>(),
    ) {
        let mut bytes = golden(GOLDEN[which]).into_bytes();
        let at = at.index(bytes.len());
        if cut { bytes.truncate(at) } else { bytes[at] = by }
        read(&bytes);
    }
}
