//! Limits and GPUs in JSON: golden texts, and older readers and writers.

use limits::{ComputeLimit, GpuId, Policy, Priority};
use proptest::prelude::*;
use serde_json::{from_str, from_value, json, to_string, to_value};

const UUID: &str = "GPU-3430f778-7a25-704c-9090-8b0bb2478114";

#[test]
fn a_compute_limit_as_it_is_written() {
    let fixed = ComputeLimit::fixed(250_000);
    let written = r#"{"share_ppm":250000,"policy":"fixed","weight":1,"priority":"high"}"#;
    assert_eq!(to_string(&fixed).unwrap(), written);
    let all = ComputeLimit {
        soft_ppm: Some(500_000),
        priority: Priority::Low,
        ..ComputeLimit::balance(250_000, 7)
    };
    let written = json!({
        "share_ppm": 250_000, "policy": "balance", "soft_ppm": 500_000, "weight": 7,
        "priority": "low",
    });
    assert_eq!(to_value(all).unwrap(), written);
}

#[test]
fn older_and_newer_writers_are_understood() {
    let first = r#"{"share_ppm":250000,"policy":"fixed"}"#;
    assert_eq!(from_str::<ComputeLimit>(first).unwrap(), ComputeLimit::fixed(250_000));
    let newer = r#"{"share_ppm":1,"policy":"none","burst":{"ms":5},"weight":2,"soft_ppm":null}"#;
    let read: ComputeLimit = from_str(newer).unwrap();
    assert_eq!((read.policy, read.weight, read.soft_ppm), (Policy::None, 2, None));
    // A missing limit has no default.
    for wrong in
        [r#"{"policy":"fixed"}"#, r#"{"share_ppm":1}"#, r#"{"share_ppm":1,"policy":"fair"}"#]
    {
        assert!(from_str::<ComputeLimit>(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn a_gpu_is_read_in_any_case_and_written_as_nvml_does() {
    for text in [UUID.to_owned(), UUID.to_lowercase(), UUID.to_uppercase()] {
        let id: GpuId = from_value(json!(text)).unwrap();
        assert_eq!(to_value(id).unwrap(), json!(UUID));
    }
    for wrong in [json!("0"), json!(7), json!(null), json!(UUID[4..]), json!(format!("{UUID} "))] {
        assert!(from_value::<GpuId>(wrong.clone()).is_err(), "{wrong}");
    }
    let told = from_value::<GpuId>(json!("0")).unwrap_err().to_string();
    assert!(told.contains("UUID as NVML prints it"), "{told}");
}

proptest! {
    #[test]
    fn what_is_written_is_read(
        share_ppm in any::<u32>(), soft_ppm in any::<Option<u32>>(), weight in any::<u32>(),
        bytes in any::<[u8; 16]>(), low in any::<bool>(),
    ) {
        let priority = if low { Priority::Low } else { Priority::High };
        let limit = ComputeLimit { soft_ppm, priority, ..ComputeLimit::balance(share_ppm, weight) };
        prop_assert_eq!(from_str::<ComputeLimit>(&to_string(&limit).unwrap()).unwrap(), limit);
        let id = GpuId::from_bytes(bytes);
        prop_assert_eq!(from_str::<GpuId>(&to_string(&id).unwrap()).unwrap(), id);
    }
}
