//! The effective configuration as one line, for the limiter's log.

use super::error::OneLine;
use super::{Config, DaemonAddress, DeviceIdentity, DeviceSettings, OnFailure};
use core::fmt;
use limits::session_name::told;

impl fmt::Display for DaemonAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => OneLine(&path.to_string_lossy()).fmt(f),
            Self::Tcp { host, port } => write!(f, "{host}:{port}"),
        }
    }
}

pub(super) fn line(config: &Config, devices: &[(DeviceIdentity, DeviceSettings)]) -> String {
    let on_failure = match config.on_failure {
        OnFailure::Closed => "closed",
        OnFailure::Open => "open",
    };
    let mut parts = vec![format!("policy {}", config.policy), format!("on failure {on_failure}")];
    parts.push(match &config.daemon {
        Some(daemon) => format!("daemon {daemon}"),
        None => "no daemon".to_owned(),
    });
    if let Some(dir) = &config.session_dir {
        parts.push(format!("session {}", OneLine(&told(dir).to_string_lossy())));
    }
    for (enabled, what) in [
        (config.cuda_hooks, "CUDA left alone"),
        (config.nvml_hooks, "NVML left alone"),
        (!config.control_disabled, "all limits off"),
    ] {
        if !enabled {
            parts.push(what.to_owned());
        }
    }
    parts.extend(devices.iter().map(|(device, limits)| format!("{}: {limits}", device.uuid)));
    let mut overruled: Vec<String> = Vec::new();
    let of_devices = devices.iter().flat_map(|(_, limits)| &limits.overruled);
    for one in config.overruled.iter().chain(of_devices) {
        let text = one.to_string();
        if !overruled.contains(&text) {
            overruled.push(text);
        }
    }
    if !overruled.is_empty() {
        parts.push(format!("overruled: {}", overruled.join(", ")));
    }
    parts.join("; ")
}
