//! What became of pods' containers, in the order in which it happened, and what their schedulers are to be told of that. An
//! API server may do late what it was asked for early. Pure.

use core::num::NonZeroU32;
use std::collections::{BTreeMap, BTreeSet};

use dialects::pods::{self, has_failed, has_succeeded, is_allocating};
use dialects::table::Phase;
use dialects::{Claim, Dialect, PodClaims};
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

/// By the UIDs of pods.
#[derive(Debug, Default)]
pub(crate) struct Outcomes {
    of: BTreeMap<String, Outcome>,
    /// Grows with whatever happens.
    last: u64,
    /// What it was when it was last told which pods there are.
    kept: u64,
}

/// What became of a pod's containers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outcome {
    number: u64,
    /// Those that do not start or have no limits, and why.
    refused: BTreeMap<String, String>,
    /// One that was refused has started since, and none is.
    mended: bool,
    /// What all of them have.
    real: Option<(Dialect, PodClaims)>,
}

/// A word to a scheduler.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Word {
    /// What is to be written to the pod. `null`: nothing.
    pub(crate) metadata: Value,
    /// A node's lock that this ends, and whether it is the pod's also where it names none.
    pub(crate) lock: Option<(&'static str, bool)>,
}

impl Outcomes {
    fn now(&mut self, uid: &str) -> &mut Outcome {
        self.last += 1;
        let outcome = self.of.entry(uid.to_owned()).or_default();
        outcome.number = self.last;
        outcome
    }

    /// A container has its GPUs. Returns the number of that.
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

    /// What one that runs has is another part now.
    pub(crate) fn changed(&mut self, uid: &str, real: (Dialect, PodClaims)) -> u64 {
        let outcome = self.now(uid);
        outcome.real = Some(real);
        outcome.number
    }

    /// A container does not start, or has no limits. `None`: that was said before.
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

    /// Whether it is known that a container does not start, whatever the reason was.
    pub(crate) fn is_refused(&self, uid: &str, container: &str) -> bool {
        self.of.get(uid).is_some_and(|outcome| outcome.refused.contains_key(container))
    }

    /// What is to be told, if nothing has happened since.
    pub(crate) fn latest(&self, uid: &str, number: u64) -> Option<&Outcome> {
        self.of.get(uid).filter(|outcome| outcome.number == number)
    }

    pub(crate) fn forget(&mut self, uid: &str) {
        self.of.remove(uid);
    }

    /// Forgets all others, but for those that may be younger than the list.
    pub(crate) fn keep(&mut self, present: &BTreeSet<String>) {
        let before = std::mem::replace(&mut self.kept, self.last);
        self.of.retain(|uid, outcome| present.contains(uid) || outcome.number > before);
    }
}

impl Outcome {
    /// What a pod that is so is to say from now on. `factor`: the node's memory factor.
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
                // It has succeeded when the first container starts, and the second may be refused.
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
            // An earlier run may have ended before it gave the lock back.
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
            // Another pod of this name is not meant, nor one that says something else by now.
            metadata.insert("uid".to_owned(), json!(pod.metadata.uid));
            metadata.insert("resourceVersion".to_owned(), json!(pod.metadata.resource_version));
        }
        word
    }
}

/// What its scheduler is to count instead of what it has claimed: containers that are on other GPUs are there. `None`: none
/// is, or nobody counts it.
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
        // It is said once.
        assert_eq!(all.refused("u", "b", "no"), None);
        assert!(all.is_refused("u", "b") && !all.is_refused("u", "a") && !all.is_refused("v", "b"));
        // The other one starts again: that mends nothing.
        let again = all.started("u", "a", real(Dialect::VgpuManager, &["a"]));
        assert!(word(&all, again, "failed").unwrap().metadata["labels"].is_null());
        let mended = all.started("u", "b", real(Dialect::VgpuManager, &["a", "b"]));
        assert_eq!(word(&all, mended, "failed").unwrap().metadata["labels"][PHASE], "succeed");
        all.forget("u");
        assert_eq!(word(&all, mended, "failed"), None);
    }

    /// An earlier run has said it, and this one does not know of which container.
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
        // That was done before this run: only a lock with the pod's name is its.
        let said = word(&all, number, "succeed").unwrap();
        assert_eq!(said, Word { metadata: Value::Null, lock: Some(("hami.io/mutex.lock", false)) });
    }

    /// Amounts of memory are in units of the factor, and slots of containers that are where they were claimed stay.
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

    /// `nodelock.LockNode(node, "hamivgpu")`: the annotation names no pod.
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
        /// Whatever happens in which order, the pod has failed if and only if a container is refused at the end, and
        /// whoever writes what was known before has nothing to say.
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
