//! Reads a pod's request for GPUs.

use dialects::pods;
use dialects::policy::{Connection, Topology};
use dialects::{Choice, Dialect, Need, Policy};
use k8s_openapi::api::core::v1::{Container, Pod};

use crate::refusal::PodRefusal;

/// A pod's request. All containers use the resource names of one dialect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The dialect.
    pub dialect: Dialect,
    /// The containers that request GPUs, in the order in which the kubelet allocates their devices.
    pub containers: Vec<ContainerRequest>,
    /// The GPUs that the pod accepts.
    pub choice: Choice,
    /// The pod's placement policy.
    pub policy: Policy,
}

/// A container's request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerRequest {
    /// Its name.
    pub name: String,
    /// The requested GPUs.
    pub need: Need,
    /// When the container runs.
    pub stage: Stage,
}

/// When a container runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Runs to its end before all later containers, which reuse its GPUs.
    Init,
    /// Runs from its start to the pod's end: a sidecar or a main container.
    Lasting,
}

impl Stage {
    /// The stage of a container. `is_init`: it is among the init containers, which include sidecars.
    pub(crate) fn of(container: &Container, is_init: bool) -> Self {
        let is_sidecar = container.restart_policy.as_deref() == Some("Always");
        if is_init && !is_sidecar { Self::Init } else { Self::Lasting }
    }
}

/// The containers of a pod with their stages, in the order in which the kubelet allocates their devices.
pub(crate) fn staged(pod: &Pod) -> impl Iterator<Item = (Stage, &Container)> {
    let init = pod.spec.iter().flat_map(|spec| spec.init_containers.iter().flatten()).count();
    pods::containers(pod).enumerate().map(move |(at, one)| (Stage::of(one, at < init), one))
}

impl Request {
    /// Reads a pod's request. `None`: it requests no GPU in these dialects. `links`: whether links between GPUs may be
    /// requested.
    ///
    /// # Errors
    /// [`PodRefusal`]
    pub fn of(pod: &Pod, dialects: &[Dialect], links: bool) -> Result<Option<Self>, PodRefusal> {
        let init = pod.spec.iter().flat_map(|spec| spec.init_containers.iter().flatten()).count();
        let mut found: Option<Self> = None;
        for (at, (stage, container)) in staged(pod).enumerate() {
            let wrong = |source| PodRefusal::Need { container: container.name.clone(), source };
            let Some(need) = pods::need(pod, container, dialects).map_err(wrong)? else { continue };
            let dialect = need.dialect;
            if at < init && dialect == Dialect::Volcano {
                let (container, dialect) = (container.name.clone(), dialect.name());
                return Err(PodRefusal::Unnamed { container, dialect });
            }
            let all = match &mut found {
                Some(all) => all,
                none => none.insert(Self {
                    dialect,
                    containers: Vec::new(),
                    choice: Choice::of(pod, dialect),
                    policy: policy(pod, dialect, links)?,
                }),
            };
            if all.dialect != dialect {
                return Err(PodRefusal::TwoDialects(all.dialect.name(), dialect.name()));
            }
            let name = container.name.clone();
            all.containers.push(ContainerRequest { name, need, stage });
        }
        if let Some(all) = &found {
            handed_over(&all.containers)?;
        }
        Ok(found)
    }
}

/// Where a pod wants its GPUs to be. `links`: whether links between GPUs have a say.
///
/// # Errors
/// [`PodRefusal::Policy`], [`PodRefusal::LinkGate`]
pub fn policy(pod: &Pod, dialect: Dialect, links: bool) -> Result<Policy, PodRefusal> {
    let policy = Policy::of(pod, dialect).map_err(PodRefusal::Policy)?;
    match policy.topology {
        Some(Topology { by: Connection::Link, strict: true }) if !links => {
            Err(PodRefusal::LinkGate)
        }
        Some(Topology { by: Connection::Link, .. }) if !links => {
            Ok(Policy { topology: None, ..policy })
        }
        _ => Ok(policy),
    }
}

/// Refuses a pod whose container has fewer GPUs than the init container before it: the kubelet would choose among these
/// in no particular order.
fn handed_over(containers: &[ContainerRequest]) -> Result<(), PodRefusal> {
    let mut held = 0;
    for ContainerRequest { name, need, stage } in containers {
        if need.places < held {
            let (container, asked) = (name.clone(), need.places);
            return Err(PodRefusal::HandedOver { container, asked, held });
        }
        held = if *stage == Stage::Init { need.places } else { 0 };
    }
    Ok(())
}
