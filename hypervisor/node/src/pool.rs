//! The pool of GPUs that all resources share, and its ids. No I/O and no clock.
//!
//! An id belongs to a GPU and counts one thing on it: `GPU-…::3` is a place, `GPU-…::c3` a core, `GPU-…::m3` a memory
//! unit; index ids such as `GPU-…::i3` and `GPU-…::i15-3` count nothing. The kubelet gives an id to one container at a
//! time, so the hash of a container's ids names its allocation.

use core::fmt;
use core::num::NonZeroU32;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use dialects::registers::Hardware;
use dialects::vgpu_rs::GpuInfo;
use limits::GpuId;
use sha2::{Digest, Sha256};

use dialects::{CORES, Claim, Counts, Links, Registered, Resource, Share};
use placement::{Account, Recipient, TooFewGpus};

/// The longest message that the kubelet accepts, in bytes.
const MOST_MESSAGE: u64 = 4 << 20;
/// Index ids per GPU. Pods of vgpu.rs request 1 to 512 of them.
const INDICES: u64 = 2048;
/// Index ids per GPU of one of the sixteen parts: enough for eight pods that request 1 to 8 of them.
const INDICES_OF_PART: u64 = 36;
/// Bytes of a device in such a message beside its id: health, tags and lengths.
const BESIDE_ID: u64 = 16;

/// A GPU that is offered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// Its UUID.
    pub id: GpuId,
    /// Its memory. `None`: the driver does not tell.
    pub memory_mib: Option<u64>,
    /// Whether it may be given out.
    pub healthy: bool,
    /// What it is called.
    pub product: String,
    /// What schedulers may go by.
    pub hardware: Hardware,
}

/// The id of one place, core, memory unit or index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct UnitId {
    /// The GPU it belongs to.
    pub gpu: GpuId,
    counts: Counts,
    number: u64,
}

impl UnitId {
    /// Parses an id.
    pub(crate) fn read(text: &str) -> Option<Self> {
        let (gpu, rest) = text.split_once("::")?;
        let (counts, digits) = match rest.as_bytes().first()? {
            b'c' => (Counts::Cores, &rest[1..]),
            b'm' => (Counts::Memory, &rest[1..]),
            b'i' => match rest[1..].split_once('-') {
                Some((part, digits)) => (Counts::IndexPart(part.parse().ok()?), digits),
                None => (Counts::Index, &rest[1..]),
            },
            _ => (Counts::Places, rest),
        };
        let id = Self { gpu: gpu.parse().ok()?, counts, number: digits.parse().ok()? };
        // Only the canonical form is accepted, since an allocation's key is a hash of the texts.
        (id.to_string() == text).then_some(id)
    }
}

impl UnitId {
    /// Formats the id, given its GPU's text.
    pub(crate) fn written(self, gpu: &str) -> String {
        let number = self.number;
        match self.counts {
            Counts::Places => format!("{gpu}::{number}"),
            Counts::Cores => format!("{gpu}::c{number}"),
            Counts::Memory => format!("{gpu}::m{number}"),
            Counts::Index => format!("{gpu}::i{number}"),
            Counts::IndexPart(part) => format!("{gpu}::i{part}-{number}"),
        }
    }
}

impl fmt::Display for UnitId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.written(&self.gpu.to_string()))
    }
}

/// The key of an allocation: a hash of its ids.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AllocationKey(String);

impl AllocationKey {
    /// The key of these ids, in any order.
    fn of(ids: &BTreeSet<UnitId>) -> Self {
        let mut written: Vec<String> = ids.iter().map(UnitId::to_string).collect();
        written.sort_unstable();
        Self::of_lines(&written)
    }

    /// The key of an allocation without ids of a kubelet, from the lines that identify it.
    pub(crate) fn of_lines(lines: &[impl AsRef<[u8]>]) -> Self {
        let mut hash = Sha256::new();
        for line in lines {
            hash.update(line);
            hash.update(b"\n");
        }
        Self(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// Parses a key.
    pub(crate) fn named(name: &str) -> Option<Self> {
        let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        (name.len() == 64 && name.bytes().all(is_digit)).then(|| Self(name.to_owned()))
    }

    /// 64 hexadecimal digits.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The GPUs of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// Its key.
    pub key: AllocationKey,
    /// Its ids.
    pub ids: BTreeSet<UnitId>,
    /// Its GPUs, in the node's order.
    pub gpus: Vec<GpuId>,
}

/// What cannot be offered or allocated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PoolError {
    /// The memory unit is too small: too many ids.
    #[error(
        "{resource}: {ids} ids are more than a kubelet takes in one message; expected a --memory-factor of at least {factor}"
    )]
    UnitsTooSmall {
        /// The resource.
        resource: &'static str,
        /// How many there would be.
        ids: u64,
        /// With how many MiB in one they fit.
        factor: u64,
    },
    /// A GPU would be split into too many places.
    #[error(
        "{resource}: {ids} ids are more than a kubelet takes in one message; expected a --device-split of at most {split}"
    )]
    SplitTooFine {
        /// The resource.
        resource: &'static str,
        /// How many there would be.
        ids: u64,
        /// How many fit for each GPU.
        split: u64,
    },
    /// An id that is not offered.
    #[error("{id:?} is no id of {resource} on this node")]
    UnknownId {
        /// The id, shortened.
        id: String,
        /// The resource.
        resource: &'static str,
    },
    /// The GPU has a fault.
    #[error("{0} is not healthy")]
    Unhealthy(GpuId),
    /// The GPU is out of service for new containers.
    #[error("{0} is cordoned")]
    Cordoned(GpuId),
    /// The request has no ids.
    #[error("no ids")]
    NoIds,
    /// An id occurs twice.
    #[error("{0} is named twice")]
    Twice(UnitId),
    /// A container would have two parts of one GPU.
    #[error(
        "two ids are of {0}: each part of a GPU that a container asks for has to be on a GPU of its own"
    )]
    SameGpu(GpuId),
    /// The number of ids does not fit the claimed GPUs: each needs at least one.
    #[error(
        "{asked} of {resource} requested; expected {gpus} to {free}, the ids left on its {gpus} GPUs"
    )]
    Indices {
        /// The number of requested ids.
        asked: usize,
        /// The resource.
        resource: &'static str,
        /// On how many GPUs.
        gpus: usize,
        /// How many these have left.
        free: usize,
    },
    /// There are not so many GPUs with room.
    #[error("{resource}: {source}")]
    TooFewGpus {
        /// The resource.
        resource: &'static str,
        /// How many there are.
        source: TooFewGpus,
    },
}

/// The node's GPUs, and how they are split.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pool {
    /// In the driver's order.
    gpus: Vec<Gpu>,
    split: NonZeroU32,
    memory_factor: NonZeroU32,
    scaling: Scaling,
    info: Arc<GpuInfo>,
    tells_topology: bool,
    cordoned: BTreeSet<GpuId>,
}

/// How far GPUs may be overcommitted, in percent of their capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scaling {
    /// Its time.
    pub cores: u32,
    /// Its memory. What does not fit is placed on the host.
    pub memory: u32,
}

impl Scaling {
    /// No overcommitment.
    pub const ONCE: Self = Self { cores: 100, memory: 100 };
}

impl Pool {
    /// A pool of these GPUs, each shared by `split` containers, with memory in units of `memory_factor` MiB.
    #[must_use]
    pub fn new(gpus: Vec<Gpu>, split: NonZeroU32, memory_factor: NonZeroU32) -> Self {
        let (scaling, info) = (Scaling::ONCE, Arc::default());
        let cordoned = BTreeSet::new();
        Self { gpus, split, memory_factor, scaling, info, tells_topology: false, cordoned }
    }

    /// Takes GPUs out of service for new containers. Containers that have them keep them.
    #[must_use]
    pub fn cordoned(self, cordoned: BTreeSet<GpuId>) -> Self {
        Self { cordoned, ..self }
    }

    pub(crate) fn is_offered(&self, gpu: &Gpu) -> bool {
        gpu.healthy && !self.cordoned.contains(&gpu.id)
    }

    /// Sets whether kubelets and schedulers are told how GPUs are connected.
    #[must_use]
    pub fn connected(self, tells_topology: bool) -> Self {
        Self { tells_topology, ..self }
    }

    /// The GPU's NUMA node, if kubelets are told.
    pub(crate) fn numa(&self, id: GpuId) -> Option<u32> {
        let gpu = self.gpus.iter().find(|gpu| gpu.id == id).filter(|_| self.tells_topology)?;
        gpu.hardware.numa
    }

    /// The links between GPUs, if schedulers are told.
    pub(crate) fn links(&self) -> Option<Links> {
        if !self.tells_topology {
            return None;
        }
        let place = |id| (0..).zip(&self.gpus).find(|(_, gpu)| gpu.id == id).map(|(at, _)| at);
        let mut links = Links::default();
        for (from, gpu) in (0_u32..).zip(&self.gpus) {
            for (to, kind) in &gpu.hardware.links {
                // Each link is reported by both of its GPUs.
                if let Some(to) = place(*to).filter(|to| from < *to) {
                    links.add((from, to), *kind);
                }
            }
        }
        Some(links)
    }

    /// Sets the TFLOPS of GPU models.
    #[must_use]
    pub fn informed(self, info: Arc<GpuInfo>) -> Self {
        Self { info, ..self }
    }

    /// A GPU's speed in thousandths of a TFLOPS. `None`: unknown.
    #[must_use]
    pub fn milli_tflops(&self, gpu: &Gpu) -> Option<u64> {
        self.info.milli_tflops(&gpu.product)
    }

    /// Sets how far GPUs may be overcommitted.
    #[must_use]
    pub fn scaled(self, scaling: Scaling) -> Self {
        Self { scaling, ..self }
    }

    /// How far GPUs may be overcommitted.
    #[must_use]
    pub const fn scaling(&self) -> Scaling {
        self.scaling
    }

    /// The share of a GPU that may be promised in total.
    #[must_use]
    pub fn total(&self, gpu: &Gpu) -> Share {
        let times = |all: u64, hundredths: u32| {
            u64::try_from(u128::from(all) * u128::from(hundredths) / 100).unwrap_or(u64::MAX)
        };
        Share {
            cores: times(CORES, self.scaling.cores),
            memory_mib: times(gpu.memory_mib.unwrap_or_default(), self.scaling.memory),
        }
    }

    /// The GPUs, in the driver's order.
    #[must_use]
    pub fn gpus(&self) -> &[Gpu] {
        &self.gpus
    }

    /// A share as a claim, for schedulers. A GPU that has gone gets index 0.
    pub(crate) fn claim(&self, gpu: GpuId, Share { cores, memory_mib }: Share) -> Claim {
        let place = (0..).zip(&self.gpus).find(|(_, one)| one.id == gpu).map(|(at, _)| at);
        Claim { index: place.unwrap_or_default(), gpu, cores, memory_mib }
    }

    /// MiB per memory unit.
    #[must_use]
    pub const fn memory_factor(&self) -> NonZeroU32 {
        self.memory_factor
    }

    /// How many containers may share a GPU.
    #[must_use]
    pub const fn split(&self) -> NonZeroU32 {
        self.split
    }

    /// The same pool with all GPUs unhealthy.
    #[must_use]
    pub fn without_health(&self) -> Self {
        let gpus = self.gpus.iter().map(|gpu| Gpu { healthy: false, ..gpu.clone() }).collect();
        Self { gpus, ..self.clone() }
    }

    /// How many ids of this kind a GPU has.
    fn units(&self, gpu: &Gpu, counts: Counts) -> u64 {
        match counts {
            Counts::Places => u64::from(self.split.get()),
            Counts::Index => INDICES,
            Counts::IndexPart(_) => INDICES_OF_PART,
            Counts::Cores => self.total(gpu).cores,
            Counts::Memory => self.total(gpu).memory_mib / u64::from(self.memory_factor.get()),
        }
    }

    /// Checks that the list of all ids fits into a message to the kubelet.
    ///
    /// # Errors
    /// [`PoolError::UnitsTooSmall`], [`PoolError::SplitTooFine`].
    pub fn check(&self, resource: &Resource) -> Result<(), PoolError> {
        let Resource { counts, name, .. } = *resource;
        let ids: u64 = self.gpus.iter().map(|gpu| self.units(gpu, counts)).sum();
        let Some(longest) = self
            .gpus
            .iter()
            .map(|gpu| {
                let last = UnitId { gpu: gpu.id, counts, number: self.units(gpu, counts) };
                last.to_string().len()
            })
            .max()
        else {
            return Ok(());
        };
        let each = u64::try_from(longest).unwrap_or(u64::MAX).saturating_add(BESIDE_ID);
        let most = MOST_MESSAGE / each;
        if ids <= most {
            return Ok(());
        }
        let gpus = u64::try_from(self.gpus.len()).unwrap_or(u64::MAX);
        Err(match counts {
            Counts::Places | Counts::Cores | Counts::Index | Counts::IndexPart(_) => {
                PoolError::SplitTooFine { resource: name, ids, split: most / gpus }
            }
            Counts::Memory => {
                let factor = ids.saturating_mul(u64::from(self.memory_factor.get())).div_ceil(most);
                PoolError::UnitsTooSmall { resource: name, ids, factor }
            }
        })
    }

    /// All ids of a kind, and whether each may be allocated.
    pub fn ids(&self, counts: Counts) -> impl Iterator<Item = (UnitId, bool)> {
        self.gpus.iter().flat_map(move |gpu| {
            let is_offered = self.is_offered(gpu);
            let id = move |number| (UnitId { gpu: gpu.id, counts, number }, is_offered);
            (0..self.units(gpu, counts)).map(id)
        })
    }

    /// The ids of one GPU.
    pub(crate) fn ids_of(&self, id: GpuId, counts: Counts) -> impl Iterator<Item = UnitId> {
        let units =
            self.gpus.iter().find(|gpu| gpu.id == id).map_or(0, |gpu| self.units(gpu, counts));
        (0..units).map(move |number| UnitId { gpu: id, counts, number })
    }

    /// Parses an id and checks that it is offered.
    fn id(&self, resource: &Resource, text: &str) -> Result<(UnitId, &Gpu), PoolError> {
        let offered = UnitId::read(text).filter(|id| id.counts == resource.counts).and_then(|id| {
            let gpu = self.gpus.iter().find(|gpu| gpu.id == id.gpu)?;
            (id.number < self.units(gpu, id.counts)).then_some((id, gpu))
        });
        offered.ok_or_else(|| PoolError::UnknownId {
            id: text.chars().take(80).collect(),
            resource: resource.name,
        })
    }

    /// The allocation of a new container with these ids.
    ///
    /// # Errors
    /// As [`Self::allocated`], and for a cordoned GPU.
    pub fn allocate(&self, resource: &Resource, texts: &[String]) -> Result<Allocation, PoolError> {
        let allocation = self.allocated(resource, texts)?;
        match allocation.gpus.iter().find(|gpu| self.cordoned.contains(gpu)) {
            Some(gpu) => Err(PoolError::Cordoned(*gpu)),
            None => Ok(allocation),
        }
    }

    /// The allocation of a container that already has these ids.
    ///
    /// # Errors
    /// [`PoolError`]: unknown ids, or ids that one container cannot have together.
    pub fn allocated(
        &self,
        resource: &Resource,
        texts: &[String],
    ) -> Result<Allocation, PoolError> {
        let mut ids = BTreeSet::new();
        let mut on = BTreeSet::new();
        for text in texts {
            let (id, gpu) = self.id(resource, text)?;
            if !gpu.healthy {
                return Err(PoolError::Unhealthy(gpu.id));
            }
            if !ids.insert(id) {
                return Err(PoolError::Twice(id));
            }
            if !on.insert(gpu.id) && id.counts == Counts::Places {
                return Err(PoolError::SameGpu(gpu.id));
            }
        }
        if ids.is_empty() {
            return Err(PoolError::NoIds);
        }
        let gpus = self.gpus.iter().map(|gpu| gpu.id).filter(|gpu| on.contains(gpu)).collect();
        Ok(Allocation { key: AllocationKey::of(&ids), ids, gpus })
    }

    /// What each GPU has in all, with so many places.
    pub(crate) fn registered(&self, places: impl Fn(GpuId) -> u64) -> Vec<Registered> {
        let one = |(index, gpu): (u32, &Gpu)| {
            let Share { cores, memory_mib } = self.total(gpu);
            Registered {
                index,
                gpu: gpu.id,
                product: gpu.product.clone(),
                cores,
                memory_mib,
                places: places(gpu.id),
                hardware: gpu.hardware.clone(),
                healthy: self.is_offered(gpu),
            }
        };
        (0..).zip(&self.gpus).map(one).collect()
    }

    /// Which ids a container had better get: one of each of its GPUs. Of those that count nothing, as many more as are
    /// asked for.
    ///
    /// # Errors
    /// [`PoolError`]: unknown ids, or fewer GPUs with room than requested places.
    pub fn preferred(
        &self,
        resource: &Resource,
        available: &[String],
        must: &[String],
        count: usize,
        to: &Recipient,
    ) -> Result<Vec<UnitId>, PoolError> {
        let is_index = resource.counts.is_index();
        let (mut chosen, mut on) = (Vec::new(), Vec::new());
        for text in must {
            let (id, gpu) = self.id(resource, text)?;
            if on.contains(&gpu.id) && !is_index {
                return Err(PoolError::SameGpu(gpu.id));
            }
            chosen.push(id);
            on.push(gpu.id);
        }
        let mut free: BTreeMap<GpuId, BTreeSet<UnitId>> = BTreeMap::new();
        for text in available {
            let (id, gpu) = self.id(resource, text)?;
            if self.is_offered(gpu) && !chosen.contains(&id) {
                free.entry(gpu.id).or_default().insert(id);
            }
        }
        let gpus = match is_index && !(to.claimed.is_empty() && on.is_empty()) {
            // A claim of vgpu.rs's cannot follow.
            true => to.claimed.iter().chain(&on).copied().collect(),
            false => {
                let places = |id| free.get(&id).map_or(0, BTreeSet::len);
                let places = |id| u64::try_from(places(id)).unwrap_or(u64::MAX);
                let links = self.links().unwrap_or_default();
                let account = Account::new(self.registered(places), self.memory_factor, links);
                let found = account.give(to, &on, if is_index { 1 } else { count });
                let resource = resource.name;
                found.map_err(|source| PoolError::TooFewGpus { resource, source })?
            }
        };
        let (mut first, mut more) = (Vec::new(), Vec::new());
        for gpu in &gpus {
            let mut ids = free.remove(gpu).into_iter().flatten();
            first.extend(ids.next().filter(|_| !on.contains(gpu)));
            more.extend(ids);
        }
        let missing = count.saturating_sub(chosen.len());
        let free = first.len() + more.len();
        if missing < first.len() || free < missing {
            let (resource, gpus) = (resource.name, gpus.len());
            return Err(PoolError::Indices { asked: count, resource, gpus, free });
        }
        chosen.extend(first.into_iter().chain(more).take(missing));
        Ok(chosen)
    }
}

#[cfg(test)]
#[path = "pool_tests.rs"]
mod tests;
