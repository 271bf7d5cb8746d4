//! The permissions that this program needs from the API server, and no more.

use dialects::gates::{FeatureGates, Gate};

/// A verb on a kind of object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permission {
    /// The API group; the core's is empty.
    pub group: &'static str,
    /// The kind of object, in plural.
    pub resource: &'static str,
    /// The verb.
    pub verb: &'static str,
    /// The feature gate that needs it. `None`: always needed.
    pub gate: Option<Gate>,
}

const fn always(group: &'static str, resource: &'static str, verb: &'static str) -> Permission {
    Permission { group, resource, verb, gate: None }
}

/// All permissions. `deploy/kubernetes` grants exactly these.
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

/// The permissions needed with these gates.
pub(crate) fn needed(gates: &FeatureGates) -> impl Iterator<Item = &'static Permission> {
    PERMISSIONS.iter().filter(|one| one.gate.is_none_or(|gate| gates.is_open(gate)))
}
