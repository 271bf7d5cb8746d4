//! Values made to do harm: every variable gets each of them. The result is one short error line, or a
//! configuration without a limit that nobody could mean.

use super::super::value::Format;
use super::super::variables::VARIABLES;
use super::super::{Config, Environment, ProcessEnvironment};
use super::{FakeEnvironment, UUID, device};

fn values() -> Vec<String> {
    let mut values: Vec<String> = [
        " ",
        "\t",
        "\0",
        "\n",
        "\r\n0",
        "-",
        "--",
        "-0",
        "+0",
        "0",
        "00",
        "-1",
        "1e400",
        "1e-400",
        "NaN",
        "-inf",
        "0x7fffffffffffffff",
        "18446744073709551615",
        "18446744073709551616",
        "340282366920938463463374607431768211456",
        "9223372036854775807T",
        "0.000000001",
        "1..2",
        "1,5",
        "50 %%",
        "%",
        "100.0000001",
        "99.9999999999",
        "１００",
        "٣",
        "१GiB",
        "1 GiB",
        "GiB",
        "$(id)",
        "`id`",
        "%s%n",
        "../../etc/passwd",
        "/../..",
        "\u{202e}001",
        "\u{1b}[2J",
        "é",
        "null",
        "true",
        "[]",
        "{}",
        "{",
        "}",
        "\"",
        "{\"\":\"\"}",
        "{\"0\":}",
        "{\"0\":01}",
        "{\"0\":1e999}",
        "{\"0\":-0}",
        "{\"0\":0.0}",
        "{\"0\":\"0\"}",
        "{\"0\":\" 1 \"}",
        "{\"0\":1,}",
        "{\"0\":1}{\"0\":2}",
        "{\"0\\n\":1}",
        "{\"0\":\"\\u001b[2J\"}",
        "{\"__proto__\":1}",
        "{\"-0\":1}",
        "{\"1.0\":1}",
        "{\"GPU-\":1}",
        "{\"*\":1}",
        "{\"\\ud800\":1}",
        "{\"0\":1,\"0 \":2}",
        "{'0':1}",
        "{\"0\":NaN}",
        "{\"0\":[{\"0\":1}]}",
    ]
    .map(str::to_owned)
    .to_vec();
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
                match Config::from_env(&FakeEnvironment::from([(name.as_str(), value.as_str())])) {
                    Ok(config) => {
                        let device = device(UUID, 0, 0);
                        let limits = config.limits_for(&device);
                        if let Ok(session) = limits.session(Some(16 << 30)) {
                            if let Some(memory) = session.memory {
                                assert_ne!(memory.limit, 0, "{name}={value}");
                                assert_ne!(memory.real, Some(0), "{name}={value}");
                            }
                            let share = session.compute.share_ppm;
                            assert!((1..=1_000_000).contains(&share), "{name}={value}");
                            assert_eq!(session.compute.check(), Ok(()), "{name}={value}");
                        }
                        let line = config.effective_line(&[(device, limits)]);
                        assert!(!line.contains(char::is_control), "{line:?}");
                    }
                    Err(error) => {
                        refused += 1;
                        let line = error.to_string();
                        assert!(line.starts_with("HYPERVISOR_") || line.starts_with(&name));
                        assert!(line.len() < 1500, "{} bytes for {name}", line.len());
                        let harmful = |c: char| c.is_control() || c == '\u{202e}';
                        assert!(!line.contains(harmful), "{line:?}");
                    }
                }
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
            // Valid for every form of a variable with an index.
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
fn the_process_environment_is_read() {
    // cargo sets this variable for every test.
    let name = "CARGO_MANIFEST_DIR";
    assert!(ProcessEnvironment.names().iter().any(|known| known == name));
    assert_eq!(ProcessEnvironment.get(name), Some(env!("CARGO_MANIFEST_DIR").to_owned()));
    assert!(!ProcessEnvironment.is_not_text(name));
    assert_eq!(ProcessEnvironment.get("SLUICE_NO_SUCH_VARIABLE"), None);
}

/// A value in which numbers, units and JSON are mixed up.
const MIXED: &str = r#"[{]?"?(GPU-|MIG-|[0-9a-f-]{0,3})"?:?[-+]?[0-9]{0,4}[.]?[0-9]{0,12}[eE]?[kKmMgGtTiIbB% ]{0,4}"?[}]?"#;

fn stands(name: &str, value: &str) {
    match Config::from_env(&FakeEnvironment::from([(name, value)])) {
        Ok(config) => {
            let device = device(UUID, 0, 0);
            let limits = config.limits_for(&device);
            if let Ok(session) = limits.session(Some(16 << 30)) {
                assert!(session.memory.is_none_or(|memory| memory.limit != 0), "{name}={value}");
                assert_eq!(session.compute.check(), Ok(()), "{name}={value}");
            }
            let line = config.effective_line(&[(device, limits)]);
            assert!(!line.contains(char::is_control), "{line:?}");
        }
        Err(error) => {
            let line = error.to_string();
            assert!(line.len() < 3000 && !line.contains(char::is_control), "{line:?}");
        }
    }
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
