//! The node's properties, read from the environment by the process that creates the node.

use crate::layout::MAX_DEVICES;
use crate::older;

/// The node's fixed properties.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Number of devices, 1 to [`MAX_DEVICES`].
    pub devices: u32,
    /// Whether streams support waits for and writes of values in memory (1 or 0).
    pub memory_ops: u32,
    /// Memory per device, in bytes.
    pub memory: u64,
    /// Size of a context in bytes.
    pub context: u64,
    /// Length of a time slice, in nanoseconds.
    pub slice_ns: u64,
    /// Cost of a switch away from a process with unfinished work, in nanoseconds.
    pub switch_ns: u64,
    /// Cost of a switch away from a process without work, in nanoseconds.
    pub yield_ns: u64,
    /// Time between two consecutive event records, in nanoseconds.
    pub event_ns: u64,
    /// Gap between two queued kernels of a stream, in nanoseconds.
    pub gap_ns: u64,
    /// Delay of a stream after a wait for a value, in nanoseconds.
    pub wait_ns: u64,
    /// Delay of a stream after a write of a value, in nanoseconds.
    pub write_ns: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            devices: 2,
            memory_ops: 1,
            memory: 16 << 30,
            context: 512 << 20,
            slice_ns: 2_000_000,
            switch_ns: 200_000,
            yield_ns: 20_000,
            event_ns: 0,
            gap_ns: 0,
            wait_ns: 0,
            write_ns: 0,
        }
    }
}

/// A variable with an invalid value.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{variable}='{value}': expected {expected}")]
pub struct ConfigError {
    /// The variable.
    pub variable: &'static str,
    /// Its value.
    pub value: String,
    /// What would be accepted.
    pub expected: String,
}

impl Config {
    /// Reads `SLUICE_FAKE_DEVICES`, `_MEMORY`, `_CONTEXT`, `_SLICE_US`, `_SWITCH_US`,
    /// `_YIELD_US`, `_EVENT_NS`, `_GAP_NS`, `_WAIT_NS`, `_WRITE_NS` and `_MEMORY_OPS` through
    /// `lookup`.
    ///
    /// # Errors
    /// The first variable that cannot be parsed or is out of range.
    pub fn from_lookup(lookup: impl Fn(&str) -> Option<String>) -> Result<Self, ConfigError> {
        let mut config = Self::default();
        let number =
            |variable: &'static str, low: u64, high: u64, default: u64| match lookup(variable) {
                None => Ok(default),
                Some(value) => match value.trim().parse::<u64>() {
                    Ok(number) if (low..=high).contains(&number) => Ok(number),
                    _ => Err(ConfigError {
                        variable,
                        value,
                        expected: format!("a whole number from {low} to {high}"),
                    }),
                },
            };
        let size = |variable: &'static str, default: u64| match lookup(variable) {
            None => Ok(default),
            Some(value) => limits::units::parse_size(&value).map_err(|error| ConfigError {
                variable,
                value: value.clone(),
                expected: error.to_string(),
            }),
        };
        let most = MAX_DEVICES as u64;
        config.devices = number("SLUICE_FAKE_DEVICES", 1, most, config.devices.into())? as u32;
        config.memory = size("SLUICE_FAKE_MEMORY", config.memory)?;
        config.context = size("SLUICE_FAKE_CONTEXT", config.context)?;
        let micros = |variable, low, default: u64| {
            number(variable, low, 1_000_000, default / 1000).map(|us| us * 1000)
        };
        config.slice_ns = micros("SLUICE_FAKE_SLICE_US", 1, config.slice_ns)?;
        config.switch_ns = micros("SLUICE_FAKE_SWITCH_US", 0, config.switch_ns)?;
        config.yield_ns = micros("SLUICE_FAKE_YIELD_US", 0, config.yield_ns)?;
        config.event_ns = number("SLUICE_FAKE_EVENT_NS", 0, 1_000_000, config.event_ns)?;
        config.gap_ns = number("SLUICE_FAKE_GAP_NS", 0, 1_000_000, config.gap_ns)?;
        config.wait_ns = number("SLUICE_FAKE_WAIT_NS", 0, 1_000_000, config.wait_ns)?;
        config.write_ns = number("SLUICE_FAKE_WRITE_NS", 0, 1_000_000, config.write_ns)?;
        let memory_ops = number("SLUICE_FAKE_MEMORY_OPS", 0, 1, config.memory_ops.into())?;
        config.memory_ops = memory_ops as u32;
        Ok(config)
    }

    /// Reads the process's environment.
    ///
    /// # Errors
    /// See [`Config::from_lookup`].
    pub fn from_env() -> Result<Self, ConfigError> {
        older::named(std::env::var(older::VARIABLE).ok())?;
        Self::from_lookup(|name| std::env::var(name).ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_and_suffixes() {
        assert_eq!(Config::from_lookup(|_| None), Ok(Config::default()));
        let config = Config::from_lookup(|name| match name {
            "SLUICE_FAKE_MEMORY" => Some("1GiB".into()),
            "SLUICE_FAKE_DEVICES" => Some("4".into()),
            "SLUICE_FAKE_SLICE_US" => Some("500".into()),
            _ => None,
        })
        .unwrap();
        assert_eq!((config.memory, config.devices, config.slice_ns), (1 << 30, 4, 500_000));
    }

    #[test]
    fn nonsense_is_named() {
        for (name, value) in [
            ("SLUICE_FAKE_DEVICES", "0"),
            ("SLUICE_FAKE_DEVICES", "17"),
            ("SLUICE_FAKE_MEMORY", "lots"),
            ("SLUICE_FAKE_SLICE_US", "-1"),
            ("SLUICE_FAKE_EVENT_NS", "1000001"),
            ("SLUICE_FAKE_GAP_NS", "-1"),
            ("SLUICE_FAKE_WAIT_NS", "2us"),
            ("SLUICE_FAKE_MEMORY_OPS", "yes"),
        ] {
            let error = Config::from_lookup(|n| (n == name).then(|| value.to_owned())).unwrap_err();
            assert_eq!((error.variable, error.value.as_str()), (name, value));
        }
    }
}
