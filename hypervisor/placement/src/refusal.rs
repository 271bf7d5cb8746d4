//! The reasons why a pod has no room, with figures.

use core::fmt;
use std::collections::BTreeMap;

use dialects::NeedError;
use dialects::policy::Connection;
use dialects::registers::RegisterError;

use crate::nearest::Offer;

/// Why a pod fits no node at all.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PodRefusal {
    /// A container's request is invalid.
    #[error("container {container}: {source}")]
    Need {
        /// The container.
        container: String,
        /// The reason.
        source: NeedError,
    },
    /// The pod's placement policy is invalid.
    #[error(transparent)]
    Policy(NeedError),
    /// Containers use the names of two dialects.
    #[error("its containers ask by the names of {0} and of {1}; expected those of one dialect")]
    TwoDialects(&'static str, &'static str),
    /// The dialect's claims cannot name an init container.
    #[error(
        "init container {container} asks for GPUs by the names of {dialect}, whose claims name no init containers; expected the names of vgpu-manager or hami"
    )]
    Unnamed {
        /// The container.
        container: String,
        /// The dialect.
        dialect: &'static str,
    },
    /// The pod asks for links, and the gate is off.
    #[error(
        "device-topology-mode link-strict: the feature gate GPUTopology is closed; expected numa, numa-strict or link, or GPUTopology=true"
    )]
    LinkGate,
    /// A kubelet would choose among an init container's GPUs at random.
    #[error(
        "container {container} asks for {asked} GPUs after an init container with {held}: kubelets give it any {asked} of these; expected at least {held}"
    )]
    HandedOver {
        /// The later container.
        container: String,
        /// How many GPUs it asks for.
        asked: u64,
        /// How many the init container has.
        held: u64,
    },
}

/// Why a pod does not fit a node.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The node does not register GPUs in this dialect.
    #[error("no GPUs are registered: the node has no annotation {0}")]
    Unregistered(&'static str),
    /// Nodes do not register by this dialect.
    #[error("pods that ask by the names of {0} have a scheduler of their own")]
    OtherScheduler(&'static str),
    /// The registration cannot be read.
    #[error("the node's annotation {name}: {source}")]
    Register {
        /// The annotation.
        name: &'static str,
        /// Why.
        source: RegisterError,
    },
    /// The request is invalid.
    #[error(transparent)]
    Need(#[from] NeedError),
    /// Too few GPUs have enough left.
    #[error(
        "container {container} asks for {wanted}: {fitting} of {gpus} GPUs have room{why}",
        why = Because(lack)
    )]
    NoRoom {
        /// The container.
        container: String,
        /// What it asks for.
        wanted: Offer,
        /// How many GPUs have room for it.
        fitting: usize,
        /// How many the node has.
        gpus: usize,
        /// How many have none, by reason, and the most that one of these has left.
        lack: BTreeMap<Lack, (usize, u64)>,
    },
    /// Enough GPUs have room, but are not connected as the pod demands.
    #[error(
        "container {container} asks for {asked} GPUs {connected}: {fitting} have room, and no {asked} of them are so connected",
        connected = connected(*by)
    )]
    Connection {
        /// The container.
        container: String,
        /// How many GPUs it asks for.
        asked: u64,
        /// How they have to be connected.
        by: Connection,
        /// How many have room.
        fitting: usize,
    },
    /// Too many combinations of GPUs.
    #[error(
        "none of the first {0} ways to place its containers fits; expected fewer containers with GPUs"
    )]
    TooManyWays(usize),
}

/// Why a GPU has no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lack {
    /// The pod does not accept the GPU.
    Choice,
    /// It is unhealthy or cordoned.
    Health,
    /// All its places are taken.
    Places,
    /// Its compute.
    Cores,
    /// Its memory.
    Memory,
}

/// Thousands of nodes may say it in one answer.
struct Because<'a>(&'a BTreeMap<Lack, (usize, u64)>);

impl fmt::Display for Because<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut before = " (";
        for (lack, (count, most)) in self.0 {
            f.write_str(core::mem::replace(&mut before, "; "))?;
            match lack {
                Lack::Choice => write!(f, "{count} that the pod does not want"),
                Lack::Health => write!(f, "{count} unhealthy"),
                Lack::Places => write!(f, "{count} with no place left"),
                Lack::Cores => write!(f, "{count} with too few cores left, at most {most}"),
                Lack::Memory => {
                    write!(f, "{count} with too little memory left, at most {most} MiB")
                }
            }?;
        }
        if self.0.is_empty() { Ok(()) } else { f.write_str(")") }
    }
}

fn connected(by: Connection) -> &'static str {
    match by {
        Connection::Numa => "on one NUMA node (numa-strict)",
        Connection::Link => "with NVLink between every two (link-strict)",
    }
}
