//! Which container of a pod starts with ids that it may have had for an init container before. Pure.
//!
//! Kubelets give the ids of init containers to later containers of the pod, and list no init containers. So it is the pod's
//! status that tells them apart. A kubelet reports the end of a container before it starts the next one, but the API server
//! may show it later than that.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use dialects::pods::{has_ended, need};
use dialects::{Dialect, Share};
use k8s_openapi::api::core::v1::{Container, ContainerStatus, Pod};
use limits::GpuId;

use crate::pool::AllocationKey;

/// Places by one resource.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Places<'a> {
    pub(crate) resource: &'a str,
    pub(crate) dialect: Dialect,
    pub(crate) count: usize,
}

/// Who starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Starts<'a> {
    Init(&'a str),
    /// The one that the kubelet lists with these ids.
    Listed,
    /// The status is from before the last start.
    Behind,
}

/// What is known of init containers, by the UIDs of their pods.
#[derive(Debug, Default)]
pub(crate) struct Inits {
    /// With what they started, and how often they will have ended before anything else starts with it.
    begun: BTreeMap<(String, String), (AllocationKey, i32)>,
    /// For whom the kubelet has asked which GPUs to give.
    asked_for: BTreeSet<(String, String)>,
}

impl Inits {
    /// An init container starts.
    pub(crate) fn begin(&mut self, pod: &Pod, container: &str, key: &AllocationKey) {
        let ends = ends(status(pod, container)) + 1;
        self.begun.insert(named(pod, container), (key.clone(), ends));
    }

    /// Whether it has other ids than these.
    pub(crate) fn is_elsewhere(&self, pod: &Pod, container: &str, key: &AllocationKey) -> bool {
        self.begun.get(&named(pod, container)).is_some_and(|(own, _)| own != key)
    }

    /// The kubelet gives it GPUs.
    pub(crate) fn ask_for(&mut self, pod: &Pod, container: &str) {
        self.asked_for.insert(named(pod, container));
    }

    /// Whether it has GPUs.
    pub(crate) fn has_gpus(&self, pod: &Pod, container: &str) -> bool {
        self.asked_for.contains(&named(pod, container))
    }

    /// Forgets those of other pods.
    pub(crate) fn keep(&mut self, pods: &[Arc<Pod>]) {
        if self.begun.is_empty() && self.asked_for.is_empty() {
            return;
        }
        let present: BTreeSet<&str> =
            pods.iter().filter_map(|pod| pod.metadata.uid.as_deref()).collect();
        self.begun.retain(|(uid, _), _| present.contains(uid.as_str()));
        self.asked_for.retain(|(uid, _)| present.contains(uid.as_str()));
    }

    /// Who of a pod starts with an allocation of so many places. `listed`: whom the kubelet lists with just its ids.
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

/// Whether it ends before later containers start. Sidecars do not.
fn ends_first(container: &Container) -> bool {
    container.restart_policy.as_deref() != Some("Always")
}

/// The init containers that have ended when a container starts. Sidecars are none.
pub(crate) fn before<'a>(
    pod: &'a Pod,
    container: Option<&str>,
) -> impl Iterator<Item = &'a Container> {
    let init = pod.spec.iter().flat_map(|spec| spec.init_containers.iter().flatten());
    let end = init.clone().position(|one| Some(one.name.as_str()) == container);
    init.take(end.unwrap_or(usize::MAX)).filter(|one| ends_first(one))
}

/// Whether one of these pods that has not ended has init containers with extended resources.
pub(crate) fn have_init_containers(pods: &[Arc<Pod>]) -> bool {
    let is_extended = |one: &Container| {
        let limits = one.resources.as_ref().and_then(|all| all.limits.as_ref());
        limits.is_some_and(|all| all.keys().any(|name| name.contains('/')))
    };
    let specs = pods.iter().filter(|pod| !has_ended(pod)).filter_map(|pod| pod.spec.as_ref());
    specs.flat_map(|spec| spec.init_containers.iter().flatten()).any(is_extended)
}

/// Whether it is an init container that ends before later ones start.
pub(crate) fn is_init(pod: &Pod, container: &str) -> bool {
    before(pod, None).any(|one| one.name == container)
}

/// The init containers of a pod that may start with so many places, before their end.
pub(crate) fn due<'a>(pod: &'a Pod, places: Places<'_>) -> impl Iterator<Item = &'a Container> {
    let is_due =
        move |one: &&Container| asks(pod, one, places) && !has_succeeded(status(pod, &one.name));
    before(pod, None).filter(is_due)
}

/// Whether a container asks for so many places.
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

/// How often it has ended. While its next start is put off, only its last state says of the last end.
fn ends(status: Option<&ContainerStatus>) -> i32 {
    let Some(status) = status else { return 0 };
    let state = status.state.as_ref();
    let runs = state.is_some_and(|state| state.running.is_some());
    let states = [state, status.last_state.as_ref()].into_iter().flatten();
    let has_ended = !runs && states.into_iter().any(|state| state.terminated.is_some());
    status.restart_count + i32::from(has_ended)
}

/// What an init container adds to what is promised of a GPU. `later`: what all containers that start after it have there.
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

    /// Two init containers around a sidecar, and a main container, with a GPU each.
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
        // It runs for the second time, by what is known, and this is from before.
        assert_eq!(of(&inits, &again, "proxy", &first), "Behind");
        let twice = json!([status("a", 1, &json!({"waiting": {}}), &failed)]);
        assert_eq!(of(&inits, &twice, "proxy", &first), a);
        let over = json!([status("a", 1, &succeeded, &failed)]);
        assert_eq!(of(&inits, &over, "proxy", &first), "Listed");
        // The first one has other ids, whatever the API server shows of it.
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
