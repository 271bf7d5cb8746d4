//! The outcome of each pod's containers, and the annotations that tell its scheduler. Outcomes are numbered, because
//! writes to the API server may be delayed and overtaken. Pure.

use core::num::NonZeroU32;
use std::collections::{BTreeMap, BTreeSet};

use dialects::pods::{self, has_failed, has_succeeded, is_allocating};
use dialects::table::Phase;
use dialects::{Claim, Dialect, PodClaims};
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

/// The outcomes by pod UID.
#[derive(Debug, Default)]
pub(crate) struct Outcomes {
    of: BTreeMap<String, Outcome>,
    /// The number of the latest outcome.
    last: u64,
    /// The value of `last` at the previous [`Self::keep`].
    kept: u64,
}

/// The outcome of a pod's containers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outcome {
    number: u64,
    /// Containers that do not start or have no limits, with the reason.
    refused: BTreeMap<String, String>,
    /// Whether all refused containers have started since.
    mended: bool,
    /// What all of its containers have.
    real: Option<(Dialect, PodClaims)>,
}

/// What to write for a scheduler.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Word {
    /// The patch of the pod's metadata. `null`: none.
    pub(crate) metadata: Value,
    /// The node lock to release, and whether the pod owns a lock that names no pod.
    pub(crate) lock: Option<(&'static str, bool)>,
}

impl Outcomes {
    fn now(&mut self, uid: &str) -> &mut Outcome {
        self.last += 1;
        let outcome = self.of.entry(uid.to_owned()).or_default();
        outcome.number = self.last;
        outcome
    }

    /// Records that a container has its GPUs. Returns the number of this outcome.
    pub(crate) fn started(
        &mut self,
        uid: &str,
        container: &str,
        real: (Dialect, PodClaims),
    ) -> u64 {
        let outcome = self.now(uid);
        let was_refused = outcome.refused.remove(container).is_some();
        outcome.mended = (outcome.mended || was_refused) && outcome.refused.is_empty();
        outcome.real = Some(real);
        outcome.number
    }

    /// Records that a running container's share has changed.
    pub(crate) fn changed(&mut self, uid: &str, real: (Dialect, PodClaims)) -> u64 {
        let outcome = self.now(uid);
        outcome.real = Some(real);
        outcome.number
    }

    /// Records that a container does not start, or has no limits. `None`: recorded before, with the same reason.
    pub(crate) fn refused(&mut self, uid: &str, container: &str, reason: &str) -> Option<u64> {
        let known = self.of.get(uid).and_then(|outcome| outcome.refused.get(container));
        if known.is_some_and(|known| known == reason) {
            return None;
        }
        let outcome = self.now(uid);
        outcome.refused.insert(container.to_owned(), reason.to_owned());
        outcome.mended = false;
        Some(outcome.number)
    }

    /// Whether a container is recorded as refused, for any reason.
    pub(crate) fn is_refused(&self, uid: &str, container: &str) -> bool {
        self.of.get(uid).is_some_and(|outcome| outcome.refused.contains_key(container))
    }

    /// The outcome, if it still has this number.
    pub(crate) fn latest(&self, uid: &str, number: u64) -> Option<&Outcome> {
        self.of.get(uid).filter(|outcome| outcome.number == number)
    }

    pub(crate) fn forget(&mut self, uid: &str) {
        self.of.remove(uid);
    }

    /// Forgets pods that are not present, unless their outcome may be newer than the list.
    pub(crate) fn keep(&mut self, present: &BTreeSet<String>) {
        let before = std::mem::replace(&mut self.kept, self.last);
        self.of.retain(|uid, outcome| present.contains(uid) || outcome.number > before);
    }
}

impl Outcome {
    /// What to write for the pod's scheduler, given the pod's current state. `factor`: the node's memory factor.
    pub(crate) fn word(&self, pod: &Pod, factor: NonZeroU32) -> Word {
        let mut word = Word { metadata: Value::Null, lock: None };
        let text = |claims, dialect| {
            pods::claims_text(claims, &pods::slots(pod, dialect), dialect, factor)
        };
        for dialect in Dialect::ALL {
            let names = dialect.annotations();
            let Some(phase) = names.phase else { continue };
            let waits = is_allocating(pod, dialect);
            if !self.refused.is_empty() {
                // The pod counts as succeeded once its first container starts; the second may be refused later.
                if waits || has_succeeded(pod, dialect) {
                    set_phase(&mut word.metadata, phase, phase.failed);
                    word.lock = names.lock.filter(|_| waits).map(|lock| (lock, true));
                }
                continue;
            }
            let Some((own, real)) = self.real.as_ref().filter(|(own, _)| *own == dialect) else {
                continue;
            };
            if let Some(claims) = claims_elsewhere(pod, dialect, real, factor) {
                word.metadata["annotations"][pods::lasting(dialect)] = text(claims, dialect).into();
            }
            if waits || self.mended && has_failed(pod, dialect) {
                set_phase(&mut word.metadata, phase, phase.succeeded);
            }
            if waits && *own != Dialect::VgpuManager {
                let nothing = text(PodClaims::default(), dialect);
                word.metadata["annotations"][names.claimed] = nothing.into();
            }
            // Also if an earlier run ended between writing the phase and releasing the lock.
            word.lock = names.lock.map(|lock| (lock, waits));
        }
        if let Some((dialect @ Dialect::VgpuManager, real)) = &self.real
            && let Some(name) = dialect.annotations().real
        {
            let text = text(real.clone(), *dialect);
            if pods::annotation(pod, name) != Some(&text) {
                word.metadata["annotations"][name] = text.into();
            }
        }
        if let Value::Object(metadata) = &mut word.metadata {
            // Makes the API server refuse the patch for another pod of this name, or a changed pod.
            metadata.insert("uid".to_owned(), json!(pod.metadata.uid));
            metadata.insert("resourceVersion".to_owned(), json!(pod.metadata.resource_version));
        }
        word
    }
}

/// The claims that the scheduler should count if containers are on other GPUs than claimed. `None`: all are where they
/// were claimed, or the dialect has no annotation for it.
fn claims_elsewhere(
    pod: &Pod,
    dialect: Dialect,
    real: &PodClaims,
    factor: NonZeroU32,
) -> Option<PodClaims> {
    dialect.annotations().real?;
    let mut claims = pods::claims(pod, dialect, factor).ok()?;
    let gpus = |claims: &[Claim]| claims.iter().map(|claim| claim.gpu).collect::<BTreeSet<_>>();
    let mut is_elsewhere = false;
    for claimed in &mut claims.0 {
        let own = real.of(&claimed.container);
        if let Some(own) = own.filter(|own| gpus(own) != gpus(&claimed.claims)) {
            claimed.claims = own.to_vec();
            is_elsewhere = true;
        }
    }
    is_elsewhere.then_some(claims)
}

fn set_phase(metadata: &mut Value, phase: Phase, value: &str) {
    let kind = if phase.is_label { "labels" } else { "annotations" };
    metadata[kind][phase.name] = value.into();
}

#[cfg(test)]
mod tests {
    use super::*;
    use dialects::claims::ContainerClaims;
    use limits::GpuId;
    use proptest::prelude::*;

    const PHASE: &str = "nvidia.com/assigned-phase";
    const HAMI: &str = "hami.io/bind-phase";

    fn pod(phase: &str) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": "pod", "uid": "u", "resourceVersion": "7", "labels": {PHASE: phase},
                "annotations": {HAMI: phase.replace("succeed", "success")}},
            "spec": {"containers": [{"name": "a"}, {"name": "b"}]},
        }))
        .unwrap()
    }

    fn real(dialect: Dialect, containers: &[&str]) -> (Dialect, PodClaims) {
        let claims =
            vec![Claim { index: 0, gpu: GpuId::from_bytes([1; 16]), cores: 10, memory_mib: 1 }];
        let one =
            |name: &&str| ContainerClaims { container: (*name).to_owned(), claims: claims.clone() };
        (dialect, PodClaims(containers.iter().map(one).collect()))
    }

    fn word(all: &Outcomes, number: u64, phase: &str) -> Option<Word> {
        all.latest("u", number).map(|outcome| outcome.word(&pod(phase), NonZeroU32::MIN))
    }

    #[test]
    fn what_came_last_is_told_and_nothing_else() {
        let mut all = Outcomes::default();
        let first = all.started("u", "a", real(Dialect::VgpuManager, &["a"]));
        let said = word(&all, first, "allocating").unwrap();
        assert_eq!(said.metadata["labels"][PHASE], "succeed");
        assert_eq!(
            (&said.metadata["uid"], &said.metadata["resourceVersion"]),
            (&json!("u"), &json!("7"))
        );
        let second = all.refused("u", "b", "no").unwrap();
        assert_eq!(word(&all, first, "allocating"), None);
        for phase in ["allocating", "succeed"] {
            assert_eq!(word(&all, second, phase).unwrap().metadata["labels"][PHASE], "failed");
        }
        // A repeated reason is not reported again.
        assert_eq!(all.refused("u", "b", "no"), None);
        assert!(all.is_refused("u", "b") && !all.is_refused("u", "a") && !all.is_refused("v", "b"));
        // The other container starts again, which mends nothing.
        let again = all.started("u", "a", real(Dialect::VgpuManager, &["a"]));
        assert!(word(&all, again, "failed").unwrap().metadata["labels"].is_null());
        let mended = all.started("u", "b", real(Dialect::VgpuManager, &["a", "b"]));
        assert_eq!(word(&all, mended, "failed").unwrap().metadata["labels"][PHASE], "succeed");
        all.forget("u");
        assert_eq!(word(&all, mended, "failed"), None);
    }

    /// An earlier run has written the failure, and this run does not know of which container.
    #[test]
    fn a_failure_that_this_run_knows_nothing_of_stays() {
        let mut all = Outcomes::default();
        let number = all.started("u", "a", real(Dialect::VgpuManager, &["a"]));
        assert!(word(&all, number, "failed").unwrap().metadata["labels"].is_null());
        all.keep(&BTreeSet::new());
        assert!(word(&all, number, "failed").is_some());
        all.keep(&BTreeSet::new());
        assert_eq!(word(&all, number, "failed"), None);
    }

    #[test]
    fn a_scheduler_that_waits_with_a_lock_gets_it_back() {
        let mut all = Outcomes::default();
        let number = all.started("u", "a", real(Dialect::Hami, &["a"]));
        let said = word(&all, number, "allocating").unwrap();
        assert_eq!(said.metadata["annotations"][HAMI], "success");
        assert!(
            said.metadata["labels"].is_null()
                && said.metadata["annotations"].get("nvidia.com/real-allocated").is_none()
        );
        assert_eq!(said.metadata["annotations"]["hami.io/vgpu-devices-to-allocate"], ";;");
        assert_eq!(said.lock, Some(("hami.io/mutex.lock", true)));
        // The phase was written before this run: only a lock with the pod's name is the pod's.
        let said = word(&all, number, "succeed").unwrap();
        assert_eq!(said, Word { metadata: Value::Null, lock: Some(("hami.io/mutex.lock", false)) });
    }

    /// Memory is in units of the factor, and containers that are where they were claimed keep their slots.
    #[test]
    fn a_claim_follows_the_gpu_that_was_given() {
        let (claimed, got) = (GpuId::from_bytes([2; 16]), GpuId::from_bytes([1; 16]));
        let limits = json!({"limits": {"volcano.sh/vgpu-number": "1"}});
        let container = |name| json!({"name": name, "resources": limits});
        let text = |first| format!("{first},NVIDIA,8,10:;{claimed},NVIDIA,1,5:");
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "pod", "uid": "u",
                "annotations": {"volcano.sh/vgpu-ids-new": text(claimed), "volcano.sh/bind-phase": "success"}},
            "spec": {"containers": [container("a"), container("b")]},
        }))
        .unwrap();
        let mut all = Outcomes::default();
        let part = |container: &str, gpu, cores, memory_mib| ContainerClaims {
            container: container.to_owned(),
            claims: vec![Claim { index: 0, gpu, cores, memory_mib }],
        };
        let mut told = |first| {
            let real = PodClaims(vec![part("a", first, 10, 80), part("b", claimed, 5, 10)]);
            let number = all.started("u", "a", (Dialect::Volcano, real));
            let word = all.latest("u", number).unwrap().word(&pod, 10.try_into().unwrap());
            word.metadata["annotations"]["volcano.sh/vgpu-ids-new"].clone()
        };
        assert_eq!(told(got), text(got));
        assert_eq!(told(claimed), Value::Null);
    }

    #[test]
    fn volcanos_lock_is_released() {
        let mut pod = pod("allocating");
        let phase = ("volcano.sh/bind-phase".to_owned(), "allocating".to_owned());
        pod.metadata.annotations = Some([phase].into());
        let mut all = Outcomes::default();
        let number = all.started("u", "a", real(Dialect::Volcano, &["a"]));
        let said = all.latest("u", number).unwrap().word(&pod, NonZeroU32::MIN);
        assert_eq!(said.metadata["annotations"]["volcano.sh/bind-phase"], "success");
        assert_eq!(said.lock, Some(("hamivgpu", true)));
    }

    proptest! {
        /// For any order of events: the pod has failed exactly if a container is refused at the end, and outdated
        /// outcomes are not written.
        #[test]
        fn the_end_decides(steps in prop::collection::vec((0_usize..2, any::<bool>()), 1..12)) {
            let (mut all, mut refused, mut numbers) = (Outcomes::default(), [false; 2], Vec::new());
            for (at, starts) in steps {
                let name = ["a", "b"][at];
                refused[at] = !starts;
                numbers.extend(if starts {
                    Some(all.started("u", name, real(Dialect::VgpuManager, &[name])))
                } else {
                    all.refused("u", name, "no")
                });
            }
            let told: Vec<_> = numbers.iter().filter_map(|number| word(&all, *number, "allocating")).collect();
            prop_assert_eq!(told.len(), 1);
            let wanted = if refused.contains(&true) { "failed" } else { "succeed" };
            prop_assert_eq!(&told[0].metadata["labels"][PHASE], wanted);
        }
    }
}
