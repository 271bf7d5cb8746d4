//! From what a session may take to what it may take from now on.

use limits::units::{Amount, Percent, default_weight};
use limits::{Policy, Priority};
use session::SessionLimits;
use session::layout::NO_LIMIT;

use crate::Error;
use crate::cli::{PolicyArg, PriorityArg};
use crate::devices::Device;
use crate::limits::Limits;

/// What is asked for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Asked {
    /// New limits; what is not named stays.
    pub(super) limits: Limits,
    /// The memory limit is to go.
    pub(super) no_memory_limit: bool,
}

/// The limits after a change, on `device` where NVML knows it; `name` is what messages call it.
///
/// # Errors
/// [`Error::Usage`] for what cannot be meant together, or not without a limit that the session does not
/// have; [`Error::NoDriver`] for a part of a device whose size cannot be found out.
pub(super) fn change(
    before: &SessionLimits,
    asked: &Asked,
    device: Option<&Device>,
    name: &str,
) -> Result<SessionLimits, Error> {
    let mut after = *before;
    if asked.no_memory_limit {
        let SessionLimits { memory, memory_real, .. } = SessionLimits::default();
        (after.memory, after.memory_real) = (memory, memory_real);
    }
    memory(&mut after, &asked.limits, device, name)?;
    compute(&mut after, &asked.limits, name)?;
    Ok(after)
}

fn usage<T>(problem: String) -> Result<T, Error> {
    Err(Error::Usage(problem))
}

fn memory(
    limits: &mut SessionLimits,
    asked: &Limits,
    device: Option<&Device>,
    name: &str,
) -> Result<(), Error> {
    if asked.memory.is_none() && asked.memory_real.is_none() {
        return Ok(());
    }
    if limits.memory == NO_LIMIT && asked.memory.is_none() {
        return usage(format!(
            "{name}: the session has no memory limit that --mem-real could be a part of: give --mem \
             with it"
        ));
    }
    let total = device.map(|device| device.memory);
    let bytes = |amount: Amount| {
        amount.of(total).ok_or_else(|| {
            let problem = format!("the size of {name}, of which {amount} is asked, is not known");
            Error::NoDriver(problem)
        })
    };
    if let Some(real) = asked.memory_real {
        limits.memory_real = bytes(real)?;
    }
    if let Some(memory) = asked.memory {
        limits.memory = bytes(memory)?;
    }
    // As `sluice run` checks them; a part that was set before stays for a limit that is less.
    let has_real = limits.memory_real != NO_LIMIT;
    let real = if asked.memory_real.is_some() {
        limits.memory_real
    } else {
        limits.memory_real.min(limits.memory)
    };
    let whole = Limits {
        memory: Some(Amount::Bytes(limits.memory)),
        memory_real: has_real.then_some(Amount::Bytes(real)),
        ..Limits::default()
    };
    match device {
        Some(device) => whole.check_memory(device.memory, &device.title()),
        None => whole.check(&[]),
    }
}

fn compute(limits: &mut SessionLimits, asked: &Limits, name: &str) -> Result<(), Error> {
    let &Limits { compute, policy, soft, weight, priority, .. } = asked;
    let asks = compute.is_some() || policy.is_some() || soft.is_some();
    if !asks && weight.is_none() && priority.is_none() {
        return Ok(());
    }
    if policy == Some(PolicyArg::None) {
        if compute.or(soft).or(weight).is_some() || priority.is_some() {
            return usage(
                "--policy none takes the compute limit away: --compute, --soft, --weight and \
                 --priority would have no effect; leave them out"
                    .to_owned(),
            );
        }
        let SessionLimits { memory, memory_real, .. } = *limits;
        *limits = SessionLimits { memory, memory_real, ..SessionLimits::default() };
        return Ok(());
    }
    if limits.policy == Policy::None {
        let Some(share) = compute else {
            return usage(format!(
                "{name}: the session has no compute limit: --compute says which share of the \
                 device's time it gets, and --policy, --soft, --weight and --priority go with it"
            ));
        };
        // As `sluice run` begins.
        limits.policy = Policy::Fixed;
        limits.weight = default_weight(share);
        limits.share_ppm = share;
    }
    if policy == Some(PolicyArg::Fixed) && soft.is_some() {
        return usage("--soft with --policy fixed: there is no idle time to be limited".to_owned());
    }
    let had_default = limits.weight == default_weight(limits.share_ppm);
    limits.share_ppm = compute.unwrap_or(limits.share_ppm);
    match policy {
        Some(PolicyArg::Fixed) => {
            limits.policy = Policy::Fixed;
            limits.soft_share_ppm = None;
        }
        Some(PolicyArg::Balance) => limits.policy = Policy::Balance,
        Some(PolicyArg::None) | None => {}
    }
    if let Some(soft) = soft {
        limits.policy = Policy::Balance;
        limits.soft_share_ppm = Some(soft);
    }
    if let Some(soft) = limits.soft_share_ppm
        && soft < limits.share_ppm
    {
        return usage(format!(
            "{name}: the soft limit, {}, would be less than the share, {}",
            Percent(soft),
            Percent(limits.share_ppm)
        ));
    }
    limits.weight = match weight {
        Some(_) if limits.policy != Policy::Balance => {
            return usage(
                "--weight is for idle time: it needs --policy balance or --soft".to_owned(),
            );
        }
        Some(weight) => weight,
        None if had_default => default_weight(limits.share_ppm),
        None => limits.weight,
    };
    limits.priority = match priority {
        Some(PriorityArg::High) => Priority::High,
        Some(PriorityArg::Low) => Priority::Low,
        None => limits.priority,
    };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn before() -> SessionLimits {
        SessionLimits {
            memory: 8 * GIB,
            share_ppm: 300_000,
            policy: Policy::Fixed,
            weight: 30,
            ..SessionLimits::default()
        }
    }

    fn device() -> Device {
        let (uuid, name) = ("GPU-a".to_owned(), "Test".to_owned());
        Device { index: 0, uuid, name, memory: 16 * GIB }
    }

    fn changed(before: &SessionLimits, limits: &Limits) -> Result<SessionLimits, String> {
        let asked = Asked { limits: *limits, no_memory_limit: false };
        change(before, &asked, Some(&device()), "GPU-a").map_err(|error| error.to_string())
    }

    const NOTHING: Limits = Limits {
        memory: None,
        memory_real: None,
        compute: None,
        policy: None,
        soft: None,
        weight: None,
        priority: None,
    };

    #[test]
    fn only_what_is_named_changes() {
        let mem = Limits { memory: Some(Amount::Ppm(250_000)), ..NOTHING };
        let after = SessionLimits { memory: 4 * GIB, ..before() };
        assert_eq!(changed(&before(), &mem), Ok(after));
        let share = Limits { compute: Some(500_000), ..NOTHING };
        let after = SessionLimits { share_ppm: 500_000, weight: 50, ..before() };
        assert_eq!(changed(&before(), &share), Ok(after));
        // A weight that was chosen stays.
        let chosen = SessionLimits { weight: 7, ..before() };
        assert_eq!(changed(&chosen, &share).unwrap().weight, 7);
        let low = Limits { priority: Some(PriorityArg::Low), ..NOTHING };
        assert_eq!(changed(&before(), &low).unwrap().priority, Priority::Low);
    }

    #[test]
    fn policies_and_soft_limits_go_together() {
        let soft = Limits { soft: Some(600_000), weight: Some(5), ..NOTHING };
        let balanced = changed(&before(), &soft).unwrap();
        assert_eq!((balanced.policy, balanced.soft_share_ppm), (Policy::Balance, Some(600_000)));
        assert_eq!(balanced.weight, 5);
        let fixed = Limits { policy: Some(PolicyArg::Fixed), ..NOTHING };
        let fixed = changed(&balanced, &fixed).unwrap();
        assert_eq!((fixed.policy, fixed.soft_share_ppm), (Policy::Fixed, None));
        let share = Limits { compute: Some(700_000), ..NOTHING };
        assert!(changed(&balanced, &share).unwrap_err().contains("60%, would be less"));
        let both = Limits { soft: Some(800_000), ..share };
        assert_eq!(changed(&balanced, &both).unwrap().share_ppm, 700_000);
    }

    #[test]
    fn oversubscription_follows() {
        let oversold = SessionLimits { memory: 24 * GIB, memory_real: 12 * GIB, ..before() };
        let bytes = |gib: u64| Some(Amount::Bytes(gib * GIB));
        let mem = |gib| Limits { memory: bytes(gib), ..NOTHING };
        assert_eq!(changed(&oversold, &mem(32)).unwrap().memory, 32 * GIB);
        // The part stays for when the limit grows again.
        let small = changed(&oversold, &mem(8)).unwrap();
        assert_eq!((small.memory, small.memory_real), (8 * GIB, 12 * GIB));
        let real = Limits { memory_real: bytes(6), ..NOTHING };
        assert_eq!(changed(&before(), &real).unwrap().memory_real, 6 * GIB);
        assert!(changed(&before(), &mem(17)).unwrap_err().contains("--mem-real"));
        let more = Limits { memory_real: bytes(9), ..NOTHING };
        assert!(changed(&before(), &more).unwrap_err().contains("is more than --mem"));
        let most = Limits { memory_real: bytes(17), ..mem(24) };
        assert!(changed(&before(), &most).unwrap_err().contains("is more than device 0"));
    }

    #[test]
    fn what_cannot_be_changed_is_refused() {
        for (asked, named) in [
            (
                Limits { policy: Some(PolicyArg::None), weight: Some(3), ..NOTHING },
                "leave them out",
            ),
            (Limits { weight: Some(3), ..NOTHING }, "--weight"),
            (Limits { soft: Some(200_000), ..NOTHING }, "would be less than the share, 30%"),
            (Limits { soft: Some(400_000), policy: Some(PolicyArg::Fixed), ..NOTHING }, "--soft"),
        ] {
            let message = changed(&before(), &asked).unwrap_err();
            assert!(message.contains(named), "{message}");
        }
        let limits = Limits { memory: Some(Amount::Ppm(1)), ..NOTHING };
        let percent = Asked { limits, no_memory_limit: false };
        let unknown = change(&before(), &percent, None, "GPU-a").unwrap_err();
        assert!(unknown.to_string().contains("size of GPU-a"), "{unknown}");
        let limits = Limits { memory: Some(Amount::Bytes(GIB)), ..NOTHING };
        let bytes = Asked { limits, ..percent };
        assert_eq!(change(&before(), &bytes, None, "GPU-a").unwrap().memory, GIB);
    }

    #[test]
    fn limits_come_and_go() {
        let none = SessionLimits::default();
        let mem = Limits { memory: Some(Amount::Ppm(250_000)), ..NOTHING };
        assert_eq!(changed(&none, &mem), Ok(SessionLimits { memory: 4 * GIB, ..none }));
        let share = Limits { compute: Some(300_000), ..NOTHING };
        let fixed = SessionLimits { share_ppm: 300_000, policy: Policy::Fixed, weight: 30, ..none };
        assert_eq!(changed(&none, &share), Ok(fixed));
        let soft = Limits { soft: Some(600_000), priority: Some(PriorityArg::Low), ..share };
        let balanced = SessionLimits {
            policy: Policy::Balance,
            soft_share_ppm: Some(600_000),
            priority: Priority::Low,
            ..fixed
        };
        assert_eq!(changed(&none, &soft), Ok(balanced));
        for (asked, named) in [
            (Limits { memory_real: Some(Amount::Bytes(GIB)), ..NOTHING }, "give --mem"),
            (Limits { policy: Some(PolicyArg::Balance), ..NOTHING }, "--compute says"),
            (Limits { soft: Some(1), ..NOTHING }, "--compute says"),
            (Limits { weight: Some(1), ..NOTHING }, "--compute says"),
            (Limits { priority: Some(PriorityArg::Low), ..NOTHING }, "--compute says"),
        ] {
            let message = changed(&none, &asked).unwrap_err();
            assert!(message.contains(named), "{message}");
        }
        let lifted = Limits { policy: Some(PolicyArg::None), ..NOTHING };
        let both = SessionLimits { memory: GIB, memory_real: 1 << 20, ..balanced };
        let memory_only = SessionLimits { memory: GIB, memory_real: 1 << 20, ..none };
        assert_eq!(changed(&both, &lifted), Ok(memory_only));
        assert_eq!(changed(&none, &lifted), Ok(none));
        let unlimited = Asked { limits: NOTHING, no_memory_limit: true };
        let after = change(&both, &unlimited, None, "GPU-a").map_err(|error| error.to_string());
        assert_eq!(after, Ok(balanced));
    }
}
