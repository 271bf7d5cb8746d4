//! What a container may take of each of its GPUs, as VGPU-Manager means what the container asked for: cores and memory
//! are for each GPU. Pure.
//!
//! Cores alone leave the memory free, memory alone leaves the time free, and a place alone leaves both.

use std::num::NonZeroU32;

use limits::{ComputeLimit, GpuId, Limits, MemoryLimit};

use crate::identity::Asked;
use crate::pool::Gpu;

/// Cores of a GPU.
const CORES: u64 = 100;
/// A hundredth of a GPU's time, in millionths.
const CORE_PPM: u32 = 10_000;
const MIB: u64 = 1 << 20;

/// What no GPU can give.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum AmountError {
    #[error("{asked} cores of each of its GPUs are asked for: 1 to {CORES} are accepted")]
    Cores { asked: u64 },
    #[error("{asked} MiB of {gpu} are asked for: it has {has}")]
    Memory { asked: u64, gpu: GpuId, has: u64 },
    #[error("{asked} units of {factor} MiB are more than can be counted")]
    TooMuch { asked: u64, factor: u32 },
}

/// The limits on a GPU.
pub(crate) fn limits(
    asked: Asked,
    gpu: &Gpu,
    memory_factor: NonZeroU32,
) -> Result<Limits, AmountError> {
    let memory = match asked.memory {
        0 => None,
        units => {
            let factor = memory_factor.get();
            let too_much = || AmountError::TooMuch { asked: units, factor };
            let mib = units.checked_mul(factor.into()).ok_or_else(too_much)?;
            if let Some(has) = gpu.memory_mib.filter(|has| mib > *has) {
                return Err(AmountError::Memory { asked: mib, gpu: gpu.id, has });
            }
            Some(MemoryLimit::new(mib.checked_mul(MIB).ok_or_else(too_much)?))
        }
    };
    let compute = match u32::try_from(asked.cores) {
        Ok(0) => ComputeLimit::NONE,
        Ok(cores) if asked.cores <= CORES => ComputeLimit::fixed(cores * CORE_PPM),
        _ => return Err(AmountError::Cores { asked: asked.cores }),
    };
    Ok(Limits { memory, compute })
}

#[cfg(test)]
mod tests {
    use super::*;

    const GPU: Gpu = Gpu { id: GpuId::from_bytes([7; 16]), memory_mib: Some(8192), healthy: true };
    const FACTOR: NonZeroU32 = NonZeroU32::new(4).unwrap();

    #[test]
    fn amounts_are_for_each_gpu_and_what_is_not_asked_for_is_free() {
        let of = |cores, memory| limits(Asked { cores, memory }, &GPU, FACTOR).unwrap();
        let gib = Some(MemoryLimit::new(1 << 30));
        let ten = ComputeLimit::fixed(100_000);
        assert_eq!(of(10, 256), Limits { memory: gib, compute: ten });
        assert_eq!(of(0, 256), Limits { memory: gib, ..Limits::NONE });
        assert_eq!(of(10, 0), Limits { compute: ten, ..Limits::NONE });
        assert_eq!(of(0, 0), Limits::NONE);
        assert_eq!(of(100, 2048).compute, ComputeLimit::fixed(1_000_000));
    }

    #[test]
    fn what_a_gpu_cannot_give_is_refused() {
        let said = |cores, memory| {
            let asked = Asked { cores, memory };
            limits(asked, &GPU, FACTOR).unwrap_err().to_string()
        };
        assert_eq!(
            said(101, 0),
            "101 cores of each of its GPUs are asked for: 1 to 100 are accepted"
        );
        assert!(said(0, 2049).ends_with("it has 8192"), "{}", said(0, 2049));
        assert!(said(u64::MAX, 0).contains("1 to 100"));
        let unknown = Gpu { memory_mib: None, ..GPU };
        for memory in [u64::MAX, u64::MAX >> 20] {
            let asked = Asked { cores: 0, memory };
            assert!(matches!(limits(asked, &unknown, FACTOR), Err(AmountError::TooMuch { .. })));
        }
    }
}
