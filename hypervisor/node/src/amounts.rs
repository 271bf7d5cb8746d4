//! Computes a container's share of each of its GPUs, from its pod or from the kubelet's counts. Pure.
//!
//! Cores and memory are per GPU. An amount that is not requested is unlimited.

use dialects::needs::Need;
use dialects::{CORES, Claim, NeedError, Share};
use limits::units::PPM_ONE;
use limits::{ComputeLimit, GpuId, Limits, MemoryLimit, Policy, Priority};

use crate::identity::Asked;
use crate::pool::{Gpu, Pool};

/// One core (1 % of a GPU's time) in millionths.
const CORE_PPM: u32 = 10_000;
/// The guarantee of a low-priority container without cores. It is small because the cores of the other containers may
/// add up to the whole GPU.
const LOW_WITHOUT_CORES_PPM: u32 = 2 * CORE_PPM;
const MIB: u64 = 1 << 20;

/// A request that no GPU can satisfy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum AmountError {
    #[error("{asked} cores of each of its GPUs are asked for; expected 1 to {CORES}")]
    Cores { asked: u64 },
    #[error("{asked} MiB of {gpu} are asked for: it has {has}")]
    Memory { asked: u64, gpu: GpuId, has: u64 },
    #[error("{asked} units of {factor} MiB are more than can be counted")]
    TooMuch { asked: u64, factor: u32 },
    #[error(transparent)]
    Need(#[from] NeedError),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) gpu: GpuId,
    pub(crate) limits: Limits,
    /// The share promised to the container.
    pub(crate) share: Share,
    /// The capacity of the GPU that may be promised.
    pub(crate) total: Share,
}

/// The source of a container's amounts.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Wish {
    /// The ids that the kubelet has counted. The pod may request more through resources that it does not count.
    Counted(Asked),
    /// The pod's request, and what its scheduler has claimed.
    Said { need: Need, claims: Vec<Claim>, policy: Policy },
    /// The share of each GPU given by a ResourceClaim or by another scheduler's annotation.
    Given { share: Share, policy: Policy, priority: Priority },
}

impl Wish {
    /// How a share of compute is enforced.
    pub(crate) const fn policy(&self) -> Policy {
        match self {
            Self::Said { policy, .. } | Self::Given { policy, .. } => *policy,
            Self::Counted(_) => Policy::Fixed,
        }
    }

    const fn is_low(&self) -> bool {
        match self {
            Self::Counted(_) => false,
            Self::Said { need: Need { priority, .. }, .. } | Self::Given { priority, .. } => {
                matches!(priority, Priority::Low)
            }
        }
    }
}

/// The container's part of a GPU.
pub(crate) fn part(wish: &Wish, gpu: &Gpu, pool: &Pool) -> Result<Part, AmountError> {
    let total = pool.total(gpu);
    let factor = pool.memory_factor();
    let share = match wish {
        Wish::Counted(asked) => {
            let units = asked.memory;
            let too_much = AmountError::TooMuch { asked: units, factor: factor.get() };
            let memory_mib = units.checked_mul(factor.get().into()).ok_or(too_much)?;
            if asked.cores > CORES {
                return Err(AmountError::Cores { asked: asked.cores });
            }
            Share { cores: asked.cores, memory_mib }
        }
        Wish::Said { need, claims, .. } => {
            let claim = claims.iter().find(|claim| claim.gpu == gpu.id);
            match claim.and_then(Claim::share) {
                Some(share) => share,
                None => need.on(total.memory_mib, pool.milli_tflops(gpu), factor)?,
            }
        }
        Wish::Given { share, .. } => *share,
    };
    let asked = share.memory_mib;
    if gpu.memory_mib.is_some() && asked > total.memory_mib {
        return Err(AmountError::Memory { asked, gpu: gpu.id, has: total.memory_mib });
    }
    let memory = memory(asked, gpu, pool, total)?;
    Ok(Part {
        gpu: gpu.id,
        limits: Limits { memory, compute: compute(share.cores, wish) },
        share,
        total,
    })
}

fn memory(
    mib: u64,
    gpu: &Gpu,
    pool: &Pool,
    total: Share,
) -> Result<Option<MemoryLimit>, AmountError> {
    let scaling = u64::from(pool.scaling().memory);
    // A container with all of a GPU's memory needs no limit.
    let is_all = gpu.memory_mib.is_some() && mib == total.memory_mib && scaling == 100;
    if mib == 0 || is_all {
        return Ok(None);
    }
    let factor = pool.memory_factor().get();
    let too_much = || AmountError::TooMuch { asked: mib / u64::from(factor), factor };
    let limit = mib.checked_mul(MIB).ok_or_else(too_much)?;
    let on_device =
        || u64::try_from(u128::from(limit) * 100 / u128::from(scaling)).unwrap_or(limit);
    let real = (scaling > 100).then(on_device);
    Ok(Some(MemoryLimit { limit, real }))
}

fn compute(cores: u64, wish: &Wish) -> ComputeLimit {
    let Ok(cores) = u32::try_from(cores) else { return ComputeLimit::NONE };
    // As in VGPU-Manager and HAMi, a whole GPU's compute is unlimited. The kubelet's count is taken literally.
    let is_whole = u64::from(cores) >= CORES && !matches!(wish, Wish::Counted(_));
    let is_low = wish.is_low();
    let limit = match wish.policy() {
        Policy::None => return ComputeLimit::NONE,
        // Low priority yields to others, so the container needs leases even without a limit.
        _ if cores == 0 && is_low => ComputeLimit::balance(LOW_WITHOUT_CORES_PPM, 1),
        _ if is_whole && is_low => ComputeLimit::fixed(PPM_ONE),
        _ if cores == 0 || is_whole => ComputeLimit::NONE,
        Policy::Fixed => ComputeLimit::fixed(cores * CORE_PPM),
        Policy::Balance => ComputeLimit::balance(cores * CORE_PPM, cores),
    };
    if is_low { ComputeLimit { priority: Priority::Low, ..limit } } else { limit }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::Scaling;
    use dialects::registers::Hardware;
    use dialects::{Dialect, MemoryNeed};

    const GPU: Gpu = Gpu {
        id: GpuId::from_bytes([7; 16]),
        memory_mib: Some(8192),
        healthy: true,
        product: String::new(),
        hardware: Hardware {
            numa: None,
            bus_id: String::new(),
            capability: (0, 0),
            links: Vec::new(),
        },
    };

    fn pool(scaling: Scaling) -> Pool {
        Pool::new(vec![GPU], 10.try_into().unwrap(), 4.try_into().unwrap()).scaled(scaling)
    }

    fn counted(cores: u64, memory: u64) -> Result<Part, AmountError> {
        part(&Wish::Counted(Asked { cores, memory }), &GPU, &pool(Scaling::ONCE))
    }

    #[test]
    fn amounts_are_for_each_gpu_and_what_is_not_asked_for_is_free() {
        let of = |cores, memory| counted(cores, memory).unwrap().limits;
        let gib = Some(MemoryLimit::new(1 << 30));
        let ten = ComputeLimit::fixed(100_000);
        assert_eq!(of(10, 256), Limits { memory: gib, compute: ten });
        assert_eq!(of(0, 256), Limits { memory: gib, ..Limits::NONE });
        assert_eq!(of(10, 0), Limits { compute: ten, ..Limits::NONE });
        assert_eq!(of(0, 0), Limits::NONE);
        assert_eq!(of(100, 256).compute, ComputeLimit::fixed(1_000_000));
        assert_eq!(counted(10, 256).unwrap().share, Share { cores: 10, memory_mib: 1024 });
    }

    #[test]
    fn what_a_gpu_cannot_give_is_refused() {
        let said = |cores, memory| counted(cores, memory).unwrap_err().to_string();
        assert_eq!(said(101, 0), "101 cores of each of its GPUs are asked for; expected 1 to 100");
        assert!(said(0, 2049).ends_with("it has 8192"), "{}", said(0, 2049));
        assert!(said(u64::MAX, 0).contains("1 to 100"));
        let unknown = Gpu { memory_mib: None, ..GPU };
        for memory in [u64::MAX, u64::MAX >> 20] {
            let wish = Wish::Counted(Asked { cores: 0, memory });
            let refused = part(&wish, &unknown, &pool(Scaling::ONCE));
            assert!(matches!(refused, Err(AmountError::TooMuch { .. })), "{refused:?}");
        }
    }

    fn said(
        cores: u64,
        memory: MemoryNeed,
        policy: Policy,
        claims: Vec<Claim>,
        scaling: Scaling,
    ) -> Part {
        let (dialect, priority) = (Dialect::VgpuManager, Priority::High);
        let resource = "nvidia.com/vgpu-number";
        let need = Need { dialect, resource, places: 1, cores, memory, priority, milli_tflops: 0 };
        part(&Wish::Said { need, claims, policy }, &GPU, &pool(scaling)).unwrap()
    }

    #[test]
    fn who_lets_others_come_first_has_to_ask_for_time() {
        let of = |cores, policy| {
            let (dialect, priority) = (Dialect::Hami, Priority::Low);
            let need = Need {
                resource: "nvidia.com/vgpu-number",
                dialect,
                places: 1,
                cores,
                memory: MemoryNeed::Whole,
                priority,
                milli_tflops: 0,
            };
            let wish = Wish::Said { need, claims: vec![], policy };
            part(&wish, &GPU, &pool(Scaling::ONCE)).unwrap().limits.compute
        };
        let low = |limit| ComputeLimit { priority: Priority::Low, ..limit };
        assert_eq!(of(10, Policy::Fixed), low(ComputeLimit::fixed(100_000)));
        assert_eq!(of(10, Policy::Balance), low(ComputeLimit::balance(100_000, 10)));
        assert_eq!(of(0, Policy::Fixed), low(ComputeLimit::balance(20_000, 1)));
        assert_eq!(of(100, Policy::Balance), low(ComputeLimit::fixed(PPM_ONE)));
        assert_eq!(of(10, Policy::None), ComputeLimit::NONE);
    }

    #[test]
    fn a_pods_words_its_policy_and_its_schedulers_claim() {
        let units = MemoryNeed::Units(256);
        let of = |cores, memory, policy| said(cores, memory, policy, vec![], Scaling::ONCE);
        let part = of(10, units, Policy::Fixed);
        assert_eq!(part.limits.memory, Some(MemoryLimit::new(1 << 30)));
        assert_eq!(part.limits.compute, ComputeLimit::fixed(100_000));
        assert_eq!(
            of(10, units, Policy::Balance).limits.compute,
            ComputeLimit::balance(100_000, 10)
        );
        assert_eq!(of(10, units, Policy::None).limits.compute, ComputeLimit::NONE);
        assert_eq!(of(100, units, Policy::Fixed).limits.compute, ComputeLimit::NONE);
        let alone = of(0, MemoryNeed::Whole, Policy::Fixed);
        assert_eq!((alone.limits, alone.share), (Limits::NONE, alone.total));
        let claims = vec![Claim { index: 0, gpu: GPU.id, cores: 20, memory_mib: 512 }];
        let part = said(10, units, Policy::Fixed, claims, Scaling::ONCE);
        assert_eq!(part.share, Share { cores: 20, memory_mib: 512 });
    }

    #[test]
    fn what_is_promised_more_than_once_is_partly_on_the_host() {
        let scaling = Scaling { cores: 100, memory: 200 };
        let part = said(0, MemoryNeed::Units(256), Policy::Fixed, vec![], scaling);
        assert_eq!(part.limits.memory, Some(MemoryLimit { limit: 1 << 30, real: Some(1 << 29) }));
        assert_eq!(part.total.memory_mib, 16_384);
        let all = said(1, MemoryNeed::Whole, Policy::Fixed, vec![], scaling).limits.memory.unwrap();
        assert_eq!((all.limit, all.real), (16 << 30, Some(8 << 30)));
    }
}
