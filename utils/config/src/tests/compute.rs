//! Policies, burst limits, weights and priorities.

use super::super::ConfigError;
use super::{UUID, config, device, limits};
use limits::{ComputeLimit, Policy, Priority};

const SHARE: (&str, &str) = ("CUDA_CORE_LIMIT", "30");

fn session<const N: usize>(pairs: [(&str, &str); N]) -> ComputeLimit {
    limits(pairs).session(None).unwrap().compute
}

#[test]
fn a_share_is_fixed_unless_something_else_is_asked_for() {
    let plain = session([SHARE]);
    assert_eq!((plain.policy, plain.share_ppm, plain.weight), (Policy::Fixed, 300_000, 30));
    assert_eq!((plain.soft_ppm, plain.priority), (None, Priority::High));
    let balance = session([SHARE, ("SLUICE_POLICY", "balance")]);
    assert_eq!((balance.policy, balance.soft_ppm), (Policy::Balance, None));
    // libvgpu's policy applies only to libvgpu's shares.
    let default = ("GPU_CORE_UTILIZATION_POLICY", "default");
    assert_eq!(session([SHARE, default]).policy, Policy::Fixed);
    assert_eq!(session([("CUDA_DEVICE_SM_LIMIT", "30"), default]).policy, Policy::Balance);
}

#[test]
fn a_soft_limit_balances_up_to_itself() {
    for soft in [("CUDA_CORE_SOFT_LIMIT_3", "60"), ("SLUICE_SOFT_LIMIT", "{\"3\": 60}")] {
        let soft = session([SHARE, soft]);
        assert_eq!((soft.policy, soft.share_ppm), (Policy::Balance, 300_000));
        assert_eq!(soft.soft_ppm, Some(600_000));
    }
    let equal = session([SHARE, ("CUDA_CORE_SOFT_LIMIT", "30")]);
    assert_eq!(equal.soft_ppm, Some(300_000));
    // The burst limit applies only to its own device.
    let other = config([SHARE, ("CUDA_CORE_SOFT_LIMIT_0", "60")]).unwrap();
    let other = other.limits_for(&device(UUID, 3, 1)).session(None).unwrap().compute;
    assert_eq!((other.policy, other.soft_ppm), (Policy::Fixed, None));
}

#[test]
fn a_soft_limit_that_cannot_be_meant_is_refused() {
    for (one, other, named) in [
        (
            SHARE,
            ("CUDA_CORE_SOFT_LIMIT", "29.9"),
            "CUDA_CORE_SOFT_LIMIT 29.9% is less than CUDA_CORE_LIMIT 30%",
        ),
        (("SLUICE_SOFT_LIMIT", "{\"0\": 60}"), ("SLUICE_LOG", "off"), "SLUICE_SOFT_LIMIT[0]"),
        (
            ("CUDA_DEVICE_SM_LIMIT", "100"),
            ("CUDA_CORE_SOFT_LIMIT", "60"),
            "CUDA_CORE_SOFT_LIMIT needs CUDA_CORE_LIMIT",
        ),
        (SHARE, ("CUDA_CORE_SOFT_LIMIT_2", "10"), "CUDA_CORE_SOFT_LIMIT_2"),
    ] {
        match config([one, other]).unwrap_err() {
            ConfigError::Conflict(problem) => {
                let line = problem.to_string();
                assert!(line.contains(named), "{line}");
            }
            error => panic!("{error}"),
        }
    }
    let fixed = config([SHARE, ("SLUICE_SOFT_LIMIT", "{\"0\": 60}"), ("SLUICE_POLICY", "fixed")]);
    assert!(matches!(fixed, Err(ConfigError::Conflict(_))));
    // Set for one device, and detected only when that device is known.
    let config = config([("CUDA_CORE_LIMIT_3", "50"), ("CUDA_CORE_SOFT_LIMIT_1", "20")]);
    assert!(matches!(config, Err(ConfigError::Conflict(_))));
}

#[test]
fn systems_settings_are_for_their_own_shares_and_later_ones() {
    let native = ("TENSOR_FUSION_CUDA_UP_LIMIT", "{\"3\": 25}");
    let soft = ("CUDA_CORE_SOFT_LIMIT", "60");
    let kept = limits([native, soft]);
    assert_eq!(kept.session(None).unwrap().compute.policy, Policy::Fixed);
    assert_eq!(kept.overruled[0].variable, "CUDA_CORE_SOFT_LIMIT");
    let native_soft = session([native, ("SLUICE_SOFT_LIMIT", "{\"3\": 60}")]);
    assert_eq!(native_soft.soft_ppm, Some(600_000));
    // A native policy overrules another dialect's burst limit ...
    let fixed = limits([SHARE, soft, ("SLUICE_POLICY", "fixed")]);
    assert_eq!(fixed.session(None).unwrap().compute.policy, Policy::Fixed);
    assert_eq!(fixed.overruled[0].to_string(), "CUDA_CORE_SOFT_LIMIT by SLUICE_POLICY");
    // ... and a burst limit overrules the policy of a later dialect.
    let force = ("GPU_CORE_UTILIZATION_POLICY", "force");
    let balance = limits([("CUDA_DEVICE_SM_LIMIT", "30"), soft, force]);
    assert_eq!(balance.session(None).unwrap().compute.policy, Policy::Balance);
    assert_eq!(
        balance.overruled[0].to_string(),
        "GPU_CORE_UTILIZATION_POLICY by CUDA_CORE_SOFT_LIMIT"
    );
    let lifted = limits([SHARE, soft, ("SLUICE_POLICY", "none")]);
    assert_eq!((lifted.request.share.clone(), lifted.conflict.clone()), (None, None));
    assert_eq!(lifted.session(None).unwrap().compute, ComputeLimit::NONE);
}

#[test]
fn weights_and_priorities() {
    let balance = ("SLUICE_POLICY", "balance");
    let of = |share, other| session([("CUDA_CORE_LIMIT", share), balance, other]);
    let off = ("SLUICE_LOG", "off");
    assert_eq!([of("0.1", off), of("12.5", off), of("100", off)].map(|s| s.weight), [1, 13, 100]);
    assert_eq!(of("30", ("SLUICE_WEIGHT", "10000")).weight, 10_000);
    for (name, high, low) in [("SLUICE_PRIORITY", "high", "low"), ("CUDA_TASK_PRIORITY", "0", "1")]
    {
        assert_eq!(of("30", (name, high)).priority, Priority::High);
        assert_eq!(of("30", (name, low)).priority, Priority::Low);
    }
    let both = session([SHARE, ("CUDA_TASK_PRIORITY", "1"), ("SLUICE_PRIORITY", "high")]);
    assert_eq!(both.priority, Priority::High);
}

#[test]
fn the_effective_line_names_them() {
    let config = config([
        SHARE,
        ("CUDA_CORE_SOFT_LIMIT", "60"),
        ("SLUICE_WEIGHT", "7"),
        ("SLUICE_PRIORITY", "low"),
    ])
    .unwrap();
    let device = device(UUID, 3, 1);
    let line = config.effective_line(&[(device, config.limits_for(&device))]);
    let named = "compute 30% (CUDA_CORE_LIMIT) guaranteed, at most 60% (CUDA_CORE_SOFT_LIMIT), \
                 weight 7, priority low";
    assert!(line.contains(named), "{line}");
}
