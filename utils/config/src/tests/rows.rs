//! Every row of the table, by form: good values are parsed, bad ones refused.

use super::super::value::{Format, LogLevel};
use super::super::variables::{Meaning, VARIABLES};
use super::super::{Config, ConfigError};
use super::{FakeEnvironment, UUID};
use std::collections::HashSet;

/// Good and bad values of a form.
fn samples(format: Format) -> (Vec<String>, Vec<String>) {
    // Divided by |.
    let (good, bad) = match format {
        Format::Size => (
            "1B|1048576|1073741824|1024m|8GiB|1.5g| 2GB |50%|100 %",
            "0|0m|1|8|1048575|1.5|-1|+1|1e9|lots|1g2|99999999T|0x10|(1024 * 1024)|0%|101%",
        ),
        Format::SizeOrNoLimit => (
            "1B|1048576|1024m|8GiB|50%|0x40000000| 0X400m",
            "1|-1|+1|lots|0%|0x|0x+1g|0x1gg|0x10|0xx|0x1 g|0x1f0000000000000000",
        ),
        Format::MebibytesOrNoLimit => ("1|8192", "-1|8g|8192m|1.5|4294967296"),
        Format::SizesByDevice => (
            r#"{"0": "1B"}|{"0": 1048576}|{"0": 1.5e9, "1": "8GiB", "2": "50%"}|{"UUID": 2097152}"#,
            concat!(
                r#"8GiB|{}| { } |null|[1]|{"0"}|{"0": 0}|{"0": 1}|{"0": "8"}|{"0": -1}|{"0": null}|"#,
                r#"{"0": true}|{"0": {"a": 1}}|{"0": "lots"}|{"00": 1}|{"-1": 1}|{"gpu0": 1}|{"": 1}|"#,
                r#"{"4294967296": 1}|{"0": 1, "0": 1}|{"0": 1e30}|{"0": 1} x"#,
            ),
        ),
        Format::Percent => ("1|25|12.5|30%|100|0.5", "0|0%|-5|101|100.1|half|NaN|inf|1e1|٣"),
        Format::PercentsByDevice => (
            r#"{"0": 25}|{"0": 12.5, "1": "30%"}|{"UUID": 100}"#,
            concat!(
                r#"25|{}|"25"|{"0": 0}|{"0": -5}|{"0": 101}|{"0": 100.1}|{"0": ""}|{"0": []}|{"x": 25}|"#,
                r#"{"0": 25, "0": 30}|{0: 25}"#,
            ),
        ),
        Format::PercentOrNoLimit => ("0|0%|1|99.9|100|100%", "-1|101|half|NaN|0x10"),
        Format::Ratio => ("1|1.0|1.5|0.5|20", "0|0.0|-1|x|1.|.5|1e3|inf"),
        Format::Flag => ("true|false|1|0|TRUE", "yes|2|-1|truee|on"),
        Format::Policy => ("fixed|none|Fixed|balance", "fair|0|unlimited|fixed none"),
        Format::UtilizationPolicy => ("default|force|disable|FORCE", "none|off|1"),
        Format::OnFailure => ("closed|open", "fail|true|ajar"),
        Format::Gates => ("auto|thread|stream|Stream", "host|1|streams"),
        Format::LogName => ("off|error|warn|info|debug|trace|INFO", "loud|3|-1"),
        Format::LogLibvgpu => ("0|1|2|3|4|9|info", "10|-1|loud|1.5"),
        Format::LogVgpuController => ("0|1|2|3|4|5|debug", "6|-1|loud"),
        Format::PriorityNumber => ("0|1", "2|-1|high"),
        Format::PriorityName => ("high|low|LOW", "0|1|middle"),
        Format::Weight => ("1|30|10000", "0|10001|-1|1.5|01|heavy|1%"),
        Format::Uuids => ("UUID|uuid|MIG-UUID|UUID, UUID,", "0|,|GPU-1|all|MIG-1/2"),
        Format::CompatibilityMode => ("0|1|2|100|200|102", "3|50|400|-1|cgroup"),
        Format::AbsolutePath => ("/run/x|/", "x|./x|~/x| /x"),
        Format::Socket => ("/run/x|none", "x|./x|NONE|no"),
        Format::Host => {
            ("10.0.0.1|::1|node-1.example.org", "a b|http://10.0.0.1|-x|a/b|10.0.0.1:80")
        }
        Format::Port => ("1|8000|65535", "0|65536|-1|http|tcp://10.0.0.1:80|080"),
        Format::Text => ("a|default/pod 1|ü", "a\nb|\u{1b}[31m"),
    };
    let filled = |text: &str| {
        let text = text.replace("MIG-UUID", &UUID.replace("GPU", "MIG"));
        text.replace("UUID", UUID).replace("uuid", &UUID.to_lowercase())
    };
    let values = |text: &str| text.split('|').map(filled).collect();
    (values(good), values(bad))
}

/// The configuration with this variable, and with others that it requires.
fn set(name: &str, value: &str) -> Result<Config, ConfigError> {
    let mut environment = FakeEnvironment::from([(name, value)]);
    for (one, other, valid) in [
        ("HYPERVISOR_IP", "HYPERVISOR_PORT", "8000"),
        ("HYPERVISOR_PORT", "HYPERVISOR_IP", "10.0.0.1"),
        ("SLUICE_MEM_REAL", "VCUDA_MEMORY_LIMIT", "100%"),
        ("CUDA_MEM_RATIO", "VCUDA_MEMORY_LIMIT", "100%"),
        ("CUDA_CORE_SOFT_LIMIT", "CUDA_CORE_LIMIT", "0.5"),
        ("SLUICE_SOFT_LIMIT", "CUDA_CORE_LIMIT", "0.5"),
    ] {
        if name.strip_prefix(one).is_some_and(|rest| rest.is_empty() || rest.starts_with('_')) {
            environment.values.insert(other.to_owned(), valid.to_owned());
        }
    }
    Config::from_env(&environment)
}

/// The names under which a row is read.
fn names(variable: &super::super::variables::Variable) -> Vec<String> {
    let mut names = vec![variable.name.to_owned()];
    if variable.takes_suffix() {
        names.extend([format!("{}_0", variable.name), format!("{}_15", variable.name)]);
    }
    names
}

#[test]
fn good_values_are_read() {
    for variable in VARIABLES {
        for name in names(variable) {
            for value in samples(variable.format).0 {
                assert!(set(&name, &value).is_ok(), "{name}={value}: {:?}", set(&name, &value));
            }
            let empty = Config::from_env(&FakeEnvironment::from([(name.as_str(), "")])).unwrap();
            assert!(config_is_empty(&empty), "{name}");
        }
    }
}

fn config_is_empty(config: &Config) -> bool {
    !config.limits_anything() && config.warnings.is_empty() && config.daemon.is_none()
}

#[test]
fn bad_values_are_refused_by_name_value_and_form() {
    for variable in VARIABLES.iter().filter(|row| row.meaning != Meaning::AddPath) {
        for name in names(variable) {
            for bad in samples(variable.format).1 {
                if variable.format == Format::LogVgpuController {
                    assert_eq!(set(&name, &bad).unwrap().log, LogLevel::Off, "{name}={bad}");
                    continue;
                }
                let error = set(&name, &bad).expect_err(&format!("{name}={bad}"));
                assert!(
                    matches!(&error, ConfigError::Value { variable, value, .. }
                        if *variable == name && *value == bad),
                    "{error:?}"
                );
                let line = error.to_string();
                assert!(line.contains(&name) && line.contains(variable.format.accepted()));
                assert!(!line.contains(char::is_control), "{line:?}");
            }
        }
    }
}

#[test]
fn values_that_are_not_text_are_refused() {
    for variable in VARIABLES {
        let environment = FakeEnvironment { not_text: Some(variable.name), ..Default::default() };
        let result = Config::from_env(&environment);
        if variable.meaning == Meaning::AddPath {
            assert!(result.is_ok(), "{}", variable.name);
        } else {
            let error = result.expect_err(variable.name);
            assert!(matches!(error, ConfigError::NotText { .. }));
            assert!(error.to_string().starts_with(variable.name), "{error}");
        }
    }
}

#[test]
fn an_index_has_to_be_one() {
    for variable in VARIABLES.iter().filter(|row| row.takes_suffix()) {
        let good = samples(variable.format).0.swap_remove(0);
        for index in ["x", "", "-1", "00", "01", "1_", "4294967296", "0x1", " 1", "1\n"] {
            let name = format!("{}_{index}", variable.name);
            let error = set(&name, &good).expect_err(&name);
            assert!(
                matches!(&error, ConfigError::Index { variable: v, .. } if *v == name),
                "{error}"
            );
            assert!(!error.to_string().contains(char::is_control));
            assert!(set(&name, "").is_ok(), "{name}");
        }
    }
}

#[test]
fn the_table_is_complete_and_unambiguous() {
    let expected: HashSet<&str> = [
        "TENSOR_FUSION_CUDA_UP_LIMIT TENSOR_FUSION_CUDA_MEM_LIMIT HYPERVISOR_IP HYPERVISOR_PORT",
        "POD_NAME POD_NAMESPACE CONTAINER_NAME ENABLE_CUDA_HOOKS ENABLE_NVML_HOOKS TF_PATH",
        "TF_LD_PRELOAD TF_LD_LIBRARY_PATH TF_PREPEND_PATH TF_PREPEND_LD_PRELOAD",
        "TF_PREPEND_LD_LIBRARY_PATH CUDA_MEM_LIMIT CUDA_MEM_RATIO CUDA_CORE_LIMIT",
        "CUDA_CORE_SOFT_LIMIT CUDA_MEM_OVERSOLD GPU_DEVICES_UUID MANAGER_VISIBLE_DEVICES",
        "ENV_COMPATIBILITY_MODE MANAGER_COMPATIBILITY_MODE VGPU_POD_NAME VGPU_POD_NAMESPACE",
        "VGPU_POD_UID VGPU_CONTAINER_NAME LOGGER_LEVEL VCUDA_MEMORY_LIMIT VCUDA_LOG_LEVEL",
        "CUDA_DEVICE_MEMORY_LIMIT CUDA_DEVICE_SM_LIMIT GPU_CORE_UTILIZATION_POLICY",
        "CUDA_TASK_PRIORITY CUDA_OVERSUBSCRIBE CUDA_DISABLE_CONTROL LIBCUDA_LOG_LEVEL",
        "CUDA_DEVICE_MEMORY_SHARED_CACHE SLUICE_SESSION_DIR SLUICE_DAEMON SLUICE_POLICY",
        "SLUICE_ON_FAILURE SLUICE_LOG SLUICE_LOG_FILE SLUICE_MEM_REAL SLUICE_SOFT_LIMIT SLUICE_WEIGHT",
        "SLUICE_PRIORITY SLUICE_GATES GPU_MEMORY_LIMIT TF_GPU_MEMORY_LIMIT TF_CUDA_MEMORY_LIMIT",
        "TF_CUDA_SM_PERCENT_LIMIT",
    ]
    .into_iter()
    .flat_map(str::split_ascii_whitespace)
    .collect();
    let names: HashSet<&str> = VARIABLES.iter().map(|variable| variable.name).collect();
    assert_eq!(names, expected);
    assert_eq!(names.len(), VARIABLES.len(), "a name is there twice");
    for indexed in VARIABLES.iter().filter(|variable| variable.takes_suffix()) {
        let prefix = format!("{}_", indexed.name);
        assert!(!VARIABLES.iter().any(|other| other.name.starts_with(&prefix)), "{prefix}");
    }
    for group in VARIABLES.chunk_by(|a, b| a.meaning == b.meaning) {
        let limit = matches!(
            group[0].meaning,
            Meaning::MemoryLimit
                | Meaning::ComputeLimit
                | Meaning::MemoryOversold
                | Meaning::SoftLimit
                | Meaning::Priority
        );
        assert!(!limit || group.is_sorted_by_key(|row| row.system), "order of priority");
        let rows = VARIABLES.iter().filter(|row| row.meaning == group[0].meaning).count();
        assert_eq!(rows, group.len(), "{:?} is in two places", group[0].meaning);
    }
}
