//! Reads from a pod's annotations which GPUs the pod accepts.

use k8s_openapi::api::core::v1::Pod;
use limits::GpuId;

use crate::Dialect;
use crate::pods::annotation;
use crate::registers::MAKER;

/// Names of the annotations. Each holds a comma-separated list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChoiceNames {
    /// Parts of product names; a GPU's name must contain one.
    pub types: &'static str,
    /// Parts of product names that a GPU's name must not contain.
    pub no_types: &'static str,
    /// UUIDs; a GPU must have one of them.
    pub uuids: &'static str,
    /// UUIDs that a GPU must not have.
    pub no_uuids: &'static str,
}

/// The GPUs that a pod accepts. By default all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Choice {
    types: Vec<String>,
    no_types: Vec<String>,
    uuids: Vec<String>,
    no_uuids: Vec<String>,
    /// Whether a part of a UUID is enough.
    parts: bool,
    /// The dialect's prefix of product names.
    maker: &'static str,
}

impl Choice {
    /// Reads the annotations of a pod of this dialect.
    #[must_use]
    pub fn of(pod: &Pod, dialect: Dialect) -> Self {
        let Some(names) = dialect.annotations().choice else { return Self::default() };
        let list = |name: &str| {
            let parts = annotation(pod, name).unwrap_or_default().split(',').map(str::trim);
            parts.filter(|part| !part.is_empty()).map(str::to_lowercase).collect()
        };
        let is_vgpu_manager = dialect == Dialect::VgpuManager;
        Self {
            types: list(names.types),
            no_types: list(names.no_types),
            uuids: list(names.uuids),
            no_uuids: list(names.no_uuids),
            parts: is_vgpu_manager,
            maker: if is_vgpu_manager { "" } else { MAKER },
        }
    }

    /// Whether the pod accepts a GPU. Exclusions win.
    #[must_use]
    pub fn takes(&self, gpu: GpuId, product: &str) -> bool {
        let Self { types, no_types, uuids, no_uuids, .. } = self;
        if [types, no_types, uuids, no_uuids].into_iter().all(Vec::is_empty) {
            return true;
        }
        let product = format!("{}{product}", self.maker).to_lowercase();
        let uuid = gpu.to_string().to_lowercase();
        let is_type = |part: &String| product.contains(part);
        let is_uuid = |part: &String| if self.parts { uuid.contains(part) } else { uuid == *part };
        (self.types.is_empty() || self.types.iter().any(is_type))
            && (self.uuids.is_empty() || self.uuids.iter().any(is_uuid))
            && !self.no_types.iter().any(is_type)
            && !self.no_uuids.iter().any(is_uuid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    const A: &str = "GPU-00552014-5c87-89ac-b1a6-7b53aa24b0ec";
    const B: &str = "GPU-0fc3eda5-e98b-a25b-5b0d-cf5c855d1448";

    /// Whether an A10 with the first UUID, and an H100 with the second, are accepted.
    fn takes(dialect: Dialect, annotations: &Value) -> (bool, bool) {
        let pod = json!({"metadata": {"annotations": annotations}});
        let choice = Choice::of(&serde_json::from_value(pod).unwrap(), dialect);
        let gpu = |text: &str| text.parse().unwrap();
        (choice.takes(gpu(A), "NVIDIA A10"), choice.takes(gpu(B), "NVIDIA H100 80GB HBM3"))
    }

    #[test]
    fn each_dialect_has_its_names() {
        use Dialect::{Hami, VgpuManager, Volcano};
        for (dialect, types, no_types) in [
            (VgpuManager, "nvidia.com/include-gpu-type", "nvidia.com/exclude-gpu-type"),
            (Volcano, "nvidia.com/use-gputype", "nvidia.com/nouse-gputype"),
            (Hami, "nvidia.com/use-gputype", "nvidia.com/nouse-gputype"),
        ] {
            assert_eq!(takes(dialect, &json!({})), (true, true));
            assert_eq!(takes(dialect, &json!({types: "h100, l40"})), (false, true));
            assert_eq!(takes(dialect, &json!({types: "A10,H100"})), (true, true));
            assert_eq!(takes(dialect, &json!({no_types: "H100"})), (true, false));
            assert_eq!(takes(dialect, &json!({types: "NVIDIA", no_types: "a10"})), (false, true));
            assert_eq!(takes(dialect, &json!({types: " , "})), (true, true));
        }
        for (dialect, uuids, no_uuids) in [
            (VgpuManager, "nvidia.com/include-gpu-uuid", "nvidia.com/exclude-gpu-uuid"),
            (Volcano, "volcano.sh/vgpu-use-gpuuuid", "volcano.sh/vgpu-nouse-gpuuuid"),
            (Hami, "nvidia.com/use-gpuuuid", "nvidia.com/nouse-gpuuuid"),
        ] {
            assert_eq!(takes(dialect, &json!({uuids: B.to_uppercase()})), (false, true));
            assert_eq!(takes(dialect, &json!({no_uuids: format!("{A},{B}")})), (false, false));
            let is_part = dialect == VgpuManager;
            assert_eq!(takes(dialect, &json!({uuids: "0fc3eda5"})), (false, is_part));
        }
        // HAMi's product names have a prefix, and other dialects' annotations are ignored.
        assert_eq!(
            takes(Hami, &json!({"nvidia.com/use-gputype": "NVIDIA-NVIDIA A10"})),
            (true, false)
        );
        assert_eq!(takes(Hami, &json!({"nvidia.com/include-gpu-type": "H100"})), (true, true));
        assert_eq!(
            takes(Dialect::VgpuRs, &json!({"nvidia.com/use-gputype": "H100"})),
            (true, true)
        );
    }
}
