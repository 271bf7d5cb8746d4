//! Memory limits in percent, and limits with a part on the host.

use super::super::ConfigError;
use super::{config, limits};
use limits::RequestError;

const GIB: u64 = 1 << 30;
const DEVICE: Option<u64> = Some(16 * GIB);

/// The limit, and the part on the device, for a device of 16 GiB.
fn memory<const N: usize>(pairs: [(&str, &str); N]) -> (u64, Option<u64>) {
    let memory = limits(pairs).session(DEVICE).unwrap().memory.unwrap();
    (memory.limit, memory.real)
}

#[test]
fn a_percentage_is_of_the_device() {
    for (name, value) in [
        ("TENSOR_FUSION_CUDA_MEM_LIMIT", "{\"3\": \"50%\"}"),
        ("CUDA_MEM_LIMIT_3", "50%"),
        ("CUDA_DEVICE_MEMORY_LIMIT_1", "50 %"),
        ("VCUDA_MEMORY_LIMIT", "50%"),
    ] {
        assert_eq!(memory([(name, value)]), (8 * GIB, None), "{name}");
        assert!(config([(name, value)]).unwrap().needs_device_size(), "{name}");
        // Without the device's size the limit is an error and never dropped.
        let problem = limits([(name, value)]).session(None).unwrap_err().to_string();
        assert!(problem.starts_with(name) && problem.contains("50%"), "{problem}");
    }
    assert!(!config([("CUDA_MEM_LIMIT", "1g")]).unwrap().needs_device_size());
    assert!(limits([("CUDA_MEM_LIMIT", "0.0001%")]).session(Some(1000)).is_err());
}

#[test]
fn each_variable_that_places_a_part_on_the_host() {
    let limit = ("CUDA_MEM_LIMIT", "24g");
    for (other, real) in [
        (("SLUICE_MEM_REAL", "{\"3\": \"12g\"}"), Some(12 * GIB)),
        (("SLUICE_MEM_REAL", "{\"3\": \"25%\"}"), Some(4 * GIB)),
        (("SLUICE_MEM_REAL", "{\"0\": \"12g\"}"), None),
        (("CUDA_MEM_RATIO", "2"), Some(12 * GIB)),
        (("CUDA_MEM_RATIO_3", "1.5"), Some(16 * GIB)),
        (("CUDA_MEM_RATIO", "1"), None),
        (("CUDA_MEM_RATIO", "0.5"), None),
        (("CUDA_MEM_OVERSOLD", "true"), Some(16 * GIB)),
        (("CUDA_MEM_OVERSOLD_3", "1"), Some(16 * GIB)),
        (("CUDA_MEM_OVERSOLD", "false"), None),
        (("CUDA_OVERSUBSCRIBE", "true"), Some(16 * GIB)),
        (("CUDA_OVERSUBSCRIBE", "false"), None),
    ] {
        assert_eq!(memory([limit, other]), (24 * GIB, real), "{other:?}");
    }
    let size =
        limits([limit, ("CUDA_OVERSUBSCRIBE", "true")]).session(None).unwrap_err().to_string();
    assert!(size.starts_with("CUDA_OVERSUBSCRIBE"), "{size}");
}

#[test]
fn the_most_exact_one_holds_and_the_others_are_named() {
    let set = [
        ("CUDA_MEM_LIMIT", "24g"),
        ("CUDA_OVERSUBSCRIBE", "true"),
        ("CUDA_MEM_RATIO", "3"),
        ("SLUICE_MEM_REAL", "{\"3\": \"12g\"}"),
    ];
    assert_eq!(memory(set), (24 * GIB, Some(12 * GIB)));
    let overruled: Vec<_> = limits(set).overruled.iter().map(ToString::to_string).collect();
    let expected = ["CUDA_MEM_RATIO", "CUDA_OVERSUBSCRIBE"];
    assert_eq!(overruled, expected.map(|name| format!("{name} by SLUICE_MEM_REAL[3]")));
    assert_eq!(memory([set[0], set[1], set[2]]), (24 * GIB, Some(8 * GIB)));
    // Of two switches the earlier dialect's applies.
    assert_eq!(memory([set[0], set[1], ("CUDA_MEM_OVERSOLD", "false")]).1, None);
}

#[test]
fn a_part_needs_a_whole() {
    let real = ("SLUICE_MEM_REAL", "{\"0\": \"1g\"}");
    let error = config([real, ("CUDA_CORE_LIMIT", "10")]).unwrap_err();
    assert!(matches!(&error, ConfigError::Conflict(problem)
        if problem.to_string().contains("SLUICE_MEM_REAL[0]")));
    let real = ("SLUICE_MEM_REAL", "{\"3\": \"3g\"}");
    let expected = "SLUICE_MEM_REAL[3] 3GiB is more than CUDA_MEM_LIMIT 2GiB";
    let error = config([("CUDA_MEM_LIMIT", "2g"), real]).unwrap_err();
    assert_eq!(error.to_string(), expected);
    // Detected only when the device is known.
    let problem = limits([("CUDA_MEM_LIMIT", "12.5%"), real]).session(DEVICE).unwrap_err();
    assert!(matches!(problem, RequestError::RealAboveLimit { .. }));
    assert_eq!(problem.to_string(), expected);
    assert_eq!(memory([("CUDA_MEM_LIMIT", "3g"), real]), (3 * GIB, Some(3 * GIB)));
}
