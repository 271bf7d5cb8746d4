use super::*;
use dialects::table::RESOURCES;
use proptest::prelude::*;

const NUMBER: &Resource = &RESOURCES[0];
const CORES_OF: &Resource = &RESOURCES[1];
const MEMORY: &Resource = &RESOURCES[2];

fn gpu(number: u8) -> GpuId {
    GpuId::from_bytes([number; 16])
}

fn pool(gpus: u8, split: u32, factor: u32) -> Pool {
    let one = |number| Gpu {
        id: gpu(number),
        memory_mib: Some(81_559),
        healthy: true,
        product: String::new(),
        hardware: Hardware::default(),
    };
    let number = |number| NonZeroU32::new(number).unwrap();
    Pool::new((0..gpus).map(one).collect(), number(split), number(factor))
}

fn texts(pool: &Pool, counts: Counts) -> Vec<String> {
    pool.ids(counts).map(|(id, _)| id.to_string()).collect()
}

fn place(number: u8, place: u64) -> String {
    format!("{}::{place}", gpu(number))
}

#[test]
fn ids_belong_to_gpus() {
    let pool = pool(2, 3, 1000);
    assert_eq!(
        texts(&pool, Counts::Places),
        [place(0, 0), place(0, 1), place(0, 2), place(1, 0), place(1, 1), place(1, 2)]
    );
    let cores = texts(&pool, Counts::Cores);
    assert_eq!((cores.len(), &cores[199]), (200, &format!("{}::c99", gpu(1))));
    let memory = texts(&pool, Counts::Memory);
    assert_eq!((memory.len(), &memory[0]), (162, &format!("{}::m0", gpu(0))));
    // The kubelet's limit for an id.
    assert!(texts(&pool, Counts::Memory).iter().all(|id| id.len() <= 63));
    assert!(pool.ids(Counts::Places).all(|(_, healthy)| healthy));
    assert!(pool.without_health().ids(Counts::Places).all(|(_, healthy)| !healthy));
}

#[test]
fn a_list_that_the_kubelet_would_not_take_is_refused() {
    let eight = pool(8, 10, 1);
    assert_eq!(eight.check(NUMBER), Ok(()));
    assert_eq!(eight.check(CORES_OF), Ok(()));
    let Err(PoolError::UnitsTooSmall { ids: 652_472, factor, .. }) = eight.check(MEMORY) else {
        panic!("{:?}", eight.check(MEMORY));
    };
    let factor = u32::try_from(factor).unwrap();
    let fits = pool(8, 10, factor);
    assert_eq!(fits.check(MEMORY), Ok(()));
    assert!(pool(8, 10, factor - 1).check(MEMORY).is_err());
    // The size of the message as sent.
    use prost::Message;
    let devices = fits.ids(Counts::Memory).map(|(id, _)| crate::proto::Device {
        id: id.to_string(),
        health: crate::proto::UNHEALTHY.to_owned(),
        topology: None,
    });
    let list = crate::proto::ListAndWatchResponse { devices: devices.collect() };
    assert!(list.encoded_len() <= 4 << 20, "{}", list.encoded_len());
    let Err(PoolError::SplitTooFine { split, .. }) = pool(2, 1 << 20, 1).check(NUMBER) else {
        panic!("a million places");
    };
    assert_eq!(pool(2, u32::try_from(split).unwrap(), 1).check(NUMBER), Ok(()));
}

#[test]
fn an_allocation_has_one_name_whatever_the_order() {
    let pool = pool(3, 2, 1);
    let [a, b] = [place(2, 1), place(0, 0)];
    let one = pool.allocate(NUMBER, &[a.clone(), b.clone()]).unwrap();
    assert_eq!(pool.allocate(NUMBER, &[b.clone(), a]).unwrap(), one);
    assert_eq!(one.gpus, [gpu(0), gpu(2)]);
    let other = pool.allocate(NUMBER, &[b]).unwrap();
    assert_ne!(other.key, one.key);
    // sha256sum of the id and a newline: keys must not change between versions.
    let known = "7aab1291f0fa43dae4a7849cdcc7c693b07be245c89b1c600037ec625b7c2f39";
    assert_eq!(other.key.as_str(), known);
}

#[test]
fn what_was_not_offered_is_refused() {
    let pool = pool(2, 2, 1);
    for id in [
        "",
        "0",
        "::",
        &place(0, 2),
        &place(7, 0),
        &format!("{}::c1", gpu(0)),
        &format!("{}::00", gpu(0)),
        &format!("{}::+0", gpu(0)),
        &place(0, 0).replace("GPU", "gpu"),
        "é::é",
    ] {
        let refused = pool.allocate(NUMBER, &[id.to_owned()]);
        assert!(matches!(refused, Err(PoolError::UnknownId { .. })), "{id}: {refused:?}");
    }
    assert_eq!(pool.allocate(NUMBER, &[]), Err(PoolError::NoIds));
    let same = [place(0, 0), place(0, 1)];
    assert_eq!(pool.allocate(NUMBER, &same), Err(PoolError::SameGpu(gpu(0))));
    let twice = pool.allocate(NUMBER, &[place(0, 0), place(0, 0)]);
    assert!(matches!(twice, Err(PoolError::Twice(_))));
    let sick = pool.without_health().allocate(NUMBER, &[place(0, 0)]);
    assert_eq!(sick, Err(PoolError::Unhealthy(gpu(0))));
    // Cores of one GPU may be in one allocation.
    let cores = [format!("{}::c1", gpu(0)), format!("{}::c2", gpu(0))];
    assert_eq!(pool.allocate(CORES_OF, &cores).unwrap().gpus, [gpu(0)]);
}

#[test]
fn the_emptiest_gpus_come_first_and_each_once() {
    let pool = pool(3, 3, 1);
    let chosen = |available: &[String], must: &[String], count| {
        let chosen = pool.preferred(NUMBER, available, must, count, &Recipient::default());
        chosen.map(|ids| ids.iter().map(ToString::to_string).collect::<Vec<_>>())
    };
    let all = texts(&pool, Counts::Places);
    assert_eq!(chosen(&all, &[], 2).unwrap(), [place(0, 0), place(1, 0)]);
    let some = [place(0, 2), place(1, 1), place(1, 2), place(2, 0), place(2, 1), place(2, 2)];
    assert_eq!(chosen(&some, &[], 2).unwrap(), [place(2, 0), place(1, 1)]);
    let must = [place(2, 1)];
    assert_eq!(chosen(&some, &must, 2).unwrap(), [place(2, 1), place(1, 1)]);
    let said = chosen(&all, &[], 4).unwrap_err().to_string();
    assert!(said.contains("vgpu-number: 4 GPUs") && said.ends_with("at most 3"), "{said}");
    let same = [place(1, 0), place(1, 1)];
    assert_eq!(chosen(&all, &same, 2), Err(PoolError::SameGpu(gpu(1))));
}

proptest! {
    #[test]
    fn no_text_breaks_the_reader(text in ".{0,60}") {
        if let Some(id) = UnitId::read(&text) {
            prop_assert_eq!(id.to_string(), text);
        }
    }

    /// Containers come and go as the kubelet allocates ids: every preferred set can be allocated, live allocations have
    /// different keys, and no id is in two of them.
    #[test]
    fn what_is_preferred_can_be_allocated(
        steps in proptest::collection::vec((any::<bool>(), 1_usize..5, any::<prop::sample::Index>()), 1..60)
    ) {
        let pool = pool(4, 3, 1);
        let mut free: BTreeSet<String> = texts(&pool, Counts::Places).into_iter().collect();
        let mut live: Vec<Allocation> = Vec::new();
        for (comes, count, which) in steps {
            if !comes && !live.is_empty() {
                let gone = live.swap_remove(which.index(live.len()));
                free.extend(gone.ids.iter().map(ToString::to_string));
                continue;
            }
            let available: Vec<String> = free.iter().cloned().collect();
            let unknown = Recipient::default();
            let chosen = pool.preferred(NUMBER, &available, &[], count, &unknown);
            let Ok(chosen) = chosen else { continue };
            prop_assert_eq!(chosen.len(), count);
            let ids: Vec<String> = chosen.iter().map(ToString::to_string).collect();
            prop_assert!(ids.iter().all(|id| free.remove(id)));
            let one = pool.allocate(NUMBER, &ids).unwrap();
            prop_assert_eq!(one.gpus.len(), count);
            prop_assert!(live.iter().all(|other| other.key != one.key));
            live.push(one);
        }
    }
}

/// vgpu.rs: the number of ids that a container gets identifies its pod.
#[test]
fn an_index_is_spread_over_just_the_gpus_that_are_claimed() {
    let index = RESOURCES.iter().find(|row| row.counts == Counts::Index).unwrap();
    let pool = pool(3, 4, 10);
    let all = texts(&pool, Counts::Index);
    let on = |count, claimed: &[GpuId], must: &[String]| {
        let to = Recipient { claimed: claimed.to_vec(), ..Recipient::default() };
        let chosen = pool.preferred(index, &all, must, count, &to)?;
        let texts: Vec<String> = chosen.iter().map(ToString::to_string).collect();
        assert_eq!(texts.len(), count);
        Ok::<_, PoolError>(pool.allocate(index, &texts)?.gpus)
    };
    assert_eq!(on(37, &[gpu(2), gpu(1)], &[]), Ok(vec![gpu(1), gpu(2)]));
    assert_eq!(on(2, &[gpu(2), gpu(1)], &[]), Ok(vec![gpu(1), gpu(2)]));
    assert_eq!(on(512, &[gpu(1)], &[]), Ok(vec![gpu(1)]));
    assert_eq!(on(512, &[], &[]), Ok(vec![gpu(0)]));
    assert_eq!(on(5, &[], &[format!("{}::i7", gpu(2))]), Ok(vec![gpu(2)]));
    let said = on(1, &[gpu(0), gpu(1)], &[]).unwrap_err().to_string();
    assert!(said.contains("1 of tensor-fusion.ai/index requested; expected 2 to 4096"), "{said}");
    assert!(matches!(on(2049, &[gpu(0)], &[]), Err(PoolError::Indices { free: 2048, .. })));
    assert_eq!(pool.check(index), Ok(()));
}
