//! Tells which container of a pod starts with ids that an init container may have used before. Pure.
//!
//! The kubelet gives the ids of init containers to later containers of the pod, and does not list init containers. So
//! only the pod's status tells them apart. The kubelet reports the end of a container before it starts the next one,
//! but the API server may show it later.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use dialects::pods::{has_ended, need};
use dialects::{Dialect, Share};
use k8s_openapi::api::core::v1::{Container, ContainerStatus, Pod};
use limits::GpuId;

use crate::pool::AllocationKey;

/// A number of places of one resource.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Places<'a> {
    pub(crate) resource: &'a str,
    pub(crate) dialect: Dialect,
    pub(crate) count: usize,
}

/// The container that starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Starts<'a> {
    Init(&'a str),
    /// The container that the kubelet lists with these ids.
    Listed,
    /// Unknown: the status is older than the last start.
    Behind,
}

/// Starts of init containers, by pod UID and container name.
#[derive(Debug, Default)]
pub(crate) struct Inits {
    /// The allocation of each started init container, and the number of its ends that the status must show before
    /// anything else starts with that allocation.
    begun: BTreeMap<(String, String), (AllocationKey, i32)>,
    /// Init containers for which the kubelet has asked for preferred GPUs.
    asked_for: BTreeSet<(String, String)>,
}

impl Inits {
    /// Records the start of an init container.
    pub(crate) fn begin(&mut self, pod: &Pod, container: &str, key: &AllocationKey) {
        let ends = ends(status(pod, container)) + 1;
        self.begun.insert(named(pod, container), (key.clone(), ends));
    }

    /// Whether the init container has started with another allocation.
    pub(crate) fn is_elsewhere(&self, pod: &Pod, container: &str, key: &AllocationKey) -> bool {
        self.begun.get(&named(pod, container)).is_some_and(|(own, _)| own != key)
    }

    /// Records that the kubelet gives an init container GPUs.
    pub(crate) fn ask_for(&mut self, pod: &Pod, container: &str) {
        self.asked_for.insert(named(pod, container));
    }

    /// Whether the init container has GPUs.
    pub(crate) fn has_gpus(&self, pod: &Pod, container: &str) -> bool {
        self.asked_for.contains(&named(pod, container))
    }

    /// Forgets other pods.
    pub(crate) fn keep(&mut self, pods: &[Arc<Pod>]) {
        if self.begun.is_empty() && self.asked_for.is_empty() {
            return;
        }
        let present: BTreeSet<&str> =
            pods.iter().filter_map(|pod| pod.metadata.uid.as_deref()).collect();
        self.begun.retain(|(uid, _), _| present.contains(uid.as_str()));
        self.asked_for.retain(|(uid, _)| present.contains(uid.as_str()));
    }

    /// Which container of a pod starts with an allocation. `listed`: the container that the kubelet lists with its ids.
    pub(crate) fn starting<'a>(
        &self,
        pod: &'a Pod,
        listed: Option<&str>,
        (key, places): (&AllocationKey, Places<'_>),
    ) -> Starts<'a> {
        for init in before(pod, listed).filter(|one| asks(pod, one, places)) {
            let status = status(pod, &init.name);
            if has_succeeded(status) || self.is_elsewhere(pod, &init.name, key) {
                continue;
            }
            let known = self.begun.get(&named(pod, &init.name));
            return match known {
                Some((_, expected)) if ends(status) < *expected => Starts::Behind,
                _ => Starts::Init(&init.name),
            };
        }
        Starts::Listed
    }
}

fn named(pod: &Pod, container: &str) -> (String, String) {
    (pod.metadata.uid.clone().unwrap_or_default(), container.to_owned())
}

/// Whether an init container ends before later containers start. Sidecars do not.
fn ends_first(container: &Container) -> bool {
    container.restart_policy.as_deref() != Some("Always")
}

/// The init containers that have ended when `container` starts, without sidecars.
pub(crate) fn before<'a>(
    pod: &'a Pod,
    container: Option<&str>,
) -> impl Iterator<Item = &'a Container> {
    let init = pod.spec.iter().flat_map(|spec| spec.init_containers.iter().flatten());
    let end = init.clone().position(|one| Some(one.name.as_str()) == container);
    init.take(end.unwrap_or(usize::MAX)).filter(|one| ends_first(one))
}

/// Whether any pod that has not ended has init containers with extended resources.
pub(crate) fn have_init_containers(pods: &[Arc<Pod>]) -> bool {
    let is_extended = |one: &Container| {
        let limits = one.resources.as_ref().and_then(|all| all.limits.as_ref());
        limits.is_some_and(|all| all.keys().any(|name| name.contains('/')))
    };
    let specs = pods.iter().filter(|pod| !has_ended(pod)).filter_map(|pod| pod.spec.as_ref());
    specs.flat_map(|spec| spec.init_containers.iter().flatten()).any(is_extended)
}

/// Whether a container is an init container but no sidecar.
pub(crate) fn is_init(pod: &Pod, container: &str) -> bool {
    before(pod, None).any(|one| one.name == container)
}

/// The init containers of a pod that request this number of places and have not succeeded.
pub(crate) fn due<'a>(pod: &'a Pod, places: Places<'_>) -> impl Iterator<Item = &'a Container> {
    let is_due =
        move |one: &&Container| asks(pod, one, places) && !has_succeeded(status(pod, &one.name));
    before(pod, None).filter(is_due)
}

/// Whether a container requests this number of places.
pub(crate) fn asks(pod: &Pod, container: &Container, places: Places<'_>) -> bool {
    let need = need(pod, container, &[places.dialect]).ok().flatten();
    need.is_some_and(|need| {
        let is_count = usize::try_from(need.places) == Ok(places.count);
        need.resource == places.resource && is_count
    })
}

fn status<'a>(pod: &'a Pod, container: &str) -> Option<&'a ContainerStatus> {
    let all = pod.status.as_ref()?.init_container_statuses.as_ref()?;
    all.iter().find(|one| one.name == container)
}

fn has_succeeded(status: Option<&ContainerStatus>) -> bool {
    let terminated = status.and_then(|one| one.state.as_ref()?.terminated.as_ref());
    terminated.is_some_and(|terminated| terminated.exit_code == 0)
}

/// How often a container has ended. While its restart is delayed, only `lastState` shows the last end.
fn ends(status: Option<&ContainerStatus>) -> i32 {
    let Some(status) = status else { return 0 };
    let state = status.state.as_ref();
    let runs = state.is_some_and(|state| state.running.is_some());
    let states = [state, status.last_state.as_ref()].into_iter().flatten();
    let has_ended = !runs && states.into_iter().any(|state| state.terminated.is_some());
    status.restart_count + i32::from(has_ended)
}

/// The part of an init container's share of a GPU that exceeds the shares of later containers there (`later`).
pub(crate) fn beyond((gpu, own): (GpuId, Share), later: &[(GpuId, Share)]) -> Share {
    let on_it = later.iter().filter(|(one, _)| *one == gpu);
    on_it.fold(own, |left, (_, share)| Share {
        cores: left.cores.saturating_sub(share.cores),
        memory_mib: left.memory_mib.saturating_sub(share.memory_mib),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::AllocationKey;
    use serde_json::{Value, json};

    fn key(digit: &str) -> AllocationKey {
        AllocationKey::named(&digit.repeat(64)).unwrap()
    }

    const ONE: Places<'_> =
        Places { resource: "nvidia.com/vgpu-number", dialect: Dialect::VgpuManager, count: 1 };

    /// A pod of two init containers around a sidecar, and a main container, with one GPU each.
    fn pod(statuses: &Value) -> Pod {
        let one = |name: &str, policy: Option<&str>| {
            json!({"name": name, "restartPolicy": policy,
            "resources": {"limits": {"nvidia.com/vgpu-number": "1"}}})
        };
        serde_json::from_value(json!({
            "metadata": {"name": "pod", "uid": "u"},
            "spec": {"initContainers": [one("a", None), one("proxy", Some("Always")), one("b", None)],
                "containers": [one("main", None)]},
            "status": {"initContainerStatuses": statuses},
        }))
        .unwrap()
    }

    fn status(name: &str, restarts: i32, state: &Value, last: &Value) -> Value {
        json!({"name": name, "image": "", "imageID": "", "ready": false, "restartCount": restarts, "state": state,
            "lastState": last})
    }

    #[test]
    fn a_pods_status_says_who_starts_unless_it_is_older_than_the_last_start() {
        let (first, second) = (key("1"), key("2"));
        let mut inits = Inits::default();
        let (none, succeeded) = (json!({}), json!({"terminated": {"exitCode": 0}}));
        let failed = json!({"terminated": {"exitCode": 1}});
        let new = pod(&json!([]));
        let of = |inits: &Inits, statuses: &Value, listed, key| {
            format!("{:?}", inits.starting(&pod(statuses), Some(listed), (key, ONE)))
        };
        let a = "Init(\"a\")";
        assert_eq!(of(&inits, &json!([]), "proxy", &first), a);
        inits.begin(&new, "a", &first);
        for behind in [json!([]), json!([status("a", 0, &json!({"running": {}}), &none)])] {
            assert_eq!(of(&inits, &behind, "proxy", &first), "Behind");
        }
        let again = json!([status("a", 0, &json!({"waiting": {}}), &failed)]);
        assert_eq!(of(&inits, &again, "proxy", &first), a);
        inits.begin(&pod(&again), "a", &first);
        // The container runs for the second time, and the status is older.
        assert_eq!(of(&inits, &again, "proxy", &first), "Behind");
        let twice = json!([status("a", 1, &json!({"waiting": {}}), &failed)]);
        assert_eq!(of(&inits, &twice, "proxy", &first), a);
        let over = json!([status("a", 1, &succeeded, &failed)]);
        assert_eq!(of(&inits, &over, "proxy", &first), "Listed");
        // The first init container has other ids, whatever the API server shows.
        assert_eq!(of(&inits, &json!([]), "main", &second), "Init(\"b\")");
        inits.begin(&new, "b", &second);
        let all = json!([status("a", 1, &succeeded, &none), status("b", 0, &succeeded, &none)]);
        assert_eq!(of(&inits, &all, "main", &second), "Listed");
        inits.keep(&[]);
        assert_eq!(of(&inits, &json!([]), "main", &second), a);
    }

    #[test]
    fn containers_that_end_first_are_those_before_and_no_sidecars() {
        let pod = pod(&json!([]));
        let names = |of| before(&pod, of).map(|one| one.name.as_str()).collect::<Vec<_>>();
        assert_eq!(names(Some("main")), ["a", "b"]);
        assert_eq!(names(Some("b")), ["a"]);
        assert!(names(Some("a")).is_empty());
        let have = |pod: &Pod| have_init_containers(&[Arc::new(pod.clone())]);
        let mut others = [pod.clone(), pod.clone()];
        others[0].status.as_mut().unwrap().phase = Some("Succeeded".to_owned());
        others[1].spec.as_mut().unwrap().init_containers = None;
        assert!(have(&pod) && !others.iter().any(have));
        assert!(is_init(&pod, "b") && !is_init(&pod, "proxy") && !is_init(&pod, "main"));
    }

    #[test]
    fn a_promise_is_what_no_later_container_has() {
        let gpu = |number| GpuId::from_bytes([number; 16]);
        let share = |cores, memory_mib| Share { cores, memory_mib };
        let later = [(gpu(1), share(10, 100)), (gpu(1), share(20, 400)), (gpu(2), share(90, 900))];
        assert_eq!(beyond((gpu(1), share(50, 300)), &later), share(20, 0));
        assert_eq!(beyond((gpu(3), share(50, 300)), &later), share(50, 300));
    }
}
