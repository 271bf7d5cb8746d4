//! A container's request, and the share of a GPU that it means in each dialect.

use core::num::NonZeroU32;

use limits::Priority;
use serde::{Deserialize, Serialize};

use crate::CORES;
use crate::quantity::{QuantityError, whole};
use crate::table::{Dialect, WORDS, Word};
use crate::vgpu_rs::{self, AmountError};

const MIB: u64 = 1 << 20;

/// A container's request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Need {
    /// The dialect of its resource names.
    pub dialect: Dialect,
    /// The resource that counts its places.
    pub resource: &'static str,
    /// The number of GPUs, all different. For vgpu.rs: the index that identifies the pod, within its resource.
    pub places: u64,
    /// Percent of each GPU's compute. 0: not requested.
    pub cores: u64,
    /// Memory of each GPU.
    pub memory: MemoryNeed,
    /// The priority for compute.
    pub priority: Priority,
    /// Thousandths of a TFLOPS of each GPU. 0: not requested.
    pub milli_tflops: u64,
}

/// Requested memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryNeed {
    /// Not requested: all of it.
    Whole,
    /// Units of the memory factor.
    Units(u64),
    /// Percent of the GPU's memory.
    Percent(u64),
    /// MiB, independent of the memory factor.
    Mib(u64),
}

/// A share of a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Share {
    /// Percent of its compute, reserved. 0: nothing is reserved.
    pub cores: u64,
    /// Memory in MiB.
    pub memory_mib: u64,
}

/// Why a request is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NeedError {
    /// Not a number.
    #[error("{name}: {source}")]
    Quantity {
        /// The resource.
        name: &'static str,
        /// The reason.
        source: QuantityError,
    },
    /// Not an amount.
    #[error("the annotation {name}: {source}")]
    Amount {
        /// The annotation.
        name: &'static str,
        /// The reason.
        source: AmountError,
    },
    /// One container uses resource names of two dialects.
    #[error("{0} and {1} are asked for in one container; expected the names of one dialect")]
    TwoDialects(&'static str, &'static str),
    /// More compute than a GPU has.
    #[error("{name}: {asked} cores of each of its GPUs are asked for; expected 1 to {CORES}")]
    Cores {
        /// The resource.
        name: &'static str,
        /// The requested cores.
        asked: u64,
    },
    /// More memory than a GPU has.
    #[error("{name}: {asked} percent of each GPU's memory are asked for; expected 1 to 100")]
    Percent {
        /// The resource.
        name: &'static str,
        /// The requested percentage.
        asked: u64,
    },
    /// An unknown priority.
    #[error("{name}: {asked} is no priority; expected 0 (high) or 1 (low)")]
    Priority {
        /// The resource.
        name: &'static str,
        /// The requested priority.
        asked: u64,
    },
    /// An unknown name.
    #[error("the annotation {name}: {text:?}; expected {expected}")]
    Name {
        /// The annotation.
        name: &'static str,
        /// Its value.
        text: String,
        /// The accepted values.
        expected: &'static str,
    },
    /// A hardware partition (MIG) is requested, which does not exist here.
    #[error(
        "the annotation {name}: partitioned: GPUs are not partitioned by their hardware (MIG) here; expected shared, soft or hard"
    )]
    Partitioned {
        /// The annotation.
        name: &'static str,
    },
    /// The amount of memory overflows.
    #[error("{asked} units of {factor} MiB are more than can be counted")]
    TooMuch {
        /// The number of units.
        asked: u64,
        /// MiB per unit.
        factor: u32,
    },
}

impl Need {
    /// Reads a container's request. `value` returns the value of a name in the container's `resources` or in the pod's
    /// annotations. `None`: it requests no GPU in any of these dialects.
    ///
    /// # Errors
    /// [`NeedError`]
    pub fn of<'a>(
        dialects: &[Dialect],
        value: impl Fn(Word, &str) -> Option<&'a str>,
    ) -> Result<Option<Self>, NeedError> {
        let mut found: Option<(&'static str, Self)> = None;
        for dialect in dialects {
            let said = |wanted: Word| {
                let (.., name) =
                    WORDS.iter().find(|(of, word, _)| (of, *word) == (dialect, wanted))?;
                Some((name, value(wanted, name)?))
            };
            let amount = |wanted: Word, read: fn(&str) -> Result<u64, AmountError>| {
                // vgpu.rs treats an empty annotation as missing.
                let (name, text) = said(wanted).filter(|(_, text)| !text.trim().is_empty())?;
                Some(read(text).map_err(|source| NeedError::Amount { name, source }))
            };
            let read = |wanted: Word| {
                let (name, text) = said(wanted)?;
                let number = whole(text).map_err(|source| NeedError::Quantity { name, source });
                Some(number.map(|number| (*name, number)))
            };
            let Some((name, places)) = number(*dialect, &value)? else { continue };
            if let Some((before, _)) = found {
                return Err(NeedError::TwoDialects(before, name));
            }
            let cores = match read(Word::Cores).transpose()? {
                None => 0,
                Some((_, cores)) if cores <= CORES => cores,
                // HAMi's scheduler treats more as a whole GPU.
                Some(_) if *dialect == Dialect::Hami => CORES,
                Some((name, asked)) => return Err(NeedError::Cores { name, asked }),
            };
            let units = read(Word::Memory).transpose()?.filter(|(_, units)| *units > 0);
            let percent = read(Word::MemoryPercentage).transpose()?.filter(|(_, of)| *of > 0);
            let units = units.filter(|_| *dialect != Dialect::Volcano || percent.is_none());
            let size = amount(Word::MemorySize, vgpu_rs::bytes).transpose()?;
            let memory = match (units, percent) {
                _ if let Some(bytes) = size => MemoryNeed::Mib((bytes / MIB).max(1)),
                (Some((_, units)), _) => MemoryNeed::Units(units),
                (None, Some((_, percent))) if percent <= 100 => MemoryNeed::Percent(percent),
                (None, Some((name, asked))) => return Err(NeedError::Percent { name, asked }),
                (None, None) => MemoryNeed::Whole,
            };
            if let Some((name, text)) = said(Word::Isolation) {
                isolation(name, text)?;
            }
            let quality =
                said(Word::Quality).map(|(name, text)| quality(name, text)).transpose()?;
            let priority = match read(Word::Priority).transpose()? {
                None => quality.unwrap_or_default(),
                Some((_, 0)) => Priority::High,
                Some((_, 1)) => Priority::Low,
                Some((name, asked)) => return Err(NeedError::Priority { name, asked }),
            };
            let milli_tflops = amount(Word::Tflops, vgpu_rs::milli_tflops).transpose()?;
            let percent = |word| amount(word, vgpu_rs::milli_percent).transpose();
            let effective = percent(Word::EffectivePercentage)?;
            let percent = percent(Word::ComputePercentage)?.filter(|_| milli_tflops.is_none());
            let milli_tflops = milli_tflops.filter(|_| effective.is_none()).unwrap_or_default();
            let percent = effective.or(percent);
            let cores = percent.map_or(cores, |limit| vgpu_rs::cores(limit, Some(vgpu_rs::WHOLE)));
            let (dialect, resource) = (*dialect, name);
            let need = Self { dialect, resource, places, cores, memory, priority, milli_tflops };
            found = Some((name, need));
        }
        Ok(found.map(|(_, need)| need))
    }

    /// The share of a GPU with this memory (MiB) and speed (thousandths of a TFLOPS, if known).
    ///
    /// # Errors
    /// [`NeedError::TooMuch`]
    pub fn on(
        &self,
        gpu_mib: u64,
        milli_tflops: Option<u64>,
        factor: NonZeroU32,
    ) -> Result<Share, NeedError> {
        let memory_mib = match self.memory {
            MemoryNeed::Whole => gpu_mib,
            MemoryNeed::Mib(mib) => mib,
            MemoryNeed::Percent(percent) => {
                let unit = self.dialect.text_unit(factor);
                let units = u128::from(gpu_mib / unit) * u128::from(percent) / 100;
                u64::try_from(units).map_or(gpu_mib, |units| units.max(1) * unit)
            }
            MemoryNeed::Units(asked) => {
                let factor = factor.get();
                let too_much = NeedError::TooMuch { asked, factor };
                asked.checked_mul(factor.into()).ok_or(too_much)?
            }
        };
        let says_nothing = self.cores == 0 && self.memory == MemoryNeed::Whole;
        // VGPU-Manager: a container that requests only a number of GPUs has them exclusively.
        let alone = says_nothing && self.dialect == Dialect::VgpuManager;
        let cores = match self.dialect {
            Dialect::VgpuRs if self.cores == 0 => vgpu_rs::cores(self.milli_tflops, milli_tflops),
            _ if alone => CORES,
            _ => self.cores,
        };
        Ok(Share { cores, memory_mib })
    }
}

/// The number of places, and the resource that counts them. `None`: none are requested.
fn number<'a>(
    dialect: Dialect,
    value: impl Fn(Word, &str) -> Option<&'a str>,
) -> Result<Option<(&'static str, u64)>, NeedError> {
    let names = WORDS.iter().filter(|(of, word, _)| (*of, *word) == (dialect, Word::Number));
    let mut found = None;
    for (_, word, name) in names {
        let Some(text) = value(*word, name) else { continue };
        match whole(text).map_err(|source| NeedError::Quantity { name, source })? {
            0 => {}
            places => match found {
                Some((before, _)) => return Err(NeedError::TwoDialects(before, name)),
                None => found = Some((*name, places)),
            },
        }
    }
    Ok(found)
}

/// vgpu.rs's QoS classes as priorities. Shares are reserved for all classes, so only the lowest is below the others.
fn quality(name: &'static str, text: &str) -> Result<Priority, NeedError> {
    match text.trim().to_ascii_lowercase().as_str() {
        "low" => Ok(Priority::Low),
        "" | "medium" | "high" | "critical" => Ok(Priority::High),
        _ => Err(NeedError::Name {
            name,
            text: text.chars().take(40).collect(),
            expected: "low, medium, high or critical",
        }),
    }
}

/// vgpu.rs's isolation modes: all but `partitioned` mean the limits that are enforced here.
fn isolation(name: &'static str, text: &str) -> Result<(), NeedError> {
    match text.trim().to_ascii_lowercase().as_str() {
        "" | "shared" | "soft" | "hard" => Ok(()),
        "partitioned" => Err(NeedError::Partitioned { name }),
        _ => Err(NeedError::Name {
            name,
            text: text.chars().take(40).collect(),
            expected: "shared, soft or hard",
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FACTOR: NonZeroU32 = NonZeroU32::new(4).unwrap();

    fn need(words: &[(&str, &str)]) -> Result<Option<Need>, NeedError> {
        let value =
            |_, name: &str| words.iter().find(|(known, _)| *known == name).map(|(_, text)| *text);
        Need::of(&Dialect::ALL, value)
    }

    fn on(words: &[(&str, &str)]) -> (u64, u64) {
        let share = need(words).unwrap().unwrap().on(8000, Some(100_000), FACTOR).unwrap();
        (share.cores, share.memory_mib)
    }

    #[test]
    fn what_is_not_said_means_what_each_original_means() {
        let vgpu = ("nvidia.com/vgpu-number", "2");
        assert_eq!(on(&[vgpu]), (100, 8000));
        assert_eq!(on(&[vgpu, ("nvidia.com/vgpu-cores", "10")]), (10, 8000));
        assert_eq!(on(&[vgpu, ("nvidia.com/vgpu-memory", "1k")]), (0, 4000));
        let volcano = ("volcano.sh/vgpu-number", "1");
        assert_eq!(on(&[volcano]), (0, 8000));
        assert_eq!(on(&[volcano, ("volcano.sh/vgpu-memory-percentage", "25")]), (0, 2000));
        // Whole units of 4 MiB.
        assert_eq!(on(&[volcano, ("volcano.sh/vgpu-memory-percentage", "33")]), (0, 2640));
        let third = need(&[volcano, ("volcano.sh/vgpu-memory-percentage", "33")]).unwrap().unwrap();
        assert_eq!(third.on(8003, None, FACTOR).unwrap().memory_mib, 2640);
        assert_eq!(
            on(&[volcano, ("volcano.sh/vgpu-memory", "500"), ("volcano.sh/vgpu-cores", "50")]),
            (50, 2000)
        );
        let hami = ("nvidia.com/gpu", "1");
        assert_eq!(on(&[hami]), (0, 8000));
        assert_eq!(
            on(&[hami, ("nvidia.com/gpucores", "120"), ("nvidia.com/gpumem-percentage", "50")]),
            (100, 4000)
        );
        let vgpu_rs = ("tensor-fusion.ai/index", "37");
        assert_eq!(on(&[vgpu_rs]), (0, 8000));
        let tflops = ("tensor-fusion.ai/tflops-limit", "25");
        assert_eq!(on(&[vgpu_rs, tflops, ("tensor-fusion.ai/vram-limit", "2Gi")]), (25, 2048));
        // TFLOPS win over a percentage, and the value computed by vgpu.rs's scheduler wins over both.
        let percent = ("tensor-fusion.ai/compute-percent-limit", "12.5");
        assert_eq!(on(&[vgpu_rs, percent]), (13, 8000));
        assert_eq!(on(&[vgpu_rs, percent, tflops]), (25, 8000));
        let effective = |text| ("tensor-fusion.ai/effective-hard-sm-percent", text);
        assert_eq!(on(&[vgpu_rs, percent, tflops, effective("15")]), (15, 8000));
        assert_eq!(on(&[vgpu_rs, percent, tflops, effective("100")]), (0, 8000));
        let unknown = need(&[vgpu_rs, tflops]).unwrap().unwrap();
        assert_eq!(unknown.on(8000, None, FACTOR).unwrap().cores, 0);
        // If both are given, HAMi takes MiB and Volcano percent.
        assert_eq!(
            on(&[hami, ("nvidia.com/gpumem", "10"), ("nvidia.com/gpumem-percentage", "50")]),
            (0, 40)
        );
        let both = [("volcano.sh/vgpu-memory", "10"), ("volcano.sh/vgpu-memory-percentage", "50")];
        assert_eq!(on(&[volcano, both[0], both[1]]), (0, 4000));
    }

    /// HAMi: 0 is high, 1 is low.
    #[test]
    fn a_priority_is_high_unless_it_is_said_to_be_low() {
        let hami = ("nvidia.com/gpu", "1");
        let of = |words: &[_]| need(words).map(|need| need.unwrap().priority);
        assert_eq!(of(&[hami]), Ok(Priority::High));
        assert_eq!(of(&[hami, ("nvidia.com/priority", "0")]), Ok(Priority::High));
        assert_eq!(of(&[hami, ("nvidia.com/priority", "1")]), Ok(Priority::Low));
        let said = of(&[hami, ("nvidia.com/priority", "5")]).unwrap_err().to_string();
        assert_eq!(said, "nvidia.com/priority: 5 is no priority; expected 0 (high) or 1 (low)");
        // Other dialects ignore HAMi's priority.
        let vgpu = ("nvidia.com/vgpu-number", "1");
        assert_eq!(of(&[vgpu, ("nvidia.com/priority", "1")]), Ok(Priority::High));
    }

    /// vgpu.rs: the values that its operator accepts.
    #[test]
    fn quality_and_isolation_are_followed_or_refused() {
        let index = ("tensor-fusion.ai/index_4", "8");
        let found = need(&[index]).unwrap().unwrap();
        assert_eq!((found.resource, found.places), (index.0, 8));
        let of = |name, text| need(&[index, (name, text)]).map(|need| need.unwrap().priority);
        let qos = "tensor-fusion.ai/qos";
        for (text, priority) in [
            ("Low", Priority::Low),
            ("medium", Priority::High),
            ("high", Priority::High),
            ("critical", Priority::High),
            ("", Priority::High),
        ] {
            assert_eq!(of(qos, text), Ok(priority), "{text}");
        }
        let said = of(qos, "best").unwrap_err().to_string();
        assert!(said.contains("\"best\"; expected low, medium, high or critical"), "{said}");
        let isolation = "tensor-fusion.ai/isolation";
        for text in ["shared", "soft", "Hard", ""] {
            assert_eq!(of(isolation, text), Ok(Priority::High), "{text}");
        }
        let said = of(isolation, "partitioned").unwrap_err().to_string();
        assert!(said.contains("not partitioned by their hardware"), "{said}");
        assert!(
            of(isolation, "none")
                .unwrap_err()
                .to_string()
                .ends_with("expected shared, soft or hard")
        );
        let two = need(&[index, ("tensor-fusion.ai/index", "3")]).unwrap_err().to_string();
        assert!(two.contains("are asked for in one container"), "{two}");
        // Other dialects ignore vgpu.rs's annotations.
        let hami = need(&[("nvidia.com/gpu", "1"), (qos, "low")]).unwrap().unwrap();
        assert_eq!((hami.priority, hami.resource), (Priority::High, "nvidia.com/gpu"));
    }

    #[test]
    fn what_cannot_be_asked_for_is_said() {
        assert_eq!(need(&[("cpu", "1")]), Ok(None));
        assert_eq!(
            need(&[("nvidia.com/vgpu-number", "0"), ("nvidia.com/vgpu-cores", "300")]),
            Ok(None)
        );
        let said = |words: &[(&str, &str)]| need(words).unwrap_err().to_string();
        let vgpu = ("nvidia.com/vgpu-number", "1");
        assert_eq!(
            said(&[vgpu, ("nvidia.com/vgpu-cores", "101")]),
            "nvidia.com/vgpu-cores: 101 cores of each of its GPUs are asked for; expected 1 to 100"
        );
        assert!(
            said(&[vgpu, ("nvidia.com/gpu", "1")]).contains("; expected the names of one dialect")
        );
        assert!(
            said(&[vgpu, ("nvidia.com/vgpu-memory", "100m")])
                .starts_with("nvidia.com/vgpu-memory: \"100m\"")
        );
        let volcano = ("volcano.sh/vgpu-number", "1");
        assert!(
            said(&[volcano, ("volcano.sh/vgpu-memory-percentage", "101")]).contains("1 to 100")
        );
        let vgpu_rs = ("tensor-fusion.ai/index", "37");
        assert!(
            said(&[vgpu_rs, ("tensor-fusion.ai/vram-limit", "much")])
                .starts_with("the annotation tensor-fusion.ai/vram-limit: \"much\" is no amount")
        );
        let percent = said(&[vgpu_rs, ("tensor-fusion.ai/compute-percent-limit", "half")]);
        assert!(percent.ends_with("; expected a percentage such as 25, 12.5 or 12500m, above 0"));
        assert!(said(&[vgpu_rs, ("nvidia.com/gpu", "1")]).contains("of one dialect"));
        let huge =
            need(&[vgpu, ("nvidia.com/vgpu-memory", "16000000000000000000")]).unwrap().unwrap();
        assert!(matches!(huge.on(8000, None, FACTOR), Err(NeedError::TooMuch { .. })));
    }
}
