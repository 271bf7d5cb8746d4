//! Pods come and go at random on eight GPUs, beside a real `hypervisor node`: no GPU is promised twice, at no moment, and
//! nothing is left over.
//!
//! `SLUICE_FAULTS=300` makes five minutes of it, and tells what the agent has used. Without it it is short.

use core::num::NonZeroU32;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use dialects::claims::ContainerClaims;
use dialects::{Claim, Dialect, PodClaims, Share, registers};
use limits::{GpuId, Limits};
use node::proto::{
    AllocateRequest, AllocateResponse, ContainerAllocateRequest,
    ContainerPreferredAllocationRequest, Empty, ListAndWatchResponse, PreStartContainerRequest,
    PreStartContainerResponse, PreferredAllocationRequest, PreferredAllocationResponse, UNHEALTHY,
};
use serde_json::{Value, json};
use session::Page;
use session::settings::OwnerSettings;
use small_api_server::Objects;
use tokio::process::{Child, Command};

use crate::contained::built;
use crate::kubelets_side::NUMBER;
use crate::support::{ApiServer, FakeKubelet, GoClient, Pods, gpu, in_time, until};

const GPUS: u8 = 8;
const SPLIT: usize = 40;
const PODS: usize = 100;
/// MiB in a unit of memory.
const FACTOR: u64 = 16;
const VOLCANO: &str = "volcano.sh/vgpu-number";
/// The same with units that the kubelet counts. Of memory there are 40,960.
const UNITS: [&str; 2] = ["volcano.sh/vgpu-cores", "volcano.sh/vgpu-memory"];
const PHASE: &str = "nvidia.com/assigned-phase";
const MIB: u64 = 1 << 20;

/// A container that has started.
#[derive(Clone)]
struct Started {
    name: String,
    claim: Claim,
    place: String,
    folder: PathBuf,
}

/// What the test knows, as a scheduler and a kubelet would.
#[derive(Default)]
struct Known {
    free: BTreeSet<String>,
    left: BTreeMap<GpuId, Share>,
    live: BTreeMap<String, Vec<Started>>,
    /// The pod that is being started.
    starting: Option<String>,
    random: u64,
    made: usize,
    refused: usize,
}

impl Known {
    /// Below `end`.
    fn random(&mut self, end: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % end
    }

    fn give_back(&mut self, containers: &[Started]) {
        for one in containers {
            self.free.insert(one.place.clone());
            let left = self.left.get_mut(&one.claim.gpu).unwrap();
            // Less than nothing is left while one has asked for too much.
            left.cores = left.cores.wrapping_add(one.claim.cores);
            left.memory_mib = left.memory_mib.wrapping_add(one.claim.memory_mib);
        }
    }

    /// Parts of GPUs for two containers, where there is room.
    fn place(&mut self) -> Option<Vec<Claim>> {
        let mut claims = Vec::new();
        for _ in 0..2 {
            let (index, cores) = (self.random(u64::from(GPUS)), 1 + self.random(6));
            let memory_mib = FACTOR * (16 + self.random(200));
            let index = u32::try_from(index).unwrap();
            let gpu = gpu(u8::try_from(index).unwrap());
            claims.push(Claim { index, gpu, cores, memory_mib });
        }
        let needs = |claims: &[Claim], one: GpuId| {
            let own = claims.iter().filter(move |claim| claim.gpu == one);
            own.fold((0, 0, 0), |sum, claim| {
                (sum.0 + 1, sum.1 + claim.cores, sum.2 + claim.memory_mib)
            })
        };
        let fits = claims.iter().all(|claim| {
            let (places, cores, memory) = needs(&claims, claim.gpu);
            let left = self.left[&claim.gpu];
            let prefix = claim.gpu.to_string();
            let free = self.free.iter().filter(|id| id.starts_with(&prefix)).count();
            places <= free && cores <= left.cores && memory < left.memory_mib
        });
        fits.then_some(claims)
    }
}

struct Cluster {
    agent: Child,
    client: GoClient,
    volcano: GoClient,
    objects: Objects,
    pods: Pods,
    /// How many lists the kubelet has got.
    lists: Arc<AtomicUsize>,
    folder: PathBuf,
    known: Arc<Mutex<Known>>,
    /// Held by who adds more than there is, so that nothing becomes free meanwhile.
    quiet: Arc<tokio::sync::Mutex<()>>,
}

fn pod(name: &str, claims: &PodClaims) -> Value {
    let container = |one: &ContainerClaims| {
        let claim = one.claims[0];
        json!({"name": one.container, "resources": {"limits": {
            "nvidia.com/vgpu-number": "1",
            "nvidia.com/vgpu-cores": claim.cores.to_string(),
            "nvidia.com/vgpu-memory": (claim.memory_mib / FACTOR).to_string(),
        }}})
    };
    let containers: Vec<Value> = claims.0.iter().map(container).collect();
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": name, "namespace": "default", "uid": format!("uid-of-{name}"), "labels": {PHASE: "allocating"},
            "annotations": {
                "nvidia.com/predicate-time": "1716199325",
                "nvidia.com/pre-allocated": claims.write(Dialect::VgpuManager, &["first", "second"]),
            },
        },
        "spec": {"nodeName": "here", "containers": containers},
    })
}

fn limits_of(folder: &Path) -> Option<(String, GpuId, Limits)> {
    let settings = OwnerSettings::of(folder).ok()?;
    let [gpu] = settings.devices?[..] else { return None };
    let page = Page::open_existing(&folder.join("session").join(format!("{gpu}.page"))).ok()?;
    Some((settings.name?, gpu, page.look().ok()?.limits()))
}

fn has(limits: &Limits, claim: &Claim) -> bool {
    limits.memory.is_some_and(|memory| memory.limit == claim.memory_mib * MIB)
        && u64::from(limits.compute.share_ppm) == claim.cores * 10_000
}

impl Cluster {
    async fn start(kubelet: &mut FakeKubelet, server: &ApiServer) -> Self {
        let mut agent = Command::new(built("hypervisor"));
        let at = |name: &str| kubelet.path().join(name);
        agent
            .args([
                "node",
                "--node-name",
                "here",
                "--dialects",
                "vgpu-manager,volcano",
                "--log",
                "warn",
            ])
            .args(["--device-split", &SPLIT.to_string(), "--memory-factor", &FACTOR.to_string()])
            .arg("--kubeconfig")
            .arg(&server.kubeconfig)
            .arg("--kubelet-dir")
            .arg(at("kubelet"))
            .arg("--allocations")
            .arg(at("allocations"))
            .arg("--library")
            .arg(at("library"))
            .arg("--daemon")
            .arg(at("daemon/hypervisor.sock"))
            .arg("--nvml")
            .arg(built("libfake_nvml.so"))
            .env("SLUICE_FAKE_NODE", at("fake-node"))
            .env("SLUICE_FAKE_DEVICES", GPUS.to_string())
            .env("SLUICE_FAKE_MEMORY", (80_u64 << 30).to_string())
            .stdin(Stdio::null())
            .kill_on_drop(true);
        let agent = agent.spawn().unwrap();
        let mut clients = BTreeMap::new();
        let all = [NUMBER, VOLCANO].into_iter().chain(UNITS);
        while !all.clone().all(|name| clients.contains_key(name)) {
            let (request, client) = kubelet.registered().await;
            clients.insert(request.resource_name, client);
        }
        // A kubelet watches each of them.
        let lists = Arc::<AtomicUsize>::default();
        for client in clients.values() {
            let (mut watched, lists) =
                (client.watch("ListAndWatch", &Empty {}).await, Arc::clone(&lists));
            tokio::spawn(async move {
                while watched.next::<Empty>().await.is_some() {
                    lists.fetch_add(1, Ordering::AcqRel);
                }
            });
        }
        let register = || {
            let node = server.objects.node("here")?;
            let text = node["metadata"]["annotations"]["nvidia.com/node-device-register"].clone();
            registers::read(Dialect::VgpuManager, text.as_str()?, NonZeroU32::MIN).ok()
        };
        until("the node's devices are registered", || register().is_some()).await;
        let devices = register().unwrap();
        assert_eq!(devices.len(), usize::from(GPUS));
        let last = registers::Hardware {
            numa: Some(1),
            bus_id: "0000:17:00.0".to_owned(),
            capability: (9, 0),
            links: Vec::new(),
        };
        assert_eq!(devices[7].hardware, last);
        let left =
            devices.iter().map(|one| (one.gpu, Share { cores: 100, memory_mib: one.memory_mib }));
        let ids =
            (0..GPUS).flat_map(|at| (0..SPLIT).map(move |place| format!("{}::{place}", gpu(at))));
        let seed = u64::from(std::process::id()) << 20 | 0x9e37;
        println!("seed {seed}");
        let known =
            Known { free: ids.collect(), left: left.collect(), random: seed, ..Known::default() };
        Self {
            agent,
            client: clients.remove(NUMBER).unwrap(),
            volcano: clients.remove(VOLCANO).unwrap(),
            objects: server.objects.clone(),
            pods: kubelet.pods.clone(),
            lists,
            folder: kubelet.path().join("allocations"),
            known: Arc::new(Mutex::new(known)),
            quiet: Arc::default(),
        }
    }

    fn known(&self) -> std::sync::MutexGuard<'_, Known> {
        self.known.lock().unwrap()
    }

    /// As schedulers and kubelets start a pod. `false`: its second container has been refused.
    async fn run(&self, name: &str, claims: &[Claim]) -> bool {
        self.known().starting = Some(name.to_owned());
        let each = ["first", "second"].into_iter().zip(claims);
        let each = each.map(|(container, claim)| ContainerClaims {
            container: container.to_owned(),
            claims: vec![*claim],
        });
        let claims = PodClaims(each.collect());
        self.objects.change(pod(name, &claims));
        let mut started = Vec::new();
        for one in &claims.0 {
            let available: Vec<String> = self.known().free.iter().cloned().collect();
            let ask = ContainerPreferredAllocationRequest {
                available_device_i_ds: available,
                must_include_device_i_ds: vec![],
                allocation_size: 1,
            };
            let ask = PreferredAllocationRequest { container_requests: vec![ask] };
            let told: PreferredAllocationResponse =
                self.client.call("GetPreferredAllocation", &ask).await.unwrap();
            let ids = told.container_responses[0].device_i_ds.clone();
            let claim = one.claims[0];
            assert!(ids[0].starts_with(&claim.gpu.to_string()), "{name}: {ids:?} for {claim:?}");
            assert!(self.known().free.remove(&ids[0]), "{ids:?} is given out twice");
            let ask = ContainerAllocateRequest { devices_i_ds: ids.clone() };
            let ask = AllocateRequest { container_requests: vec![ask] };
            let answer: AllocateResponse = self.client.call("Allocate", &ask).await.unwrap();
            self.pods.give(name, &one.container, NUMBER, &ids);
            started.push(Started {
                name: format!("default/{name}/{}", one.container),
                claim,
                place: ids[0].clone(),
                folder: self.folder.join(&answer.container_responses[0].envs["SLUICE_ALLOCATION"]),
            });
        }
        let mut all = true;
        for one in &started {
            let ask = PreStartContainerRequest { devices_i_ds: vec![one.place.clone()] };
            let answer: Result<PreStartContainerResponse, _> =
                self.client.call("PreStartContainer", &ask).await;
            all &= answer.is_ok();
            if answer.is_ok() {
                let (whose, gpu, limits) = limits_of(&one.folder).unwrap();
                assert_eq!((&whose, gpu), (&one.name, one.claim.gpu));
                assert!(has(&limits, &one.claim), "{limits:?} for {:?}", one.claim);
            }
        }
        let wanted = if all { "succeed" } else { "failed" };
        let phase = || self.objects.pod(name).unwrap()["metadata"]["labels"][PHASE] == wanted;
        until("its scheduler is told", phase).await;
        if all {
            let mut known = self.known();
            known.made += 1;
            known.live.insert(name.to_owned(), started);
            known.starting = None;
        } else {
            // The kubelet fails such a pod.
            self.end(name, &started);
            let mut known = self.known();
            known.refused += 1;
            known.starting = None;
        }
        all
    }

    fn end(&self, name: &str, containers: &[Started]) {
        self.pods.end(name);
        self.objects.remove(name);
        self.known().give_back(containers);
    }

    fn take(&self, claims: &[Claim]) {
        let mut known = self.known();
        for claim in claims {
            let left = known.left.get_mut(&claim.gpu).unwrap();
            left.cores = left.cores.wrapping_sub(claim.cores);
            left.memory_mib = left.memory_mib.wrapping_sub(claim.memory_mib);
        }
    }

    /// One pod after the other, as with SerialBindNode.
    async fn make(self: Arc<Self>, over: Arc<AtomicBool>) {
        let mut number = 0;
        while !over.load(Ordering::Acquire) {
            let (claims, greedy) = {
                let mut known = self.known();
                let claims = if known.live.len() < PODS { known.place() } else { None };
                // No container may ask for more than 100 cores, so none may be free of others.
                let may_be_greedy = known.left.values().all(|left| left.cores < 100);
                (claims, known.random(15) == 0 && may_be_greedy)
            };
            let Some(mut claims) = claims else {
                tokio::time::sleep(Duration::from_millis(10)).await;
                continue;
            };
            number += 1;
            let name = format!("pod-{number}");
            if greedy {
                // Its scheduler has miscounted.
                let _quiet = self.quiet.lock().await;
                self.take(&claims[..1]);
                claims[1].cores =
                    self.known().left.values().map(|left| left.cores).max().unwrap() + 1;
                self.take(&claims[1..]);
                assert!(
                    !self.run(&name, &claims).await,
                    "{name} has what is not there: {claims:?}"
                );
            } else {
                self.take(&claims);
                assert!(self.run(&name, &claims).await, "{name} has room: {claims:?}");
            }
        }
    }

    fn unmake(&self) {
        let name = {
            let mut known = self.known();
            let Some(most) = u64::try_from(known.live.len()).ok().filter(|most| *most > 0) else {
                return;
            };
            let at = usize::try_from(known.random(most)).unwrap();
            known.live.keys().nth(at).unwrap().clone()
        };
        let containers = self.known().live.remove(&name).unwrap();
        self.end(&name, &containers);
    }

    /// What stands in pages of pods that live is never more than there is.
    fn look(&self, totals: &BTreeMap<GpuId, Share>) {
        let (live, starting) = {
            let known = self.known();
            (known.live.clone(), known.starting.clone())
        };
        for one in live.values().flatten() {
            let (whose, _, limits) = limits_of(&one.folder).unwrap();
            assert_eq!(whose, one.name);
            assert!(has(&limits, &one.claim), "{limits:?} for {:?}", one.claim);
        }
        let mut sums: BTreeMap<GpuId, Share> = BTreeMap::new();
        for entry in fs::read_dir(&self.folder).unwrap().flatten() {
            let Some((whose, gpu, limits)) = limits_of(&entry.path()) else { continue };
            let pod = whose.split('/').nth(1).unwrap();
            if live.contains_key(pod) || starting.as_deref() == Some(pod) {
                let sum = sums.entry(gpu).or_default();
                sum.cores += u64::from(limits.compute.share_ppm) / 10_000;
                sum.memory_mib += limits.memory.unwrap().limit / MIB;
            }
        }
        for (gpu, sum) in sums {
            let total = totals[&gpu];
            assert!(
                sum.cores <= total.cores && sum.memory_mib <= total.memory_mib,
                "{gpu}: {sum:?}"
            );
        }
    }

    fn folders(&self) -> usize {
        fs::read_dir(&self.folder).unwrap().count()
    }

    /// Waits until a resource has just so many places that it cannot give.
    async fn hides(client: &GoClient, count: usize) {
        let mut lists = client.watch("ListAndWatch", &Empty {}).await;
        loop {
            let list: ListAndWatchResponse = in_time(lists.next()).await.unwrap();
            assert_eq!(list.devices.len(), usize::from(GPUS) * SPLIT);
            let hidden = list.devices.iter().filter(|device| device.health == UNHEALTHY);
            if hidden.count() == count {
                return;
            }
        }
    }

    /// CPU time so far, and the most memory, in KiB.
    fn used(&self) -> (Duration, u64) {
        let pid = self.agent.id().unwrap();
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let after = stat.rsplit_once(')').unwrap().1;
        let ticks: Vec<u64> =
            after.split_whitespace().skip(11).take(2).map(|text| text.parse().unwrap()).collect();
        let per_second = rustix::param::clock_ticks_per_second();
        let cpu = Duration::from_millis((ticks[0] + ticks[1]) * 1000 / per_second);
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        (cpu, peak.trim().trim_end_matches(" kB").parse().unwrap())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_pods_come_and_go_and_all_accounts_agree() {
    let asked = std::env::var("SLUICE_FAULTS").ok().and_then(|text| text.parse().ok());
    let lasts = Duration::from_secs(asked.unwrap_or(8));
    let mut kubelet = FakeKubelet::in_memory();
    kubelet.start();
    let server = ApiServer::start(kubelet.path()).await.unwrap();
    let cluster = Arc::new(Cluster::start(&mut kubelet, &server).await);
    let totals = cluster.known().left.clone();
    let (before, _) = cluster.used();
    let (begun, over) = (Instant::now(), Arc::new(AtomicBool::new(false)));
    let making = tokio::spawn(Arc::clone(&cluster).make(Arc::clone(&over)));
    let (mut looks, mut most) = (0, 0);
    while begun.elapsed() < lasts && !making.is_finished() {
        let (pause, live) = {
            let mut known = cluster.known();
            (known.random(60), known.live.len())
        };
        tokio::time::sleep(Duration::from_millis(pause)).await;
        most = most.max(live);
        // Up to all of them, and then about as many go as come.
        let goes = cluster.known().random(u64::try_from(2 * PODS).unwrap())
            < u64::try_from(live * live / PODS + live / 4).unwrap();
        if let Ok(_quiet) = cluster.quiet.try_lock()
            && goes
        {
            cluster.unmake();
        }
        if pause % 8 == 0 {
            cluster.look(&totals);
            looks += 1;
        }
    }
    over.store(true, Ordering::Release);
    making.await.unwrap();
    let (cpu, peak) = cluster.used();
    let took = begun.elapsed();
    let (made, refused, live) = {
        let known = cluster.known();
        (known.made, known.refused, known.live.clone())
    };
    println!(
        "{made} pods made, {refused} refused, up to {most} at once, {looks} looks in {took:.1?}; {} lists; the agent: {:.2} s of CPU time, at most {:.1} MiB",
        cluster.lists.load(Ordering::Acquire),
        (cpu - before).as_secs_f64(),
        peak as f64 / 1024.0
    );
    until("folders are those of the pods", || cluster.folders() == 2 * live.len() + 2).await;
    cluster.look(&totals);
    for (name, containers) in &live {
        let each = containers.iter().map(|one| ContainerClaims {
            container: one.name.rsplit('/').next().unwrap().to_owned(),
            claims: vec![one.claim],
        });
        let wanted = PodClaims(each.collect()).write(Dialect::VgpuManager, &["first", "second"]);
        let found = cluster.objects.pod(name).unwrap()["metadata"].clone();
        assert_eq!(found["annotations"]["nvidia.com/real-allocated"], wanted, "{name}");
        assert_eq!(found["labels"][PHASE], "succeed", "{name}");
    }
    let folders: BTreeSet<_> = live.values().flatten().map(|one| &one.folder).collect();
    assert_eq!(folders.len(), 2 * live.len());
    Cluster::hides(&cluster.volcano, 2 * live.len()).await;
    for (name, containers) in &live {
        cluster.end(name, containers);
    }
    // The lock, and what is preloaded.
    until("nothing is left over", || cluster.folders() == 2).await;
    for client in [&cluster.client, &cluster.volcano] {
        Cluster::hides(client, 0).await;
    }
    assert_eq!(cluster.known().left, totals);
}
