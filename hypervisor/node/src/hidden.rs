//! Computes the ids that a resource must list as unhealthy, because containers hold their share through other
//! resources. Called when allocations change. Pure.
//!
//! The kubelet counts each resource separately, for the whole node. Of cores and memory, as many ids are hidden as
//! other containers hold, on the GPUs where they hold them; which ids these are has no meaning. Places are hidden one
//! by one. All free places of a GPU whose memory is fully promised are hidden too: nobody can use a place without
//! memory.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use dialects::table::RESOURCES;
use dialects::{Counts, Resource, Share};
use limits::GpuId;

use crate::pool::{Pool, UnitId};

/// The hidden ids of each resource, sorted and unique. May be tens of thousands, computed anew at each change.
pub(crate) type Hidden = BTreeMap<&'static str, Vec<UnitId>>;

/// Ids of cores and memory, by resource.
pub(crate) type InUse = BTreeMap<&'static str, BTreeSet<UnitId>>;

/// An allocation, as far as hiding needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Taken {
    /// The resource through which it holds its places.
    pub(crate) resource: String,
    pub(crate) places: BTreeSet<UnitId>,
    /// Its shares of its GPUs, as far as known.
    pub(crate) shares: Vec<(GpuId, Share)>,
}

/// The ids to hide because of these containers. `in_use`: ids of cores and memory that the kubelet has allocated.
pub(crate) fn hidden(
    pool: &Pool,
    resources: &[Resource],
    taken: &[Taken],
    in_use: &InUse,
) -> Hidden {
    let none = BTreeSet::new();
    let full = without_memory(pool, taken);
    let of = |resource: &Resource| {
        if resource.counts.is_place() {
            let (own, others): (Vec<&Taken>, Vec<&Taken>) =
                taken.iter().partition(|one| one.resource == resource.name);
            let is_own = |id: &UnitId| own.iter().any(|one| one.places.contains(id));
            let left = full.iter().flat_map(|gpu| pool.ids_of(*gpu, resource.counts));
            let left = left.filter(|id| !is_own(id));
            // An index id occupies no place.
            let is_index = |one: &&&Taken| {
                RESOURCES.iter().any(|row| row.name == one.resource && row.counts.is_index())
            };
            let places = resource.counts == Counts::Places;
            let taken = others.iter().filter(|one| places && !is_index(one));
            return ordered(taken.flat_map(|one| one.places.iter().copied()).chain(left).collect());
        }
        let used = in_use.get(resource.name).unwrap_or(&none);
        units(pool, resource.counts, taken, used)
    };
    let all = resources.iter().map(|resource| (resource.name, of(resource)));
    all.filter(|(_, ids): &(_, Vec<UnitId>)| !ids.is_empty()).collect()
}

/// The GPUs whose memory is fully promised.
fn without_memory(pool: &Pool, taken: &[Taken]) -> BTreeSet<GpuId> {
    let is_full = |id: GpuId| {
        let total =
            pool.gpus().iter().find(|gpu| gpu.id == id).map(|gpu| pool.total(gpu).memory_mib);
        let shares = taken.iter().flat_map(|one| &one.shares).filter(|(gpu, _)| *gpu == id);
        let sum = shares.fold(0_u64, |sum, (_, share)| sum.saturating_add(share.memory_mib));
        // A total of 0: the driver does not report it.
        total.is_some_and(|total| total > 0 && sum >= total)
    };
    pool.gpus().iter().map(|gpu| gpu.id).filter(|id| is_full(*id)).collect()
}

/// Hides as many units as containers hold without the kubelet's knowledge. Visits only these: a node has tens of
/// thousands.
fn units(pool: &Pool, counts: Counts, taken: &[Taken], used: &BTreeSet<UnitId>) -> Vec<UnitId> {
    let factor = u64::from(pool.memory_factor().get());
    let mut on: BTreeMap<GpuId, u64> = BTreeMap::new();
    for (gpu, share) in taken.iter().flat_map(|one| &one.shares) {
        let units = match counts {
            Counts::Cores => share.cores,
            _ => share.memory_mib.div_ceil(factor),
        };
        let sum = on.entry(*gpu).or_default();
        *sum = sum.saturating_add(units);
    }
    let used_count = u64::try_from(used.len()).unwrap_or(u64::MAX);
    let sum = on.values().fold(0_u64, |sum, units| sum.saturating_add(*units));
    let missing = usize::try_from(sum.saturating_sub(used_count)).unwrap_or(usize::MAX);
    if missing == 0 {
        return Vec::new();
    }
    let mut gpus: Vec<GpuId> = pool.gpus().iter().map(|gpu| gpu.id).collect();
    gpus.sort_by_key(|gpu| Reverse(on.get(gpu).copied().unwrap_or_default()));
    let free = gpus.iter().flat_map(|gpu| pool.ids_of(*gpu, counts));
    ordered(free.filter(|id| !used.contains(id)).take(missing).collect())
}

fn ordered(mut ids: Vec<UnitId>) -> Vec<UnitId> {
    ids.sort();
    ids.dedup();
    ids
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::Gpu;
    use dialects::Dialect;
    use dialects::registers::Hardware;
    use dialects::table::offered;
    use proptest::prelude::*;

    fn gpu(number: u8) -> GpuId {
        GpuId::from_bytes([number; 16])
    }

    fn id(text: impl std::fmt::Display) -> UnitId {
        UnitId::read(&format!("{}::{text}", gpu(0))).unwrap()
    }

    fn pool() -> Pool {
        let one = |number| Gpu {
            id: gpu(number),
            memory_mib: Some(1000),
            healthy: true,
            product: String::new(),
            hardware: Hardware::default(),
        };
        let number = |number: u32| number.try_into().unwrap();
        Pool::new((0..2).map(one).collect(), number(4), number(10))
    }

    fn resources() -> Vec<Resource> {
        offered(&Dialect::ALL, &"CorePlugin=true,MemoryPlugin=true".parse().unwrap())
    }

    fn taken(resource: &str, place: u32, cores: u64, memory_mib: u64) -> Taken {
        Taken {
            resource: resource.to_owned(),
            places: [id(place)].into(),
            shares: vec![(gpu(0), Share { cores, memory_mib })],
        }
    }

    #[test]
    fn what_one_dialect_has_is_gone_for_the_others() {
        let own: BTreeSet<UnitId> = (0..30).map(|at| id(format!("c{at}"))).collect();
        let in_use = [("nvidia.com/vgpu-cores", own.clone())].into();
        let taken = [taken("nvidia.com/vgpu-number", 2, 30, 505)];
        let found = hidden(&pool(), &resources(), &taken, &in_use);
        let place = vec![id(2)];
        assert_eq!(found.get("nvidia.com/vgpu-number"), None);
        assert_eq!(found["volcano.sh/vgpu-number"], place);
        assert_eq!(found["nvidia.com/gpu"], place);
        // The kubelet counts its cores, but not its memory, which was requested without ids.
        assert_eq!(found.get("nvidia.com/vgpu-cores"), None);
        assert_eq!(found["volcano.sh/vgpu-cores"].len(), 30);
        assert_eq!(found["volcano.sh/vgpu-memory"].len(), 51);
        assert_eq!(found["nvidia.com/vgpu-memory"].len(), 51);
        assert!(found["volcano.sh/vgpu-cores"].iter().all(|id| id.gpu == gpu(0)));
        assert_eq!(hidden(&pool(), &resources(), &[], &in_use), Hidden::new());
    }

    #[test]
    fn a_gpu_without_memory_has_no_places_left() {
        let whole = [taken("nvidia.com/vgpu-number", 2, 100, 1000)];
        let found = hidden(&pool(), &resources(), &whole, &BTreeMap::new());
        let ids = |all: &[u32]| all.iter().map(id).collect::<Vec<_>>();
        assert_eq!(found["nvidia.com/vgpu-number"], ids(&[0, 1, 3]));
        assert_eq!(found["nvidia.com/gpu"], ids(&[0, 1, 2, 3]));
        assert_eq!(found["tensor-fusion.ai/index"].len(), 2048);
        assert!(found["tensor-fusion.ai/index"].contains(&id("i2047")));
        let nearly = [taken("nvidia.com/vgpu-number", 2, 100, 999)];
        let found = hidden(&pool(), &resources(), &nearly, &BTreeMap::new());
        assert_eq!(found.get("nvidia.com/vgpu-number"), None);
    }

    #[test]
    fn an_index_takes_no_place_and_what_it_has_is_gone() {
        let half =
            Taken { places: [id("i5")].into(), ..taken("tensor-fusion.ai/index", 0, 50, 500) };
        let found = hidden(&pool(), &resources(), &[half], &BTreeMap::new());
        assert_eq!(found.get("nvidia.com/vgpu-number"), None);
        assert_eq!(found.get("tensor-fusion.ai/index"), None);
        assert_eq!(found["nvidia.com/vgpu-cores"].len(), 50);
        assert_eq!(found["volcano.sh/vgpu-memory"].len(), 50);
    }

    proptest! {
        /// Each resource has as much left as the pool, whatever is in use through which resource.
        #[test]
        fn as_much_is_left_as_the_pool_has_left(
            containers in prop::collection::vec((any::<bool>(), 0_u64..30, 0_u64..300), 0..4), known: bool
        ) {
            let resources = resources();
            let pool = pool();
            let all: Vec<Taken> = (0..).zip(&containers).map(|(place, (volcano, cores, memory))| {
                let name = if *volcano { "volcano.sh/vgpu-number" } else { "nvidia.com/vgpu-number" };
                taken(name, place, *cores, memory / 10 * 10)
            }).collect();
            let mut in_use = InUse::new();
            let sum = |volcano: bool| -> u64 {
                containers.iter().filter(|one| one.0 == volcano).map(|one| one.1).sum()
            };
            if known {
                for (name, volcano) in [("volcano.sh/vgpu-cores", true), ("nvidia.com/vgpu-cores", false)] {
                    in_use.insert(name, (0..sum(volcano)).map(|at| id(format!("c{at}"))).collect());
                }
            }
            let hidden = hidden(&pool, &resources, &all, &in_use);
            for resource in resources.iter().filter(|row| row.counts == Counts::Cores) {
                let gone = hidden.get(resource.name).map_or(0, Vec::len);
                let own = in_use.get(resource.name).map_or(0, BTreeSet::len);
                let all = usize::try_from(sum(true) + sum(false)).unwrap();
                prop_assert_eq!(200 - gone - own, 200 - all);
                if let (Some(hidden), Some(own)) = (hidden.get(resource.name), in_use.get(resource.name)) {
                    prop_assert!(hidden.iter().all(|id| !own.contains(id)));
                }
            }
        }
    }
}
