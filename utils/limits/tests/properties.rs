//! Properties of every request merged with any earlier limits.

use limits::memory::Part;
use limits::named::{Name, Names};
use limits::request::{Device, MemoryRequest, Unused};
use limits::units::{Amount, MAX_WEIGHT, PPM_ONE};
use limits::{ComputeLimit, Limits, MemoryLimit, Named, Policy, Priority, Request, RequestError};
use proptest::option::of;
use proptest::prelude::*;

const NAMES: Names =
    Names { memory: "a memory limit", real: "a part", share: "a share", balance: "balance" };

/// A setting with a numbered name, to distinguish two settings of the same kind.
fn named<T>(value: Option<T>, name: &'static str, number: u32) -> Option<Named<T>> {
    value.map(|value| Named::new(value, format!("{name}_{number}")))
}

fn amounts() -> impl Strategy<Value = Amount> {
    prop_oneof![
        (1..=64u64 << 30).prop_map(Amount::Bytes),
        (1..=PPM_ONE).prop_map(Amount::Ppm),
        any::<u64>().prop_map(|bytes| Amount::Bytes(bytes.max(1))),
    ]
}

fn memory() -> impl Strategy<Value = MemoryRequest> {
    prop_oneof![
        4 => amounts().prop_map(MemoryRequest::Limit),
        1 => Just(MemoryRequest::NoLimit),
    ]
}

fn parts() -> impl Strategy<Value = Part> {
    prop_oneof![
        amounts().prop_map(Part::Amount),
        (u64::from(PPM_ONE) + 1..u64::MAX).prop_map(Part::Ratio),
        Just(Part::Device),
    ]
}

fn policies() -> impl Strategy<Value = Policy> {
    prop_oneof![Just(Policy::Fixed), Just(Policy::Balance), Just(Policy::None)]
}

fn priorities() -> impl Strategy<Value = Priority> {
    prop_oneof![Just(Priority::High), Just(Priority::Low)]
}

prop_compose! {
    /// Requests that a user can make: every value in range, in any combination.
    fn requests()(
        memory in of(memory()), real in of(parts()), share in of(1..=PPM_ONE),
        policy in of(policies()), soft in of(1..=PPM_ONE), weight in of(1..=MAX_WEIGHT),
        priority in of(priorities()), number in any::<u32>(),
    ) -> Request {
        Request {
            names: NAMES,
            memory: named(memory, "CUDA_MEM_LIMIT", number),
            real: named(real, "--mem-real", number),
            share: named(share, "devices[0].share_ppm", number),
            policy: named(policy, "sluice.dev/policy", number),
            soft: named(soft, "--burst", number),
            weight: named(weight, "SLUICE_WEIGHT", number),
            priority: named(priority, "--priority", number),
        }
    }
}

prop_compose! {
    fn limits()(
        limit in of(1..=u64::MAX), real in of(1..=u64::MAX), none in any::<bool>(),
        share_ppm in 1..=PPM_ONE, policy in policies(), soft in of(0..=PPM_ONE),
        weight in 1..=MAX_WEIGHT, priority in priorities(),
    ) -> Limits {
        let soft_ppm = soft.map(|soft| soft.max(share_ppm)).filter(|_| policy == Policy::Balance);
        let compute = ComputeLimit { share_ppm, policy, soft_ppm, weight, priority };
        Limits {
            memory: limit.map(|limit| MemoryLimit { limit, real }),
            compute: if none { ComputeLimit::NONE } else { compute },
        }
    }
}

fn unused() -> impl Strategy<Value = Unused> {
    prop_oneof![Just(Unused::Refused), Just(Unused::Ignored)]
}

fn totals() -> impl Strategy<Value = Option<u64>> {
    of(prop_oneof![1..=96u64 << 30, any::<u64>()])
}

/// The names in an error.
fn told(error: &RequestError) -> Vec<Name> {
    match error.clone() {
        RequestError::NeedsShare { name, .. }
        | RequestError::Nothing { name, .. }
        | RequestError::UnknownSize { name, .. } => vec![name],
        RequestError::NoneBesideOthers { policy, mut others } => {
            others.push(policy);
            others
        }
        RequestError::SoftUnderFixed { soft, policy } => vec![soft, policy],
        RequestError::WeightWithoutBalance { weight, .. } => vec![weight],
        RequestError::SoftBelowShare { soft, share } => vec![soft.name, share.name],
        RequestError::RealWithoutLimit { real, .. } => vec![real],
        RequestError::RealAboveLimit { real, limit } => vec![real.name, limit.name],
        RequestError::AboveDevice { asked, .. } => vec![asked.name],
    }
}

fn set(request: &Request) -> Vec<Name> {
    fn name<T>(setting: &Option<Named<T>>) -> Option<Name> {
        setting.as_ref().map(|setting| setting.name.clone())
    }
    let memory = [name(&request.memory), name(&request.real)];
    let compute = [name(&request.share), name(&request.policy), name(&request.soft)];
    let rest = [name(&request.weight), name(&request.priority)];
    memory.into_iter().chain(compute).chain(rest).flatten().collect()
}

fn is_valid(limits: &Limits) -> bool {
    let compute = &limits.compute;
    let ordered = compute.soft_ppm.is_none_or(|soft| soft >= compute.share_ppm);
    let balanced = compute.soft_ppm.is_none() || compute.policy == Policy::Balance;
    let memory = limits.memory.is_none_or(|memory| {
        memory.limit > 0 && memory.real != Some(0) && memory.on_device() <= memory.limit
    });
    compute.check().is_ok() && ordered && balanced && memory
}

proptest! {
    // Integration tests have no directory for failed cases.
    #![proptest_config(ProptestConfig { cases: 4096, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn asking_again_changes_nothing(
        request in requests(), before in limits(), total in totals(), unused in unused(),
    ) {
        let device = Device { name: "the device", total };
        if let Ok(once) = request.over(&before, device, unused) {
            prop_assert_eq!(request.over(&once, device, unused), Ok(once));
        }
        let nothing = Request::nothing(NAMES);
        prop_assert_eq!(nothing.over(&before, device, unused), Ok(before));
    }

    #[test]
    fn what_is_accepted_is_a_valid_limit(
        request in requests(), before in limits(), total in 1..=u64::MAX, unused in unused(),
    ) {
        prop_assert!(is_valid(&before));
        let device = Device { name: "the device", total: Some(total) };
        if let Ok(after) = request.over(&before, device, unused) {
            prop_assert!(is_valid(&after), "{after:?}");
            if request.fits(&after, device).is_ok() && (request.memory.is_some() || request.real.is_some()) {
                prop_assert!(after.memory.is_none_or(|memory| memory.on_device() <= total));
            }
            // The requested values are in force.
            if let (Some(share), Some(Policy::Fixed | Policy::Balance) | None) =
                (&request.share, request.policy.as_ref().map(|policy| policy.value))
            {
                prop_assert_eq!(after.compute.share_ppm, share.value);
                prop_assert!(after.compute.is_limit());
            }
            if let Some(Named { value: MemoryRequest::Limit(amount), .. }) = &request.memory {
                prop_assert_eq!(after.memory.map(|memory| memory.limit), amount.of(Some(total)));
            }
        }
    }

    #[test]
    fn what_needs_no_device_is_told_without_one(
        request in requests(), before in limits(), total in totals(), unused in unused(),
    ) {
        let device = Device { name: "the device", total };
        if let Err(error) = request.check(&before, unused) {
            prop_assert_eq!(request.over(&before, device, unused), Err(error));
        }
    }

    #[test]
    fn errors_tell_the_names_that_the_user_used(
        request in requests(), before in limits(), total in totals(), unused in unused(),
    ) {
        let device = Device { name: "the device", total };
        let error = match request.over(&before, device, unused) {
            Err(error) => error,
            Ok(after) => match request.fits(&after, device) {
                Err(error) => error,
                Ok(()) => return Ok(()),
            },
        };
        let (line, set) = (error.to_string(), set(&request));
        let told = told(&error);
        // At least one is a setting of this request; the others may be earlier ones.
        prop_assert!(told.iter().any(|name| set.contains(name)), "{line}");
        for name in told {
            prop_assert!(line.contains(name.as_ref()), "{line}");
        }
    }

    #[test]
    fn a_memory_limit_is_never_lost(
        request in requests(), before in limits(), total in totals(), unused in unused(),
    ) {
        let device = Device { name: "the device", total };
        if let Ok(after) = request.over(&before, device, unused) {
            let lifts = request.memory.as_ref().map(|memory| memory.value);
            let limited = before.memory.is_some() || request.memory.is_some();
            prop_assert_eq!(
                after.memory.is_some(),
                limited && lifts != Some(MemoryRequest::NoLimit)
            );
        }
    }
}
