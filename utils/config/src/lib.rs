//! From environment variables to limits.
//!
//! [`variables`] is the only table of what is read. [`settings`] reads the environment by it, in the forms of
//! [`value`]. [`rules`] decides which setting is in force for a device, and its [`limits`] follow from that.
//! No setting is dropped silently: a value that cannot be read is an error, an overruled one is in the
//! effective line, one without effect is in the warnings.

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

/// Who the process says it is. Anybody can set these hints, to any characters. They serve to tell sessions
/// apart, not for trust and not as parts of a path.
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
    /// The meaning of compute shares, unless a device's own settings say otherwise. It is `None` only if no
    /// device can have a share.
    pub policy: Policy,
    /// What happens to CUDA calls when the limiter itself fails.
    pub on_failure: OnFailure,
    /// Where work waits while its session may not use the device.
    pub gates: Gates,
    /// Whether CUDA's functions are handled.
    pub cuda_hooks: bool,
    /// Whether NVML's functions are handled.
    pub nvml_hooks: bool,
    /// Whether all limits are switched off.
    pub control_disabled: bool,
    /// Where the daemon listens, if one was named.
    pub daemon: Option<DaemonAddress>,
    /// Whether the node's daemon is used where its socket is to be seen: no socket was named, and the process was not
    /// put into a session. A port is only read from.
    pub finds_daemon: bool,
    /// Directory of the session, if there is one.
    pub session_dir: Option<PathBuf>,
    /// Who the process says it is.
    pub identity: Identity,
    /// How much to log.
    pub log: LogLevel,
    /// Where to log, if not on standard error.
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
    /// [`ConfigError`] for the first that cannot be used.
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
        // A process may lift its own limits only if it was not put into a session.
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

    /// The settings in force for a device. They may be used only if [`DeviceSettings::unresolved`] is empty
    /// and there is no [`DeviceSettings::conflict`].
    pub fn limits_for(&self, device: &DeviceIdentity) -> DeviceSettings {
        self.rules.decide(device)
    }

    /// The limits that name a device which is not there. `count`: how many devices the node shows; `is_there`: whether
    /// it has a device of this UUID.
    pub fn absent(&self, count: u32, is_there: impl Fn(GpuId) -> bool) -> Vec<String> {
        self.rules.absent(|scope| match scope {
            Scope::Every => true,
            Scope::Uuid(uuid) => is_there(uuid),
            Scope::HostIndex(index) | Scope::VisibleIndex(index) => index < count,
        })
    }

    /// The limits of each kind (memory, its part on the device, share, burst limit) of which none is for one of
    /// `devices`: that kind would limit nothing there.
    pub fn for_none_of(&self, devices: &[DeviceIdentity]) -> Vec<String> {
        self.rules.for_none_of(devices)
    }

    /// Whether a limit names a device, so that the indices of [`DeviceIdentity`] matter.
    pub fn names_devices(&self) -> bool {
        self.rules.name_devices()
    }

    /// Whether the size of a device matters, for [`DeviceSettings::session`].
    pub fn needs_device_size(&self) -> bool {
        self.rules.need_total()
    }

    /// Whether any device can have a limit.
    pub fn limits_anything(&self) -> bool {
        self.rules.limit_anything()
    }

    /// Whether the session's pages account for what the process takes of each device. They do if it has a
    /// limit, or belongs to a session that can be given one.
    pub fn keeps_account(&self) -> bool {
        self.limits_anything() || self.session_dir.is_some()
    }

    /// Whether any device's time can be limited.
    pub fn limits_compute(&self) -> bool {
        self.rules.limit_compute()
    }

    /// A text that is the same for processes with the same limits on `devices`, those of the node, and only for them.
    pub fn limits_fingerprint(&self, devices: &[DeviceIdentity]) -> String {
        self.rules.fingerprint(devices)
    }

    /// The configuration in force for these devices, in one line that names what is overruled.
    pub fn effective_line(&self, devices: &[(DeviceIdentity, DeviceSettings)]) -> String {
        effective::line(self, devices)
    }
}

/// Picks the setting in force for each meaning and notes the others.
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

/// A line for each variable that asks for something that is not done.
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
