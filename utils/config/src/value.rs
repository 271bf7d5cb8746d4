//! The forms of variables' values, and their parsers.

use super::device_map;
use core::net::IpAddr;
use limits::gpu::GpuKey;
use limits::units::{
    Amount, PPM_ONE, UnitError, parse_amount, parse_percent, parse_size, parse_weight, parse_whole,
};
use limits::{GpuId, Policy, Priority};
use std::borrow::Cow;
use std::path::PathBuf;

/// Longest accepted name, host or hint, in bytes.
const MAX_NAME: usize = 253;

/// What happens to CUDA calls when the limiter itself fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum OnFailure {
    /// They fail.
    #[default]
    Closed,
    /// They pass unlimited.
    Open,
}

/// Where work waits for a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Gates {
    /// In its stream, if the driver supports that.
    #[default]
    Stream,
    /// On the launching thread.
    Thread,
}

/// Log level of the limiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum LogLevel {
    /// Only warnings about the configuration.
    #[default]
    Off,
    /// Failures.
    Error,
    /// Also decisions that differ from what was requested.
    Warn,
    /// Also the effective configuration.
    Info,
    /// Also each decision.
    Debug,
    /// Also each call.
    Trace,
}

impl LogLevel {
    /// The level of crate `tracing`; `None` if off.
    pub const fn tracing(self) -> Option<tracing::Level> {
        match self {
            Self::Off => None,
            Self::Error => Some(tracing::Level::ERROR),
            Self::Warn => Some(tracing::Level::WARN),
            Self::Info => Some(tracing::Level::INFO),
            Self::Debug => Some(tracing::Level::DEBUG),
            Self::Trace => Some(tracing::Level::TRACE),
        }
    }
}

/// A compute limit as set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Share {
    /// Parts per million of the device's time.
    Ppm(u32),
    /// Explicitly without a limit.
    Unlimited,
}

/// A parsed value.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    Amount(Amount),
    /// In parts per million.
    Ratio(u64),
    Share(Share),
    /// Per device; each value parsed like a single one.
    Map(Vec<(GpuKey, Value)>),
    Flag(bool),
    Policy(Policy),
    Weight(u32),
    Priority(Priority),
    OnFailure(OnFailure),
    Gates(Gates),
    Level(LogLevel),
    Path(PathBuf),
    Port(u16),
    Text(String),
    /// 0, where it has no effect: the value for every device applies, if there is one.
    Unsaid,
    /// Only validated.
    Checked,
}

/// The form of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    /// Bytes, or a number with a suffix, above 0; or percent of the device.
    Size,
    /// Like `Size`; 0 has no effect, and `0x` begins a hexadecimal number.
    SizeOrNoLimit,
    /// A whole number of MiB; 0 has no effect.
    MebibytesOrNoLimit,
    /// JSON object of sizes by device.
    SizesByDevice,
    /// Percent above 0 up to 100.
    Percent,
    /// JSON object of percents by device.
    PercentsByDevice,
    /// Like `Percent`; 100 is no limit, and 0 has no effect.
    PercentOrNoLimit,
    /// A decimal above 0.
    Ratio,
    /// true, false, 1 or 0.
    Flag,
    /// fixed, balance or none.
    Policy,
    /// default, force or disable.
    UtilizationPolicy,
    /// closed or open.
    OnFailure,
    /// thread or stream.
    Gates,
    /// Names of levels.
    LogName,
    /// libvgpu's numbers, or names.
    LogLibvgpu,
    /// VGPU-Controller's numbers, or names.
    LogVgpuController,
    /// high or low.
    PriorityName,
    /// 0 or 1.
    PriorityNumber,
    /// A whole number from 1 to [`MAX_WEIGHT`](limits::units::MAX_WEIGHT).
    Weight,
    /// Comma list of GPU UUIDs.
    Uuids,
    /// VGPU-Controller's numbers for its environment.
    CompatibilityMode,
    /// An absolute path.
    AbsolutePath,
    /// An absolute path, or none.
    Socket,
    /// IP address or host name.
    Host,
    /// TCP port.
    Port,
    /// One line of text.
    Text,
}

impl Format {
    /// The accepted form, for people.
    pub(super) const fn accepted(self) -> &'static str {
        match self {
            Self::Size => {
                "a size above 0, such as 1073741824, 1024m, 512MiB or 8GiB, or a percentage of the device such as 50%"
            }
            Self::SizeOrNoLimit => {
                "a size such as 1073741824, 0x40000000, 1024m, 512MiB or 8GiB (0: no memory limit), or a percentage of the device such as 50%"
            }
            Self::MebibytesOrNoLimit => "a whole number of MiB, such as 8192 (0: no memory limit)",
            Self::SizesByDevice => {
                "a JSON object from GPU UUID or device index to a size above 0, or to a percentage of the device, such as {\"0\": 1073741824}, {\"0\": \"50%\"} or {\"GPU-3430f778-7a25-704c-9090-8b0bb2478114\": \"8GiB\"}"
            }
            Self::Percent => "a percentage above 0 and up to 100, such as 25 or 12.5",
            Self::PercentsByDevice => {
                "a JSON object from GPU UUID or device index to a percentage above 0 and up to 100, such as {\"0\": 25} or {\"GPU-3430f778-7a25-704c-9090-8b0bb2478114\": 12.5}"
            }
            Self::PercentOrNoLimit => {
                "a percentage from 0 to 100, such as 25 or 12.5 (0 and 100: no compute limit)"
            }
            Self::Ratio => "a decimal above 0, such as 1 or 1.5",
            Self::Flag => "true, false, 1 or 0",
            Self::Policy => "fixed, balance or none",
            Self::UtilizationPolicy => "default, force or disable",
            Self::OnFailure => "closed or open",
            Self::Gates => "stream (or auto) or thread",
            Self::LogName => "off, error, warn, info, debug or trace",
            Self::LogLibvgpu => {
                "a number from 0 (errors) to 9 (everything), or off, error, warn, info, debug or trace"
            }
            Self::LogVgpuController => {
                "a number from 0 (errors) to 5 (everything), or off, error, warn, info, debug or trace"
            }
            Self::PriorityName => "high or low",
            Self::PriorityNumber => "0 (high) or 1 (low)",
            Self::Weight => "a whole number from 1 to 10000",
            Self::Uuids => {
                "a comma-separated list of GPU UUIDs, such as GPU-3430f778-7a25-704c-9090-8b0bb2478114"
            }
            Self::CompatibilityMode => {
                "0 (host), 1 (cgroup v1), 2 (cgroup v2), 100 (open kernel modules), 200 (client registration) or a sum of these"
            }
            Self::AbsolutePath => "a path that starts with /",
            Self::Socket => "a path that starts with /, or none",
            Self::Host => "an IP address or a host name",
            Self::Port => "a port from 1 to 65535",
            Self::Text => "one line of at most 253 characters",
        }
    }

    /// Parses a value.
    ///
    /// # Errors
    /// What is wrong; the caller appends what is accepted.
    pub(super) fn read(self, text: &str) -> Result<Value, String> {
        let invalid = || "not valid".to_owned();
        match self {
            Self::SizesByDevice => {
                device_map::read(text, |each| Self::Size.read(each)).map(Value::Map)
            }
            Self::PercentsByDevice => {
                device_map::read(text, |each| Self::Percent.read(each)).map(Value::Map)
            }
            Self::Size => match parse_amount(text) {
                Ok(amount) => Ok(Value::Amount(amount)),
                Err(forgotten @ UnitError::Bare { .. }) => Err(forgotten.to_string()),
                Err(_) => Err(invalid()),
            },
            Self::SizeOrNoLimit => {
                let text = decimal(text.trim()).ok_or_else(invalid)?;
                if parse_size(&text) == Ok(0) { Ok(Value::Unsaid) } else { Self::Size.read(&text) }
            }
            // Spaces may be part of these values.
            Self::AbsolutePath | Self::Socket | Self::Text => self.scalar(text).ok_or_else(invalid),
            _ => self.scalar(text.trim()).ok_or_else(invalid),
        }
    }

    fn scalar(self, text: &str) -> Option<Value> {
        let lower = text.to_ascii_lowercase();
        Some(match self {
            Self::Percent => Value::Share(Share::Ppm(parse_percent(text).ok()?)),
            Self::PercentOrNoLimit => match lower.as_str() {
                "0" | "0%" => Value::Unsaid,
                _ => Value::Share(match parse_percent(text).ok()? {
                    PPM_ONE => Share::Unlimited,
                    ppm => Share::Ppm(ppm),
                }),
            },
            Self::MebibytesOrNoLimit => match u64::from(parse_whole(text)?) << 20 {
                0 => Value::Unsaid,
                bytes => Value::Amount(Amount::Bytes(bytes)),
            },
            Self::Ratio => Value::Ratio(ratio(text)?),
            Self::Flag => Value::Flag(flag(&lower)?),
            Self::Policy => Value::Policy(text.parse().ok()?),
            Self::UtilizationPolicy => Value::Policy(match lower.as_str() {
                "default" => Policy::Balance,
                "force" => Policy::Fixed,
                "disable" => Policy::None,
                _ => return None,
            }),
            Self::OnFailure => Value::OnFailure(match lower.as_str() {
                "closed" => OnFailure::Closed,
                "open" => OnFailure::Open,
                _ => return None,
            }),
            Self::Gates => Value::Gates(match lower.as_str() {
                "stream" | "auto" => Gates::Stream,
                "thread" => Gates::Thread,
                _ => return None,
            }),
            Self::LogName => Value::Level(level_name(&lower)?),
            Self::LogLibvgpu => Value::Level(match lower.as_str() {
                "0" => LogLevel::Error,
                "1" | "2" => LogLevel::Warn,
                "3" => LogLevel::Info,
                "4" | "5" | "6" | "7" | "8" | "9" => LogLevel::Debug,
                name => level_name(name)?,
            }),
            // Two numberings are in use; where they differ, the quieter meaning applies.
            Self::LogVgpuController => Value::Level(match lower.as_str() {
                "0" | "1" => LogLevel::Error,
                "2" => LogLevel::Warn,
                "3" => LogLevel::Info,
                "4" => LogLevel::Debug,
                "5" => LogLevel::Trace,
                name => level_name(name)?,
            }),
            Self::PriorityName => Value::Priority(text.parse().ok()?),
            Self::PriorityNumber => Value::Priority(match text {
                "0" => Priority::High,
                "1" => Priority::Low,
                _ => return None,
            }),
            Self::Weight => Value::Weight(parse_weight(text).ok()?),
            Self::Uuids => {
                let mut uuids = text.split(',').map(str::trim).filter(|uuid| !uuid.is_empty());
                let listed = !text.is_empty() && uuids.clone().next().is_some();
                let valid = listed && uuids.all(|uuid| uuid.parse::<GpuId>().is_ok());
                valid.then_some(Value::Checked)?
            }
            Self::CompatibilityMode => {
                let mode = parse_whole(text)?;
                let valid = mode % 100 <= 2 && mode / 100 <= 3;
                valid.then_some(Value::Checked)?
            }
            Self::AbsolutePath => {
                (text.starts_with('/')).then(|| Value::Path(PathBuf::from(text)))?
            }
            Self::Socket if text == "none" => Value::Checked,
            Self::Socket => Self::AbsolutePath.scalar(text)?,
            Self::Host => is_host(text).then(|| Value::Text(text.to_owned()))?,
            Self::Port => {
                Value::Port(u16::try_from(parse_whole(text)?).ok().filter(|port| *port > 0)?)
            }
            Self::Text => {
                let valid = !text.chars().any(char::is_control) && text.chars().count() <= MAX_NAME;
                valid.then(|| Value::Text(text.to_owned()))?
            }
            Self::Size | Self::SizeOrNoLimit | Self::SizesByDevice | Self::PercentsByDevice => {
                return None;
            }
        })
    }
}

/// Converts a hexadecimal number before its suffix to decimal, because `strtoul` parses both. `None`: not hexadecimal.
fn decimal(text: &str) -> Option<Cow<'_, str>> {
    let Some(rest) = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) else {
        return Some(Cow::Borrowed(text));
    };
    let digits = rest.trim_end_matches(['k', 'K', 'm', 'M', 'g', 'G']);
    let number = u64::from_str_radix(digits, 16).ok().filter(|_| !digits.starts_with('+'))?;
    Some(Cow::Owned(format!("{number}{}", &rest[digits.len()..])))
}

fn flag(lower: &str) -> Option<bool> {
    match lower {
        "true" | "1" => Some(true),
        "false" | "0" => Some(false),
        _ => None,
    }
}

fn level_name(lower: &str) -> Option<LogLevel> {
    Some(match lower {
        "off" => LogLevel::Off,
        "error" => LogLevel::Error,
        "warn" | "warning" => LogLevel::Warn,
        "info" => LogLevel::Info,
        "debug" => LogLevel::Debug,
        "trace" => LogLevel::Trace,
        _ => return None,
    })
}

/// Parses a ratio into parts per million, rounded down; `None`: not a decimal above 0, or absurdly large.
fn ratio(text: &str) -> Option<u64> {
    const MOST: u64 = 1_000_000;
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|c| c.is_ascii_digit());
    if !digits(whole) || !digits(fraction) || text.bytes().all(|c| matches!(c, b'0' | b'.')) {
        return None;
    }
    let whole = whole.parse().ok().filter(|whole: &u64| *whole <= MOST)?;
    let millionths: u64 = format!("{fraction:0<6.6}").parse().ok()?;
    Some(whole * u64::from(PPM_ONE) + millionths)
}

fn is_host(text: &str) -> bool {
    let name = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'.' | b'-' | b'_');
    text.parse::<IpAddr>().is_ok()
        || (!text.is_empty()
            && text.len() <= MAX_NAME
            && !text.starts_with(['-', '.'])
            && text.bytes().all(name))
}
