//! Tables of names: dialects, their resources and their annotations.

use core::num::NonZeroU32;
use std::str::FromStr;

use crate::choice::ChoiceNames;
use crate::gates::{FeatureGates, Gate};
use crate::policy::{PolicyNames, TopologyNames};

/// A system whose pods are supported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Dialect {
    /// VGPU-Manager.
    VgpuManager,
    /// Volcano's vGPU device plugin.
    Volcano,
    /// HAMi.
    Hami,
    /// vgpu.rs.
    VgpuRs,
}

impl Dialect {
    /// All dialects.
    pub const ALL: [Self; 4] = [Self::VgpuManager, Self::Volcano, Self::Hami, Self::VgpuRs];

    /// The name in options.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::VgpuManager => "vgpu-manager",
            Self::Volcano => "volcano",
            Self::Hami => "hami",
            Self::VgpuRs => "vgpu-rs",
        }
    }

    /// The names of its annotations.
    #[must_use]
    pub const fn annotations(self) -> &'static Annotations {
        match self {
            Self::VgpuManager => &VGPU_MANAGER,
            Self::Volcano => &VOLCANO,
            Self::Hami => &HAMI,
            Self::VgpuRs => &VGPU_RS,
        }
    }

    /// MiB per memory unit in its annotations, on nodes with this memory factor.
    #[must_use]
    pub fn text_unit(self, factor: NonZeroU32) -> u64 {
        if self == Self::Volcano { factor.get().into() } else { 1 }
    }
}

/// The text is no name of a [`Dialect`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no dialect {0:?}; expected vgpu-manager, volcano, hami or vgpu-rs")]
pub struct DialectError(String);

impl FromStr for Dialect {
    type Err = DialectError;

    fn from_str(text: &str) -> Result<Self, DialectError> {
        let named = Self::ALL.into_iter().find(|dialect| dialect.name() == text);
        named.ok_or_else(|| DialectError(text.to_owned()))
    }
}

/// What one id of a resource stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Counts {
    /// A place on a GPU. Each place of a container is on a different GPU.
    Places,
    /// Nothing: the number of ids identifies the pod. They may be on one GPU.
    Index,
    /// Like [`Self::Index`], for one of sixteen ranges of pod numbers; the value is the range, from 0.
    IndexPart(u8),
    /// A core: 1 % of a GPU's compute.
    Cores,
    /// A memory unit: the memory factor in MiB.
    Memory,
}

impl Counts {
    /// Whether its ids give a container GPUs.
    #[must_use]
    pub const fn is_place(self) -> bool {
        matches!(self, Self::Places) || self.is_index()
    }

    /// Whether the number of its ids identifies a pod.
    #[must_use]
    pub const fn is_index(self) -> bool {
        matches!(self, Self::Index | Self::IndexPart(_))
    }
}

/// A resource of the kubelet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resource {
    /// The dialect that defines it.
    pub dialect: Dialect,
    /// Its name in a container's `resources`.
    pub name: &'static str,
    /// What one id stands for.
    pub counts: Counts,
    /// The gate that must be on for it to be offered.
    pub gate: Option<Gate>,
}

impl Resource {
    const fn new(dialect: Dialect, name: &'static str, counts: Counts) -> Self {
        Self { dialect, name, counts, gate: None }
    }

    const fn behind(self, gate: Gate) -> Self {
        Self { gate: Some(gate), ..self }
    }

    /// The file name of the plugin's socket, in the kubelet's directory.
    #[must_use]
    pub fn socket(&self) -> String {
        format!("sluice-{}.sock", self.name.replace(['/', '.'], "-"))
    }
}

/// All resources of all dialects.
pub const RESOURCES: [Resource; 24] = [
    Resource::new(Dialect::VgpuManager, "nvidia.com/vgpu-number", Counts::Places),
    Resource::new(Dialect::VgpuManager, "nvidia.com/vgpu-cores", Counts::Cores)
        .behind(Gate::CorePlugin),
    Resource::new(Dialect::VgpuManager, "nvidia.com/vgpu-memory", Counts::Memory)
        .behind(Gate::MemoryPlugin),
    Resource::new(Dialect::Volcano, "volcano.sh/vgpu-number", Counts::Places),
    Resource::new(Dialect::Volcano, "volcano.sh/vgpu-cores", Counts::Cores),
    Resource::new(Dialect::Volcano, "volcano.sh/vgpu-memory", Counts::Memory),
    Resource::new(Dialect::Hami, "nvidia.com/gpu", Counts::Places),
    Resource::new(Dialect::VgpuRs, "tensor-fusion.ai/index", Counts::Index),
    Resource::new(Dialect::VgpuRs, "tensor-fusion.ai/index_0", Counts::IndexPart(0)),
    Resource::new(Dialect::VgpuRs, "tensor-fusion.ai/index_1", Counts::IndexPart(1)),
    Resource::new(Dialect::VgpuRs, "tensor-fusion.ai/index_2", Counts::IndexPart(2)),
    Resource::new(Dialect::VgpuRs, "tensor-fusion.ai/index_3", Counts::IndexPart(3)),
    Resource::new(Dialect::VgpuRs, "tensor-fusion.ai/index_4", Counts::IndexPart(4)),
    Resource::new(Dialect::VgpuRs, "tensor-fusion.ai/index_5", Counts::IndexPart(5)),
    Resource::new(Dialect::VgpuRs, "tensor-fusion.ai/index_6", Counts::IndexPart(6)),
    Resource::new(Dialect::VgpuRs, "tensor-fusion.ai/index_7", Counts::IndexPart(7)),
    Resource::new(Dialect::VgpuRs, "tensor-fusion.ai/index_8", Counts::IndexPart(8)),
    Resource::new(Dialect::VgpuRs, "tensor-fusion.ai/index_9", Counts::IndexPart(9)),
    Resource::new(Dialect::VgpuRs, "tensor-fusion.ai/index_a", Counts::IndexPart(10)),
    Resource::new(Dialect::VgpuRs, "tensor-fusion.ai/index_b", Counts::IndexPart(11)),
    Resource::new(Dialect::VgpuRs, "tensor-fusion.ai/index_c", Counts::IndexPart(12)),
    Resource::new(Dialect::VgpuRs, "tensor-fusion.ai/index_d", Counts::IndexPart(13)),
    Resource::new(Dialect::VgpuRs, "tensor-fusion.ai/index_e", Counts::IndexPart(14)),
    Resource::new(Dialect::VgpuRs, "tensor-fusion.ai/index_f", Counts::IndexPart(15)),
];

/// The resources of these dialects that these gates enable.
#[must_use]
pub fn offered(dialects: &[Dialect], gates: &FeatureGates) -> Vec<Resource> {
    let chosen = |row: &Resource| {
        dialects.contains(&row.dialect) && row.gate.is_none_or(|gate| gates.is_open(gate))
    };
    RESOURCES.into_iter().filter(chosen).collect()
}

/// A request in a container's `resources`, or in its pod's annotations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// Number of places on GPUs.
    Number,
    /// Compute of each GPU, in cores.
    Cores,
    /// Memory of each GPU, in units of the memory factor.
    Memory,
    /// Memory of each GPU, in percent.
    MemoryPercentage,
    /// Priority for compute: 0 is high, 1 is low.
    Priority,
    /// TFLOPS of each GPU.
    Tflops,
    /// Compute of each GPU in percent, if no TFLOPS are given.
    ComputePercentage,
    /// Compute of each GPU in percent, as vgpu.rs's scheduler computed it from TFLOPS.
    EffectivePercentage,
    /// Memory of each GPU, as a size with unit.
    MemorySize,
    /// QoS class, by name.
    Quality,
    /// Isolation mode, by name.
    Isolation,
}

impl Word {
    /// Whether it is a pod annotation, which applies to all containers.
    #[must_use]
    pub const fn is_annotation(self) -> bool {
        matches!(
            self,
            Self::Tflops
                | Self::ComputePercentage
                | Self::EffectivePercentage
                | Self::MemorySize
                | Self::Quality
                | Self::Isolation
        )
    }
}

/// The names of all requests. More than the kubelet's resources: some are read only by schedulers.
pub const WORDS: [(Dialect, Word, &str); 35] = [
    (Dialect::VgpuManager, Word::Number, "nvidia.com/vgpu-number"),
    (Dialect::VgpuManager, Word::Cores, "nvidia.com/vgpu-cores"),
    (Dialect::VgpuManager, Word::Memory, "nvidia.com/vgpu-memory"),
    (Dialect::Volcano, Word::Number, "volcano.sh/vgpu-number"),
    (Dialect::Volcano, Word::Cores, "volcano.sh/vgpu-cores"),
    (Dialect::Volcano, Word::Memory, "volcano.sh/vgpu-memory"),
    (Dialect::Volcano, Word::MemoryPercentage, "volcano.sh/vgpu-memory-percentage"),
    (Dialect::Hami, Word::Number, "nvidia.com/gpu"),
    (Dialect::Hami, Word::Cores, "nvidia.com/gpucores"),
    (Dialect::Hami, Word::Memory, "nvidia.com/gpumem"),
    (Dialect::Hami, Word::MemoryPercentage, "nvidia.com/gpumem-percentage"),
    (Dialect::Hami, Word::Priority, "nvidia.com/priority"),
    (Dialect::VgpuRs, Word::Number, "tensor-fusion.ai/index"),
    (Dialect::VgpuRs, Word::Number, "tensor-fusion.ai/index_0"),
    (Dialect::VgpuRs, Word::Number, "tensor-fusion.ai/index_1"),
    (Dialect::VgpuRs, Word::Number, "tensor-fusion.ai/index_2"),
    (Dialect::VgpuRs, Word::Number, "tensor-fusion.ai/index_3"),
    (Dialect::VgpuRs, Word::Number, "tensor-fusion.ai/index_4"),
    (Dialect::VgpuRs, Word::Number, "tensor-fusion.ai/index_5"),
    (Dialect::VgpuRs, Word::Number, "tensor-fusion.ai/index_6"),
    (Dialect::VgpuRs, Word::Number, "tensor-fusion.ai/index_7"),
    (Dialect::VgpuRs, Word::Number, "tensor-fusion.ai/index_8"),
    (Dialect::VgpuRs, Word::Number, "tensor-fusion.ai/index_9"),
    (Dialect::VgpuRs, Word::Number, "tensor-fusion.ai/index_a"),
    (Dialect::VgpuRs, Word::Number, "tensor-fusion.ai/index_b"),
    (Dialect::VgpuRs, Word::Number, "tensor-fusion.ai/index_c"),
    (Dialect::VgpuRs, Word::Number, "tensor-fusion.ai/index_d"),
    (Dialect::VgpuRs, Word::Number, "tensor-fusion.ai/index_e"),
    (Dialect::VgpuRs, Word::Number, "tensor-fusion.ai/index_f"),
    (Dialect::VgpuRs, Word::Tflops, "tensor-fusion.ai/tflops-limit"),
    (Dialect::VgpuRs, Word::ComputePercentage, "tensor-fusion.ai/compute-percent-limit"),
    (Dialect::VgpuRs, Word::EffectivePercentage, "tensor-fusion.ai/effective-hard-sm-percent"),
    (Dialect::VgpuRs, Word::MemorySize, "tensor-fusion.ai/vram-limit"),
    (Dialect::VgpuRs, Word::Quality, "tensor-fusion.ai/qos"),
    (Dialect::VgpuRs, Word::Isolation, "tensor-fusion.ai/isolation"),
];

/// The names of a dialect's annotations on nodes and pods. `None`: it has no such annotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Annotations {
    /// Node: its devices.
    pub register: Option<&'static str>,
    /// Node: a heartbeat, which says since when the devices are present.
    pub handshake: Option<&'static str>,
    /// Node: a scheduler's lock, held until a pod's containers have their devices.
    pub lock: Option<&'static str>,
    /// Pod: the devices that its scheduler has claimed.
    pub claimed: &'static str,
    /// Pod: the devices that it really has.
    pub real: Option<&'static str>,
    /// Pod: the node that its scheduler has chosen.
    pub node: Option<&'static str>,
    /// Pod: the time of that choice, in seconds since 1970.
    pub time: Option<&'static str>,
    /// Pod: the phase of device allocation.
    pub phase: Option<Phase>,
    /// Pod: which GPUs it accepts.
    pub choice: Option<ChoiceNames>,
    /// Pod: its placement policy.
    pub policy: Option<PolicyNames>,
}

/// The phase of a pod's device allocation: its name and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Phase {
    /// Name of the annotation or label.
    pub name: &'static str,
    /// Whether it is a label.
    pub is_label: bool,
    /// Devices are being allocated.
    pub allocating: &'static str,
    /// Devices are allocated.
    pub succeeded: &'static str,
    /// The allocation has failed.
    pub failed: &'static str,
}

const VGPU_MANAGER: Annotations = Annotations {
    register: Some("nvidia.com/node-device-register"),
    handshake: None,
    lock: None,
    claimed: "nvidia.com/pre-allocated",
    real: Some("nvidia.com/real-allocated"),
    node: Some("nvidia.com/predicate-node"),
    time: Some("nvidia.com/predicate-time"),
    phase: Some(Phase {
        name: "nvidia.com/assigned-phase",
        is_label: true,
        allocating: "allocating",
        succeeded: "succeed",
        failed: "failed",
    }),
    choice: Some(ChoiceNames {
        types: "nvidia.com/include-gpu-type",
        no_types: "nvidia.com/exclude-gpu-type",
        uuids: "nvidia.com/include-gpu-uuid",
        no_uuids: "nvidia.com/exclude-gpu-uuid",
    }),
    policy: Some(PolicyNames {
        node: "nvidia.com/node-scheduler-policy",
        device: "nvidia.com/device-scheduler-policy",
        topology: TopologyNames::Mode("nvidia.com/device-topology-mode"),
    }),
};

const VOLCANO: Annotations = Annotations {
    register: Some("volcano.sh/node-vgpu-register"),
    handshake: Some("volcano.sh/node-vgpu-handshake"),
    lock: Some("hamivgpu"),
    claimed: "volcano.sh/devices-to-allocate",
    real: Some("volcano.sh/vgpu-ids-new"),
    node: Some("volcano.sh/vgpu-node"),
    time: Some("volcano.sh/vgpu-time"),
    phase: Some(Phase {
        name: "volcano.sh/bind-phase",
        is_label: false,
        allocating: "allocating",
        succeeded: "success",
        failed: "failed",
    }),
    choice: Some(ChoiceNames {
        types: "nvidia.com/use-gputype",
        no_types: "nvidia.com/nouse-gputype",
        uuids: "volcano.sh/vgpu-use-gpuuuid",
        no_uuids: "volcano.sh/vgpu-nouse-gpuuuid",
    }),
    policy: None,
};

const HAMI: Annotations = Annotations {
    register: Some("hami.io/node-nvidia-register"),
    handshake: Some("hami.io/node-handshake"),
    lock: Some("hami.io/mutex.lock"),
    claimed: "hami.io/vgpu-devices-to-allocate",
    real: Some("hami.io/vgpu-devices-allocated"),
    node: Some("hami.io/vgpu-node"),
    time: Some("hami.io/vgpu-time"),
    phase: Some(Phase {
        name: "hami.io/bind-phase",
        is_label: false,
        allocating: "allocating",
        succeeded: "success",
        failed: "failed",
    }),
    choice: Some(ChoiceNames {
        types: "nvidia.com/use-gputype",
        no_types: "nvidia.com/nouse-gputype",
        uuids: "nvidia.com/use-gpuuuid",
        no_uuids: "nvidia.com/nouse-gpuuuid",
    }),
    policy: Some(PolicyNames {
        node: "hami.io/node-scheduler-policy",
        device: "hami.io/gpu-scheduler-policy",
        topology: TopologyNames::NumaBind("nvidia.com/numa-bind"),
    }),
};

/// vgpu.rs stores devices in objects of its own, and needs no report of what a pod has.
const VGPU_RS: Annotations = Annotations {
    register: None,
    handshake: None,
    lock: None,
    claimed: "tensor-fusion.ai/container-gpus",
    real: None,
    node: None,
    time: None,
    phase: None,
    choice: None,
    policy: None,
};

/// Pod of vgpu.rs: the GPUs of all its containers, comma-separated.
pub const GPU_IDS: &str = "tensor-fusion.ai/gpu-ids";

/// Node: how its GPUs are split. VGPU-Manager's name, used for all dialects here.
pub const NODE_CONFIG: &str = "nvidia.com/node-config-info";

/// Compute policy: annotation of the pod, or else of its node.
pub const COMPUTE_POLICY: &str = "nvidia.com/vgpu-compute-policy";

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn names(dialects: &[Dialect], gates: &str) -> Vec<&'static str> {
        let offered = offered(dialects, &gates.parse().unwrap());
        offered.iter().map(|row| row.name).collect()
    }

    #[test]
    fn gates_add_resources_by_the_names_of_vgpu_manager() {
        let one = [Dialect::VgpuManager];
        assert_eq!(names(&one, ""), ["nvidia.com/vgpu-number"]);
        let all = ["nvidia.com/vgpu-number", "nvidia.com/vgpu-cores", "nvidia.com/vgpu-memory"];
        assert_eq!(names(&one, "CorePlugin=true,MemoryPlugin=true"), all);
        assert!(offered(&[], &FeatureGates::default()).is_empty());
    }

    #[test]
    fn dialects_are_offered_beside_each_other() {
        let found = names(&Dialect::ALL, "");
        assert_eq!((found.len(), found[21]), (22, "tensor-fusion.ai/index_f"));
        assert_eq!(
            found[..6],
            [
                "nvidia.com/vgpu-number",
                "volcano.sh/vgpu-number",
                "volcano.sh/vgpu-cores",
                "volcano.sh/vgpu-memory",
                "nvidia.com/gpu",
                "tensor-fusion.ai/index"
            ]
        );
        for dialect in Dialect::ALL {
            assert_eq!(dialect.name().parse(), Ok(dialect));
        }
        let said = "HAMi".parse::<Dialect>().unwrap_err().to_string();
        assert_eq!(
            said,
            "there is no dialect \"HAMi\"; expected vgpu-manager, volcano, hami or vgpu-rs"
        );
    }

    #[test]
    fn rows_differ_in_name_and_socket_and_each_is_a_word() {
        for (index, row) in RESOURCES.iter().enumerate() {
            assert!(!row.socket().contains('/') && row.socket().len() < 64);
            for other in &RESOURCES[..index] {
                assert!(row.name != other.name && row.socket() != other.socket());
            }
            let word = WORDS
                .iter()
                .find(|(dialect, _, name)| (*dialect, *name) == (row.dialect, row.name));
            assert!(word.is_some(), "{}", row.name);
        }
        for (index, (.., name)) in WORDS.iter().enumerate() {
            assert!(WORDS[..index].iter().all(|(.., other)| other != name));
        }
    }

    /// kube-scheduler itself binds a pod that requests none of these, without claims.
    #[test]
    fn kube_scheduler_sends_pods_of_each_dialect_to_the_extender() {
        let wanted: Vec<_> = WORDS
            .iter()
            .filter(|(dialect, word, _)| {
                dialect.annotations().register.is_some() && !word.is_annotation()
            })
            .map(|(_, word, name)| json!({"name": name, "ignoredByScheduler": *word != Word::Number}))
            .collect();
        for file in ["scheduler-v1.yaml", "scheduler-v1beta1.yaml"] {
            let path = format!("{}/../../deploy/kubernetes/{file}", env!("CARGO_MANIFEST_DIR"));
            let text = std::fs::read_to_string(path).unwrap();
            let read: serde_json::Value = serde_saphyr::from_str(&text).unwrap();
            assert_eq!(read["extenders"][0]["managedResources"], json!(wanted), "{file}");
        }
    }
}
