//! Hostile values: every variable gets each of them. The result is one short error line, or a configuration without an
//! unintended limit.

use super::super::value::Format;
use super::super::variables::VARIABLES;
use super::super::{Config, Environment, Snapshot};
use super::{FakeEnvironment, UUID, device};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

fn values() -> Vec<String> {
    // Divided by |.
    let texts = concat!(
        " |\t|\0|\n|\r\n0|-|--|-0|+0|0|00|-1|1e400|1e-400|NaN|-inf|0x7fffffffffffffff|",
        "18446744073709551615|18446744073709551616|340282366920938463463374607431768211456|",
        "9223372036854775807T|0.000000001|1..2|1,5|50 %%|%|100.0000001|99.9999999999|１００|٣|",
        "१GiB|1 GiB|GiB|$(id)|`id`|%s%n|../../etc/passwd|/../..|\u{202e}001|\u{1b}[2J|é|null|true|",
        r#"[]|{}|{|}|"|{"":""}|{"0":}|{"0":01}|{"0":1e999}|{"0":-0}|{"0":0.0}|{"0":"0"}|{"0":" 1 "}|"#,
        r#"{"0":1,}|{"0":1}{"0":2}|{"0\n":1}|{"0":"\u001b[2J"}|{"__proto__":1}|{"-0":1}|{"1.0":1}|"#,
        r#"{"GPU-":1}|{"*":1}|{"\ud800":1}|{"0":1,"0 ":2}|{'0':1}|{"0":NaN}|{"0":[{"0":1}]}"#,
    );
    let mut values: Vec<String> = texts.split('|').map(str::to_owned).collect();
    values.push("9".repeat(100_000));
    values.push("x".repeat(100_000));
    values.push("[".repeat(100_000));
    values.push("{\"0\":".repeat(100_000));
    values.push(format!("{{\"{}\": 1}}", "9".repeat(50_000)));
    values.push(format!("{{\"{UUID}\\u0000\": 1}}"));
    values.push(format!("0.{}", "0".repeat(50_000)));
    values
}

#[test]
fn every_variable_stands_every_value() {
    let mut refused = 0;
    for variable in VARIABLES {
        let suffixes: &[&str] = if variable.takes_suffix() { &["", "_0"] } else { &[""] };
        for suffix in suffixes {
            for value in values() {
                let name = format!("{}{suffix}", variable.name);
                refused += u32::from(!stands(&name, &value));
            }
        }
    }
    assert!(refused > 1000, "{refused}");
}

#[test]
fn every_index_stands_every_text() {
    for variable in VARIABLES.iter().filter(|row| row.takes_suffix()) {
        for index in values() {
            let name = format!("{}_{index}", variable.name);
            // Valid for every indexed variable.
            let good = if variable.format == Format::Size { "1g" } else { "1" };
            let environment = FakeEnvironment::from([(name.as_str(), good)]);
            let error = match Config::from_env(&environment) {
                Ok(_) => {
                    assert!(index == "0", "{name}");
                    continue;
                }
                Err(error) => error.to_string(),
            };
            assert!(error.len() < 1500 && !error.contains(char::is_control), "{error:?}");
        }
    }
}

#[test]
fn a_snapshot_says_what_is_set_and_what_is_not_text() {
    let not_text = OsString::from_vec(vec![b'1', 0xff]);
    let variables = [("CUDA_MEM_LIMIT_0", not_text), ("SLUICE_POLICY", "none".into())];
    let taken: Snapshot =
        variables.into_iter().map(|(name, value)| (OsString::from(name), value)).collect();
    assert_eq!(taken.names(), ["CUDA_MEM_LIMIT_0", "SLUICE_POLICY"]);
    assert_eq!(taken.get("SLUICE_POLICY"), Some("none".to_owned()));
    assert_eq!(taken.get("CUDA_MEM_LIMIT_0"), None);
    assert!(taken.is_not_text("CUDA_MEM_LIMIT_0") && !taken.is_not_text("SLUICE_POLICY"));
    assert_eq!(taken.get("CUDA_MEM_LIMIT"), None);
    assert!(Config::from_env(&taken).is_err());
}

/// Values that mix numbers, units and JSON.
const MIXED: &str = r#"[{]?"?(GPU-|MIG-|[0-9a-f-]{0,3})"?:?[-+]?[0-9]{0,4}[.]?[0-9]{0,12}[eE]?[kKmMgGtTiIbB% ]{0,4}"?[}]?"#;

/// Returns whether the value is accepted.
fn stands(name: &str, value: &str) -> bool {
    let config = match Config::from_env(&FakeEnvironment::from([(name, value)])) {
        Ok(config) => config,
        Err(error) => {
            let line = error.to_string();
            let plain =
                name.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next().unwrap();
            assert!(line.starts_with("HYPERVISOR_") || line.starts_with(plain), "{line}");
            assert!(line.len() < 1500, "{} bytes for {name}", line.len());
            assert!(!line.contains(|c: char| c.is_control() || c == '\u{202e}'), "{line:?}");
            return false;
        }
    };
    let device = device(UUID, 0, 0);
    let limits = config.limits_for(&device);
    if let Ok(session) = limits.session(Some(16 << 30)) {
        if let Some(memory) = session.memory {
            assert!(memory.limit != 0 && memory.real != Some(0), "{name}={value}");
        }
        assert!((1..=1_000_000).contains(&session.compute.share_ppm), "{name}={value}");
        assert_eq!(session.compute.check(), Ok(()), "{name}={value}");
    }
    let line = config.effective_line(&[(device, limits)]);
    assert!(!line.contains(char::is_control), "{line:?}");
    true
}

proptest::proptest! {
    #[test]
    fn any_variable_stands_any_text(row in 0..VARIABLES.len(), text: String, mixed in MIXED) {
        for value in [&text, &mixed] {
            stands(VARIABLES[row].name, value);
            if VARIABLES[row].takes_suffix() {
                stands(&format!("{}_0", VARIABLES[row].name), value);
                stands(&format!("{}_{value}", VARIABLES[row].name), "1g");
            }
        }
    }
}
