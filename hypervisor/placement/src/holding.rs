//! The shares of GPUs that a pod holds on its node.

use core::num::NonZeroU32;

use dialects::pods;
use dialects::{Claim, Dialect, MemoryNeed, Need, PodClaims, Share};
use k8s_openapi::api::core::v1::Pod;

use crate::account::{Amount, Gpu};
use crate::request::{Request, Stage, staged};
use crate::usage::Usage;

/// The shares that a pod's containers hold, read with their own dialect, whoever scheduled the pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holding(Vec<Held>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Held {
    stage: Stage,
    need: Need,
    /// Memory in the units of the dialect's annotations. Empty: the GPUs are unknown, so the request counts on each
    /// GPU.
    claims: Vec<Claim>,
}

impl Holding {
    /// Reads a pod's own requests and claims; annotations of other dialects are ignored. `None`: the pod holds nothing.
    #[must_use]
    pub fn of(pod: &Pod) -> Option<Self> {
        if pods::has_ended(pod) {
            return None;
        }
        let held = staged(pod).filter_map(|(stage, container)| {
            // A container with an invalid request does not start.
            let need = pods::need(pod, container, &Dialect::ALL).ok()??;
            let units = NonZeroU32::MIN;
            let claimed = pods::claims(pod, need.dialect, units).unwrap_or_default();
            let real = pods::real(pod, need.dialect, units).unwrap_or_default();
            let of = |all: &PodClaims| all.of(&container.name).unwrap_or_default().to_vec();
            Some(Held { stage, need, claims: larger(of(&claimed), of(&real)) })
        });
        let held: Vec<Held> = held.collect();
        (!held.is_empty()).then_some(Self(held))
    }

    /// What a pod with these claims will hold, in MiB. `factor`: its node's memory factor.
    #[must_use]
    pub fn claimed(request: &Request, claims: &PodClaims, factor: NonZeroU32) -> Self {
        let held = request.containers.iter().map(|container| {
            let unit = container.need.dialect.text_unit(factor);
            let of = claims.of(&container.name).unwrap_or_default().iter();
            let in_units =
                |claim: &Claim| Claim { memory_mib: claim.memory_mib.div_ceil(unit), ..*claim };
            let claims = of.map(in_units).collect();
            Held { stage: container.stage, need: container.need, claims }
        });
        Self(held.collect())
    }

    /// The pod's use of its namespace's quota, in a dialect's resources. `factor`: its node's memory factor. Memory
    /// requested in percent counts once the GPU is known.
    #[must_use]
    pub fn usage(&self, dialect: Dialect, factor: NonZeroU32) -> Usage {
        let (mut lasting, mut most) = (Usage::default(), Usage::default());
        for held in self.0.iter().filter(|held| held.need.dialect == dialect) {
            let usage = held.usage(factor);
            match held.stage {
                Stage::Init => most = most.max(lasting + usage),
                Stage::Lasting => lasting = lasting + usage,
            }
        }
        most.max(lasting)
    }

    /// The most that the pod holds of a GPU at any time: an init container ends before later ones start.
    pub(crate) fn on(&self, gpu: &Gpu, factor: NonZeroU32) -> Amount {
        let (mut lasting, mut most) = (Amount::default(), Amount::default());
        for held in &self.0 {
            let Some(amount) = held.on(gpu, factor) else { continue };
            match held.stage {
                Stage::Init => most = most.max(lasting.plus(amount)),
                Stage::Lasting => lasting = lasting.plus(amount),
            }
        }
        most.max(lasting)
    }
}

impl Held {
    fn usage(&self, factor: NonZeroU32) -> Usage {
        let Need { dialect, places, cores, memory, .. } = self.need;
        if !self.claims.is_empty() {
            let of = |claim: &Claim| Usage {
                number: 1,
                cores: claim.cores,
                memory: Usage::units(dialect, claim.memory_mib, factor),
            };
            return self.claims.iter().map(of).fold(Usage::default(), |sum, one| sum + one);
        }
        let units = match memory {
            MemoryNeed::Units(units) => units,
            MemoryNeed::Mib(mib) => mib.div_ceil(factor.get().into()),
            MemoryNeed::Whole | MemoryNeed::Percent(_) => 0,
        };
        let (cores, memory) = (cores.saturating_mul(places), units.saturating_mul(places));
        Usage { number: places, cores, memory }
    }

    fn on(&self, gpu: &Gpu, factor: NonZeroU32) -> Option<Amount> {
        // Nodes do not report their GPUs' TFLOPS.
        let said = || self.need.on(gpu.total.memory_mib, None, factor).ok();
        if self.claims.is_empty() {
            return said().map(Amount::of);
        }
        let claim = self.claims.iter().find(|claim| claim.gpu == gpu.id)?;
        let unit = self.need.dialect.text_unit(factor);
        let in_mib =
            |share: Share| Share { memory_mib: share.memory_mib.saturating_mul(unit), ..share };
        Some(Amount::of(claim.share().map(in_mib).or_else(said).unwrap_or_default()))
    }
}

/// For each GPU of a container, the larger of the real and the claimed share: an annotation may have raised it at run
/// time, and a reduction may be reverted.
fn larger(claimed: Vec<Claim>, mut real: Vec<Claim>) -> Vec<Claim> {
    if real.is_empty() {
        return claimed;
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
    use k8s_openapi::api::core::v1::Node;
    use serde_json::{Value, json};

    use super::*;
    use crate::account::Account;
    use crate::refusal::Refusal;

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

    fn request(pod: &Pod, dialect: Dialect) -> Request {
        Request::of(pod, &[dialect], false).unwrap().unwrap()
    }

    fn account(node: &Node, dialect: Dialect, beside: &Pod) -> Result<Account, Refusal> {
        let annotations = node.metadata.annotations.as_ref();
        let mut account = Account::of(dialect, |name| annotations?.get(name).map(String::as_str))?;
        Holding::of(beside).iter().for_each(|holding| account.take(holding));
        Ok(account)
    }

    /// How many pods of 30 cores fit beside this one, until the node is full.
    fn room(beside: &Pod) -> usize {
        let one = pod(
            &json!({"nvidia.com/vgpu-number": "1", "nvidia.com/vgpu-cores": "30", "nvidia.com/vgpu-memory": "1"}),
            &json!({}),
            "Pending",
        );
        let one = request(&one, Dialect::VgpuManager);
        let mut account = account(&node(), Dialect::VgpuManager, beside).unwrap();
        (0..9)
            .take_while(|_| match account.place(&one) {
                Ok(claims) => {
                    account.take(&Holding::claimed(&one, &claims, account.factor()));
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
        // The GPU is unknown or its annotation unreadable: the container's request counts.
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

    #[test]
    fn a_quota_counts_amounts_for_each_gpu() {
        let hami = |annotations: &Value| {
            let limits = json!({"nvidia.com/gpu": "2", "nvidia.com/gpumem": "300", "nvidia.com/gpucores": "10"});
            Holding::of(&pod(&limits, annotations, "Running")).unwrap()
        };
        let usage = |holding: &Holding, factor: u32| {
            let Usage { number, cores, memory } =
                holding.usage(Dialect::Hami, factor.try_into().unwrap());
            (number, cores, memory)
        };
        assert_eq!(usage(&hami(&json!({})), 10), (2, 20, 600));
        let other = "GPU-11552014-5c87-89ac-b1a6-7b53aa24b0ec";
        let text = format!("{GPU},NVIDIA,3000,10:{other},NVIDIA,4001,20:;");
        let claimed = hami(&json!({"hami.io/vgpu-devices-allocated": text}));
        assert_eq!(usage(&claimed, 10), (2, 30, 701), "as its node gives it");
        assert_eq!(claimed.usage(Dialect::Volcano, NonZeroU32::MIN), Usage::default());
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
            let account = account(&node(register), dialect, &wants("300")).unwrap();
            let place = |units| account.place(&request(&wants(units), dialect));
            assert!(place("501").is_err(), "{dialect:?}");
            let claims = place("500").unwrap();
            assert_eq!(claims.of("main").unwrap()[0].memory_mib, 5000, "{dialect:?}");
        }
    }
}
