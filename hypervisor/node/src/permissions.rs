//! What the API server has to permit: all that is asked of it, and no more.

use dialects::gates::{FeatureGates, Gate};

/// A verb on a kind of objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permission {
    /// The API group; the core's is empty.
    pub group: &'static str,
    /// The objects.
    pub resource: &'static str,
    /// What is done with them.
    pub verb: &'static str,
    /// The gate without which it is never done.
    pub gate: Option<Gate>,
}

const fn always(group: &'static str, resource: &'static str, verb: &'static str) -> Permission {
    Permission { group, resource, verb, gate: None }
}

/// All of it. `deploy/kubernetes` grants just this.
pub const PERMISSIONS: [Permission; 9] = [
    always("", "pods", "get"),
    always("", "pods", "list"),
    always("", "pods", "watch"),
    always("", "pods", "patch"),
    Permission { group: "", resource: "pods", verb: "delete", gate: Some(Gate::Reschedule) },
    always("", "nodes", "get"),
    always("", "nodes", "patch"),
    always("events.k8s.io", "events", "create"),
    always("events.k8s.io", "events", "patch"),
];

/// What is needed with these gates.
pub(crate) fn needed(gates: &FeatureGates) -> impl Iterator<Item = &'static Permission> {
    PERMISSIONS.iter().filter(|one| one.gate.is_none_or(|gate| gates.is_open(gate)))
}
