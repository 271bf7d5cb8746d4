//! Reads which share of which GPUs KAI's scheduler has given a container: annotations of its pod, and the GPUs' UUIDs
//! in an environment variable. Pure.

use std::collections::HashMap;

use dialects::{CORES, Share};
use limits::{GpuId, Policy, Priority};

use crate::amounts::{AmountError, Part, Wish, part};
use crate::plugin::{NONE_VISIBLE, VISIBLE};
use crate::pool::{Gpu, Pool};

/// The part of each GPU, such as `0.5`.
const FRACTION: &str = "gpu-fraction";
/// MiB of each GPU, with a proportional part of its compute.
const MEMORY: &str = "gpu-memory";
/// The container that gets the GPUs; by default the pod's first one.
const CONTAINER: &str = "gpu-fraction-container-name";

/// Why the annotations or the variable are refused. The container does not start.
#[derive(Debug, PartialEq, thiserror::Error)]
pub(crate) enum KaiError {
    #[error("{FRACTION} is {0:?}; expected a number above 0, up to 1")]
    Fraction(String),
    #[error("{MEMORY} is {0:?}; expected a number of MiB above 0")]
    Memory(String),
    #[error("{VISIBLE} is {0:?}; expected the UUIDs of GPUs, as KAI's binder writes them")]
    Visible(String),
    #[error("{0} is not one of the node's GPUs; expected one of those that Sluice sees")]
    NoGpu(GpuId),
    #[error("the driver does not tell the memory of {0}, of which {1} is a part")]
    NoMemory(GpuId, &'static str),
    #[error(transparent)]
    Amount(#[from] AmountError),
}

/// What a container gets.
#[derive(Debug, PartialEq)]
pub(crate) enum Asked {
    /// Nothing: its pod has no part of a GPU, or the container sees no GPU.
    Nothing,
    /// No GPU: another container of the pod has the part, but this one's image asks for all GPUs.
    Hide,
    Parts(Vec<Part>),
}

#[derive(Clone, Copy, Debug)]
enum Amount {
    /// In millionths, because decimal fractions such as `0.3` have no exact binary form.
    Fraction(u64),
    Mib(u64),
}

const ONE: u64 = 1_000_000;

fn amount(annotations: &HashMap<String, String>) -> Result<Option<Amount>, KaiError> {
    if let Some(text) = annotations.get(FRACTION) {
        let number = text.trim().parse::<f64>().ok().map(|number| (number * 1e6).round());
        let is_part = |number: &f64| (1.0..=1e6).contains(number);
        let wrong = || KaiError::Fraction(text.clone());
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked")]
        let millionths = number.filter(is_part).ok_or_else(wrong)? as u64;
        return Ok(Some(Amount::Fraction(millionths)));
    }
    let Some(text) = annotations.get(MEMORY) else { return Ok(None) };
    let mib = text.trim().parse().ok().filter(|mib| *mib > 0);
    Ok(Some(Amount::Mib(mib.ok_or_else(|| KaiError::Memory(text.clone()))?)))
}

impl Amount {
    fn of(self, gpu: &Gpu) -> Result<Share, KaiError> {
        let name = if matches!(self, Self::Mib(_)) { MEMORY } else { FRACTION };
        let total = gpu.memory_mib.filter(|mib| *mib > 0);
        let total = total.ok_or(KaiError::NoMemory(gpu.id, name))?;
        let times = |all: u64, part: u64, whole: u64| {
            u64::try_from(u128::from(all) * u128::from(part) / u128::from(whole)).unwrap_or(all)
        };
        let (cores, memory_mib) = match self {
            Self::Fraction(part) => (times(CORES, part, ONE), times(total, part, ONE)),
            // KAI computes it the same way.
            Self::Mib(mib) => (times(CORES, mib, total), mib),
        };
        Ok(Share { cores: cores.clamp(1, CORES), memory_mib: memory_mib.max(1) })
    }
}

/// What a container of a pod with these annotations gets.
pub(crate) fn asked(
    annotations: &HashMap<String, String>,
    (container, variables): (&str, &[String]),
    pool: &Pool,
) -> Result<Asked, KaiError> {
    let Some(amount) = amount(annotations)? else { return Ok(Asked::Nothing) };
    let visible = match super::visible(variables) {
        None | Some("" | "none" | NONE_VISIBLE) => return Ok(Asked::Nothing),
        Some(visible) => visible,
    };
    let other = annotations.get(CONTAINER).is_some_and(|name| name != container);
    if other && visible == "all" {
        return Ok(Asked::Hide);
    }
    let wrong = || KaiError::Visible(visible.chars().take(80).collect());
    let mut parts: Vec<Part> = Vec::new();
    for name in visible.split(',') {
        // With CDI, an entry is KIND=UUID.
        let id = name.rsplit('=').next().unwrap_or(name).trim();
        let id: GpuId = id.parse().map_err(|_| wrong())?;
        let gpu = pool.gpus().iter().find(|gpu| gpu.id == id).ok_or(KaiError::NoGpu(id))?;
        let (policy, priority) = (Policy::Fixed, Priority::High);
        let wish = Wish::Given { share: amount.of(gpu)?, policy, priority };
        if parts.iter().all(|part| part.gpu != id) {
            parts.push(part(&wish, gpu, pool)?);
        }
    }
    Ok(Asked::Parts(parts))
}

#[cfg(test)]
mod tests {
    use super::*;
    use dialects::registers::Hardware;
    use limits::{ComputeLimit, Limits, MemoryLimit};

    fn gpu(number: u8) -> GpuId {
        GpuId::from_bytes([number; 16])
    }

    fn of(annotations: &[(&str, &str)], visible: &str) -> Result<Asked, KaiError> {
        let one = |number| Gpu {
            id: gpu(number),
            memory_mib: (number < 3).then_some(1001),
            healthy: true,
            product: String::new(),
            hardware: Hardware::default(),
        };
        let split = 4.try_into().unwrap();
        let pool = Pool::new((1..=3).map(one).collect(), split, split);
        let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let variables = ["A=NVIDIA_VISIBLE_DEVICES=void", "NVIDIA_VISIBLE_DEVICES=all"];
        let mut variables: Vec<String> = variables.map(str::to_owned).into();
        variables.push(format!("{VISIBLE}={visible}"));
        asked(&annotations.iter().map(own).collect(), ("main", &variables), &pool)
    }

    fn shares(annotations: &[(&str, &str)], visible: &str) -> Vec<(u64, u64)> {
        match of(annotations, visible).unwrap() {
            Asked::Parts(parts) => {
                parts.iter().map(|part| (part.share.cores, part.share.memory_mib)).collect()
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_fraction_is_of_memory_and_of_time_and_memory_is_as_much_time() {
        let first = gpu(1).to_string();
        assert_eq!(shares(&[("gpu-fraction", "0.5")], &first), [(50, 500)]);
        assert_eq!(shares(&[("gpu-fraction", "0.29")], &first), [(29, 290)]);
        assert_eq!(shares(&[("gpu-fraction", "0.001")], &first), [(1, 1)]);
        assert_eq!(shares(&[("gpu-memory", "250")], &first), [(24, 250)]);
        // Several GPUs, as with CDI, and one of them twice.
        let both = format!("k8s.device-plugin.nvidia.com/gpu={first},{},{first}", gpu(2));
        assert_eq!(shares(&[("gpu-fraction", "0.3")], &both), [(30, 300), (30, 300)]);
        let Asked::Parts(parts) = of(&[("gpu-fraction", "0.5")], &first).unwrap() else { panic!() };
        let memory = Some(MemoryLimit::new(500 << 20));
        assert_eq!(parts[0].limits, Limits { memory, compute: ComputeLimit::fixed(500_000) });
        let Asked::Parts(parts) = of(&[("gpu-fraction", "1")], &first).unwrap() else { panic!() };
        assert_eq!(parts[0].limits, Limits::NONE);
    }

    #[test]
    fn containers_that_see_no_gpu_are_left_alone_and_others_of_the_pod_do_not_see_all() {
        let half = ("gpu-fraction", "0.5");
        for visible in ["", "none", "void"] {
            assert_eq!(of(&[half], visible), Ok(Asked::Nothing));
        }
        assert_eq!(of(&[], "all"), Ok(Asked::Nothing));
        let elsewhere = ("gpu-fraction-container-name", "other");
        assert_eq!(of(&[half, elsewhere], "all"), Ok(Asked::Hide));
        // A container is limited on the GPUs that its variable names.
        assert_eq!(shares(&[half, elsewhere], &gpu(1).to_string()), [(50, 500)]);
    }

    #[test]
    fn what_cannot_be_followed_is_refused_with_what_is_expected() {
        let first = gpu(1).to_string();
        for text in ["0", "-1", "1.01", "x", "nan", "inf", ""] {
            let said = of(&[("gpu-fraction", text)], &first).unwrap_err().to_string();
            assert!(said.ends_with("expected a number above 0, up to 1"), "{said}");
        }
        for text in ["0", "1Gi", "-5"] {
            let said = of(&[("gpu-memory", text)], &first).unwrap_err().to_string();
            assert!(said.ends_with("expected a number of MiB above 0"), "{said}");
        }
        for visible in ["all", "0", "GPU-x"] {
            let said = of(&[("gpu-fraction", "0.5")], visible).unwrap_err();
            assert_eq!(said, KaiError::Visible(visible.to_owned()));
        }
        let half = &[("gpu-fraction", "0.5")];
        assert_eq!(of(half, &gpu(9).to_string()), Err(KaiError::NoGpu(gpu(9))));
        let unknown = of(half, &gpu(3).to_string()).unwrap_err();
        assert_eq!(unknown, KaiError::NoMemory(gpu(3), "gpu-fraction"));
        let said = of(&[("gpu-memory", "2000")], &first).unwrap_err().to_string();
        assert!(said.contains("it has 1001"), "{said}");
    }
}
