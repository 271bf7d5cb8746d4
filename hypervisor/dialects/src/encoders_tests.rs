//! Claims as each original's encoder writes them, for pods with all combinations of containers.

use limits::GpuId;
use serde_json::json;

use super::*;
use crate::registers::{self, HamiForm};

/// The number of GPUs of which a container requests a part.
type Asked = usize;

fn shapes() -> impl Iterator<Item = (Vec<Asked>, Vec<Asked>)> {
    let all =
        |most: u32| (0..=most).flat_map(|count| (0..3_usize.pow(count)).map(move |n| (count, n)));
    let digits = |(count, n): (u32, usize)| (0..count).map(|at| n / 3_usize.pow(at) % 3).collect();
    let init: Vec<Vec<Asked>> = all(2).map(digits).collect();
    let main: Vec<Vec<Asked>> = all(4).map(digits).filter(|one: &Vec<_>| !one.is_empty()).collect();
    init.into_iter()
        .flat_map(move |init| main.clone().into_iter().map(move |main| (init.clone(), main)))
}

fn pod(dialect: Dialect, init: &[Asked], main: &[Asked], text: &str) -> Pod {
    let number = match dialect {
        Dialect::Hami => "nvidia.com/gpu",
        _ => "volcano.sh/vgpu-number",
    };
    let one = |letter: &str, (at, asked): (usize, &Asked)| match asked {
        0 => json!({"name": format!("{letter}{at}")}),
        _ => {
            json!({"name": format!("{letter}{at}"), "resources": {"limits": {number: asked.to_string()}}})
        }
    };
    let all =
        |letter, of: &[Asked]| of.iter().enumerate().map(|of| one(letter, of)).collect::<Vec<_>>();
    serde_json::from_value(json!({
        "metadata": {"annotations": {lasting(dialect): text}},
        "spec": {"initContainers": all("i", init), "containers": all("c", main)},
    }))
    .unwrap()
}

/// The GPUs of the container at this position.
fn gpus(init: bool, at: usize, asked: Asked) -> Vec<GpuId> {
    let byte = |gpu| u8::try_from(100 * usize::from(init) + 10 * at + gpu).unwrap();
    (0..asked).map(|gpu| GpuId::from_bytes([byte(gpu); 16])).collect()
}

fn slot(gpus: &[GpuId]) -> String {
    gpus.iter().map(|gpu| format!("{gpu},NVIDIA,300,20:")).collect()
}

fn slots_of(init: bool, asked: &[Asked]) -> Vec<String> {
    asked.iter().enumerate().map(|(at, asked)| slot(&gpus(init, at, *asked))).collect()
}

fn volcano(_: &[Asked], main: &[Asked]) -> String {
    let slots = slots_of(false, main).into_iter().filter(|slot| !slot.is_empty());
    slots.collect::<Vec<_>>().join(";")
}

fn ended(slots: impl IntoIterator<Item = String>) -> String {
    slots.into_iter().map(|slot| slot + ";").collect()
}

/// `EncodePodSingleDevice` up to HAMi 2.8: one slot per container.
fn hami_2_8(_: &[Asked], main: &[Asked]) -> String {
    ended(slots_of(false, main))
}

/// HAMi 2.9: init containers come first.
fn hami_2_9(init: &[Asked], main: &[Asked]) -> String {
    ended(slots_of(true, init).into_iter().chain(slots_of(false, main)))
}

/// HAMi 2.10 on nodes with model-specific types: init containers without a request have no slot (its issue 2899).
fn hami_2_10(init: &[Asked], main: &[Asked]) -> String {
    let init = slots_of(true, init).into_iter().filter(|slot| !slot.is_empty());
    ended(init.chain(slots_of(false, main)))
}

/// HAMi before 2.6: containers without a request have an empty device (its issue 991).
fn hami_empty(_: &[Asked], main: &[Asked]) -> String {
    let filled = |slot: String| if slot.is_empty() { ",,0,0:".to_owned() } else { slot };
    ended(slots_of(false, main).into_iter().map(filled))
}

#[test]
fn each_encoders_claims_are_of_the_containers_that_it_means() {
    type Encoder = fn(&[Asked], &[Asked]) -> String;
    let encoders: [(Dialect, Encoder, bool); 5] = [
        (Dialect::Volcano, volcano, false),
        (Dialect::Hami, hami_2_8, false),
        (Dialect::Hami, hami_2_9, true),
        (Dialect::Hami, hami_2_10, true),
        (Dialect::Hami, hami_empty, false),
    ];
    for (index, (dialect, encode, has_init)) in encoders.into_iter().enumerate() {
        for (init, main) in shapes() {
            let text = encode(&init, &main);
            let pod = pod(dialect, &init, &main, &text);
            let read = claims(&pod, dialect, NonZeroU32::MIN).unwrap();
            let of = |name: String| -> Vec<GpuId> {
                read.of(&name).unwrap_or_default().iter().map(|claim| claim.gpu).collect()
            };
            for (at, asked) in main.iter().enumerate() {
                assert_eq!(of(format!("c{at}")), gpus(false, at, *asked), "{index} {text}");
            }
            // HAMi before 2.9 gives init containers no devices.
            for (at, asked) in init.iter().enumerate() {
                let asked = if has_init { *asked } else { 0 };
                assert_eq!(of(format!("i{at}")), gpus(true, at, asked), "{index} {text}");
            }
            if matches!(index, 0 | 2) {
                assert_eq!(
                    claims_text(read, &slots(&pod, dialect), dialect, NonZeroU32::MIN),
                    text
                );
            }
        }
    }
}

/// Volcano gives one GPU to a container that requests only memory, and no slot to one that requests only cores.
#[test]
fn volcano_counts_requests_for_memory_alone() {
    let container = |name: &str, limits| json!({"name": name, "resources": {"limits": limits}});
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"annotations": {"volcano.sh/vgpu-ids-new": slot(&gpus(false, 0, 1)) + ";" + &slot(&gpus(false, 1, 1))}},
        "spec": {"containers": [
            container("cores", json!({"volcano.sh/vgpu-cores": "10"})),
            container("memory", json!({"volcano.sh/vgpu-memory": "300"})),
            container("none", json!({"volcano.sh/vgpu-number": "0"})),
            container("number", json!({"volcano.sh/vgpu-number": "1"})),
        ]},
    }))
    .unwrap();
    let read = claims(&pod, Dialect::Volcano, NonZeroU32::MIN).unwrap();
    assert_eq!(read.of("memory").unwrap()[0].gpu, gpus(false, 0, 1)[0]);
    assert_eq!(read.of("number").unwrap()[0].gpu, gpus(false, 1, 1)[0]);
}

/// Volcano's memory is in units of the memory factor (`registeredmem` of its plugin, `Usedmem` of its scheduler);
/// HAMi's is in MiB, whatever the factor.
#[test]
fn a_unit_of_memory_is_as_large_as_each_encoder_means() {
    let gpu = gpus(false, 0, 1)[0];
    for factor in [1, 10, 1024].map(|factor| NonZeroU32::new(factor).unwrap()) {
        let units = u64::from(factor.get());
        for (dialect, claimed, total) in
            [(Dialect::Volcano, 300 * units, 81_559 / units), (Dialect::Hami, 300, 81_559)]
        {
            let pod = pod(dialect, &[], &[1], &slot(&[gpu]));
            let read = claims(&pod, dialect, factor).unwrap();
            let claim = Claim { index: 0, gpu, cores: 20, memory_mib: claimed };
            assert_eq!(read.of("c0").unwrap(), [claim], "{factor}");
            let text = annotation(&pod, lasting(dialect)).unwrap().trim_end_matches(';');
            assert_eq!(
                claims_text(read, &slots(&pod, dialect), dialect, factor).trim_end_matches(';'),
                text
            );
            let device = crate::Registered {
                index: 0,
                gpu,
                product: "A100".to_owned(),
                cores: 100,
                memory_mib: 81_559,
                places: 10,
                hardware: registers::Hardware::default(),
                healthy: true,
            };
            let text = registers::write(dialect, HamiForm::Fields, &[device], factor).unwrap();
            assert!(text.starts_with(&format!("{gpu},10,{total},")), "{text}");
            let read = registers::read(dialect, &text, factor).unwrap();
            let all = if dialect == Dialect::Volcano { total * units } else { total };
            assert_eq!(read[0].memory_mib, all);
        }
    }
    let huge = pod(Dialect::Volcano, &[], &[1], &format!("{gpu},NVIDIA,{},0:", u64::MAX));
    let said = claims(&huge, Dialect::Volcano, NonZeroU32::new(2).unwrap()).unwrap_err();
    assert!(said.to_string().ends_with("are more than can be counted"), "{said}");
}
