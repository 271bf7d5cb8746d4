//! What a container asks for, and what that is on a GPU, as each dialect means it.

use core::num::NonZeroU32;

use limits::Priority;
use serde::{Deserialize, Serialize};

use crate::CORES;
use crate::quantity::{QuantityError, whole};
use crate::table::{Dialect, WORDS, Word};
use crate::vgpu_rs::{self, AmountError};

const MIB: u64 = 1 << 20;

/// What a container asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Need {
    /// In whose words.
    pub dialect: Dialect,
    /// By which resource.
    pub resource: &'static str,
    /// On how many GPUs, each another one. Of vgpu.rs: the number by which its pod is known, among those of its resource.
    pub places: u64,
    /// How much of each one's time, in hundredths. 0: not said.
    pub cores: u64,
    /// How much of each one's memory.
    pub memory: MemoryNeed,
    /// Whether others come first.
    pub priority: Priority,
    /// How many thousandths of a TFLOPS of each one. 0: not said.
    pub milli_tflops: u64,
}

/// How much memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryNeed {
    /// Not said: all of it.
    Whole,
    /// So many units of the memory factor.
    Units(u64),
    /// So many hundredths of the GPU's.
    Percent(u64),
    /// So many MiB, whatever the memory factor is.
    Mib(u64),
}

/// A part of a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Share {
    /// Hundredths of its time that nobody else may be promised. 0: none.
    pub cores: u64,
    /// Its memory.
    pub memory_mib: u64,
}

/// What cannot be asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NeedError {
    /// A number that is none.
    #[error("{name}: {source}")]
    Quantity {
        /// The resource.
        name: &'static str,
        /// Why.
        source: QuantityError,
    },
    /// An amount that is none.
    #[error("the annotation {name}: {source}")]
    Amount {
        /// The annotation.
        name: &'static str,
        /// Why.
        source: AmountError,
    },
    /// Names of two dialects in one container.
    #[error("{0} and {1} are asked for in one container; expected the names of one dialect")]
    TwoDialects(&'static str, &'static str),
    /// More of a GPU's time than it has.
    #[error("{name}: {asked} cores of each of its GPUs are asked for; expected 1 to {CORES}")]
    Cores {
        /// The resource.
        name: &'static str,
        /// How many.
        asked: u64,
    },
    /// More of a GPU's memory than it has.
    #[error("{name}: {asked} percent of each GPU's memory are asked for; expected 1 to 100")]
    Percent {
        /// The resource.
        name: &'static str,
        /// How many.
        asked: u64,
    },
    /// No such priority.
    #[error("{name}: {asked} is no priority; expected 0 (high) or 1 (low)")]
    Priority {
        /// The resource.
        name: &'static str,
        /// What is asked for.
        asked: u64,
    },
    /// A name that is none.
    #[error("the annotation {name}: {text:?}; expected {expected}")]
    Name {
        /// The annotation.
        name: &'static str,
        /// What it says.
        text: String,
        /// What it may say.
        expected: &'static str,
    },
    /// Only hardware could keep it apart in this way.
    #[error(
        "the annotation {name}: partitioned: GPUs are not partitioned by their hardware (MIG) here; expected shared, soft or hard"
    )]
    Partitioned {
        /// The annotation.
        name: &'static str,
    },
    /// It cannot be counted.
    #[error("{asked} units of {factor} MiB are more than can be counted")]
    TooMuch {
        /// How many units.
        asked: u64,
        /// How many MiB is one.
        factor: u32,
    },
}

impl Need {
    /// What a container asks for whose words have these values, in its `resources` or in its pod's annotations. `None`:
    /// no GPU, in any of these dialects.
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
                // vgpu.rs takes an empty one for none.
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
                // Its scheduler takes it for a whole GPU.
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

    /// What that is on a GPU with so much memory, and so many thousandths of a TFLOPS, if that is known.
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
        // VGPU-Manager: a container that only counts GPUs has them for itself.
        let alone = says_nothing && self.dialect == Dialect::VgpuManager;
        let cores = match self.dialect {
            Dialect::VgpuRs if self.cores == 0 => vgpu_rs::cores(self.milli_tflops, milli_tflops),
            _ if alone => CORES,
            _ => self.cores,
        };
        Ok(Share { cores, memory_mib })
    }
}

/// How many of which resource are asked for. `None`: none.
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

/// vgpu.rs: who comes first. What is promised is held for everybody, so that only the lowest has less than the others.
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

/// vgpu.rs: limits hold for each of them, and memory is nobody else's. Nothing of it is a part of the hardware.
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

    /// The table of docs/kubernetes-contracts.md.
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
        // TFLOPS come before a percentage, and what its scheduler has computed before both.
        let percent = ("tensor-fusion.ai/compute-percent-limit", "12.5");
        assert_eq!(on(&[vgpu_rs, percent]), (13, 8000));
        assert_eq!(on(&[vgpu_rs, percent, tflops]), (25, 8000));
        let effective = |text| ("tensor-fusion.ai/effective-hard-sm-percent", text);
        assert_eq!(on(&[vgpu_rs, percent, tflops, effective("15")]), (15, 8000));
        assert_eq!(on(&[vgpu_rs, percent, tflops, effective("100")]), (0, 8000));
        let unknown = need(&[vgpu_rs, tflops]).unwrap().unwrap();
        assert_eq!(unknown.on(8000, None, FACTOR).unwrap().cores, 0);
        // Both: HAMi takes MiB, Volcano percent.
        assert_eq!(
            on(&[hami, ("nvidia.com/gpumem", "10"), ("nvidia.com/gpumem-percentage", "50")]),
            (0, 40)
        );
        let both = [("volcano.sh/vgpu-memory", "10"), ("volcano.sh/vgpu-memory-percentage", "50")];
        assert_eq!(on(&[volcano, both[0], both[1]]), (0, 4000));
    }

    /// HAMi's: 0 is high, 1 is low.
    #[test]
    fn a_priority_is_high_unless_it_is_said_to_be_low() {
        let hami = ("nvidia.com/gpu", "1");
        let of = |words: &[_]| need(words).map(|need| need.unwrap().priority);
        assert_eq!(of(&[hami]), Ok(Priority::High));
        assert_eq!(of(&[hami, ("nvidia.com/priority", "0")]), Ok(Priority::High));
        assert_eq!(of(&[hami, ("nvidia.com/priority", "1")]), Ok(Priority::Low));
        let said = of(&[hami, ("nvidia.com/priority", "5")]).unwrap_err().to_string();
        assert_eq!(said, "nvidia.com/priority: 5 is no priority; expected 0 (high) or 1 (low)");
        // It is HAMi's word alone.
        let vgpu = ("nvidia.com/vgpu-number", "1");
        assert_eq!(of(&[vgpu, ("nvidia.com/priority", "1")]), Ok(Priority::High));
    }

    /// vgpu.rs: the values that its operator knows.
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
        // Of others these say nothing.
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
