//! Settings other than limits.

use super::super::{ConfigError, DaemonAddress, DeviceIdentity, Gates, LogLevel, OnFailure};
use super::{UUID, config, device, limits};
use limits::Policy;
use std::path::Path;

#[test]
fn nothing_set_is_nothing_limited() {
    let config = config([]).unwrap();
    assert!(!config.limits_anything() && !config.names_devices());
    assert_eq!(config.policy, Policy::Fixed);
    assert_eq!(config.on_failure, OnFailure::Closed);
    assert_eq!(config.gates, Gates::Stream);
    assert_eq!(config.log, LogLevel::Off);
    assert_eq!(config.log.tracing(), None);
    assert!(config.cuda_hooks && config.nvml_hooks && !config.control_disabled);
    assert_eq!((&config.daemon, &config.session_dir), (&None, &None));
    assert!(config.warnings.is_empty());
    assert_eq!(limits([]), super::DeviceSettings::default());
}

#[test]
fn the_daemon_is_a_socket_or_a_port() {
    let unix = config([("SLUICE_DAEMON", "/run/sluice/hypervisor.sock")]).unwrap();
    let socket = DaemonAddress::Unix("/run/sluice/hypervisor.sock".into());
    assert_eq!(unix.daemon.as_ref(), Some(&socket));
    let pair = [("HYPERVISOR_IP", "10.0.0.1"), ("HYPERVISOR_PORT", "8000")];
    let tcp = DaemonAddress::Tcp { host: "10.0.0.1".to_owned(), port: 8000 };
    let by_port = config(pair).unwrap();
    // Leases are not served over TCP: the node's socket is looked for.
    assert!(by_port.daemon == Some(tcp) && by_port.finds_daemon);
    let both =
        config([pair[0], pair[1], ("SLUICE_DAEMON", "/run/sluice/hypervisor.sock")]).unwrap();
    assert_eq!(both.daemon, Some(socket));
    assert!(both.effective_line(&[]).contains("HYPERVISOR_IP by SLUICE_DAEMON"));
    let none = config([pair[0], pair[1], ("SLUICE_DAEMON", "none")]).unwrap();
    assert_eq!((none.daemon, none.finds_daemon), (None, false));
    assert!(!unix.finds_daemon && !both.finds_daemon && config([]).unwrap().finds_daemon);
    assert!(!config([("SLUICE_SESSION_DIR", "/a")]).unwrap().finds_daemon);
}

#[test]
fn half_an_address_is_an_error() {
    for (set, missing, value) in
        [("HYPERVISOR_IP", "HYPERVISOR_PORT", "::1"), ("HYPERVISOR_PORT", "HYPERVISOR_IP", "80")]
    {
        let expected = ConfigError::Incomplete { set, missing };
        assert_eq!(config([(set, value)]).unwrap_err(), expected);
        assert_eq!(config([(set, value), (missing, "")]).unwrap_err(), expected);
        assert_eq!(config([(set, value), ("SLUICE_DAEMON", "/x")]).unwrap_err(), expected);
    }
}

#[test]
fn single_settings() {
    let config = config([
        ("SLUICE_SESSION_DIR", "/dev/shm/sluice-0/a"),
        ("SLUICE_ON_FAILURE", "open"),
        ("SLUICE_GATES", "thread"),
        ("SLUICE_POLICY", "none"),
    ])
    .unwrap();
    assert_eq!(config.gates, Gates::Thread);
    assert_eq!(config.session_dir.as_deref(), Some(Path::new("/dev/shm/sluice-0/a")));
    assert_eq!(config.on_failure, OnFailure::Open);
    assert_eq!(config.policy, Policy::None);
    let line = config.effective_line(&[]);
    assert_eq!(line, "policy none; on failure open; no daemon; session /dev/shm/sluice-0/a");
}

#[test]
fn log_levels() {
    for (name, value, level) in [
        ("SLUICE_LOG", "trace", LogLevel::Trace),
        ("SLUICE_LOG", "off", LogLevel::Off),
        ("VCUDA_LOG_LEVEL", "WARN", LogLevel::Warn),
        ("LIBCUDA_LOG_LEVEL", "0", LogLevel::Error),
        ("LIBCUDA_LOG_LEVEL", "2", LogLevel::Warn),
        ("LIBCUDA_LOG_LEVEL", "3", LogLevel::Info),
        ("LIBCUDA_LOG_LEVEL", "4", LogLevel::Debug),
        ("LOGGER_LEVEL", "0", LogLevel::Error),
        ("LOGGER_LEVEL", "2", LogLevel::Warn),
        ("LOGGER_LEVEL", "3", LogLevel::Info),
        ("LOGGER_LEVEL", "5", LogLevel::Trace),
        ("LOGGER_LEVEL", "INFO", LogLevel::Info),
    ] {
        assert_eq!(config([(name, value)]).unwrap().log, level, "{name}={value}");
    }
    let order = ["SLUICE_LOG", "VCUDA_LOG_LEVEL", "LIBCUDA_LOG_LEVEL", "LOGGER_LEVEL"];
    for pair in order.windows(2) {
        let config = config([(pair[0], "debug"), (pair[1], "error")]).unwrap();
        assert_eq!(config.log, LogLevel::Debug, "{pair:?}");
        assert!(config.effective_line(&[]).contains(&format!("{} by {}", pair[1], pair[0])));
    }
    assert_eq!(LogLevel::Trace.tracing(), Some(tracing::Level::TRACE));
}

#[test]
fn identity_hints() {
    let aliases = config([
        ("VGPU_POD_UID", "u"),
        ("VGPU_POD_NAMESPACE", "ns"),
        ("VGPU_POD_NAME", "pod"),
        ("VGPU_CONTAINER_NAME", "c"),
    ])
    .unwrap()
    .identity;
    let names = [&aliases.pod_uid, &aliases.pod_namespace, &aliases.pod_name, &aliases.container];
    assert_eq!(names.map(Option::as_deref), [Some("u"), Some("ns"), Some("pod"), Some("c")]);
    let native = config([
        ("POD_NAMESPACE", "n1"),
        ("VGPU_POD_NAMESPACE", "n2"),
        ("POD_NAME", "p1"),
        ("VGPU_POD_NAME", "p2"),
        ("CONTAINER_NAME", "c1"),
        ("VGPU_CONTAINER_NAME", "c2"),
    ])
    .unwrap();
    let identity = &native.identity;
    let names = [&identity.pod_namespace, &identity.pod_name, &identity.container];
    assert_eq!(names.map(Option::as_deref), [Some("n1"), Some("p1"), Some("c1")]);
    assert!(native.effective_line(&[]).contains("VGPU_POD_NAME by POD_NAME"));
}

#[test]
fn limits_can_be_lifted_only_outside_of_sessions_and_without_a_daemon() {
    let memory = ("CUDA_MEM_LIMIT", "1g");
    for lift in [
        ("CUDA_DISABLE_CONTROL", "true"),
        ("ENABLE_CUDA_HOOKS", "false"),
        ("ENABLE_NVML_HOOKS", "0"),
    ] {
        let of = |other: (&str, &str)| {
            let config = config([memory, lift, other]).unwrap();
            let all_on = config.cuda_hooks && config.nvml_hooks && !config.control_disabled;
            assert_eq!(config.warnings.len(), 1, "{:?}", config.warnings);
            assert!(config.warnings[0].starts_with(lift.0), "{:?}", config.warnings);
            let held = config.limits_for(&device(UUID, 0, 0)).bytes();
            (all_on, config.warnings[0].contains("is not honoured"), held, config)
        };
        for guard in [
            ("SLUICE_SESSION_DIR", "/dev/shm/sluice-0/a"),
            ("SLUICE_DAEMON", "/run/sluice/hypervisor.sock"),
        ] {
            let (all_on, refused, held, config) = of(guard);
            assert!(all_on && refused && held == Some(1 << 30), "{lift:?} {guard:?}");
            assert!(config.limits_anything());
        }
        let (all_on, refused, held, config) = of(("SLUICE_LOG", "off"));
        assert!(!all_on && !refused, "{lift:?}");
        let off = lift.0 == "CUDA_DISABLE_CONTROL";
        assert_eq!((held.is_none(), config.control_disabled), (off, off));
        assert_eq!(config.limits_anything(), !off);
        if off {
            let limits = config.limits_for(&device(UUID, 0, 0));
            let line = config.effective_line(&[(device(UUID, 0, 0), limits)]);
            assert!(line.contains("CUDA_MEM_LIMIT by CUDA_DISABLE_CONTROL"), "{line}");
        }
    }
    for leave in [
        ("CUDA_DISABLE_CONTROL", "false"),
        ("ENABLE_CUDA_HOOKS", "true"),
        ("ENABLE_NVML_HOOKS", "1"),
    ] {
        let config = config([memory, leave]).unwrap();
        assert!(config.cuda_hooks && config.nvml_hooks && !config.control_disabled);
        assert!(config.warnings.is_empty());
    }
}

#[test]
fn what_has_no_effect_is_said_once_and_only_where_it_asks_for_something() {
    let memory = ("CUDA_MEM_LIMIT", "1g");
    let share = ("CUDA_CORE_LIMIT", "10");
    for (name, value, with, why) in [
        ("CUDA_MEM_RATIO", "1.5", share, "no memory limit"),
        ("CUDA_MEM_RATIO", "0.9", memory, "below 1"),
        ("CUDA_MEM_OVERSOLD", "true", share, "no memory limit"),
        ("CUDA_OVERSUBSCRIBE", "true", share, "no memory limit"),
        ("SLUICE_POLICY", "balance", memory, "no compute share"),
        ("SLUICE_WEIGHT", "3", share, "only policy balance"),
        ("SLUICE_PRIORITY", "low", memory, "no compute share"),
        ("CUDA_TASK_PRIORITY", "1", memory, "no compute share"),
    ] {
        let config = config([(name, value), with]).unwrap();
        assert_eq!(config.warnings.len(), 1, "{name}");
        let start = format!("{name} has no effect: ");
        assert!(config.warnings[0].starts_with(&start), "{:?}", config.warnings);
        assert!(config.warnings[0].contains(why), "{:?}", config.warnings);
        assert!(config.limits_anything());
    }
    for (name, value) in [
        ("CUDA_MEM_RATIO", "1.00"),
        ("CUDA_MEM_OVERSOLD_0", "false"),
        ("CUDA_OVERSUBSCRIBE", "false"),
        ("GPU_CORE_UTILIZATION_POLICY", "default"),
        ("CUDA_TASK_PRIORITY", "0"),
        ("SLUICE_PRIORITY", "high"),
        ("GPU_DEVICES_UUID", UUID),
        ("MANAGER_VISIBLE_DEVICES", UUID),
        ("ENV_COMPATIBILITY_MODE", "102"),
        ("MANAGER_COMPATIBILITY_MODE", "2"),
        ("CUDA_DEVICE_MEMORY_SHARED_CACHE", "/tmp/cache"),
        ("TF_PATH", "/opt/bin"),
    ] {
        assert!(config([(name, value)]).unwrap().warnings.is_empty(), "{name}");
    }
    for (name, value, with) in [
        ("CUDA_MEM_RATIO", "1.5", memory),
        ("CUDA_MEM_OVERSOLD", "true", memory),
        ("CUDA_OVERSUBSCRIBE", "true", memory),
        ("SLUICE_POLICY", "balance", share),
        ("CUDA_TASK_PRIORITY", "1", share),
    ] {
        assert!(config([(name, value), with]).unwrap().warnings.is_empty(), "{name}");
    }
    let balance = config([share, ("CUDA_CORE_SOFT_LIMIT", "50"), ("SLUICE_WEIGHT", "3")]).unwrap();
    assert!(balance.warnings.is_empty());
    let many = [("CUDA_MEM_RATIO_0", "2"), ("CUDA_MEM_RATIO_10", "2"), ("CUDA_MEM_RATIO_2", "2")];
    let warnings = config(many).unwrap().warnings;
    assert_eq!(warnings.len(), 1);
    assert!(warnings[0].starts_with("CUDA_MEM_RATIO_0, CUDA_MEM_RATIO_2, CUDA_MEM_RATIO_10 has"));
}

#[test]
fn the_effective_line_says_what_holds_and_why() {
    let config = config([
        ("TENSOR_FUSION_CUDA_MEM_LIMIT", "{\"0\": 8589934592}"),
        ("CUDA_MEM_LIMIT_0", "1g"),
        ("CUDA_CORE_LIMIT", "12.5"),
        ("SLUICE_DAEMON", "/run/a\nb"),
    ])
    .unwrap();
    let device = device(UUID, 0, 0);
    let line = config.effective_line(&[(device, config.limits_for(&device))]);
    assert_eq!(
        line,
        "policy fixed; on failure closed; daemon /run/a\\nb; \
         GPU-3430f778-7a25-704c-9090-8b0bb2478114: memory 8GiB (TENSOR_FUSION_CUDA_MEM_LIMIT[0]), \
         compute 12.5% (CUDA_CORE_LIMIT); \
         overruled: CUDA_MEM_LIMIT_0 by TENSOR_FUSION_CUDA_MEM_LIMIT[0]"
    );
}

/// Nothing that looks like a limit is dropped silently.
#[test]
fn an_index_where_none_is_read_is_refused() {
    for name in [
        "TENSOR_FUSION_CUDA_MEM_LIMIT",
        "TENSOR_FUSION_CUDA_UP_LIMIT",
        "SLUICE_MEM_REAL",
        "SLUICE_SOFT_LIMIT",
        "VCUDA_MEMORY_LIMIT",
    ] {
        for index in ["_0", "_7", "_GPU", "_"] {
            let indexed = format!("{name}{index}");
            let error = config([(indexed.as_str(), "1g")]).unwrap_err().to_string();
            let said =
                format!("{indexed}: {name} takes no index; expected {name} itself, set to a");
            assert!(error.starts_with(&said), "{error}");
            assert!(config([(indexed.as_str(), "")]).is_ok(), "{indexed}");
        }
    }
    assert!(config([("SLUICE_POLICY_0", "none")]).is_ok(), "it is no limit");
}

#[test]
fn limits_for_devices_that_are_not_there_are_found() {
    let absent = |config: &crate::Config| config.absent(2, |uuid| uuid == UUID.parse().unwrap());
    let of = |name, value: &str| absent(&config([(name, value)]).unwrap());
    let memory = "TENSOR_FUSION_CUDA_MEM_LIMIT";
    let named = |key: &str| vec![format!("{memory}[{key}]")];
    let none: Vec<String> = Vec::new();
    assert_eq!(of(memory, r#"{"2": "1g"}"#), named("2"));
    assert_eq!(of(memory, r#"{"1": "1g", "2": "1g"}"#), named("2"));
    assert_eq!(of(memory, &format!(r#"{{"{UUID}": "1g"}}"#)), none);
    assert_eq!(of(memory, &format!(r#"{{"{}": "1g"}}"#, super::OTHER)), named(super::OTHER));
    assert_eq!(of("CUDA_DEVICE_SM_LIMIT_2", "30"), ["CUDA_DEVICE_SM_LIMIT_2"]);
    assert_eq!(of("CUDA_MEM_LIMIT", "1g"), none);
    let both = config([("CUDA_MEM_LIMIT", "1g"), ("CUDA_CORE_LIMIT_9", "30")]).unwrap();
    assert_eq!(absent(&both), ["CUDA_CORE_LIMIT_9"]);
    let off = config([(memory, r#"{"2": "1g"}"#), ("CUDA_DISABLE_CONTROL", "true")]).unwrap();
    assert_eq!(absent(&off), none);
    assert!(!off.names_devices() && both.names_devices());
}

#[test]
fn a_kind_of_limit_that_is_for_no_visible_device_is_found() {
    // Host index 3, visible index 0.
    let seen = [device(UUID, 3, 0)];
    let idle = |pairs: [(&str, &str); 2]| config(pairs).unwrap().for_none_of(&seen);
    let memory = "TENSOR_FUSION_CUDA_MEM_LIMIT";
    let log = ("SLUICE_LOG", "off");
    let none: Vec<String> = Vec::new();
    assert_eq!(idle([(memory, r#"{"0": "1g"}"#), log]), [format!("{memory}[0]")]);
    assert_eq!(idle([(memory, r#"{"0": "1g", "3": "2g"}"#), log]), none);
    assert_eq!(idle([(memory, r#"{"0": "1g"}"#), ("VCUDA_MEMORY_LIMIT", "1g")]), none);
    assert_eq!(idle([("CUDA_DEVICE_MEMORY_LIMIT_0", "1g"), log]), none);
    assert_eq!(idle([("CUDA_DEVICE_MEMORY_LIMIT_3", "1g"), log]), ["CUDA_DEVICE_MEMORY_LIMIT_3"]);
    // The other limit applies.
    assert_eq!(idle([("CUDA_MEM_LIMIT", "1g"), ("CUDA_CORE_LIMIT_0", "9")]), ["CUDA_CORE_LIMIT_0"]);
    // Lifted deliberately.
    assert_eq!(idle([("CUDA_DEVICE_SM_LIMIT_1", "9"), ("CUDA_DEVICE_SM_LIMIT_0", "100")]), none);
    assert_eq!(idle([("CUDA_DEVICE_SM_LIMIT_1", "100"), log]), none);
    assert_eq!(idle([("CUDA_CORE_LIMIT_0", "9"), ("SLUICE_POLICY", "none")]), none);
    // What is unknown is refused when the device is used.
    let unknown = DeviceIdentity { host_index: None, ..seen[0] };
    let limits = config([(memory, r#"{"0": "1g"}"#)]).unwrap();
    assert_eq!(limits.for_none_of(&[unknown]), none);
}
