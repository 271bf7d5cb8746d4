//! Parses the pod annotation that changes limits at run time. Pure.

use std::collections::BTreeMap;

use dialects::{CORES, Claim, Share};
use limits::GpuId;
use limits::units::{parse_size, parse_whole};

use crate::amounts::{AmountError, Part, Wish, part};
use crate::pool::{Gpu, Pool};

pub(crate) const LIMITS: &str = "sluice.dev/limits";
const MIB: u64 = 1 << 20;
/// How many characters of an invalid text are quoted.
const SHOWN: usize = 60;

/// New amounts in place of those that the pod requested. `None`: unchanged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Change {
    pub(crate) cores: Option<u64>,
    pub(crate) memory_mib: Option<u64>,
}

/// Why the annotation is not applied.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ChangeError {
    #[error("{0:?} is no limit; expected cores=20, memory=2GiB or both with a comma between")]
    NoLimit(String),
    #[error("cores={0}; expected 1 to {CORES}")]
    Cores(String),
    #[error("memory={0}; expected a size in whole MiB, such as 2GiB or 1536MiB")]
    Memory(String),
    #[error("{name}={value:?}: it stands there twice")]
    Twice { name: &'static str, value: String },
    #[error("{name:?} is no container of the pod with a GPU; expected {known}")]
    NoContainer { name: String, known: String },
    #[error("the container {0} is named twice")]
    ContainerTwice(String),
    #[error(
        "it does not say for which container; expected {0}:cores=20 for each of them, with ; between"
    )]
    NoName(String),
}

/// The changes by container name. `own`: the pod's containers that have GPUs.
pub(crate) fn changes(text: &str, own: &[&str]) -> Result<BTreeMap<String, Change>, ChangeError> {
    let mut all = BTreeMap::new();
    for entry in text.split(';').map(str::trim).filter(|entry| !entry.is_empty()) {
        let (name, words) = match (entry.split_once(':'), own) {
            (Some((name, words)), _) => (name.trim(), words),
            (None, [only]) => (*only, entry),
            (None, _) => return Err(ChangeError::NoName(own.first().map_or("NAME", |n| n).into())),
        };
        if !own.contains(&name) {
            let known = own.join(" and ");
            return Err(ChangeError::NoContainer { name: shortened(name), known });
        }
        if all.insert(name.to_owned(), change(words)?).is_some() {
            return Err(ChangeError::ContainerTwice(name.to_owned()));
        }
    }
    Ok(all)
}

fn change(words: &str) -> Result<Change, ChangeError> {
    let mut change = Change::default();
    for word in words.split(',') {
        let none = || ChangeError::NoLimit(shortened(word.trim()));
        let (name, value) = word.split_once('=').ok_or_else(none)?;
        let value = value.trim();
        let (name, place, amount) = match name.trim() {
            "cores" => ("cores", &mut change.cores, cores(value)?),
            "memory" => ("memory", &mut change.memory_mib, mib(value)?),
            _ => return Err(none()),
        };
        if place.replace(amount).is_some() {
            return Err(ChangeError::Twice { name, value: shortened(value) });
        }
    }
    Ok(change)
}

fn cores(text: &str) -> Result<u64, ChangeError> {
    let number = parse_whole(text).map(u64::from).filter(|cores| (1..=CORES).contains(cores));
    number.ok_or_else(|| ChangeError::Cores(shortened(text)))
}

fn mib(text: &str) -> Result<u64, ChangeError> {
    let bytes = parse_size(text).ok().filter(|bytes| *bytes > 0 && bytes.is_multiple_of(MIB));
    bytes.map(|bytes| bytes / MIB).ok_or_else(|| ChangeError::Memory(shortened(text)))
}

fn shortened(text: &str) -> String {
    text.chars().take(SHOWN).collect()
}

/// A container's parts: what its pod requested, with the change applied.
pub(crate) fn parts(
    wish: &Wish,
    change: Change,
    gpus: &[&Gpu],
    pool: &Pool,
) -> Result<Vec<Part>, AmountError> {
    let one = |gpu: &&Gpu| {
        let asked = part(wish, gpu, pool)?;
        let (Wish::Said { need, policy, .. }, true) = (wish, change != Change::default()) else {
            return Ok(asked);
        };
        let claim = Claim {
            index: 0,
            gpu: gpu.id,
            cores: change.cores.unwrap_or(asked.share.cores),
            memory_mib: change.memory_mib.unwrap_or(asked.share.memory_mib),
        };
        let claims = vec![claim];
        part(&Wish::Said { need: *need, claims, policy: *policy }, gpu, pool)
    };
    gpus.iter().map(one).collect()
}

/// Describes the change of a GPU's share, in words. Empty if nothing changes.
pub(crate) fn told(gpu: GpuId, before: Share, after: Share) -> String {
    let mut changes = Vec::new();
    let cores = |cores: u64| if cores == 0 { "no limit".to_owned() } else { cores.to_string() };
    if before.cores != after.cores {
        changes.push(format!("cores {} -> {}", cores(before.cores), cores(after.cores)));
    }
    if before.memory_mib != after.memory_mib {
        let (before, after) = (before.memory_mib, after.memory_mib);
        changes.push(format!("memory {before} MiB -> {after} MiB"));
    }
    if changes.is_empty() { String::new() } else { format!("{gpu}: {}", changes.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dialects::registers::Hardware;
    use dialects::{Dialect, MemoryNeed, Need};
    use limits::{ComputeLimit, MemoryLimit, Policy, Priority};

    type Said = Vec<(String, Option<u64>, Option<u64>)>;

    fn said(text: &str, own: &[&str]) -> Result<Said, String> {
        let all = changes(text, own).map_err(|error| error.to_string())?;
        Ok(all.into_iter().map(|(name, change)| (name, change.cores, change.memory_mib)).collect())
    }

    #[test]
    fn one_container_needs_no_name_and_several_do() {
        let one = |cores, memory| Ok(vec![("main".to_owned(), cores, memory)]);
        assert_eq!(said("cores=20", &["main"]), one(Some(20), None));
        assert_eq!(said(" memory = 2GiB , cores=5 ", &["main"]), one(Some(5), Some(2048)));
        assert_eq!(said("main:memory=1536Mi;", &["main"]), one(None, Some(1536)));
        assert_eq!(said("", &["main", "side"]), Ok(vec![]));
        let both = said("side:cores=5; main:memory=1GiB", &["main", "side"]).unwrap();
        assert_eq!(
            both,
            [("main".to_owned(), None, Some(1024)), ("side".to_owned(), Some(5), None)]
        );
    }

    #[test]
    fn what_cannot_be_followed_is_said_with_what_can() {
        for (text, words) in [
            ("cores=0", "cores=0; expected 1 to 100"),
            ("cores=101", "1 to 100"),
            ("cores=", "1 to 100"),
            ("memory=0", "a size in whole MiB"),
            ("memory=1.5KiB", "a size in whole MiB"),
            ("memory=99999999999999999999T", "a size in whole MiB"),
            ("core=5", "\"core=5\" is no limit"),
            ("20", "is no limit"),
            ("cores=5,", "\"\" is no limit"),
            ("cores=5,cores=6", "it stands there twice"),
            ("other:cores=5", "\"other\" is no container of the pod with a GPU; expected main"),
            ("main:cores=5;main:cores=6", "the container main is named twice"),
        ] {
            let said = said(text, &["main"]).unwrap_err();
            assert!(said.contains(words), "{text}: {said}");
        }
        let several = said("cores=5", &["main", "side"]).unwrap_err();
        assert!(several.contains("for which container") && several.contains("main:cores=20"));
        let long = said(&"x".repeat(100_000), &["main"]).unwrap_err();
        assert!(long.len() < 300, "{}", long.len());
    }

    #[test]
    fn what_is_not_changed_is_as_the_pod_asked_for() {
        let gpu = Gpu {
            id: GpuId::from_bytes([7; 16]),
            memory_mib: Some(8192),
            healthy: true,
            product: String::new(),
            hardware: Hardware::default(),
        };
        let pool = Pool::new(vec![gpu.clone()], 4.try_into().unwrap(), 1.try_into().unwrap());
        let memory = MemoryNeed::Units(1024);
        let (dialect, priority) = (Dialect::VgpuManager, Priority::High);
        let resource = "nvidia.com/vgpu-number";
        let need =
            Need { dialect, resource, places: 1, cores: 10, memory, priority, milli_tflops: 0 };
        let wish = Wish::Said { need, claims: vec![], policy: Policy::Fixed };
        let of = |cores, memory_mib| {
            let change = Change { cores, memory_mib };
            parts(&wish, change, &[&gpu], &pool).map(|parts| parts[0])
        };
        let more = of(Some(20), None).unwrap();
        assert_eq!(more.share, Share { cores: 20, memory_mib: 1024 });
        assert_eq!(more.limits.compute, ComputeLimit::fixed(200_000));
        let memory = of(None, Some(2048)).unwrap();
        assert_eq!(memory.limits.memory, Some(MemoryLimit::new(2 << 30)));
        assert_eq!(memory.share.cores, 10);
        let back = of(None, None).unwrap();
        assert_eq!(back.share, Share { cores: 10, memory_mib: 1024 });
        assert!(matches!(of(None, Some(9000)), Err(AmountError::Memory { has: 8192, .. })));
        let words = told(gpu.id, back.share, Share { cores: 20, memory_mib: 2048 });
        assert!(words.ends_with(": cores 10 -> 20, memory 1024 MiB -> 2048 MiB"), "{words}");
        assert_eq!(told(gpu.id, back.share, back.share), "");
    }
}
