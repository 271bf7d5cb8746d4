//! Reads and writes the annotations that tell which parts of which GPUs a pod's containers have, in each dialect's
//! format.

use core::fmt::Write;
use std::collections::BTreeMap;

use limits::GpuId;

use crate::Share;
use crate::table::Dialect;

/// The type of NVIDIA GPUs in HAMi's and Volcano's formats.
const NVIDIA: &str = "NVIDIA";

/// A part of a GPU. If both cores and memory are 0, the container's own request holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The GPU's index on its node. Only VGPU-Manager's format has it.
    pub index: u32,
    /// The GPU.
    pub gpu: GpuId,
    /// Percent of its compute.
    pub cores: u64,
    /// Its memory in MiB; in Volcano's annotations, in units of the memory factor.
    pub memory_mib: u64,
}

impl Claim {
    /// A claim without amounts: the container's own request holds.
    #[must_use]
    pub const fn of(gpu: GpuId) -> Self {
        Self { index: 0, gpu, cores: 0, memory_mib: 0 }
    }

    /// The amounts. `None`: the container's own request holds.
    #[must_use]
    pub fn share(&self) -> Option<Share> {
        let share = Share { cores: self.cores, memory_mib: self.memory_mib };
        (share != Share::default()).then_some(share)
    }
}

/// The claims of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerClaims {
    /// Its name.
    pub container: String,
    /// One claim per GPU.
    pub claims: Vec<Claim>,
}

/// The claims of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodClaims(pub Vec<ContainerClaims>);

/// Why an annotation cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClaimError {
    /// The list has another format.
    #[error("{text:?} is no list of a container's devices; expected {form}")]
    Form {
        /// The part that cannot be read.
        text: String,
        /// The accepted format.
        form: &'static str,
    },
    /// A device has another format.
    #[error("{text:?} is no device of a container; expected {form}")]
    Device {
        /// The device.
        text: String,
        /// The accepted format.
        form: &'static str,
    },
    /// The number of containers does not match the pod's.
    #[error("{claimed} containers have devices, and {requesting} of the pod request some")]
    Containers {
        /// Containers with devices in the annotation.
        claimed: usize,
        /// Containers of the pod that request devices.
        requesting: usize,
    },
    /// The amount of memory overflows.
    #[error("{0} units of memory are more than can be counted")]
    TooMuch(u64),
    /// The text is not the expected JSON.
    #[error("{0}; expected {CONTAINER_GPUS}")]
    Json(String),
}

impl ClaimError {
    pub(crate) fn gpu_ids(text: &str) -> Self {
        Self::Device { text: shown(text), form: GPU_LIST }
    }
}

const VGPU_CONTAINER: &str = "NAME[DEVICE,...]";
const VGPU_DEVICE: &str = "INDEX_UUID_CORES_MIB";
const CONTAINER_GPUS: &str = "{\"CONTAINER\":[\"GPU-UUID\"]}";
const GPU_LIST: &str = "UUID,UUID";
const LISTED_DEVICE: &str = "UUID,NVIDIA,MIB,CORES";

impl PodClaims {
    /// Formats the claims. `containers`: those that have a slot in HAMi's and Volcano's formats, in order.
    #[must_use]
    pub fn write(&self, dialect: Dialect, containers: &[&str]) -> String {
        match dialect {
            Dialect::VgpuManager => {
                let one = |of: &ContainerClaims| {
                    let all: Vec<String> = of.claims.iter().map(underscored).collect();
                    format!("{}[{}]", of.container, all.join(","))
                };
                self.0.iter().map(one).collect::<Vec<_>>().join(";")
            }
            Dialect::Volcano => self.by_place(containers).join(";"),
            Dialect::VgpuRs => {
                let gpus = |of: &ContainerClaims| -> Vec<String> {
                    of.claims.iter().map(|claim| claim.gpu.to_string()).collect()
                };
                let one = |of: &ContainerClaims| (of.container.clone(), gpus(of).into());
                let all: serde_json::Map<_, serde_json::Value> = self.0.iter().map(one).collect();
                serde_json::Value::Object(all).to_string()
            }
            Dialect::Hami => {
                let ended = |part: String| part + ";";
                self.by_place(containers).into_iter().map(ended).collect()
            }
        }
    }

    fn by_place(&self, containers: &[&str]) -> Vec<String> {
        let one = |name: &&str| {
            self.of(name).unwrap_or_default().iter().fold(String::new(), |mut all, claim| {
                let Claim { gpu, cores, memory_mib, .. } = claim;
                // Writing to a `String` cannot fail.
                _ = write!(all, "{gpu},{NVIDIA},{memory_mib},{cores}:");
                all
            })
        };
        containers.iter().map(one).collect()
    }

    /// The claims of one container.
    #[must_use]
    pub fn of(&self, container: &str) -> Option<&[Claim]> {
        let found = self.0.iter().find(|one| one.container == container)?;
        Some(&found.claims)
    }

    /// The claims of all containers.
    pub fn all(&self) -> impl Iterator<Item = &Claim> {
        self.0.iter().flat_map(|one| &one.claims)
    }

    /// Reads what [`Self::write`] writes. Devices of other vendors are left out. `containers`: those that request GPUs
    /// in HAMi's and Volcano's formats, in order; empty slots are skipped because versions place them differently.
    ///
    /// # Errors
    /// [`ClaimError`]
    pub fn read(dialect: Dialect, text: &str, containers: &[&str]) -> Result<Self, ClaimError> {
        match dialect {
            Dialect::VgpuManager => {
                let text: String = text.chars().filter(|c| *c != ' ').collect();
                let parts = text.split(';').filter(|part| !part.is_empty());
                parts.map(bracketed).collect::<Result<_, _>>().map(Self)
            }
            Dialect::VgpuRs => listed_gpus(text).map(Self),
            Dialect::Volcano | Dialect::Hami => {
                let slots = text.split(';').map(listed).collect::<Result<Vec<_>, _>>()?;
                let slots = slots.into_iter().filter(|claims| !claims.is_empty());
                let slots: Vec<Vec<Claim>> = slots.collect();
                let (claimed, requesting) = (slots.len(), containers.len());
                let unclaimed = match requesting.checked_sub(claimed) {
                    // The plugin has removed all devices after allocating them.
                    _ if claimed == 0 => requesting,
                    Some(0) => 0,
                    // HAMi before 2.9 has no slots for init containers, which come first.
                    Some(init) if dialect == Dialect::Hami => init,
                    _ => return Err(ClaimError::Containers { claimed, requesting }),
                };
                let named = containers[unclaimed..].iter().zip(slots);
                let one = |(name, claims): (&&str, _)| ContainerClaims {
                    container: (*name).to_owned(),
                    claims,
                };
                Ok(Self(named.map(one).collect()))
            }
        }
    }
}

/// Spaces and containers without GPUs are ignored.
fn listed_gpus(text: &str) -> Result<Vec<ContainerClaims>, ClaimError> {
    if text.trim().is_empty() {
        return Ok(Vec::new());
    }
    let all: BTreeMap<String, Vec<String>> =
        serde_json::from_str(text).map_err(|error| ClaimError::Json(error.to_string()))?;
    let one = |(container, gpus): (String, Vec<String>)| {
        let gpus = gpus.iter().map(|gpu| gpu.trim()).filter(|gpu| !gpu.is_empty());
        let claim = |gpu: &str| match gpu.parse() {
            Ok(gpu) => Ok(Claim::of(gpu)),
            Err(_) => Err(ClaimError::Device { text: shown(gpu), form: "GPU-UUID" }),
        };
        let claims = gpus.map(claim).collect::<Result<_, _>>()?;
        Ok(ContainerClaims { container: container.trim().to_owned(), claims })
    };
    let all: Vec<ContainerClaims> = all.into_iter().map(one).collect::<Result<_, _>>()?;
    Ok(all.into_iter().filter(|of| !of.claims.is_empty()).collect())
}

fn underscored(claim: &Claim) -> String {
    let Claim { index, gpu, cores, memory_mib } = claim;
    format!("{index}_{gpu}_{cores}_{memory_mib}")
}

fn shown(text: &str) -> String {
    text.chars().take(80).collect()
}

fn bracketed(part: &str) -> Result<ContainerClaims, ClaimError> {
    let wrong = || ClaimError::Form { text: shown(part), form: VGPU_CONTAINER };
    let (name, rest) = part.split_once('[').ok_or_else(wrong)?;
    let inner =
        rest.strip_suffix(']').filter(|inner| !inner.contains(['[', ']'])).ok_or_else(wrong)?;
    let one = |text: &str| {
        let fields: Vec<&str> = text.split('_').collect();
        let [index, gpu, cores, memory] = fields[..] else { return None };
        Some(Claim {
            index: index.parse().ok()?,
            gpu: gpu.parse().ok()?,
            cores: cores.parse().ok()?,
            memory_mib: memory.parse().ok()?,
        })
    };
    let devices = inner.split(',').filter(|text| !text.is_empty());
    let claims = devices.map(|text| {
        one(text).ok_or_else(|| ClaimError::Device { text: shown(text), form: VGPU_DEVICE })
    });
    Ok(ContainerClaims { container: name.to_owned(), claims: claims.collect::<Result<_, _>>()? })
}

fn listed(part: &str) -> Result<Vec<Claim>, ClaimError> {
    let mut claims = Vec::new();
    for text in part.split(':').filter(|text| !text.is_empty()) {
        let wrong = || ClaimError::Device { text: shown(text), form: LISTED_DEVICE };
        let fields: Vec<&str> = text.split(',').collect();
        let [gpu, kind, memory, cores] = fields[..] else { return Err(wrong()) };
        if kind != NVIDIA {
            continue;
        }
        let claim = || {
            Some(Claim {
                index: 0,
                gpu: gpu.parse().ok()?,
                cores: cores.parse().ok()?,
                memory_mib: memory.parse().ok()?,
            })
        };
        claims.push(claim().ok_or_else(wrong)?);
    }
    Ok(claims)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn gpu(text: &str) -> GpuId {
        text.parse().unwrap()
    }

    fn one(container: &str, claims: Vec<Claim>) -> ContainerClaims {
        ContainerClaims { container: container.to_owned(), claims }
    }

    /// From docs/develop/protocol.md of HAMi: a task that requests 3000 MiB.
    #[test]
    fn hamis_own_example() {
        let text = "GPU-0fc3eda5-e98b-a25b-5b0d-cf5c855d1448,NVIDIA,3000,0:;";
        let read = PodClaims::read(Dialect::Hami, text, &["main"]).unwrap();
        let claim = Claim {
            index: 0,
            gpu: gpu("GPU-0fc3eda5-e98b-a25b-5b0d-cf5c855d1448"),
            cores: 0,
            memory_mib: 3000,
        };
        assert_eq!(read, PodClaims(vec![one("main", vec![claim])]));
        assert_eq!(read.write(Dialect::Hami, &["main"]), text);
        // What HAMi leaves of it once the devices are allocated.
        assert_eq!(PodClaims::read(Dialect::Hami, ";", &["main"]), Ok(PodClaims::default()));
        assert_eq!(PodClaims::default().write(Dialect::Hami, &["main"]), ";");
    }

    /// The format in a comment of VGPU-Manager's source, and Volcano's order of fields.
    #[test]
    fn the_forms_of_the_others() {
        let a = gpu("GPU-00552014-5c87-89ac-b1a6-7b53aa24b0ec");
        let b = gpu("GPU-0fc3eda5-e98b-a25b-5b0d-cf5c855d1448");
        let claims = vec![
            Claim { index: 0, gpu: a, cores: 10, memory_mib: 1024 },
            Claim { index: 3, gpu: b, cores: 20, memory_mib: 2048 },
        ];
        let pod = PodClaims(vec![one("cont1", claims), one("cont2", vec![])]);
        let text = "cont1[0_GPU-00552014-5c87-89ac-b1a6-7b53aa24b0ec_10_1024,3_GPU-0fc3eda5-e98b-a25b-5b0d-cf5c855d1448_20_2048];cont2[]";
        assert_eq!(pod.write(Dialect::VgpuManager, &["cont1", "cont2"]), text);
        assert_eq!(
            PodClaims::read(Dialect::VgpuManager, &text.replace(',', ", "), &[]),
            Ok(pod.clone())
        );
        let text = ";GPU-00552014-5c87-89ac-b1a6-7b53aa24b0ec,NVIDIA,1024,10:GPU-0fc3eda5-e98b-a25b-5b0d-cf5c855d1448,NVIDIA,2048,20:;";
        assert_eq!(pod.write(Dialect::Volcano, &["none", "cont1", "cont2"]), text);
        let read = PodClaims::read(Dialect::Volcano, text, &["cont1"]).unwrap();
        assert_eq!(read.of("cont1").unwrap().len(), 2);
        assert_eq!((read.of("none"), read.of("cont2")), (None, None));
    }

    /// The format in vgpu.rs's own tests. Its scheduler writes UUIDs in lower case.
    #[test]
    fn vgpu_rs_names_gpus_and_no_amounts() {
        let text = r#"{"container1":["GPU-00552014-5c87-89ac-b1a6-7b53aa24b0ec","GPU-0fc3eda5-e98b-a25b-5b0d-cf5c855d1448"]}"#;
        let claims = [
            gpu("GPU-00552014-5c87-89ac-b1a6-7b53aa24b0ec"),
            gpu("GPU-0fc3eda5-e98b-a25b-5b0d-cf5c855d1448"),
        ]
        .map(Claim::of);
        let pod = PodClaims(vec![one("container1", claims.to_vec())]);
        assert_eq!(pod.write(Dialect::VgpuRs, &["container1"]), text);
        assert_eq!(PodClaims::read(Dialect::VgpuRs, text, &[]), Ok(pod.clone()));
        let spaced =
            text.to_lowercase().replace("\"gpu", "\" gpu").replace("]}", r#"],"none":[" "]}"#);
        assert_eq!(PodClaims::read(Dialect::VgpuRs, &spaced, &[]), Ok(pod));
        assert_eq!(claims[0].share(), None);
        let said = |text| PodClaims::read(Dialect::VgpuRs, text, &[]).unwrap_err().to_string();
        assert!(said("x").ends_with(r#"; expected {"CONTAINER":["GPU-UUID"]}"#));
        assert!(said(r#"{"main":["GPU-aaaa"]}"#).starts_with("\"GPU-aaaa\" is no device"));
    }

    #[test]
    fn other_texts_are_refused_and_other_makers_left_out() {
        let said =
            |dialect, text| PodClaims::read(dialect, text, &["main"]).unwrap_err().to_string();
        for text in ["main", "main[", "main]", "main[]x", "main[[]"] {
            assert!(
                said(Dialect::VgpuManager, text).contains("; expected NAME[DEVICE,...]"),
                "{text}"
            );
        }
        assert!(
            said(Dialect::VgpuManager, "main[0_GPU-x_1_1]")
                .contains("; expected INDEX_UUID_CORES_MIB")
        );
        assert!(said(Dialect::Hami, "a,NVIDIA,1:").contains("; expected UUID,NVIDIA,MIB,CORES"));
        let slot = "GPU-0fc3eda5-e98b-a25b-5b0d-cf5c855d1448,NVIDIA,1,1:";
        let two = said(Dialect::Volcano, &format!("{slot};{slot}"));
        assert_eq!(two, "2 containers have devices, and 1 of the pod request some");
        let other = PodClaims::read(Dialect::Hami, "MLU-1,MLU,1,1:;", &["main"]);
        assert_eq!(other, Ok(PodClaims::default()));
    }

    prop_compose! {
        fn claim()(index in 0_u32..64, bytes: [u8; 16], cores in 0_u64..101, memory_mib: u64) -> Claim {
            Claim { index, gpu: GpuId::from_bytes(bytes), cores, memory_mib }
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(containers in prop::collection::vec(prop::collection::vec(claim(), 1..4), 1..5)) {
            let names: Vec<String> = (0..containers.len()).map(|at| format!("c-{at}")).collect();
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            let pod = PodClaims(names.iter().zip(containers).map(|(name, claims)| one(name, claims)).collect());
            for dialect in Dialect::ALL {
                let mut wanted = pod.clone();
                for claim in wanted.0.iter_mut().flat_map(|of| &mut of.claims) {
                    match dialect {
                        Dialect::VgpuManager => {}
                        Dialect::Volcano | Dialect::Hami => claim.index = 0,
                        Dialect::VgpuRs => *claim = Claim::of(claim.gpu),
                    }
                }
                let text = pod.write(dialect, &names);
                prop_assert_eq!(PodClaims::read(dialect, &text, &names), Ok(wanted));
            }
        }

        #[test]
        fn no_text_breaks_the_reader(text in ".{0,80}") {
            for dialect in Dialect::ALL {
                _ = PodClaims::read(dialect, &text, &["main"]);
            }
        }
    }
}
