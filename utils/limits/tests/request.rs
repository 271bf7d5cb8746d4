//! Requests merged with limits: results and errors.

use limits::memory::Part;
use limits::named::Names;
use limits::request::{Device, MemoryRequest, Unused};
use limits::units::Amount;
use limits::{ComputeLimit, Limits, MemoryLimit, Named, Policy, Priority, Request, RequestError};

const GIB: u64 = 1 << 30;
const DEVICE: Device<'static> = Device { name: "device 0 (Test)", total: Some(16 * GIB) };
const NAMES: Names = Names {
    memory: "--mem",
    real: "--mem-real",
    share: "--compute",
    balance: "--policy balance or --burst",
};

/// Command line options.
#[derive(Clone, Copy, Default)]
struct Options {
    mem: Option<Amount>,
    no_mem: bool,
    mem_real: Option<Amount>,
    compute: Option<u32>,
    policy: Option<Policy>,
    soft: Option<u32>,
    weight: Option<u32>,
    priority: Option<Priority>,
}

fn request(options: Options) -> Request {
    fn named<T>(value: Option<T>, name: &'static str) -> Option<Named<T>> {
        value.map(|value| Named::new(value, name))
    }
    let memory = named(options.mem.map(MemoryRequest::Limit), "--mem");
    let lifted = named(options.no_mem.then_some(MemoryRequest::NoLimit), "--no-mem");
    Request {
        memory: memory.or(lifted),
        real: named(options.mem_real.map(Part::Amount), "--mem-real"),
        share: named(options.compute, "--compute"),
        policy: options.policy.map(|policy| Named::new(policy, format!("--policy {policy}"))),
        soft: named(options.soft, "--burst"),
        weight: named(options.weight, "--weight"),
        priority: named(options.priority, "--priority"),
        ..Request::nothing(NAMES)
    }
}

/// Merges as a command line does, which must not request more than the device has.
fn over(before: &Limits, options: Options, device: Device<'_>) -> Result<Limits, RequestError> {
    let request = request(options);
    let after = request.over(before, device, Unused::Refused)?;
    request.fits(&after, device).map(|()| after)
}

fn changed(before: &Limits, options: Options) -> Result<Limits, String> {
    over(before, options, DEVICE).map_err(|error| error.to_string())
}

fn none() -> Options {
    Options::default()
}

fn gib(number: u64) -> Option<Amount> {
    Some(Amount::Bytes(number * GIB))
}

/// 8 GiB and 30 %.
fn before() -> Limits {
    let compute = ComputeLimit { weight: 30, ..ComputeLimit::fixed(300_000) };
    Limits { memory: Some(MemoryLimit::new(8 * GIB)), compute }
}

#[test]
fn only_what_is_named_changes() {
    let mem = Options { mem: Some(Amount::Ppm(250_000)), ..none() };
    let after = Limits { memory: Some(MemoryLimit::new(4 * GIB)), ..before() };
    assert_eq!(changed(&before(), mem), Ok(after));
    let share = Options { compute: Some(500_000), ..none() };
    let compute = ComputeLimit { weight: 50, ..ComputeLimit::fixed(500_000) };
    assert_eq!(changed(&before(), share), Ok(Limits { compute, ..before() }));
    // A weight set by the user stays.
    let compute = ComputeLimit { weight: 7, ..before().compute };
    let chosen = Limits { compute, ..before() };
    assert_eq!(changed(&chosen, share).unwrap().compute.weight, 7);
    let low = Options { priority: Some(Priority::Low), ..none() };
    assert_eq!(changed(&before(), low).unwrap().compute.priority, Priority::Low);
    assert!(request(none()).is_empty() && !request(low).is_empty());
}

#[test]
fn policies_and_soft_limits_go_together() {
    let soft = Options { soft: Some(600_000), weight: Some(5), ..none() };
    let balanced = changed(&before(), soft).unwrap();
    assert_eq!(balanced.compute.policy, Policy::Balance);
    assert_eq!((balanced.compute.soft_ppm, balanced.compute.weight), (Some(600_000), 5));
    let fixed = Options { policy: Some(Policy::Fixed), ..none() };
    let fixed = changed(&balanced, fixed).unwrap();
    assert_eq!((fixed.compute.policy, fixed.compute.soft_ppm), (Policy::Fixed, None));
    let share = Options { compute: Some(700_000), ..none() };
    let message = changed(&balanced, share).unwrap_err();
    assert_eq!(message, "the present burst limit of 60% is less than --compute 70%");
    let both = Options { soft: Some(800_000), ..share };
    assert_eq!(changed(&balanced, both).unwrap().compute.share_ppm, 700_000);
}

#[test]
fn overcommitment_follows() {
    let limit = |limit, real| Some(MemoryLimit { limit: limit * GIB, real: Some(real * GIB) });
    let oversold = Limits { memory: limit(24, 12), ..before() };
    let mem = |number| Options { mem: gib(number), ..none() };
    assert_eq!(changed(&oversold, mem(32)).unwrap().memory, limit(32, 12));
    // The real part is kept for when the limit grows again.
    assert_eq!(changed(&oversold, mem(8)).unwrap().memory, limit(8, 12));
    let real = Options { mem_real: gib(6), ..none() };
    assert_eq!(changed(&before(), real).unwrap().memory, limit(8, 6));
    assert!(changed(&before(), mem(17)).unwrap_err().contains("--mem-real"));
    let more = Options { mem_real: gib(9), ..none() };
    let message = changed(&before(), more).unwrap_err();
    assert_eq!(message, "--mem-real 9GiB is more than the present memory limit of 8GiB");
    let most = Options { mem_real: gib(17), ..mem(24) };
    assert!(changed(&before(), most).unwrap_err().contains("is more than device 0"));
}

#[test]
fn what_cannot_be_changed_is_refused() {
    for (asked, named) in [
        (Options { policy: Some(Policy::None), weight: Some(3), ..none() }, "leave them out"),
        (Options { weight: Some(3), ..none() }, "--weight"),
        (Options { soft: Some(200_000), ..none() }, "is less than the present share of 30%"),
        (Options { soft: Some(400_000), policy: Some(Policy::Fixed), ..none() }, "--burst"),
    ] {
        let message = changed(&before(), asked).unwrap_err();
        assert!(message.contains(named), "{message}");
    }
    let unknown = Device { name: "GPU-a", total: None };
    let percent = Options { mem: Some(Amount::Ppm(1)), ..none() };
    let error = over(&before(), percent, unknown).unwrap_err();
    assert!(matches!(error, RequestError::UnknownSize { .. }));
    assert!(error.to_string().contains("size of GPU-a"), "{error}");
    let bytes = Options { mem: gib(1), ..none() };
    let after = over(&before(), bytes, unknown).unwrap();
    assert_eq!(after.memory, Some(MemoryLimit::new(GIB)));
}

#[test]
fn limits_come_and_go() {
    let mem = Options { mem: Some(Amount::Ppm(250_000)), ..none() };
    let memory = Some(MemoryLimit::new(4 * GIB));
    assert_eq!(changed(&Limits::NONE, mem), Ok(Limits { memory, ..Limits::NONE }));
    let share = Options { compute: Some(300_000), ..none() };
    let fixed = ComputeLimit { weight: 30, ..ComputeLimit::fixed(300_000) };
    let after = Limits { compute: fixed, ..Limits::NONE };
    assert_eq!(changed(&Limits::NONE, share), Ok(after));
    let soft = Options { soft: Some(600_000), priority: Some(Priority::Low), ..share };
    let compute = ComputeLimit {
        policy: Policy::Balance,
        soft_ppm: Some(600_000),
        priority: Priority::Low,
        ..fixed
    };
    let balanced = Limits { compute, ..Limits::NONE };
    assert_eq!(changed(&Limits::NONE, soft), Ok(balanced));
    for (asked, named) in [
        (Options { mem_real: gib(1), ..none() }, "set --mem too"),
        (Options { policy: Some(Policy::Balance), ..none() }, "--policy balance needs --compute"),
        (Options { policy: Some(Policy::Fixed), ..none() }, "--policy fixed needs --compute"),
        (Options { soft: Some(1), ..none() }, "--burst needs --compute"),
        (Options { weight: Some(1), ..none() }, "--weight needs --compute"),
        (Options { priority: Some(Priority::Low), ..none() }, "--priority needs --compute"),
    ] {
        let message = changed(&Limits::NONE, asked).unwrap_err();
        assert!(message.contains(named), "{message}");
    }
    let lifted = Options { policy: Some(Policy::None), ..none() };
    let memory = Some(MemoryLimit { limit: GIB, real: Some(1 << 20) });
    let both = Limits { memory, compute };
    assert_eq!(changed(&both, lifted), Ok(Limits { memory, ..Limits::NONE }));
    assert_eq!(changed(&Limits::NONE, lifted), Ok(Limits::NONE));
    let unlimited = Options { no_mem: true, ..none() };
    assert_eq!(changed(&both, unlimited), Ok(balanced));
    let part_of_nothing = Options { no_mem: true, mem_real: gib(1), ..none() };
    assert!(changed(&both, part_of_nothing).unwrap_err().contains("--mem-real is part"));
}

#[test]
fn a_limit_that_limits_nothing_is_refused() {
    let mem = |bytes| Options { mem: Some(Amount::Bytes(bytes)), ..none() };
    assert!(changed(&Limits::NONE, mem(16 * GIB)).is_ok());
    let message = changed(&Limits::NONE, mem(16 * GIB + 1)).unwrap_err();
    assert!(
        message.contains("is more than device 0 (Test) has, 16GiB; with --mem-real"),
        "{message}"
    );
    assert!(message.contains("--mem-real"), "{message}");
    let hosted = Options { mem_real: gib(16), ..mem(16 * GIB + 1) };
    assert!(changed(&Limits::NONE, hosted).is_ok());
    // A variable may request it, because it may be meant for another device.
    let request = request(mem(17 * GIB));
    assert!(request.over(&Limits::NONE, DEVICE, Unused::Ignored).is_ok());
}

#[test]
fn what_cannot_be_meant_together_is_refused() {
    let share = Options { compute: Some(300_000), ..none() };
    let (balance, fixed) = (Some(Policy::Balance), Some(Policy::Fixed));
    let (mib, half) = (Some(Amount::Bytes(1 << 20)), Some(Amount::Ppm(500_000)));
    for (options, named) in [
        (Options { policy: Some(Policy::None), ..share }, "--policy none"),
        (Options { soft: Some(600_000), policy: fixed, ..share }, "--policy fixed"),
        (Options { soft: Some(299_999), ..share }, "--burst 29.9999% is less than --compute 30%"),
        (Options { weight: Some(2), ..share }, "--weight divides idle time"),
        (Options { mem_real: gib(1), ..none() }, "--mem-real is part of a memory limit"),
        (
            Options { mem: mib, mem_real: gib(1), ..none() },
            "--mem-real 1GiB is more than --mem 1MiB",
        ),
        (Options { mem: mib, mem_real: half, ..none() }, "--mem-real 8GiB is more than --mem 1MiB"),
        (
            Options { mem: Some(Amount::Ppm(1)), mem_real: mib, ..none() },
            "is more than --mem 17179B",
        ),
        (
            Options { mem: gib(1024), mem_real: gib(32), ..none() },
            "--mem-real 32GiB is more than device 0",
        ),
    ] {
        let message = changed(&Limits::NONE, options).unwrap_err();
        assert!(message.contains(named), "{message}");
    }
    let needs_daemon = |options| request(options).needs_daemon();
    assert!(!needs_daemon(share) && !needs_daemon(Options { mem: gib(1), ..none() }));
    for fits in [
        Options { policy: balance, weight: Some(5), ..share },
        Options { soft: Some(300_000), weight: Some(5), ..share },
        Options { priority: Some(Priority::Low), ..share },
    ] {
        assert!(changed(&Limits::NONE, fits).is_ok() && needs_daemon(fits));
    }
    assert!(changed(&Limits::NONE, Options { mem: half, mem_real: mib, ..none() }).is_ok());
    let tiny = Device { name: "a small one", total: Some(10) };
    let nothing = Options { mem: Some(Amount::Ppm(1)), ..none() };
    let message = over(&Limits::NONE, nothing, tiny).unwrap_err().to_string();
    assert!(message.starts_with("--mem: 0.0001% of a small one is 0 bytes"), "{message}");
}

#[test]
fn what_has_no_effect_can_be_let_pass() {
    let let_pass =
        |options| request(options).over(&Limits::NONE, DEVICE, Unused::Ignored).map(|l| l.compute);
    let (weight, policy) = (Some(7), Some(Policy::Balance));
    for options in [
        Options { weight, ..none() },
        Options { policy, ..none() },
        Options { priority: Some(Priority::Low), ..none() },
        Options { policy: Some(Policy::None), compute: Some(1), soft: Some(2), weight, ..none() },
    ] {
        assert_eq!(let_pass(options), Ok(ComputeLimit::NONE));
    }
    // The weight is kept for when idle time is granted.
    let fixed = let_pass(Options { compute: Some(300_000), weight, ..none() }).unwrap();
    assert_eq!((fixed.policy, fixed.weight), (Policy::Fixed, 7));
    // A limit is never lost this way.
    assert!(let_pass(Options { soft: Some(1), ..none() }).is_err());
}

#[test]
fn a_request_in_words() {
    let options = Options {
        mem: gib(8),
        mem_real: Some(Amount::Ppm(250_000)),
        compute: Some(125_000),
        soft: Some(600_000),
        priority: Some(Priority::Low),
        ..none()
    };
    assert_eq!(
        request(options).to_string(),
        "memory 8GiB (--mem), on the device 25% (--mem-real), compute 12.5% (--compute) guaranteed, \
         at most 60% (--burst), weight 13, priority low"
    );
    let lifted = Options { no_mem: true, policy: Some(Policy::None), ..none() };
    let expected = "memory unlimited (--no-mem), compute unlimited (--policy none)";
    assert_eq!(request(lifted).to_string(), expected);
}
