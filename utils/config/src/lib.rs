//! From environment variables to limits, for the limiter and `sluice`.
//!
//! [`variables`] is the only table of variables. [`settings`] reads the environment by this table, in the forms of
//! [`value`]. [`rules`] decides which setting applies to a device, which gives the device's [`limits`]. No setting is
//! dropped silently: an unreadable value is an error, an overruled one is named in the effective line, and one without
//! effect in the warnings.

mod device_map;
#[cfg(test)]
mod documentation;
mod effective;
mod environment;
mod error;
mod limits;
mod rules;
mod settings;
mod snapshot;
#[cfg(test)]
mod tests;
mod value;
mod variables;
mod visible;

pub use environment::Environment;
pub use error::ConfigError;
pub use limits::{DeviceIdentity, DeviceSettings, Overruled};
pub use snapshot::{DEVICE_ORDER, Snapshot, VISIBLE_DEVICES};
pub use value::{Gates, LogLevel, OnFailure};
pub use visible::{index as visible_index, only_index};

use ::limits::env;
use ::limits::units::PPM_ONE;
use ::limits::{GpuId, Named, Policy, Priority};
use rules::{Common, Rules};
use settings::{Scope, Setting};
use std::path::PathBuf;
use value::Value;
use variables::{Meaning, System, VARIABLES};

/// Where the daemon listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DaemonAddress {
    /// A Unix socket.
    Unix(PathBuf),
    /// A TCP port.
    Tcp {
        /// IP address or host name.
        host: String,
        /// Port.
        port: u16,
    },
}

/// What the process says about its identity. Anybody can set these hints, to any characters: they distinguish sessions,
/// but grant no trust and must not be parts of paths.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct Identity {
    /// UID of the pod.
    pub pod_uid: Option<String>,
    /// Namespace of the pod.
    pub pod_namespace: Option<String>,
    /// Name of the pod.
    pub pod_name: Option<String>,
    /// Name of the container.
    pub container: Option<String>,
}

/// The configuration of this process.
#[derive(Clone, Debug)]
pub struct Config {
    /// The policy of compute shares, unless a device's own settings differ. `None` only if no device can have a share.
    pub policy: Policy,
    /// What happens to CUDA calls when the limiter itself fails.
    pub on_failure: OnFailure,
    /// Where work waits for a lease.
    pub gates: Gates,
    /// Whether CUDA calls are limited.
    pub cuda_hooks: bool,
    /// Whether NVML calls are adjusted.
    pub nvml_hooks: bool,
    /// Whether all limits are switched off.
    pub control_disabled: bool,
    /// The daemon's address, if set.
    pub daemon: Option<DaemonAddress>,
    /// Whether to use the node's daemon if its default socket is visible: no socket was set, and the process is in no
    /// session. A TCP address does not count, because it only serves reading.
    pub finds_daemon: bool,
    /// Directory of the session, if set.
    pub session_dir: Option<PathBuf>,
    /// Hints about the process's identity.
    pub identity: Identity,
    /// Log level.
    pub log: LogLevel,
    /// File to log to, instead of stderr.
    pub log_file: Option<PathBuf>,
    /// Accepted settings without effect, and settings that lift limits; one line each.
    pub warnings: Vec<String>,
    overruled: Vec<Overruled>,
    rules: Rules,
}

impl Config {
    /// Reads all variables.
    ///
    /// # Errors
    /// [`ConfigError`] for the first unusable one.
    pub fn from_env(environment: &dyn Environment) -> Result<Self, ConfigError> {
        let settings = settings::read(environment)?;
        let mut chooser = Chooser { settings: &settings, overruled: Vec::new() };
        let policy_setting = chooser.first(Meaning::ComputePolicy);
        let common = Common {
            weight: chooser.first(Meaning::Weight).and_then(|setting| match setting.value {
                Value::Weight(weight) => Some(Named::new(weight, setting.name.clone())),
                _ => None,
            }),
            priority: chooser.first(Meaning::Priority).and_then(|setting| match setting.value {
                // `High` is the default and needs no entry.
                Value::Priority(Priority::Low) => {
                    Some(Named::new(Priority::Low, setting.name.clone()))
                }
                _ => None,
            }),
        };
        let mut rules = Rules::new(&settings, policy_setting, common);
        let policy = rules.policy();

        let daemon = chooser.daemon()?;
        let session_dir = chooser.path(Meaning::SessionDir);
        let finds_daemon = session_dir.is_none() && chooser.value(Meaning::DaemonSocket).is_none();
        let mut warnings = without_effect(&settings, &rules);
        // Only a process outside any session may lift its own limits.
        let free = daemon.is_none() && session_dir.is_none();
        let mut lifts = |meaning, lifting: bool, effect: &str| {
            let setting = chooser.first(meaning)?;
            if setting.value != Value::Flag(lifting) {
                return None;
            }
            let name = setting.variable.name;
            warnings.push(if free {
                format!("{name}={lifting}: {effect}")
            } else {
                format!(
                    "{name}={lifting} is not honoured: the process belongs to a session or a daemon"
                )
            });
            free.then_some(name)
        };
        let off = lifts(Meaning::ControlDisabled, true, "all limits are off in this process");
        let no_cuda = lifts(Meaning::CudaHooks, false, "CUDA calls are not limited");
        let no_nvml = lifts(Meaning::NvmlHooks, false, "NVML shows the device, not the limits");
        if let Some(name) = off {
            rules.switch_off(name.to_owned());
        }
        if let Some(conflict) = rules.conflict() {
            return Err(conflict.into());
        }
        Ok(Self {
            policy,
            on_failure: match chooser.value(Meaning::OnFailure) {
                Some(Value::OnFailure(on_failure)) => *on_failure,
                _ => OnFailure::default(),
            },
            gates: match chooser.value(Meaning::Gates) {
                Some(Value::Gates(gates)) => *gates,
                _ => Gates::default(),
            },
            cuda_hooks: no_cuda.is_none(),
            nvml_hooks: no_nvml.is_none(),
            control_disabled: off.is_some(),
            daemon,
            finds_daemon,
            session_dir,
            identity: Identity {
                pod_uid: chooser.text(Meaning::PodUid),
                pod_namespace: chooser.text(Meaning::PodNamespace),
                pod_name: chooser.text(Meaning::PodName),
                container: chooser.text(Meaning::ContainerName),
            },
            log: match chooser.value(Meaning::Log) {
                Some(Value::Level(level)) => *level,
                _ => LogLevel::default(),
            },
            log_file: chooser.path(Meaning::LogFile),
            warnings,
            overruled: chooser.overruled,
            rules,
        })
    }

    /// The settings that apply to a device. Usable only if [`DeviceSettings::unresolved`] is empty and there is no
    /// [`DeviceSettings::conflict`].
    pub fn limits_for(&self, device: &DeviceIdentity) -> DeviceSettings {
        self.rules.decide(device)
    }

    /// Limits for devices that do not exist. `count`: number of the node's devices; `is_there`: whether the node has
    /// the device with this UUID.
    pub fn absent(&self, count: u32, is_there: impl Fn(GpuId) -> bool) -> Vec<String> {
        self.rules.absent(|scope| match scope {
            Scope::Every => true,
            Scope::Uuid(uuid) => is_there(uuid),
            Scope::HostIndex(index) | Scope::VisibleIndex(index) => index < count,
        })
    }

    /// Limits of each kind (memory, its part on the device, share, burst limit) that apply to none of `devices`, so
    /// that the kind limits nothing.
    pub fn for_none_of(&self, devices: &[DeviceIdentity]) -> Vec<String> {
        self.rules.for_none_of(devices)
    }

    /// Whether a limit names a device, so that the indices of [`DeviceIdentity`] matter.
    pub fn names_devices(&self) -> bool {
        self.rules.name_devices()
    }

    /// Whether [`DeviceSettings::session`] needs the size of a device.
    pub fn needs_device_size(&self) -> bool {
        self.rules.need_total()
    }

    /// Whether any device can have a limit.
    pub fn limits_anything(&self) -> bool {
        self.rules.limit_anything()
    }

    /// Whether the process must account for its use in the session's pages: it has a limit, or its session can get one.
    pub fn keeps_account(&self) -> bool {
        self.limits_anything() || self.session_dir.is_some()
    }

    /// Whether any device's time can be limited.
    pub fn limits_compute(&self) -> bool {
        self.rules.limit_compute()
    }

    /// A text that is equal for exactly those processes that have equal limits on the node's `devices`.
    pub fn limits_fingerprint(&self, devices: &[DeviceIdentity]) -> String {
        self.rules.fingerprint(devices)
    }

    /// The effective configuration for these devices in one line, with the overruled settings.
    pub fn effective_line(&self, devices: &[(DeviceIdentity, DeviceSettings)]) -> String {
        effective::line(self, devices)
    }
}

/// Picks the setting that applies for each meaning, and collects the overruled ones.
struct Chooser<'a> {
    settings: &'a [Setting],
    overruled: Vec<Overruled>,
}

impl<'a> Chooser<'a> {
    fn first(&mut self, meaning: Meaning) -> Option<&'a Setting> {
        let mut set = self.settings.iter().filter(|setting| setting.variable.meaning == meaning);
        let first = set.next()?;
        for other in set.filter(|other| other.value != first.value) {
            let (variable, by) = (other.name.clone(), first.name.clone());
            self.overruled.push(Overruled { variable, by });
        }
        Some(first)
    }

    fn value(&mut self, meaning: Meaning) -> Option<&'a Value> {
        self.first(meaning).map(|setting| &setting.value)
    }

    fn text(&mut self, meaning: Meaning) -> Option<String> {
        match self.value(meaning)? {
            Value::Text(text) => Some(text.clone()),
            _ => None,
        }
    }

    fn path(&mut self, meaning: Meaning) -> Option<PathBuf> {
        match self.value(meaning)? {
            Value::Path(path) => Some(path.clone()),
            _ => None,
        }
    }

    fn daemon(&mut self) -> Result<Option<DaemonAddress>, ConfigError> {
        let host = self.first(Meaning::DaemonHost);
        let port = self.first(Meaning::DaemonPort);
        let tcp = match (host.map(|setting| &setting.value), port.map(|setting| &setting.value)) {
            (Some(Value::Text(host)), Some(Value::Port(port))) => {
                Some(DaemonAddress::Tcp { host: host.clone(), port: *port })
            }
            (Some(_), _) => return Err(incomplete(Meaning::DaemonHost, Meaning::DaemonPort)),
            (_, Some(_)) => return Err(incomplete(Meaning::DaemonPort, Meaning::DaemonHost)),
            (None, None) => None,
        };
        let socket = match self.value(Meaning::DaemonSocket) {
            None => return Ok(tcp),
            Some(Value::Path(socket)) => Some(socket.clone()),
            Some(_) => None,
        };
        for setting in host.into_iter().chain(port) {
            let (variable, by) = (setting.name.clone(), env::DAEMON_SOCKET.to_owned());
            self.overruled.push(Overruled { variable, by });
        }
        Ok(socket.map(DaemonAddress::Unix))
    }
}

fn incomplete(set: Meaning, missing: Meaning) -> ConfigError {
    let name = |meaning| {
        VARIABLES.iter().find(|variable| variable.meaning == meaning).map_or("", |row| row.name)
    };
    ConfigError::Incomplete { set: name(set), missing: name(missing) }
}

fn without_effect(settings: &[Setting], rules: &Rules) -> Vec<String> {
    let reason = |setting: &Setting| match (setting.variable.meaning, &setting.value) {
        (Meaning::MemoryLimit, Value::Unsaid) => Some("0 means no memory limit"),
        (Meaning::MemoryRatio, Value::Ratio(millionths)) if *millionths < u64::from(PPM_ONE) => {
            Some("a ratio below 1 places nothing on the host")
        }
        (Meaning::MemoryRatio, Value::Ratio(millionths))
            if *millionths > u64::from(PPM_ONE) && !rules.has_memory_limits() =>
        {
            Some("no memory limit is set")
        }
        (Meaning::MemoryOversold, Value::Flag(true)) if !rules.has_memory_limits() => {
            Some("no memory limit is set")
        }
        (Meaning::ComputePolicy, Value::Policy(Policy::Balance))
            if setting.variable.system == System::Sluice && !rules.has_shares() =>
        {
            Some("no compute share is set to guarantee")
        }
        (Meaning::Weight, _) if !rules.can_balance() => {
            Some("only policy balance gives out idle time")
        }
        (Meaning::Priority, Value::Priority(Priority::Low)) if !rules.has_shares() => {
            Some("no compute share is set")
        }
        _ => None,
    };
    let asking: Vec<(&Setting, &str)> =
        settings.iter().filter_map(|setting| Some((setting, reason(setting)?))).collect();
    asking
        .chunk_by(|a, b| (a.0.variable.name, a.1) == (b.0.variable.name, b.1))
        .filter_map(|group| {
            let names: Vec<&str> = group.iter().map(|(setting, _)| setting.name.as_str()).collect();
            let (_, reason) = group.first()?;
            Some(format!("{} has no effect: {reason}", names.join(", ")))
        })
        .collect()
}
