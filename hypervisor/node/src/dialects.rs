//! The names under which existing systems offer a node's GPUs, in one table.

use std::str::FromStr;

use crate::gates::{FeatureGates, Gate};

/// A system whose pods are understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// VGPU-Manager.
    VgpuManager,
}

impl Dialect {
    /// All of them.
    pub const ALL: [Self; 1] = [Self::VgpuManager];

    /// Its name in options.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::VgpuManager => "vgpu-manager",
        }
    }
}

/// A text that names no dialect.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no dialect {0:?}: vgpu-manager is accepted")]
pub struct DialectError(String);

impl FromStr for Dialect {
    type Err = DialectError;

    fn from_str(text: &str) -> Result<Self, DialectError> {
        let named = Self::ALL.into_iter().find(|dialect| dialect.name() == text);
        named.ok_or_else(|| DialectError(text.to_owned()))
    }
}

/// What a resource counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Counts {
    /// Places on GPUs. A container gets each of them on a GPU of its own.
    Places,
    /// Hundredths of a GPU's time.
    Cores,
    /// Memory, in MiB times the memory factor.
    Memory,
}

/// A resource of the kubelet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resource {
    /// Whose it is.
    pub dialect: Dialect,
    /// Its name in a pod's `resources`.
    pub name: &'static str,
    /// What one of it is.
    pub counts: Counts,
    /// It is offered only where this gate is open.
    pub gate: Option<Gate>,
}

impl Resource {
    /// The plugin's socket, in the kubelet's folder.
    #[must_use]
    pub fn socket(&self) -> String {
        format!("sluice-{}.sock", self.name.replace(['/', '.'], "-"))
    }
}

/// All resources. A dialect is a set of rows.
pub const RESOURCES: [Resource; 3] = [
    Resource {
        dialect: Dialect::VgpuManager,
        name: "nvidia.com/vgpu-number",
        counts: Counts::Places,
        gate: None,
    },
    Resource {
        dialect: Dialect::VgpuManager,
        name: "nvidia.com/vgpu-cores",
        counts: Counts::Cores,
        gate: Some(Gate::CorePlugin),
    },
    Resource {
        dialect: Dialect::VgpuManager,
        name: "nvidia.com/vgpu-memory",
        counts: Counts::Memory,
        gate: Some(Gate::MemoryPlugin),
    },
];

/// What these dialects offer with these gates.
#[must_use]
pub fn offered(dialects: &[Dialect], gates: &FeatureGates) -> Vec<Resource> {
    let chosen = |row: &Resource| {
        dialects.contains(&row.dialect) && row.gate.is_none_or(|gate| gates.is_open(gate))
    };
    RESOURCES.into_iter().filter(chosen).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(gates: &str) -> Vec<&'static str> {
        let offered = offered(&[Dialect::VgpuManager], &gates.parse().unwrap());
        offered.iter().map(|row| row.name).collect()
    }

    #[test]
    fn gates_add_resources_by_the_names_of_vgpu_manager() {
        assert_eq!(names(""), ["nvidia.com/vgpu-number"]);
        let all = ["nvidia.com/vgpu-number", "nvidia.com/vgpu-cores", "nvidia.com/vgpu-memory"];
        assert_eq!(names("CorePlugin=true,MemoryPlugin=true"), all);
        assert!(offered(&[], &FeatureGates::default()).is_empty());
    }

    #[test]
    fn rows_differ_in_name_and_socket() {
        for (index, row) in RESOURCES.iter().enumerate() {
            assert!(!row.socket().contains('/') && row.socket().len() < 64);
            for other in &RESOURCES[..index] {
                assert!(row.name != other.name && row.socket() != other.socket());
            }
        }
    }
}
