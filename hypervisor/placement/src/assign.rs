//! Finds GPUs for a pod's containers.
//!
//! Each container in turn gets its best GPUs with which the later containers still fit: the best result for the first
//! container, then for the second one, and so on. The pod's policy defines what is best.

use core::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use dialects::claims::ContainerClaims;
use dialects::policy::{Connection, Order, Topology};
use dialects::{PodClaims, Policy, Share};

use crate::account::{Account, Amount, Gpu};
use crate::nearest::Offer;
use crate::refusal::Refusal;
use crate::request::{ContainerRequest, Request, Stage};

/// The most combinations tried for a pod on a node.
const MOST_WAYS: usize = 5_000;

/// A container's GPUs, as indices into the account, with its share of each.
pub(crate) type Chosen = Vec<(usize, Share)>;

impl Account {
    /// Finds GPUs for each container of a pod, all different within a container.
    ///
    /// # Errors
    /// [`Refusal::NoRoom`], [`Refusal::Connection`], [`Refusal::TooManyWays`], [`Refusal::Need`]
    pub fn place(&self, request: &Request) -> Result<PodClaims, Refusal> {
        let mut search =
            Search { account: self, request, ways: 0, latest: None, found: Vec::new() };
        let left: Vec<Amount> = self.gpus.iter().map(|gpu| gpu.left).collect();
        if !search.place_from(0, &left, &[])? {
            let none = Refusal::TooManyWays(search.ways);
            return Err(search.latest.map_or(none, |(_, refusal)| refusal));
        }
        let named = request.containers.iter().zip(search.found);
        let one = |(container, mut chosen): (&ContainerRequest, Chosen)| {
            chosen.sort_by_key(|(gpu, _)| self.gpus[*gpu].index);
            let claims = chosen.into_iter().map(|one| self.claim(one)).collect();
            ContainerClaims { container: container.name.clone(), claims }
        };
        Ok(PodClaims(named.map(one).collect()))
    }

    /// Whether [`Self::place`] finds room.
    ///
    /// # Errors
    /// Those of [`Self::place`].
    pub fn fits(&self, request: &Request) -> Result<(), Refusal> {
        if let [one] = &request.containers[..]
            && request.policy.topology.is_none()
        {
            let has_room = |gpu: &&Gpu| {
                let share = gpu.share(&one.need, self.factor);
                share.is_ok_and(|share| gpu.lacks(&request.choice, gpu.left, share).is_none())
            };
            let wanted = usize::try_from(one.need.places).unwrap_or(usize::MAX);
            // Enough for most pods, on most nodes.
            if self.gpus.iter().filter(has_room).take(wanted).count() == wanted {
                return Ok(());
            }
        }
        self.place(request).map(drop)
    }

    /// Whether the pod also fits with the connections that it prefers.
    #[must_use]
    pub fn connects(&self, request: &Request) -> bool {
        let mut strict = request.clone();
        let topology = strict.policy.topology;
        strict.policy.topology = topology.map(|one| Topology { strict: true, ..one });
        self.fits(&strict).is_ok()
    }
}

struct Search<'a> {
    account: &'a Account,
    request: &'a Request,
    ways: usize,
    /// The last container that was reached, and why it does not fit.
    latest: Option<(usize, Refusal)>,
    /// The choices for the containers before the current one.
    found: Vec<Chosen>,
}

impl Search<'_> {
    /// Places the containers from `at` on. `handed`: the GPUs of the init container before it.
    fn place_from(
        &mut self,
        at: usize,
        left: &[Amount],
        handed: &[usize],
    ) -> Result<bool, Refusal> {
        let request = self.request;
        let Some(container) = request.containers.get(at) else { return Ok(true) };
        let wanted = usize::try_from(container.need.places).unwrap_or(usize::MAX);
        let mut fitting = Vec::new();
        let mut lack = BTreeMap::new();
        let mut largest = Share::default();
        for (position, gpu) in self.account.gpus.iter().enumerate() {
            let share = gpu.share(&container.need, self.account.factor)?;
            largest.cores = largest.cores.max(share.cores);
            largest.memory_mib = largest.memory_mib.max(share.memory_mib);
            match gpu.lacks(&request.choice, left[position], share) {
                None => fitting.push((position, share)),
                Some((why, has)) => {
                    let (count, most) = lack.entry(why).or_insert((0, 0));
                    (*count, *most) = (*count + 1, has.max(*most));
                }
            }
        }
        let (first, rest): (Chosen, Chosen) =
            fitting.iter().partition(|(gpu, _)| handed.contains(gpu));
        if fitting.len() < wanted || first.len() < handed.len() {
            self.refuse(at, || Refusal::NoRoom {
                container: container.name.clone(),
                wanted: Offer::of(container.need.places, largest),
                fitting: fitting.len(),
                gpus: self.account.gpus.len(),
                lack,
            });
            return Ok(false);
        }
        let mut is_any = false;
        for chosen in self.account.choices(request.policy, &first, rest, (wanted, left))? {
            is_any = true;
            self.ways += 1;
            if self.ways > MOST_WAYS {
                return Err(Refusal::TooManyWays(MOST_WAYS));
            }
            let mut rest = left.to_vec();
            let mut handed = Vec::new();
            for (gpu, share) in &chosen {
                match container.stage {
                    Stage::Init => handed.push(*gpu),
                    Stage::Lasting => rest[*gpu] = rest[*gpu].less(Amount::of(*share)),
                }
            }
            self.found.truncate(at);
            self.found.push(chosen);
            if self.place_from(at + 1, &rest, &handed)? {
                return Ok(true);
            }
        }
        if let (false, Some(topology)) = (is_any, request.policy.topology) {
            self.refuse(at, || Refusal::Connection {
                container: container.name.clone(),
                asked: container.need.places,
                by: topology.by,
                fitting: fitting.len(),
            });
        }
        Ok(false)
    }

    fn refuse(&mut self, at: usize, why: impl FnOnce() -> Refusal) {
        if self.latest.as_ref().is_none_or(|(before, _)| *before < at) {
            self.latest = Some((at, why()));
        }
    }
}

impl Account {
    /// All sets of `wanted` GPUs for a container, best first. `first`: GPUs that the container has in any case.
    pub(crate) fn choices(
        &self,
        policy: Policy,
        first: &[(usize, Share)],
        mut others: Chosen,
        (wanted, left): (usize, &[Amount]),
    ) -> Result<Box<dyn Iterator<Item = Chosen>>, Refusal> {
        let gpus = &self.gpus;
        others.sort_by_key(|(gpu, _)| {
            let Amount { cores, memory_mib, places } = left[*gpu];
            let order = policy.device.unwrap_or(Order::Binpack);
            let room = (memory_mib, cores, places);
            ((order == Order::Binpack).then_some(room), Reverse(room), gpus[*gpu].index)
        });
        // Of sets that differ only in equal GPUs, one is enough: later containers fit the same way.
        let kinds: Vec<(Amount, Amount)> =
            others.iter().map(|(gpu, _)| (left[*gpu], gpus[*gpu].total)).collect();
        let sets = Combinations::new(others.len(), wanted - first.len());
        let start = first.to_vec();
        let chosen = move |positions: Vec<usize>| -> Chosen {
            let more = positions.into_iter().map(|position| others[position]);
            start.iter().copied().chain(more).collect()
        };
        let topology = match policy.topology {
            None => {
                let sets = sets.filter(move |set| is_first_of_equals(set, &kinds));
                return Ok(Box::new(sets.map(chosen)));
            }
            Some(_) if wanted == 1 => return Ok(Box::new(sets.map(chosen))),
            Some(topology) => topology,
        };
        let sets: Vec<Chosen> = sets.take(MOST_WAYS + 1).map(chosen).collect();
        if sets.len() > MOST_WAYS {
            return Err(Refusal::TooManyWays(MOST_WAYS));
        }
        let ranked = sets.into_iter().filter_map(|set| {
            let distance = self.distance(topology, &set);
            distance.map(|distance| (distance, set))
        });
        let mut ranked: Vec<(u64, Chosen)> = ranked.collect();
        ranked.sort_by_key(|(distance, _)| *distance);
        Ok(Box::new(ranked.into_iter().map(|(_, set)| set)))
    }

    /// The distance between a set's GPUs; less is better. `None`: the pod does not accept the set.
    fn distance(&self, topology: Topology, set: &[(usize, Share)]) -> Option<u64> {
        let gpus = || set.iter().map(|(gpu, _)| &self.gpus[*gpu]);
        let links = &self.links;
        match topology.by {
            Connection::Numa => {
                let nodes: BTreeSet<u32> = gpus().map(|gpu| gpu.numa).collect();
                (!topology.strict || nodes.len() == 1).then(|| u64::try_from(nodes.len()).ok())?
            }
            Connection::Link => {
                let indices: Vec<u32> = gpus().map(|gpu| gpu.index).collect();
                let pairs = || {
                    let later = |at: usize| indices[at + 1..].iter();
                    indices.iter().enumerate().flat_map(move |(at, a)| later(at).map(|b| (*a, *b)))
                };
                let is_linked = !topology.strict || pairs().all(|(a, b)| links.has_nvlink(a, b));
                let score: u64 = pairs().map(|(a, b)| u64::from(links.score(a, b))).sum();
                is_linked.then_some(u64::MAX - score)
            }
        }
    }
}

/// Whether a set takes the first ones of equal elements.
fn is_first_of_equals<T: PartialEq>(set: &[usize], kinds: &[T]) -> bool {
    set.iter().all(|&one| {
        (0..one).rev().take_while(|before| kinds[*before] == kinds[one]).all(|b| set.contains(&b))
    })
}

/// All sets of `size` numbers below `all`, in ascending order.
struct Combinations {
    all: usize,
    next: Option<Vec<usize>>,
}

impl Combinations {
    fn new(all: usize, size: usize) -> Self {
        Self { all, next: (size <= all).then(|| (0..size).collect()) }
    }
}

impl Iterator for Combinations {
    type Item = Vec<usize>;

    fn next(&mut self) -> Option<Vec<usize>> {
        let set = self.next.take()?;
        let size = set.len();
        let can_grow = |at: &usize| set[*at] < self.all - size + at;
        if let Some(at) = (0..size).rev().find(can_grow) {
            let mut later = set.clone();
            for (to, value) in later[at..].iter_mut().zip(set[at] + 1..) {
                *to = value;
            }
            self.next = Some(later);
        }
        Some(set)
    }
}

#[cfg(test)]
#[path = "assign_tests.rs"]
mod tests;
