//! Precedence among several limits.

use super::super::{Config, DeviceIdentity};
use super::{FakeEnvironment, OTHER, UUID, config, device, limits};
use limits::Policy;

const GIB: u64 = 1 << 30;

#[test]
fn each_memory_variable_limits_memory() {
    for (name, value) in [
        ("TENSOR_FUSION_CUDA_MEM_LIMIT", "{\"3\": 1073741824}"),
        ("TENSOR_FUSION_CUDA_MEM_LIMIT", "{\"3\": \"1GiB\"}"),
        (
            "TENSOR_FUSION_CUDA_MEM_LIMIT",
            "{\"GPU-3430F778-7A25-704C-9090-8B0BB2478114\": 1073741824}",
        ),
        (
            "TENSOR_FUSION_CUDA_MEM_LIMIT",
            "{\"gpu-3430f778-7a25-704c-9090-8b0bb2478114\": 1073741824}",
        ),
        ("CUDA_MEM_LIMIT_3", "1024m"),
        ("CUDA_MEM_LIMIT", "1024m"),
        ("CUDA_DEVICE_MEMORY_LIMIT_1", "1g"),
        ("CUDA_DEVICE_MEMORY_LIMIT", "1g"),
        ("CUDA_DEVICE_MEMORY_LIMIT", "0x40000000"),
        ("CUDA_DEVICE_MEMORY_LIMIT_1", "0x400m"),
        ("VCUDA_MEMORY_LIMIT", "1073741824"),
        ("TF_GPU_MEMORY_LIMIT", "1024"),
        ("TF_CUDA_MEMORY_LIMIT", "1024"),
        ("GPU_MEMORY_LIMIT", "1073741824"),
    ] {
        let limits = limits([(name, value)]);
        assert_eq!(limits.bytes(), Some(GIB), "{name}={value}");
        assert!(limits.memory_source().unwrap().starts_with(name));
        assert_eq!(limits.request.share, None);
        let config = config([(name, value)]).unwrap();
        assert!(config.limits_anything() && !config.limits_compute());
    }
}

#[test]
fn each_compute_variable_limits_the_share() {
    for (name, value) in [
        ("TENSOR_FUSION_CUDA_UP_LIMIT", "{\"3\": 12.5}"),
        (
            "TENSOR_FUSION_CUDA_UP_LIMIT",
            "{\"gpu-3430f778-7a25-704c-9090-8b0bb2478114\": \"12.5%\"}",
        ),
        ("CUDA_CORE_LIMIT_3", "12.5"),
        ("CUDA_CORE_LIMIT", "12.5"),
        ("CUDA_DEVICE_SM_LIMIT_1", "12.5"),
        ("CUDA_DEVICE_SM_LIMIT", "12.5"),
        ("TF_CUDA_SM_PERCENT_LIMIT", "12.5"),
    ] {
        let limits = limits([(name, value)]);
        assert_eq!(limits.ppm(), Some(125_000), "{name}={value}");
        assert!(limits.request.share.unwrap().name.starts_with(name));
        assert_eq!(limits.request.memory, None);
        let config_of = |pair| config([(name, value), pair]).unwrap();
        assert!(config_of(("SLUICE_POLICY", "fixed")).limits_compute());
        assert!(!config_of(("SLUICE_POLICY", "none")).limits_compute());
        assert!(!config_of(("CUDA_DISABLE_CONTROL", "true")).limits_compute());
    }
}

/// libvgpu and tensor-fusion then continue without a memory limit.
#[test]
fn zero_is_no_memory_limit_where_its_system_says_so() {
    for (name, value) in [
        ("CUDA_DEVICE_MEMORY_LIMIT_1", "0m"),
        ("CUDA_DEVICE_MEMORY_LIMIT", "0"),
        ("CUDA_DEVICE_MEMORY_LIMIT", "0x0g"),
        ("TF_GPU_MEMORY_LIMIT", "0"),
        ("TF_CUDA_MEMORY_LIMIT", "0"),
    ] {
        let config = config([(name, value)]).unwrap();
        assert!(!config.limits_anything(), "{name}={value}");
        assert_eq!(config.warnings, [format!("{name} has no effect: 0 means no memory limit")]);
    }
    let one = limits([("CUDA_DEVICE_MEMORY_LIMIT", "1g"), ("CUDA_DEVICE_MEMORY_LIMIT_1", "0m")]);
    assert_eq!(one.bytes(), Some(GIB), "what is set for every device holds");
    for name in ["CUDA_MEM_LIMIT", "VCUDA_MEMORY_LIMIT", "GPU_MEMORY_LIMIT"] {
        assert!(config([(name, "0")]).is_err(), "{name}");
    }
    // Variables of other software.
    for name in ["GPU_MEMORY_LIMIT_MB", "TF_GPU_MEMORY_LIMIT_MB"] {
        assert!(config([(name, "x")]).is_ok(), "{name}");
    }
    assert!(config([("GPU_MEMORY_LIMIT_0", "1g")]).is_err());
}

#[test]
fn an_index_counts_in_its_own_space() {
    // The device has host index 3 and visible index 1.
    for (name, holds) in [
        ("CUDA_MEM_LIMIT_3", true),
        ("CUDA_MEM_LIMIT_1", false),
        ("CUDA_DEVICE_MEMORY_LIMIT_1", true),
        ("CUDA_DEVICE_MEMORY_LIMIT_3", false),
    ] {
        assert_eq!(limits([(name, "1g")]).request.memory.is_some(), holds, "{name}");
    }
    assert!(limits([("TENSOR_FUSION_CUDA_MEM_LIMIT", "{\"1\": \"1B\"}")]).request.memory.is_none());
    for (name, names_one) in [
        ("CUDA_MEM_LIMIT_0", true),
        ("CUDA_CORE_LIMIT_0", true),
        ("CUDA_MEM_LIMIT", false),
        ("CUDA_DEVICE_SM_LIMIT_0", true),
        ("CUDA_MEM_RATIO_0", true),
    ] {
        let value = if name.starts_with("CUDA_MEM_LIMIT") { "1g" } else { "1" };
        assert_eq!(config([(name, value)]).unwrap().names_devices(), names_one, "{name}");
    }
}

#[test]
fn the_earlier_system_holds_and_the_others_are_named() {
    // In order of priority; each step removes the first.
    let json = format!("{{\"3\": \"2B\", \"{UUID}\": \"1B\", \"{OTHER}\": \"99B\"}}");
    let all = [
        ("TENSOR_FUSION_CUDA_MEM_LIMIT", json.as_str(), Some(1)),
        ("CUDA_MEM_LIMIT_3", "3B", Some(3)),
        ("CUDA_MEM_LIMIT", "4B", Some(4)),
        ("CUDA_DEVICE_MEMORY_LIMIT_1", "5B", Some(5)),
        ("CUDA_DEVICE_MEMORY_LIMIT", "6B", Some(6)),
        ("VCUDA_MEMORY_LIMIT", "7B", Some(7)),
    ];
    for skip in 0..all.len() {
        let set: Vec<_> = all[skip..].iter().map(|(name, value, _)| (*name, *value)).collect();
        let mut environment = super::FakeEnvironment::default();
        for (name, value) in &set {
            environment.values.insert((*name).to_owned(), (*value).to_owned());
        }
        let config = super::Config::from_env(&environment).unwrap();
        let limits = config.limits_for(&device(UUID, 3, 1));
        assert_eq!(limits.bytes(), all[skip].2, "{set:?}");
        let holds = limits.memory_source().unwrap().to_owned();
        assert!(limits.overruled.iter().all(|overruled| overruled.by == holds));
        let overruled: Vec<&str> =
            limits.overruled.iter().map(|overruled| overruled.variable.as_str()).collect();
        let mut expected: Vec<&str> = set[1..].iter().map(|(name, _)| *name).collect();
        if skip == 0 {
            expected.insert(0, "TENSOR_FUSION_CUDA_MEM_LIMIT[3]");
        }
        assert_eq!(overruled, expected);
        let line = config.effective_line(&[(device(UUID, 3, 1), limits)]);
        for name in expected {
            assert!(line.contains(&format!("{name} by {holds}")), "{line}");
        }
    }
}

#[test]
fn what_agrees_is_not_called_overruled() {
    let limits = limits([("CUDA_MEM_LIMIT", "1g"), ("CUDA_DEVICE_MEMORY_LIMIT", "1024m")]);
    assert_eq!((limits.bytes(), limits.overruled), (Some(GIB), vec![]));
}

#[test]
fn other_devices_keep_what_is_set_for_every_device() {
    let config = config([
        ("TENSOR_FUSION_CUDA_MEM_LIMIT", "{\"0\": \"1KiB\"}"),
        ("CUDA_MEM_LIMIT", "2k"),
        ("CUDA_CORE_LIMIT_1", "10"),
    ])
    .unwrap();
    assert_eq!(config.limits_for(&device(UUID, 0, 0)).bytes(), Some(1024));
    assert_eq!(config.limits_for(&device(OTHER, 1, 1)).bytes(), Some(2048));
    assert_eq!(config.limits_for(&device(UUID, 0, 0)).ppm(), None);
    assert_eq!(config.limits_for(&device(OTHER, 1, 1)).ppm(), Some(100_000));
}

#[test]
fn one_device_twice_in_an_object_is_an_error() {
    let lower = UUID.to_lowercase();
    for value in [
        format!("{{\"{UUID}\": \"1%\", \"{lower}\": \"1%\"}}"),
        format!("{{\"{UUID}\": \"1%\", \"{lower}\": \"2%\"}}"),
        "{\"0\": \"1%\", \"0\": \"2%\"}".to_owned(),
        "{\"0\": \"1:\", \"0\": \"2%\"}".to_owned(),
        "{\"0\": \"1%\", \"\\u0030\": \"2%\"}".to_owned(),
    ] {
        for name in ["TENSOR_FUSION_CUDA_MEM_LIMIT", "TENSOR_FUSION_CUDA_UP_LIMIT"] {
            let error = config([(name, value.as_str())]).expect_err(&value).to_string();
            assert!(error.starts_with(name), "{error}");
        }
    }
}

#[test]
fn libvgpu_can_say_that_there_is_no_compute_limit() {
    for value in ["0", "100", "100%"] {
        let config = config([("CUDA_DEVICE_SM_LIMIT", value)]).unwrap();
        assert_eq!(config.limits_for(&device(UUID, 0, 0)).ppm(), None);
        assert!(!config.limits_anything(), "{value}");
    }
    // As in libvgpu: 100 for one device lifts the limit of all devices, 0 leaves it.
    for (value, share) in [("100", None), ("0", Some(500_000)), ("30", Some(300_000))] {
        let limits = limits([("CUDA_DEVICE_SM_LIMIT", "50"), ("CUDA_DEVICE_SM_LIMIT_1", value)]);
        assert_eq!(limits.ppm(), share, "{value}");
    }
}

#[test]
fn the_policy_lifts_shares_by_the_same_priority() {
    let case = |pairs: &[(&str, &str)]| {
        let mut environment = super::FakeEnvironment::default();
        for (name, value) in pairs {
            environment.values.insert((*name).to_owned(), (*value).to_owned());
        }
        let config = super::Config::from_env(&environment).unwrap();
        let limits = config.limits_for(&device(UUID, 3, 1));
        let line = config.effective_line(&[(device(UUID, 3, 1), limits.clone())]);
        (config.policy, limits.ppm(), config.limits_anything(), line)
    };
    let native = ("TENSOR_FUSION_CUDA_UP_LIMIT", "{\"3\": 25}");
    let sm = ("CUDA_DEVICE_SM_LIMIT_1", "50");
    let disable = ("GPU_CORE_UTILIZATION_POLICY", "disable");

    let (policy, share, anything, line) = case(&[native, ("SLUICE_POLICY", "none")]);
    assert_eq!((policy, share, anything), (Policy::None, None, false));
    assert!(line.contains("TENSOR_FUSION_CUDA_UP_LIMIT[3] by SLUICE_POLICY"), "{line}");

    let (policy, share, anything, _) = case(&[sm, disable]);
    assert_eq!((policy, share, anything), (Policy::None, None, false));
    for (keeps, as_policy) in [("default", Policy::Balance), ("force", Policy::Fixed)] {
        let (policy, share, ..) = case(&[sm, ("GPU_CORE_UTILIZATION_POLICY", keeps)]);
        assert_eq!((policy, share), (as_policy, Some(500_000)));
    }

    // Another dialect's policy does not lift a native limit ...
    let (policy, share, anything, _) = case(&[native, sm, disable]);
    assert_eq!((policy, share, anything), (Policy::Fixed, Some(250_000), true));
    // ... and a native policy overrules another dialect's.
    let (policy, share, _, line) = case(&[sm, disable, ("SLUICE_POLICY", "fixed")]);
    assert_eq!((policy, share), (Policy::Fixed, Some(500_000)));
    assert!(line.contains("GPU_CORE_UTILIZATION_POLICY by SLUICE_POLICY"), "{line}");
    // The policy does not affect memory.
    let limits = limits([("SLUICE_POLICY", "none"), ("CUDA_MEM_LIMIT", "1k")]);
    assert_eq!(limits.bytes(), Some(1024));
}

#[test]
fn an_unknown_index_is_never_taken_for_no_limit() {
    let unknown =
        DeviceIdentity { uuid: UUID.parse().unwrap(), host_index: None, visible_index: None };
    let unresolved = |pairs: [(&str, &str); 2]| {
        let config = config(pairs).unwrap();
        let limits = config.limits_for(&unknown);
        let line = config.effective_line(&[(unknown, limits.clone())]);
        for name in &limits.unresolved {
            assert!(line.contains(name), "{line}");
        }
        (limits.bytes(), limits.unresolved)
    };
    let json = format!("{{\"{UUID}\": \"9B\", \"0\": \"8B\"}}");
    assert_eq!(
        unresolved([("CUDA_MEM_LIMIT_0", "1k"), ("VCUDA_MEMORY_LIMIT", "2k")]),
        (Some(2048), vec!["CUDA_MEM_LIMIT_0".to_owned()])
    );
    assert_eq!(
        unresolved([("CUDA_DEVICE_SM_LIMIT_0", "10"), ("VCUDA_MEMORY_LIMIT", "2k")]),
        (Some(2048), vec!["CUDA_DEVICE_SM_LIMIT_0".to_owned()])
    );
    // Variables after the one that applies do not matter.
    assert_eq!(
        unresolved([("TENSOR_FUSION_CUDA_MEM_LIMIT", &json), ("CUDA_MEM_LIMIT_0", "1k")]),
        (Some(9), vec![])
    );
}

#[test]
fn a_slice_is_named_by_its_own_kind_of_uuid() {
    let slice = UUID.replace("GPU", "mig");
    let json = format!("{{\"{slice}\": \"1GiB\"}}");
    // CUDA returns only the bits.
    assert_eq!(limits([("TENSOR_FUSION_CUDA_MEM_LIMIT", &json)]).bytes(), Some(GIB));
    let twice = format!("{{\"{slice}\": \"1GiB\", \"{UUID}\": \"2GiB\"}}");
    let error = config([("TENSOR_FUSION_CUDA_MEM_LIMIT", &twice)]).unwrap_err().to_string();
    assert!(error.contains("named twice"), "{error}");
}

#[test]
fn a_number_without_its_unit_is_refused_with_a_hint() {
    for (name, value, hint) in [
        ("CUDA_MEM_LIMIT", "8", "did you mean 8GiB?"),
        ("CUDA_MEM_LIMIT_0", "8192", "did you mean 8192MiB?"),
        ("CUDA_DEVICE_MEMORY_LIMIT", "1048575", "did you mean 1048575KiB?"),
        ("VCUDA_MEMORY_LIMIT", "1.5", "did you mean 1.5GiB?"),
        ("TENSOR_FUSION_CUDA_MEM_LIMIT", "{\"0\": 8}", "did you mean 8GiB?"),
        ("SLUICE_MEM_REAL", "{\"0\": \"8\"}", "did you mean 8GiB?"),
    ] {
        let error = config([(name, value)]).unwrap_err().to_string();
        assert!(error.starts_with(name) && error.contains(hint), "{error}");
    }
    for least in ["1048576", "1B", "1k"] {
        assert!(config([("CUDA_MEM_LIMIT", least)]).is_ok(), "{least}");
    }
}

#[test]
fn fingerprints_tell_limits_apart() {
    let print = |pairs: [(&str, &str); 3]| config(pairs).unwrap().limits_fingerprint(&[]);
    let none = ("SLUICE_LOG", "off");
    let one = print([("CUDA_MEM_LIMIT", "1g"), ("CUDA_CORE_LIMIT", "10"), none]);
    assert_eq!(one, print([("CUDA_MEM_LIMIT", "1024m"), ("CUDA_CORE_LIMIT", "10.0%"), none]));
    assert_ne!(one, print([("CUDA_MEM_LIMIT", "2g"), ("CUDA_CORE_LIMIT", "10"), none]));
    assert_ne!(one, print([("CUDA_MEM_LIMIT", "1g"), ("CUDA_CORE_LIMIT", "11"), none]));
    assert_ne!(one, print([("CUDA_MEM_LIMIT_0", "1g"), ("CUDA_CORE_LIMIT", "10"), none]));
    for other in [
        ("SLUICE_MEM_REAL", "{\"0\": \"512m\"}"),
        ("CUDA_MEM_RATIO", "2"),
        ("CUDA_OVERSUBSCRIBE", "true"),
        ("SLUICE_POLICY", "balance"),
        ("CUDA_CORE_SOFT_LIMIT", "60"),
        ("SLUICE_WEIGHT", "7"),
        ("CUDA_TASK_PRIORITY", "1"),
    ] {
        let print = print([("CUDA_MEM_LIMIT", "1g"), ("CUDA_CORE_LIMIT", "10"), other]);
        assert_ne!(one, print, "{other:?}");
    }
}

/// Limits belong to a session, so processes with different limits need different sessions.
#[test]
fn fingerprints_tell_apart_what_a_visible_index_means() {
    let of = |pairs: &[(&str, &str)], devices: &[DeviceIdentity]| {
        let values = pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let environment = FakeEnvironment { values: values.collect(), not_text: None };
        Config::from_env(&environment).unwrap().limits_fingerprint(devices)
    };
    let hidden = |uuid, host| DeviceIdentity { visible_index: None, ..device(uuid, host, 0) };
    let all = [device(UUID, 0, 0), device(OTHER, 1, 1)];
    let first = [device(UUID, 0, 0), hidden(OTHER, 1)];
    let second = [hidden(UUID, 0), device(OTHER, 1, 0)];
    let turned = [device(UUID, 0, 1), device(OTHER, 1, 0)];
    let two = [("CUDA_DEVICE_MEMORY_LIMIT_0", "4g"), ("CUDA_DEVICE_MEMORY_LIMIT_1", "1g")];
    assert_eq!(of(&two, &all), of(&two, &first), "the limits are the same on the device of both");
    let prints = [of(&two, &all), of(&two, &second), of(&two, &turned)];
    assert!(prints[0] != prints[1] && prints[1] != prints[2] && prints[0] != prints[2]);
    let one = [("CUDA_DEVICE_SM_LIMIT_0", "30")];
    assert_ne!(of(&one, &all), of(&one, &second));
    // Equal for each device, and settings for no device.
    let same = [("CUDA_DEVICE_MEMORY_LIMIT_0", "4g"), ("CUDA_DEVICE_MEMORY_LIMIT_1", "4096m")];
    assert_eq!(of(&same, &all), of(&same, &second));
    for others in ["CUDA_DEVICE_MEMORY_LIMIT", "CUDA_MEM_LIMIT_0"] {
        assert_eq!(of(&[(others, "1g")], &all), of(&[(others, "1g")], &second), "{others}");
    }
}
