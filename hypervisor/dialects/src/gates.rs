//! Feature gates, with both the older and the newer names of VGPU-Manager.

use std::collections::BTreeMap;
use std::str::FromStr;

/// A feature gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Gate {
    /// Offer cores to the kubelet.
    CorePlugin,
    /// Offer memory to the kubelet.
    MemoryPlugin,
    /// Delete a pod that cannot have what it was promised, so that its controller creates a new one.
    Reschedule,
    /// Bind pods of a node one after the other.
    SerialBindNode,
    /// Use connections between GPUs: nodes report links and NUMA nodes, and the scheduler considers links.
    GpuTopology,
}

impl Gate {
    const NAMES: [(&'static str, Self); 10] = [
        ("CorePlugin", Self::CorePlugin),
        ("GPUCoreResourcePlugin", Self::CorePlugin),
        ("MemoryPlugin", Self::MemoryPlugin),
        ("GPUMemoryResourcePlugin", Self::MemoryPlugin),
        ("Reschedule", Self::Reschedule),
        ("AllocationFailureReschedule", Self::Reschedule),
        ("SerialBindNode", Self::SerialBindNode),
        ("SerializedNodeBind", Self::SerialBindNode),
        ("GPUTopology", Self::GpuTopology),
        ("TopologyAwareGPUAllocation", Self::GpuTopology),
    ];

    fn named(name: &str) -> Option<Self> {
        Self::NAMES.into_iter().find(|(known, _)| *known == name).map(|(_, gate)| gate)
    }

    fn name(self) -> &'static str {
        Self::NAMES.into_iter().find(|(_, gate)| *gate == self).map_or("", |(name, _)| name)
    }

    /// Why the gate has no effect in `hypervisor node`, if it has none.
    const fn needs(self) -> Option<&'static str> {
        match self {
            Self::SerialBindNode => Some("it is the scheduler's: hypervisor scheduler"),
            Self::CorePlugin | Self::MemoryPlugin | Self::Reschedule | Self::GpuTopology => None,
        }
    }
}

/// The settings of the gates. By default all are off.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FeatureGates(BTreeMap<Gate, bool>);

impl FeatureGates {
    /// Whether a gate is on.
    #[must_use]
    pub fn is_open(&self, gate: Gate) -> bool {
        self.0.get(&gate).copied().unwrap_or_default()
    }

    /// The gates that are on but have no effect, with the reason, for a warning.
    pub fn idle(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        let open = self.0.iter().filter(|(_, open)| **open);
        open.filter_map(|(gate, _)| Some((gate.name(), gate.needs()?)))
    }
}

/// Why a text is no list of gates.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GateError {
    /// It is not `NAME=true` or `NAME=false`.
    #[error(
        "{0:?} is no feature gate; expected NAME=true or NAME=false, several with commas between them"
    )]
    Form(String),
    /// The name is unknown.
    #[error(
        "there is no feature gate {0:?}; expected CorePlugin, MemoryPlugin, Reschedule, SerialBindNode or GPUTopology"
    )]
    Unknown(String),
    /// A gate is set to both values.
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
            let gate = Gate::named(name).ok_or_else(|| GateError::Unknown(name.to_owned()))?;
            match gates.0.insert(gate, open) {
                Some(before) if before != open => return Err(GateError::Both(name.to_owned())),
                _ => {}
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
        for (index, (name, gate)) in Gate::NAMES.into_iter().enumerate() {
            let gates: FeatureGates = format!("{name}=true").parse().unwrap();
            assert!(gates.is_open(gate), "{name}");
            // Each gate's two names are adjacent, the older one first.
            assert_eq!(gate.name(), Gate::NAMES[index / 2 * 2].0);
        }
        let gates: FeatureGates = "CorePlugin=true,MemoryPlugin=false".parse().unwrap();
        assert!(gates.is_open(Gate::CorePlugin) && !gates.is_open(Gate::MemoryPlugin));
        assert_eq!("".parse(), Ok(FeatureGates::default()));
    }

    #[test]
    fn gates_without_an_effect_say_so() {
        let gates: FeatureGates =
            "GPUTopology=true,SerialBindNode=true,Reschedule=true,CorePlugin=true".parse().unwrap();
        let names: Vec<_> = gates.idle().map(|(name, _)| name).collect();
        assert_eq!(names, ["SerialBindNode"]);
        assert_eq!("SerialBindNode=false".parse::<FeatureGates>().unwrap().idle().count(), 0);
    }

    #[test]
    fn other_texts_are_refused() {
        let fault = |text: &str| text.parse::<FeatureGates>().unwrap_err();
        assert_eq!(fault("CorePlugin"), GateError::Form("CorePlugin".to_owned()));
        assert_eq!(fault("CorePlugin=1"), GateError::Form("CorePlugin=1".to_owned()));
        assert_eq!(fault("coreplugin=true"), GateError::Unknown("coreplugin".to_owned()));
        let both = fault("CorePlugin=true,GPUCoreResourcePlugin=false");
        assert_eq!(both, GateError::Both("GPUCoreResourcePlugin".to_owned()));
    }
}
