use std::collections::BTreeSet;

use dialects::claims::ContainerClaims;
use dialects::registers::HamiForm;
use dialects::{MemoryNeed, PodClaims};
use k8s_openapi::api::core::v1::Pod;
use limits::{GpuId, Priority};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::refusal::PodRefusal;
use crate::request::{ContainerRequest, Request, Stage};

const TEN: NonZeroU32 = NonZeroU32::new(10).unwrap();

fn device(index: u32, places: u64, memory_mib: u64, healthy: bool) -> Registered {
    let byte = u8::try_from(index).unwrap();
    Registered {
        index,
        gpu: GpuId::from_bytes([byte; 16]),
        product: "A10".to_owned(),
        cores: 100,
        memory_mib,
        places,
        hardware: dialects::registers::Hardware::default(),
        healthy,
    }
}

fn account(devices: &[Registered]) -> Account {
    let text = registers::write(Dialect::VgpuManager, HamiForm::default(), devices, TEN).unwrap();
    let config = r#"{"deviceSplit":4,"coresScaling":1.0,"memoryFactor":10,"memoryScaling":1.0}"#;
    let annotation = |name: &str| match name {
        "nvidia.com/node-device-register" => Some(text.as_str()),
        "nvidia.com/node-config-info" => Some(config),
        _ => None,
    };
    Account::of(Dialect::VgpuManager, annotation).unwrap()
}

fn need(places: u64, cores: u64, memory: MemoryNeed) -> Need {
    let priority = Priority::High;
    let (dialect, resource) = (Dialect::VgpuManager, "nvidia.com/vgpu-number");
    Need { dialect, resource, places, cores, memory, priority, milli_tflops: 0 }
}

fn pod(containers: Vec<Need>) -> Request {
    let named = (0..).zip(containers).map(|(at, need)| ContainerRequest {
        name: format!("c{at}"),
        need,
        stage: Stage::Lasting,
    });
    let (choice, policy) = (Choice::default(), Policy::default());
    Request { dialect: Dialect::VgpuManager, containers: named.collect(), choice, policy }
}

/// A pod that holds these claims.
fn holding(claims: Vec<Claim>) -> Holding {
    let one = pod(vec![need(1, 1, MemoryNeed::Units(1))]);
    let container = "c0".to_owned();
    Holding::claimed(&one, &PodClaims(vec![ContainerClaims { container, claims }]), TEN)
}

#[test]
fn the_fullest_gpu_with_room_is_taken_and_then_another() {
    let mut node = account(&[device(0, 4, 8000, true), device(1, 4, 8000, true)]);
    let most = pod(vec![need(1, 10, MemoryNeed::Units(500))]);
    let first = node.place(&most).unwrap();
    assert_eq!(
        first.write(Dialect::VgpuManager, &[]),
        format!("c0[0_{}_10_5000]", device(0, 1, 1, true).gpu)
    );
    node.take(&Holding::claimed(&most, &first, TEN));
    // It does not fit beside the first.
    assert_eq!(node.place(&most).unwrap().of("c0").unwrap()[0].index, 1);
    let little = pod(vec![need(1, 10, MemoryNeed::Units(300))]);
    assert_eq!(node.place(&little).unwrap().of("c0").unwrap()[0].index, 0);
}

#[test]
fn a_refusal_says_what_is_missing_on_how_many_gpus() {
    let mut node = account(&[
        device(0, 4, 8000, true),
        device(1, 1, 8000, true),
        device(2, 4, 8000, false),
        device(3, 4, 1000, true),
        device(4, 4, 8000, true),
    ]);
    let of = |index: u32| device(index, 1, 1, true).gpu;
    node.take(&holding(vec![
        Claim { index: 0, gpu: of(0), cores: 95, memory_mib: 1 },
        Claim { index: 1, gpu: of(1), cores: 1, memory_mib: 1 },
    ]));
    let two = pod(vec![need(2, 10, MemoryNeed::Units(200))]);
    let refusal = node.place(&two).unwrap_err();
    assert_eq!(
        refusal.to_string(),
        "container c0 asks for 2 GPUs with 10 cores and 2000 MiB: 1 of 5 GPUs have room (1 unhealthy; 1 with no place left; 1 with too few cores left, at most 5; 1 with too little memory left, at most 1000 MiB)"
    );
    // One of two GPUs, half of the memory or half of the cores: the first one found.
    let (loss, nearest) = node.nearest(&two, &refusal, u64::MAX).unwrap();
    assert_eq!((loss, nearest.to_string().as_str()), (500, "1 GPU with 10 cores and 2000 MiB"));
    assert_eq!(node.nearest(&two, &refusal, 500), None);
    let none = Account::of(Dialect::Hami, |_| None).unwrap_err().to_string();
    assert_eq!(
        none,
        "no GPUs are registered: the node has no annotation hami.io/node-nvidia-register"
    );
    let broken = Account::of(Dialect::Volcano, |name| name.ends_with("register").then_some("x"));
    let broken = broken.unwrap_err().to_string();
    assert!(
        broken.starts_with("the node's annotation volcano.sh/node-vgpu-register: "),
        "{broken}"
    );
}

#[test]
fn who_does_not_say_where_it_is_counts_on_each_gpu() {
    let mut node = account(&[device(0, 4, 8000, true), device(1, 4, 8000, true)]);
    let limits = json!({"nvidia.com/vgpu-number": "1", "nvidia.com/vgpu-cores": "60", "nvidia.com/vgpu-memory": "10"});
    node.take(&Holding::of(&spec(&json!([container("main", &limits)]), &json!([]))).unwrap());
    assert!(node.place(&pod(vec![need(1, 41, MemoryNeed::Units(1))])).is_err());
    assert!(node.place(&pod(vec![need(2, 40, MemoryNeed::Units(1))])).is_ok());
}

#[test]
fn a_pod_gets_the_gpus_that_it_wants() {
    let node = account(&[device(0, 4, 8000, true), device(1, 4, 8000, true)]);
    let second = device(1, 4, 8000, true).gpu;
    let wants = |name: &str, value: &str| {
        let annotations = json!({"metadata": {"annotations": {name: value}}});
        let wanted = serde_json::from_value(annotations).unwrap();
        let choice = Choice::of(&wanted, Dialect::VgpuManager);
        Request { choice, ..pod(vec![need(1, 10, MemoryNeed::Units(1))]) }
    };
    let by_uuid = wants("nvidia.com/include-gpu-uuid", &second.to_string());
    assert_eq!(node.place(&by_uuid).unwrap().of("c0").unwrap()[0].gpu, second);
    let none = node.place(&wants("nvidia.com/include-gpu-type", "B200")).unwrap_err();
    assert!(none.to_string().ends_with("(2 that the pod does not want)"), "{none}");
}

fn container(name: &str, limits: &Value) -> Value {
    json!({"name": name, "resources": {"limits": limits}})
}

fn spec(containers: &Value, init: &Value) -> Pod {
    let spec = json!({"containers": containers, "initContainers": init});
    serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": spec})).unwrap()
}

/// A request for `cores` of one GPU.
fn limits(cores: u32) -> Value {
    json!({"nvidia.com/vgpu-number": "1", "nvidia.com/vgpu-cores": cores.to_string(), "nvidia.com/vgpu-memory": "1"})
}

/// A pod whose init container runs before its sidecar, and both beside or before the main one.
fn staged(init: u32, sidecar: u32, main: u32) -> Pod {
    let mut second = container("sidecar", &limits(sidecar));
    second["restartPolicy"] = "Always".into();
    let before = json!([container("init", &limits(init)), second]);
    spec(&json!([container("main", &limits(main))]), &before)
}

fn request(pod: &Pod) -> Request {
    Request::of(pod, &[Dialect::VgpuManager], false).unwrap().unwrap()
}

#[test]
fn an_init_container_and_those_after_it_need_the_larger_of_both() {
    let node = account(&[device(0, 4, 8000, true)]);
    assert!(node.place(&request(&staged(90, 40, 60))).is_ok());
    assert!(node.place(&request(&staged(10, 50, 60))).is_err(), "sidecar and main run together");
    let claims = node.place(&request(&staged(90, 30, 30))).unwrap();
    for name in ["init", "sidecar", "main"] {
        assert_eq!(claims.of(name).unwrap()[0].index, 0);
    }
    // Bound: 90 while the init container runs, and kubelets keep it.
    let mut pod = staged(90, 30, 30);
    let text = claims.write(Dialect::VgpuManager, &[]);
    let annotations = json!({"nvidia.com/pre-allocated": text});
    pod.metadata.annotations = serde_json::from_value(annotations).unwrap();
    let mut beside = node.clone();
    beside.take(&Holding::of(&pod).unwrap());
    let one = |cores| pod_of(cores);
    assert!(beside.place(&one(10)).is_ok() && beside.place(&one(11)).is_err());
    assert_eq!(Holding::of(&pod), Some(Holding::claimed(&request(&pod), &claims, TEN)));
}

fn pod_of(cores: u64) -> Request {
    pod(vec![need(1, cores, MemoryNeed::Units(1))])
}

/// The kubelet gives an init container's ids to the next container, before others.
#[test]
fn a_container_is_placed_where_the_init_container_before_it_was() {
    let node = account(&[device(0, 4, 8000, true), device(1, 4, 8000, true)]);
    let first = device(0, 4, 8000, true).gpu;
    let mut busy = node;
    busy.take(&holding(vec![Claim { index: 0, gpu: first, cores: 50, memory_mib: 0 }]));
    // The first GPU has room for the init container, and not for the main one.
    let before = json!([container("init", &limits(40))]);
    let pod = spec(&json!([container("main", &limits(60))]), &before);
    let claims = busy.place(&request(&pod)).unwrap();
    assert_eq!(claims.of("init").unwrap()[0].index, 1);
    assert_eq!(claims.of("main").unwrap()[0].index, 1);
}

#[test]
fn requests_that_no_node_can_meet_are_refused_with_the_reason() {
    let said = |pod: &Pod| Request::of(pod, &Dialect::ALL, false).unwrap_err().to_string();
    let number = |name: &str, number: &str| json!({name: number});
    let (ours, hami) = ("nvidia.com/vgpu-number", "nvidia.com/gpu");
    let one = |name: &str, resource: &str, places: &str| container(name, &number(resource, places));
    let two = said(&spec(&json!([one("a", ours, "1"), one("b", hami, "1")]), &json!([])));
    assert!(two.contains("of vgpu-manager and of hami"), "{two}");
    let volcano = "volcano.sh/vgpu-number";
    let init = said(&spec(&json!([{"name": "b"}]), &json!([one("a", volcano, "1")])));
    assert!(init.starts_with("init container a asks for GPUs by the names of volcano"), "{init}");
    let fewer = said(&spec(&json!([one("b", ours, "1")]), &json!([one("a", ours, "2")])));
    assert!(fewer.ends_with("kubelets give it any 1 of these; expected at least 2"), "{fewer}");
    let much = json!({ours: "1", "nvidia.com/vgpu-cores": "101"});
    let much = said(&spec(&json!([container("a", &much)]), &json!([])));
    assert!(much.starts_with("container a: nvidia.com/vgpu-cores: 101 cores"), "{much}");
    let mut linked = spec(&json!([one("a", ours, "2")]), &json!([]));
    let annotations = json!({"nvidia.com/device-topology-mode": "link-strict"});
    linked.metadata.annotations = serde_json::from_value(annotations).unwrap();
    assert_eq!(Request::of(&linked, &Dialect::ALL, false), Err(PodRefusal::LinkGate));
    assert!(Request::of(&linked, &Dialect::ALL, true).unwrap().unwrap().policy.topology.is_some());
}

#[test]
fn nodes_are_scored_by_their_fullness_and_by_what_connects_their_gpus() {
    let policy = |node, topology| Policy { node, device: None, topology };
    let score = |account: &Account, node, connected: Option<bool>| {
        let topology = connected.map(|_| dialects::policy::Topology {
            by: dialects::policy::Connection::Numa,
            strict: false,
        });
        account.score(policy(node, topology), || connected.unwrap_or_default())
    };
    let empty = account(&[device(0, 4, 8000, true), device(1, 4, 8000, true)]);
    let mut half = empty.clone();
    let first = device(0, 4, 8000, true).gpu;
    half.take(&holding(vec![Claim { index: 0, gpu: first, cores: 100, memory_mib: 0 }]));
    for (node, expected) in
        [(None, (0, 0)), (Some(Order::Binpack), (0, 5)), (Some(Order::Spread), (10, 5))]
    {
        assert_eq!((score(&empty, node, None), score(&half, node, None)), expected);
    }
    assert_eq!(score(&empty, None, Some(true)), 5);
    assert_eq!(score(&empty, Some(Order::Spread), Some(false)), 5);
    assert_eq!(score(&half, Some(Order::Spread), Some(true)), 7);
}

prop_compose! {
    fn any_need()(places in 1_u64..4, cores in 0_u64..101, units in 1_u64..900, percent in 1_u64..101, kind in 0..3) -> Need {
        let memory = match kind {
            0 => MemoryNeed::Whole,
            1 => MemoryNeed::Units(units),
            _ => MemoryNeed::Percent(percent),
        };
        need(places, cores, memory)
    }
}

proptest! {
    /// Pods come and go: no GPU is promised more than it has, and refused pods would not fit.
    #[test]
    fn what_is_bound_always_fits(
        devices in prop::collection::vec((1_u64..6, 1_u64..9000, prop::bool::weighted(0.9)), 1..5),
        steps in prop::collection::vec((prop::collection::vec(any_need(), 1..4), prop::option::of(0_usize..8)), 1..25),
    ) {
        let devices: Vec<Registered> = (0..).zip(devices).map(|(at, (places, memory, healthy))| device(at, places, memory, healthy)).collect();
        let fresh = account(&devices);
        let mut bound: Vec<PodClaims> = Vec::new();
        for (containers, leaves) in steps {
            if let Some(at) = leaves.filter(|at| *at < bound.len()) {
                bound.swap_remove(at);
            }
            let mut node = fresh.clone();
            let claims = bound.iter().flat_map(|pod| &pod.0);
            claims.for_each(|one| node.take(&holding(one.claims.clone())));
            let wanted = pod(containers);
            let used = |gpu: GpuId, bound: &[PodClaims]| {
                bound.iter().flat_map(PodClaims::all).filter(|claim| claim.gpu == gpu).fold((0, 0, 0), |sum, claim| {
                    (sum.0 + 1, sum.1 + claim.cores, sum.2 + claim.memory_mib)
                })
            };
            match node.place(&wanted) {
                Ok(claims) => {
                    for (ContainerRequest { name, need, .. }, found) in wanted.containers.iter().zip(&claims.0) {
                        prop_assert_eq!(name, &found.container);
                        prop_assert_eq!(u64::try_from(found.claims.len()).unwrap(), need.places);
                        let distinct: BTreeSet<GpuId> = found.claims.iter().map(|claim| claim.gpu).collect();
                        prop_assert_eq!(distinct.len(), found.claims.len());
                        for claim in &found.claims {
                            let of = devices.iter().find(|device| device.gpu == claim.gpu).unwrap();
                            prop_assert!(of.healthy);
                            let share = need.on(of.memory_mib, None, TEN).unwrap();
                            prop_assert_eq!((claim.cores, claim.memory_mib), (share.cores, share.memory_mib));
                        }
                    }
                    // As read back from the pod.
                    let text = claims.write(Dialect::VgpuManager, &[]);
                    bound.push(PodClaims::read(Dialect::VgpuManager, &text, &[]).unwrap());
                    for device in &devices {
                        let (places, cores, memory) = used(device.gpu, &bound);
                        prop_assert!(places <= device.places && cores <= device.cores && memory <= device.memory_mib);
                    }
                }
                Err(Refusal::NoRoom { .. }) if wanted.containers.len() == 1 => {
                    let need = wanted.containers[0].need;
                    let fits = |device: &&Registered| {
                        let (places, cores, memory) = used(device.gpu, &bound);
                        let share = need.on(device.memory_mib, None, TEN).unwrap();
                        device.healthy && places < device.places && cores + share.cores <= device.cores
                            && memory + share.memory_mib <= device.memory_mib
                    };
                    prop_assert!(u64::try_from(devices.iter().filter(fits).count()).unwrap() < need.places);
                }
                Err(_) => {}
            }
        }
    }
}
