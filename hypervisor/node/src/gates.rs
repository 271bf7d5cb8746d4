//! Feature gates, by VGPU-Manager's names: the older ones and the newer ones.

use std::collections::BTreeMap;
use std::str::FromStr;

/// What can be switched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Gate {
    /// Whether the kubelet is told of cores.
    CorePlugin,
    /// Whether the kubelet is told of memory.
    MemoryPlugin,
}

impl Gate {
    const NAMES: [(&'static str, Self); 4] = [
        ("CorePlugin", Self::CorePlugin),
        ("GPUCoreResourcePlugin", Self::CorePlugin),
        ("MemoryPlugin", Self::MemoryPlugin),
        ("GPUMemoryResourcePlugin", Self::MemoryPlugin),
    ];

    fn named(name: &str) -> Option<Self> {
        Self::NAMES.into_iter().find(|(known, _)| *known == name).map(|(_, gate)| gate)
    }
}

/// Gates that VGPU-Manager has and this version does not.
const LATER: [&str; 3] = ["Reschedule", "SerialBindNode", "GPUTopology"];

/// Which gates are open. All are closed by default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FeatureGates(BTreeMap<Gate, bool>);

impl FeatureGates {
    /// Whether it is open.
    #[must_use]
    pub fn is_open(&self, gate: Gate) -> bool {
        self.0.get(&gate).copied().unwrap_or_default()
    }
}

/// Why a text is no list of gates.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GateError {
    /// It is not of the form.
    #[error(
        "{0:?} is no feature gate: NAME=true or NAME=false is accepted, several with commas between them"
    )]
    Form(String),
    /// There is no such gate.
    #[error("there is no feature gate {0:?}: CorePlugin and MemoryPlugin are accepted")]
    Unknown(String),
    /// It is known, and not there yet.
    #[error("the feature gate {0} is not there yet: CorePlugin and MemoryPlugin are accepted")]
    Later(String),
    /// A gate is to be both.
    #[error("the feature gate {0} is set to true and to false")]
    Both(String),
}

impl FromStr for FeatureGates {
    type Err = GateError;

    fn from_str(text: &str) -> Result<Self, GateError> {
        let mut gates = Self::default();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let form = || GateError::Form(part.to_owned());
            let (name, value) = part.split_once('=').ok_or_else(form)?;
            let open = value.parse().map_err(|_| form())?;
            let name = || name.to_owned();
            match Gate::named(&name()) {
                Some(gate) => match gates.0.insert(gate, open) {
                    Some(before) if before != open => return Err(GateError::Both(name())),
                    _ => {}
                },
                None if LATER.contains(&name().as_str()) => return Err(GateError::Later(name())),
                None => return Err(GateError::Unknown(name())),
            }
        }
        Ok(gates)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_and_new_names_open_the_same_gate() {
        for name in ["CorePlugin", "GPUCoreResourcePlugin"] {
            let gates: FeatureGates = format!("{name}=true,MemoryPlugin=false").parse().unwrap();
            assert!(gates.is_open(Gate::CorePlugin) && !gates.is_open(Gate::MemoryPlugin));
        }
        let gates: FeatureGates = "GPUMemoryResourcePlugin=true".parse().unwrap();
        assert!(!gates.is_open(Gate::CorePlugin) && gates.is_open(Gate::MemoryPlugin));
        assert_eq!("".parse(), Ok(FeatureGates::default()));
    }

    #[test]
    fn other_texts_are_refused() {
        let fault = |text: &str| text.parse::<FeatureGates>().unwrap_err();
        assert_eq!(fault("CorePlugin"), GateError::Form("CorePlugin".to_owned()));
        assert_eq!(fault("CorePlugin=1"), GateError::Form("CorePlugin=1".to_owned()));
        assert_eq!(fault("coreplugin=true"), GateError::Unknown("coreplugin".to_owned()));
        assert_eq!(fault("Reschedule=true"), GateError::Later("Reschedule".to_owned()));
        let both = fault("CorePlugin=true,GPUCoreResourcePlugin=false");
        assert_eq!(both, GateError::Both("GPUCoreResourcePlugin".to_owned()));
    }
}
