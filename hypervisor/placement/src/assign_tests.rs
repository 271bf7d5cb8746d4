//! Compares with brute force: all ways to place a pod, each checked moment by moment.

use core::num::NonZeroU32;

use dialects::registers::Hardware;
use dialects::{Choice, Dialect, Links, MemoryNeed, Need, Policy, Registered};
use limits::{GpuId, Priority};
use serde_json::json;

use super::*;

/// Steele's splitmix64.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }

    fn one_in(&mut self, bound: u64) -> bool {
        self.below(bound) == 0
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[usize::try_from(self.below(all.len() as u64)).unwrap()]
    }
}

fn account(random: &mut Random) -> Account {
    let gpus: Vec<Gpu> = (0..2 + random.below(3))
        .map(|index| {
            let number = u32::try_from(index).unwrap();
            let numa = u32::try_from(random.below(2)).unwrap();
            let mut gpu = Gpu::new(Registered {
                index: number,
                gpu: GpuId::from_bytes([u8::try_from(index).unwrap(); 16]),
                product: random.of(&["A10", "H100"]).to_owned(),
                cores: 100,
                memory_mib: random.of(&[0, 1000, 1000, 2000]),
                places: 3,
                hardware: Hardware { numa: Some(numa), ..Hardware::default() },
                healthy: !random.one_in(12),
            });
            let taken = Amount {
                places: random.below(3),
                cores: 25 * random.below(3),
                memory_mib: 250 * random.below(3),
            };
            gpu.left = gpu.total.less(taken);
            gpu
        })
        .collect();
    let mut links = Links::default();
    for (a, b) in [(0, 1), (0, 2), (1, 3), (2, 3), (1, 2)] {
        if random.one_in(2) {
            links.add((a, b), random.of(&[1, 6, 7, 8]));
        }
    }
    Account { gpus, factor: NonZeroU32::MIN, links }
}

fn request(random: &mut Random) -> Request {
    let mut held = 0;
    let containers = (0..1 + random.below(3)).map(|at| {
        let stage = if random.one_in(3) { Stage::Init } else { Stage::Lasting };
        let places = held.max(1 + random.below(2));
        held = if stage == Stage::Init { places } else { 0 };
        let units = 250 * (1 + random.below(3));
        let memory = random.of(&[
            MemoryNeed::Whole,
            MemoryNeed::Units(units),
            MemoryNeed::Units(units),
            MemoryNeed::Percent(50),
        ]);
        let need = Need {
            dialect: Dialect::VgpuManager,
            resource: "nvidia.com/vgpu-number",
            places,
            cores: 25 * random.below(4),
            memory,
            priority: Priority::High,
            milli_tflops: 0,
        };
        ContainerRequest { name: format!("c{at}"), need, stage }
    });
    let containers = containers.collect();
    let annotations = match random.below(6) {
        0 => json!({"nvidia.com/include-gpu-type": "H100"}),
        1 => json!({"nvidia.com/exclude-gpu-uuid": "GPU-01"}),
        _ => json!({}),
    };
    let pod = serde_json::from_value(json!({"metadata": {"annotations": annotations}})).unwrap();
    let by = random.of(&[Connection::Numa, Connection::Link]);
    let topology = Topology { by, strict: random.one_in(2) };
    let policy = Policy {
        node: None,
        device: random.of(&[None, Some(Order::Binpack), Some(Order::Spread)]),
        topology: (!random.one_in(3)).then_some(topology),
    };
    let choice = Choice::of(&pod, Dialect::VgpuManager);
    Request { dialect: Dialect::VgpuManager, containers, choice, policy }
}

/// Distance and fullness of each GPU, in the pod's order of preference.
type Cost = Vec<(u64, Vec<([i128; 3], u32)>)>;

struct Brute<'a> {
    account: &'a Account,
    request: &'a Request,
}

impl Brute<'_> {
    fn share(&self, at: usize, gpu: usize) -> Share {
        let gpu = &self.account.gpus[gpu];
        self.request.containers[at].need.on(gpu.total.memory_mib, None, NonZeroU32::MIN).unwrap()
    }

    /// The shares of earlier containers that still run.
    fn before(&self, at: usize, gpu: usize, ways: &[Vec<usize>]) -> Vec<Share> {
        let lasting = |one: &usize| self.request.containers[*one].stage == Stage::Lasting;
        let earlier = (0..at).filter(lasting).filter(|one| ways[*one].contains(&gpu));
        earlier.map(|one| self.share(one, gpu)).collect()
    }

    fn fits(&self, ways: &[Vec<usize>]) -> bool {
        let mut handed: &[usize] = &[];
        for (at, container) in self.request.containers.iter().enumerate() {
            let set = &ways[at];
            if !handed.iter().all(|gpu| set.contains(gpu)) {
                return false;
            }
            handed = if container.stage == Stage::Init { set } else { &[] };
            for &index in set {
                let gpu = &self.account.gpus[index];
                let mut all = self.before(at, index, ways);
                all.push(self.share(at, index));
                let cores: u64 = all.iter().map(|share| share.cores).sum();
                let memory: u64 = all.iter().map(|share| share.memory_mib).sum();
                let fits = gpu.healthy
                    && self.request.choice.takes(gpu.id, &gpu.product)
                    && all.len() as u64 <= gpu.left.places
                    && cores <= gpu.left.cores
                    && (gpu.total.memory_mib == 0 || memory <= gpu.left.memory_mib);
                if !fits {
                    return false;
                }
            }
            if self.distance(set).is_none() {
                return false;
            }
        }
        true
    }

    fn distance(&self, set: &[usize]) -> Option<u64> {
        let Some(Topology { by, strict }) = self.request.policy.topology else { return Some(0) };
        if set.len() < 2 {
            return Some(0);
        }
        let numa = |gpu: &usize| self.account.gpus[*gpu].numa;
        let (a, b) = (u32::try_from(set[0]).unwrap(), u32::try_from(set[1]).unwrap());
        let (distance, is_best) = match by {
            Connection::Numa => {
                let apart = u64::from(numa(&set[0]) != numa(&set[1]));
                (apart, apart == 0)
            }
            Connection::Link => {
                let score = u64::from(self.account.links.score(a, b));
                (10_000 - score, score >= 100)
            }
        };
        (is_best || !strict).then_some(distance)
    }

    fn cost(&self, ways: &[Vec<usize>]) -> Cost {
        let one = |(at, set): (usize, &Vec<usize>)| {
            let key = |&index: &usize| {
                let gpu = &self.account.gpus[index];
                let used = self.before(at, index, ways);
                let left = |all: u64, used: u64| i128::from(all.saturating_sub(used));
                let memory = left(gpu.left.memory_mib, used.iter().map(|s| s.memory_mib).sum());
                let cores = left(gpu.left.cores, used.iter().map(|s| s.cores).sum());
                let places = left(gpu.left.places, used.len() as u64);
                let sign = if self.request.policy.device == Some(Order::Spread) { -1 } else { 1 };
                ([memory, cores, places].map(|left| sign * left), gpu.index)
            };
            let mut keys: Vec<_> = set.iter().map(key).collect();
            keys.sort_unstable();
            (self.distance(set).unwrap(), keys)
        };
        ways.iter().enumerate().map(one).collect()
    }

    fn best(&self) -> Option<Vec<Vec<usize>>> {
        let gpus = self.account.gpus.len();
        let sets = |places: u64| -> Vec<Vec<usize>> {
            let bits = |mask: usize| (0..gpus).filter(move |gpu| mask >> gpu & 1 == 1);
            let all = (0..1_usize << gpus).map(|mask| bits(mask).collect::<Vec<_>>());
            all.filter(|set| set.len() as u64 == places).collect()
        };
        let mut all: Vec<Vec<Vec<usize>>> = vec![Vec::new()];
        for container in &self.request.containers {
            let sets = sets(container.need.places);
            let longer = |ways: Vec<Vec<usize>>| {
                sets.clone().into_iter().map(move |set| [ways.clone(), vec![set]].concat())
            };
            all = all.into_iter().flat_map(longer).collect();
        }
        let fitting = all.into_iter().filter(|ways| self.fits(ways));
        fitting.min_by_key(|ways| self.cost(ways))
    }
}

#[test]
fn each_of_10_000_cases_is_placed_as_brute_force_places_it() {
    let (mut placed, mut refused, mut advised) = (0, 0, 0);
    for seed in 0..10_000 {
        let mut random = Random(seed);
        let (account, request) = (account(&mut random), request(&mut random));
        let best = Brute { account: &account, request: &request }.best();
        assert_eq!(account.fits(&request).is_ok(), best.is_some(), "seed {seed}");
        match account.place(&request) {
            Ok(claims) => {
                let position = |claim: &dialects::Claim| usize::try_from(claim.index).unwrap();
                let found = claims.0.iter().map(|of| of.claims.iter().map(position).collect());
                let found: Vec<Vec<usize>> = found.collect();
                assert_eq!(Some(found), best, "seed {seed}: {account:#?} {request:#?}");
                placed += 1;
            }
            Err(refusal) => {
                assert_eq!(best, None, "seed {seed}: {refusal}; {account:#?} {request:#?}");
                refused += 1;
                if let Some((loss, offer)) = account.nearest(&request, &refusal, u64::MAX) {
                    assert!(loss > 0, "seed {seed}: {offer}");
                    advised += 1;
                }
            }
        }
    }
    // Both outcomes occur often enough.
    assert!(placed > 2_000 && refused > 2_000 && advised > 500, "{placed} {refused} {advised}");
}

/// For a pod of one container: the smaller request with the least loss is found.
#[test]
fn the_nearest_request_that_fits_is_found() {
    let mut advised = 0;
    for seed in 0..2_000 {
        let mut random = Random(seed);
        let (account, mut request) = (account(&mut random), request(&mut random));
        request.containers.truncate(1);
        request.policy.topology = None;
        let Err(refusal) = account.place(&request) else { continue };
        let Refusal::NoRoom { wanted, .. } = &refusal else { panic!("{refusal}") };
        let smaller = |gpus, share: Share| {
            let mut smaller = request.clone();
            let need = &mut smaller.containers[0].need;
            (need.places, need.cores) = (gpus, share.cores);
            need.memory = MemoryNeed::Mib(share.memory_mib);
            account.place(&smaller).is_ok()
        };
        let mut least = None;
        for gpus in 1..=wanted.gpus {
            for cores in
                (0..=wanted.share.cores).filter(|cores| *cores > 0 || wanted.share.cores == 0)
            {
                for memory_mib in (250..=wanted.share.memory_mib.max(250)).step_by(250) {
                    let share = Share { cores, memory_mib };
                    if cores % 25 == 0 && smaller(gpus, share) {
                        let loss = Offer::of(gpus, share).loss(wanted);
                        least = Some(least.map_or(loss, |least: u64| least.min(loss)));
                    }
                }
            }
        }
        let found = account.nearest(&request, &refusal, u64::MAX);
        if wanted.share.memory_mib > 0 {
            assert_eq!(found.map(|(loss, _)| loss), least, "seed {seed}: {refusal} {account:#?}");
            advised += usize::from(found.is_some());
        }
    }
    assert!(advised > 100, "{advised}");
}

#[test]
fn a_pod_that_could_be_placed_in_too_many_ways_is_refused() {
    let mut random = Random(1);
    let mut account = account(&mut random);
    let mut gpu = account.gpus[0].clone();
    gpu.healthy = true;
    account.gpus = (0..16)
        .map(|index| {
            gpu.index = index;
            gpu.total = Amount { places: 9, cores: 100, memory_mib: 1000 };
            gpu.left = Amount { places: 9, cores: 60 + u64::from(index), memory_mib: 1000 };
            gpu.clone()
        })
        .collect();
    let mut request = request(&mut random);
    request.choice = Choice::default();
    request.policy = Policy::default();
    let mut container = request.containers[0].clone();
    container.stage = Stage::Lasting;
    container.need.places = 4;
    container.need.cores = 50;
    container.need.memory = MemoryNeed::Units(1);
    request.containers = vec![container; 5];
    let said = account.place(&request).unwrap_err().to_string();
    assert!(said.starts_with("none of the first 5000 ways"), "{said}");
}
