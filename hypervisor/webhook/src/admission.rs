//! Defaults and validation of pods that request GPUs. Pure.

use std::collections::BTreeMap;

use dialects::pods::{self, annotation};
use dialects::quantity::whole;
use dialects::table::{COMPUTE_POLICY, WORDS, Word};
use dialects::{CORES, Dialect, NeedError, ResourceNames};
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use limits::Policy;
use serde::Serialize;
use serde_json::{Value, json};

/// The scheduler of pods that name no other.
const DEFAULT_SCHEDULER: &str = "default-scheduler";
/// The node label that selects one node.
const HOSTNAME: &str = "kubernetes.io/hostname";
/// The annotation of a static pod's mirror, which a kubelet creates and nothing may change.
const MIRROR: &str = "kubernetes.io/config.mirror";

/// Options for pods that request GPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// Dialects whose resource names pods may use.
    pub dialects: Vec<Dialect>,
    /// The scheduler that assigns single GPUs, if there is one.
    pub scheduler: Option<String>,
    /// The runtime class of pods that name none. `None`: the container runtime's default.
    pub runtime_class: Option<String>,
    /// What the cluster calls resources.
    pub names: ResourceNames,
}

/// A step of a JSON patch (RFC 6902).
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "op", rename_all = "lowercase")]
pub enum Operation {
    /// Sets a member of an object.
    Add {
        /// The member.
        path: String,
        /// Its value.
        value: Value,
    },
    /// Removes a member.
    Remove {
        /// The member.
        path: String,
    },
}

/// Why a pod is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// A container's request is invalid.
    #[error("container {container}: {source}")]
    Need {
        /// The container.
        container: String,
        /// Why.
        source: NeedError,
    },
    /// Resource names of two dialects in one pod.
    #[error(
        "the pod's containers use the resource names of {0} and of {1}; expected those of one dialect"
    )]
    TwoDialects(&'static str, &'static str),
    /// Unknown compute policy.
    #[error("annotation {COMPUTE_POLICY}: {given:?} is no policy; expected {accepted}")]
    Policy {
        /// The annotation's value.
        given: String,
        /// The accepted values.
        accepted: &'static str,
    },
    /// `nodeName` and the node selector contradict each other.
    #[error(
        "spec.nodeName is {name:?}, but the node selector {HOSTNAME} is {selected:?}; expected the same node in both, or one of the two"
    )]
    TwoNodes {
        /// The node in `nodeName`.
        name: String,
        /// The node in the selector.
        selected: String,
    },
    /// The pod bypasses the scheduler.
    #[error(
        "spec.nodeName {node:?} bypasses the scheduler {scheduler:?}, which assigns GPUs; expected the node selector {HOSTNAME}: {node}"
    )]
    NodeName {
        /// The node in `nodeName`.
        node: String,
        /// The scheduler of [`Rules`].
        scheduler: String,
    },
    /// A privileged container, which no limit holds.
    #[error(
        "container {0}: privileged containers see all GPUs, so that no limit holds; expected securityContext.privileged: false"
    )]
    Privileged(String),
}

/// The patch that completes a pod. A completed pod needs none.
#[must_use]
pub fn defaults(pod: &Pod, rules: &Rules) -> Vec<Operation> {
    let pod = &*rules.names.pod(pod);
    let Some(spec) = pod.spec.as_ref().filter(|_| !is_mirror(pod)) else { return Vec::new() };
    let mut patch = Vec::new();
    let scheduled = is_scheduled_here(spec, rules);
    let mut requests_gpus = false;
    let init = spec.init_containers.iter().flatten().enumerate();
    let init = init.map(|(at, one)| (format!("/spec/initContainers/{at}"), one));
    let main = spec.containers.iter().enumerate();
    let main = main.map(|(at, one)| (format!("/spec/containers/{at}"), one));
    for (path, container) in init.chain(main) {
        requests_gpus |= complete_container(&mut patch, &path, container, scheduled, rules);
    }
    if !requests_gpus {
        return patch;
    }
    if let Some(scheduler) = rules.scheduler.as_ref().filter(|_| scheduled) {
        if spec.scheduler_name.as_ref() != Some(scheduler) {
            patch.push(set("/spec/schedulerName", json!(scheduler)));
        }
        select_node(&mut patch, spec);
    }
    let has_class = spec.runtime_class_name.as_ref().is_some_and(|class| !class.is_empty());
    if let Some(class) = rules.runtime_class.as_ref().filter(|_| !has_class) {
        patch.push(set("/spec/runtimeClassName", json!(class)));
    }
    patch
}

/// Refuses a pod that could not run as requested.
///
/// # Errors
/// [`Refusal`]
pub fn check(pod: &Pod, rules: &Rules) -> Result<(), Refusal> {
    let pod = &*rules.names.pod(pod);
    let Some(spec) = pod.spec.as_ref().filter(|_| !is_mirror(pod)) else { return Ok(()) };
    let mut found: Option<Dialect> = None;
    for container in pods::containers(pod) {
        let wrong = |source| Refusal::Need { container: container.name.clone(), source };
        let Some(need) = pods::need(pod, container, &rules.dialects).map_err(wrong)? else {
            continue;
        };
        let dialect = *found.get_or_insert(need.dialect);
        if dialect != need.dialect {
            return Err(Refusal::TwoDialects(dialect.name(), need.dialect.name()));
        }
    }
    let Some(dialect) = found else { return Ok(()) };
    if let Some(text) = annotation(pod, COMPUTE_POLICY) {
        text.trim().parse::<Policy>().map_err(|unknown| Refusal::Policy {
            given: text.chars().take(40).collect(),
            accepted: unknown.accepted,
        })?;
    }
    if dialect == Dialect::Hami
        && let Some(privileged) = pods::containers(pod).find(|one| is_privileged(one))
    {
        return Err(Refusal::Privileged(privileged.name.clone()));
    }
    let has_scheduler = has_scheduler(dialect) && is_scheduled_here(spec, rules);
    match (named_node(spec), &rules.scheduler) {
        (Some(name), Some(scheduler)) if has_scheduler => Err(match selected_node(spec) {
            Some(selected) if selected != name => {
                Refusal::TwoNodes { name: name.to_owned(), selected: selected.to_owned() }
            }
            _ => Refusal::NodeName { node: name.to_owned(), scheduler: scheduler.clone() },
        }),
        _ => Ok(()),
    }
}

fn is_mirror(pod: &Pod) -> bool {
    annotation(pod, MIRROR).is_some()
}

/// Whether the scheduler of [`Rules`] may place the dialect's pods. Vgpu.rs has its own, and its operator completes pods.
fn has_scheduler(dialect: Dialect) -> bool {
    dialect.annotations().register.is_some()
}

/// Whether the pod has the scheduler of [`Rules`], or gets it as the default.
fn is_scheduled_here(spec: &PodSpec, rules: &Rules) -> bool {
    let named = spec.scheduler_name.as_deref().unwrap_or_default();
    let is_open = matches!(named, "" | DEFAULT_SCHEDULER);
    rules.scheduler.as_ref().is_some_and(|scheduler| is_open || named == scheduler)
}

fn is_privileged(container: &Container) -> bool {
    let context = container.security_context.as_ref();
    context.and_then(|context| context.privileged).unwrap_or_default()
}

fn named_node(spec: &PodSpec) -> Option<&str> {
    spec.node_name.as_deref().filter(|name| !name.is_empty())
}

fn selected_node(spec: &PodSpec) -> Option<&str> {
    spec.node_selector.as_ref()?.get(HOSTNAME).map(String::as_str)
}

fn set(path: impl Into<String>, value: Value) -> Operation {
    Operation::Add { path: path.into(), value }
}

/// A key as a segment of a path (RFC 6901).
fn escaped(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}

/// Completes a container's limits. Returns whether it requests GPUs that the scheduler of [`Rules`] may assign.
fn complete_container(
    patch: &mut Vec<Operation>,
    path: &str,
    container: &Container,
    scheduled: bool,
    rules: &Rules,
) -> bool {
    let Some(resources) = &container.resources else { return false };
    let Some(limits) = &resources.limits else { return false };
    let mut add = |name: &str, value: u64| {
        // The API server has already copied limits to requests, and demands that both are equal.
        let requested = resources.requests.as_ref().is_some_and(|all| all.contains_key(name));
        for list in ["limits", "requests"].into_iter().take(if requested { 2 } else { 1 }) {
            let path = format!("{path}/resources/{list}/{}", escaped(rules.names.written(name)));
            patch.push(set(path, json!(value.to_string())));
        }
    };
    let mut requests_gpus = false;
    for dialect in rules.dialects.iter().copied().filter(|dialect| has_scheduler(*dialect)) {
        let Some(number) = resource_name(dialect, Word::Number) else { continue };
        let amounts = [Word::Cores, Word::Memory, Word::MemoryPercentage];
        let has_amount = amounts.into_iter().any(|word| is_requested(limits, dialect, word));
        // VGPU-Manager treats an explicit 0 as a missing number.
        let lacks_number = !limits.contains_key(number)
            || dialect == Dialect::VgpuManager && !is_requested(limits, dialect, Word::Number);
        if lacks_number && has_amount {
            add(number, 1);
            requests_gpus = true;
        } else if is_requested(limits, dialect, Word::Number) {
            requests_gpus = true;
            // Other schedulers would look for nodes that offer cores to the kubelet.
            let is_number_only = dialect == Dialect::VgpuManager && !has_amount;
            if let Some(cores) =
                resource_name(dialect, Word::Cores).filter(|_| is_number_only && scheduled)
            {
                add(cores, CORES);
            }
        }
    }
    requests_gpus
}

fn resource_name(dialect: Dialect, word: Word) -> Option<&'static str> {
    WORDS.iter().find(|(of, one, _)| (*of, *one) == (dialect, word)).map(|(.., name)| *name)
}

/// Whether the limit is set and not 0. [`check`] refuses unreadable quantities.
fn is_requested(limits: &BTreeMap<String, Quantity>, dialect: Dialect, word: Word) -> bool {
    let limit = resource_name(dialect, word).and_then(|name| limits.get(name));
    limit.is_some_and(|quantity| whole(&quantity.0) != Ok(0))
}

/// `nodeName` would bypass the scheduler, so a selector replaces it.
fn select_node(patch: &mut Vec<Operation>, spec: &PodSpec) {
    let Some(node) = named_node(spec) else { return };
    match (selected_node(spec), &spec.node_selector) {
        (Some(selected), _) if selected != node => return,
        (Some(_), _) => {}
        (None, None) => patch.push(set("/spec/nodeSelector", json!({HOSTNAME: node}))),
        (None, Some(_)) => {
            let path = format!("/spec/nodeSelector/{}", escaped(HOSTNAME));
            patch.push(set(path, json!(node)));
        }
    }
    patch.push(Operation::Remove { path: "/spec/nodeName".to_owned() });
}

#[cfg(test)]
#[path = "admission_tests.rs"]
mod tests;
