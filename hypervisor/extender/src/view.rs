//! What nodes and pods say, as accounts and needs. Pure.

use dialects::pods::{self, has_ended};
use dialects::{Choice, Claim, Dialect, NeedError, PodClaims};
use k8s_openapi::api::core::v1::{Node, Pod};

use crate::account::{Account, PodNeeds, Refusal};

/// Why a pod fits no node at all.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PodRefusal {
    /// What it asks for cannot be.
    #[error("container {container}: {source}")]
    Need {
        /// The container.
        container: String,
        /// Why.
        source: NeedError,
    },
    /// It speaks in two ways.
    #[error("its containers ask by the names of {0} and of {1}: those of one dialect are accepted")]
    TwoDialects(&'static str, &'static str),
    /// Kubelets give such GPUs on to other containers, and no claim can name these.
    #[error("init container {0} asks for GPUs: only containers are accepted")]
    InitContainer(String),
}

/// What a pod asks for. `None`: no GPU, by any of these names.
///
/// # Errors
/// [`PodRefusal`]
pub fn needs(pod: &Pod, dialects: &[Dialect]) -> Result<Option<PodNeeds>, PodRefusal> {
    let init = pod.spec.iter().flat_map(|spec| spec.init_containers.iter().flatten()).count();
    let mut found: Option<PodNeeds> = None;
    for (at, container) in pods::containers(pod).enumerate() {
        let wrong = |source| PodRefusal::Need { container: container.name.clone(), source };
        let Some(need) = pods::need(pod, container, dialects).map_err(wrong)? else { continue };
        if at < init {
            return Err(PodRefusal::InitContainer(container.name.clone()));
        }
        let dialect = need.dialect;
        let all = found.get_or_insert_with(|| {
            let choice = Choice::of(pod, dialect);
            PodNeeds { dialect, containers: Vec::new(), choice }
        });
        if all.dialect != need.dialect {
            return Err(PodRefusal::TwoDialects(all.dialect.name(), need.dialect.name()));
        }
        all.containers.push((container.name.clone(), need));
    }
    Ok(found)
}

/// What a node has left beside these pods of it, whatever the names are by which they have it.
///
/// # Errors
/// [`Refusal::Unregistered`], [`Refusal::Register`]
pub fn account<'a>(
    node: &Node,
    dialect: Dialect,
    others: impl IntoIterator<Item = &'a Pod>,
) -> Result<Account, Refusal> {
    let annotations = node.metadata.annotations.as_ref();
    let mut account = Account::of(dialect, |name| annotations?.get(name).map(String::as_str))?;
    for pod in others.into_iter().filter(|pod| !has_ended(pod)) {
        take(&mut account, pod);
    }
    Ok(account)
}

/// By a container's own words alone: an annotation of another dialect's takes nothing.
fn take(account: &mut Account, pod: &Pod) {
    let factor = account.factor();
    for container in pods::containers(pod) {
        // One that cannot be read does not start.
        let Ok(Some(need)) = pods::need(pod, container, &Dialect::ALL) else { continue };
        let claimed = pods::claims(pod, need.dialect, factor).unwrap_or_default();
        let real = pods::real(pod, need.dialect, factor).unwrap_or_default();
        let of = |all: &PodClaims| all.of(&container.name).unwrap_or_default().to_vec();
        match larger(&of(&claimed), of(&real)) {
            none if none.is_empty() => account.take_anywhere(&need),
            claims => account.take_as_said(&claims, &need),
        }
    }
}

/// On the GPUs that a container has, the larger of what it has and of what was claimed there: a live change may have raised
/// it, and one that lowered it may be taken back.
fn larger(claimed: &[Claim], mut real: Vec<Claim>) -> Vec<Claim> {
    if real.is_empty() {
        return claimed.to_vec();
    }
    for own in &mut real {
        if let Some(claim) = claimed.iter().find(|claim| claim.gpu == own.gpu) {
            own.cores = own.cores.max(claim.cores);
            own.memory_mib = own.memory_mib.max(claim.memory_mib);
        }
    }
    real
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    const GPU: &str = "GPU-00552014-5c87-89ac-b1a6-7b53aa24b0ec";

    fn node() -> Node {
        let register = format!(
            r#"[{{"id":0,"type":"A10","uuid":"{GPU}","core":100,"memory":8000,"number":4,"numa":0,"mig":false,"busId":"","capability":0.0,"healthy":true}}]"#
        );
        let annotations = json!({"nvidia.com/node-device-register": register});
        serde_json::from_value(json!({"metadata": {"name": "n", "annotations": annotations}}))
            .unwrap()
    }

    fn pod(limits: &Value, annotations: &Value, phase: &str) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": "p", "annotations": annotations},
            "spec": {"containers": [{"name": "main", "resources": {"limits": limits}}]},
            "status": {"phase": phase},
        }))
        .unwrap()
    }

    /// How many pods of 30 cores find room beside this one, before a node is full.
    fn room(beside: &Pod) -> usize {
        let one = pod(
            &json!({"nvidia.com/vgpu-number": "1", "nvidia.com/vgpu-cores": "30", "nvidia.com/vgpu-memory": "1"}),
            &json!({}),
            "Pending",
        );
        let needs = needs(&one, &[Dialect::VgpuManager]).unwrap().unwrap();
        let mut account = account(&node(), Dialect::VgpuManager, [beside]).unwrap();
        (0..9)
            .take_while(|_| match account.place(&needs) {
                Ok(claims) => {
                    account.take(claims.of("main").unwrap());
                    true
                }
                Err(_) => false,
            })
            .count()
    }

    #[test]
    fn what_counts_is_what_a_pod_claims_in_its_own_words_while_it_lives() {
        let limits = json!({"nvidia.com/vgpu-number": "1", "nvidia.com/vgpu-cores": "10", "nvidia.com/vgpu-memory": "10"});
        let claimed = json!({"nvidia.com/pre-allocated": format!("main[0_{GPU}_40_10]")});
        let real = json!({"nvidia.com/real-allocated": format!("main[0_{GPU}_70_10]")});
        assert_eq!(room(&pod(&json!({}), &claimed, "Running")), 3, "it asks for nothing");
        assert_eq!(room(&pod(&limits, &claimed, "Running")), 2);
        assert_eq!(room(&pod(&limits, &claimed, "Succeeded")), 3);
        assert_eq!(room(&pod(&limits, &real, "Running")), 1);
        let both = |claimed, real| {
            json!({"nvidia.com/pre-allocated": format!("main[0_{GPU}_{claimed}_10]"),
                "nvidia.com/real-allocated": format!("main[0_{GPU}_{real}_10]")})
        };
        assert_eq!(room(&pod(&limits, &both(10, 95), "Running")), 0, "raised");
        assert_eq!(room(&pod(&limits, &both(70, 10), "Running")), 1, "lowered");
        // Nobody says where it is, or what is said cannot be read: its own words count.
        assert_eq!(room(&pod(&limits, &json!({}), "Pending")), 3);
        assert_eq!(room(&pod(&limits, &json!({"nvidia.com/pre-allocated": "x"}), "Pending")), 3);
        let whole = json!({"nvidia.com/vgpu-number": "1"});
        assert_eq!(room(&pod(&whole, &json!({}), "Pending")), 0);
        // By another name of the one pool.
        let hami = json!({"nvidia.com/gpu": "1", "nvidia.com/gpucores": "50"});
        let text = json!({"hami.io/vgpu-devices-allocated": format!("{GPU},NVIDIA,10,50:;")});
        assert_eq!(room(&pod(&hami, &text, "Running")), 1);
        let vgpu_rs = json!({"tensor-fusion.ai/index": "37"});
        let text =
            json!({"tensor-fusion.ai/gpu-ids": GPU, "tensor-fusion.ai/vram-limit": "8000Mi"});
        assert_eq!(room(&pod(&vgpu_rs, &text, "Running")), 0);
        let text = json!({"tensor-fusion.ai/gpu-ids": GPU, "tensor-fusion.ai/vram-limit": "4Gi"});
        assert_eq!(room(&pod(&vgpu_rs, &text, "Running")), 3);
        let foreign = json!({"volcano.sh/vgpu-ids-new": format!("{GPU},NVIDIA,10,100:"), "nvidia.com/pre-allocated": format!("main[0_{GPU}_10_10]")});
        assert_eq!(room(&pod(&limits, &foreign, "Running")), 3);
    }

    /// A GPU of 8000 MiB, in units of 10 MiB.
    #[test]
    fn a_memory_factor_holds_in_each_dialect() {
        let node = |register: String| -> Node {
            let config =
                r#"{"deviceSplit":4,"coresScaling":1.0,"memoryFactor":10,"memoryScaling":1.0}"#;
            let names = ["volcano.sh/node-vgpu-register", "hami.io/node-nvidia-register"];
            let annotations = json!({names[0]: register, names[1]: register, "nvidia.com/node-config-info": config});
            serde_json::from_value(json!({"metadata": {"name": "n", "annotations": annotations}}))
                .unwrap()
        };
        for (dialect, number, memory, claimed, register, beside) in [
            (
                Dialect::Volcano,
                "volcano.sh/vgpu-number",
                "volcano.sh/vgpu-memory",
                "volcano.sh/vgpu-ids-new",
                format!("{GPU},4,800,NVIDIA-A10,true,hami-core:"),
                format!("{GPU},NVIDIA,300,0:"),
            ),
            (
                Dialect::Hami,
                "nvidia.com/gpu",
                "nvidia.com/gpumem",
                "hami.io/vgpu-devices-allocated",
                format!("{GPU},4,8000,100,NVIDIA-A10,0,true,0,hami-core:"),
                format!("{GPU},NVIDIA,3000,0:;"),
            ),
        ] {
            let wants = |units: &str| {
                let limits = json!({number: "1", memory: units});
                pod(&limits, &json!({claimed: beside}), "Running")
            };
            let account = account(&node(register), dialect, [&wants("300")]).unwrap();
            let place = |units| account.place(&needs(&wants(units), &[dialect]).unwrap().unwrap());
            assert!(place("501").is_err(), "{dialect:?}");
            let claims = place("500").unwrap();
            assert_eq!(claims.of("main").unwrap()[0].memory_mib, 5000, "{dialect:?}");
        }
    }

    #[test]
    fn what_fits_nowhere_is_said() {
        let said = |spec: Value| {
            let pod = serde_json::from_value(json!({"metadata": {}, "spec": spec})).unwrap();
            needs(&pod, &Dialect::ALL).unwrap_err().to_string()
        };
        let container = |name: &str, resource: &str| json!({"name": name, "resources": {"limits": {resource: "1"}}});
        let (ours, hami) = ("nvidia.com/vgpu-number", "nvidia.com/gpu");
        let two = said(json!({"containers": [container("a", ours), container("b", hami)]}));
        assert!(two.contains("of vgpu-manager and of hami"), "{two}");
        let init =
            said(json!({"initContainers": [container("a", ours)], "containers": [{"name": "b"}]}));
        assert!(init.starts_with("init container a asks for GPUs"), "{init}");
        let much = json!({"name": "a", "resources": {"limits": {ours: "1", "nvidia.com/vgpu-cores": "101"}}});
        assert!(
            said(json!({"containers": [much]}))
                .starts_with("container a: nvidia.com/vgpu-cores: 101 cores")
        );
    }
}
