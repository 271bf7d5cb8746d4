use std::collections::BTreeSet;

use dialects::MemoryNeed;
use dialects::registers::HamiForm;
use limits::{GpuId, Priority};
use proptest::prelude::*;

use super::*;

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

fn pod(containers: Vec<Need>) -> PodNeeds {
    let named = (0..).zip(containers).map(|(at, need)| (format!("c{at}"), need));
    let choice = Choice::default();
    PodNeeds { dialect: Dialect::VgpuManager, containers: named.collect(), choice }
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
    node.take(first.of("c0").unwrap());
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
    node.take(&[
        Claim { index: 0, gpu: of(0), cores: 95, memory_mib: 1 },
        Claim { index: 1, gpu: of(1), cores: 1, memory_mib: 1 },
    ]);
    let said = node.place(&pod(vec![need(2, 10, MemoryNeed::Units(200))])).unwrap_err().to_string();
    assert_eq!(
        said,
        "container c0 asks for 2 GPUs: 1 have room (1 unhealthy, 1 with no place left, 1 with too few cores left, 1 with too little memory left)"
    );
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
    node.take_anywhere(&need(1, 60, MemoryNeed::Units(10)));
    assert!(node.place(&pod(vec![need(1, 41, MemoryNeed::Units(1))])).is_err());
    assert!(node.place(&pod(vec![need(2, 40, MemoryNeed::Units(1))])).is_ok());
}

#[test]
fn a_pod_gets_the_gpus_that_it_wants() {
    let node = account(&[device(0, 4, 8000, true), device(1, 4, 8000, true)]);
    let second = device(1, 4, 8000, true).gpu;
    let wants = |name: &str, value: &str| {
        let annotations = serde_json::json!({"metadata": {"annotations": {name: value}}});
        let wanted = serde_json::from_value(annotations).unwrap();
        let choice = Choice::of(&wanted, Dialect::VgpuManager);
        PodNeeds { choice, ..pod(vec![need(1, 10, MemoryNeed::Units(1))]) }
    };
    let by_uuid = wants("nvidia.com/include-gpu-uuid", &second.to_string());
    assert_eq!(node.place(&by_uuid).unwrap().of("c0").unwrap()[0].gpu, second);
    let none = node.place(&wants("nvidia.com/include-gpu-type", "B200")).unwrap_err();
    assert!(none.to_string().ends_with("(2 that the pod does not want)"), "{none}");
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
    /// Pods come and go: no GPU is ever promised more than it has, and what is refused would not have fitted.
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
            bound.iter().flat_map(|pod| &pod.0).for_each(|one| node.take(&one.claims));
            let wanted = pod(containers);
            let used = |gpu: GpuId, bound: &[PodClaims]| {
                bound.iter().flat_map(PodClaims::all).filter(|claim| claim.gpu == gpu).fold((0, 0, 0), |sum, claim| {
                    (sum.0 + 1, sum.1 + claim.cores, sum.2 + claim.memory_mib)
                })
            };
            match node.place(&wanted) {
                Ok(claims) => {
                    for ((name, need), found) in wanted.containers.iter().zip(&claims.0) {
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
                    // As it is read again from the pod.
                    let text = claims.write(Dialect::VgpuManager, &[]);
                    bound.push(PodClaims::read(Dialect::VgpuManager, &text, &[]).unwrap());
                    for device in &devices {
                        let (places, cores, memory) = used(device.gpu, &bound);
                        prop_assert!(places <= device.places && cores <= device.cores && memory <= device.memory_mib);
                    }
                }
                Err(Refusal::NoRoom { .. }) if wanted.containers.len() == 1 => {
                    let need = wanted.containers[0].1;
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
