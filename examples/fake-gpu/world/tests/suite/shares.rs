//! Shares of each kind of program, in virtual time.

use fake_world::{Outcome, Program, Scenario, Tenant, Trouble, run};
use limits::ComputeLimit;

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;

fn happens(tenants: Vec<Tenant>, devices: u32, troubles: Vec<(u64, Trouble)>) -> Outcome {
    let length = 20 * SECOND;
    let outcome = run(&Scenario { seed: 5, devices, tenants, troubles, length, way: None });
    assert_eq!(outcome.violation, None);
    outcome
}

/// Each session's use of its first device, in thousandths of the time.
fn rates(tenants: Vec<Tenant>) -> Vec<u64> {
    let outcome = happens(tenants, 2, Vec::new());
    let first = outcome.got.iter().filter(|((_, device), _)| *device == 0);
    first.map(|(_, got)| got.used_ns / (20 * MS)).collect()
}

fn both_ways(tenants: &[Tenant]) -> [Vec<u64>; 2] {
    let in_stream = tenants.iter().cloned().map(Tenant::in_stream).collect();
    [rates(tenants.to_vec()), rates(in_stream)]
}

fn near(rates: &[u64], expected: &[u64], off: u64) {
    let near = rates.iter().zip(expected).all(|(got, wanted)| got.abs_diff(*wanted) <= off);
    assert!(near, "{rates:?}, not {expected:?}");
}

/// Like `limiter::timed::daemon::a_daemon_that_is_absent`, with the daemon.
#[test]
fn one_alone_gets_its_share_and_no_more() {
    for share in [50, 250, 500, 750, 950] {
        for kernel in [MS / 2, 5 * MS, 20 * MS] {
            let quota = ComputeLimit::fixed(share * 1_000);
            for got in both_ways(&[Tenant::new(quota, Program::Dense { kernel })]) {
                near(&got, &[share.into()], 12);
            }
        }
    }
}

/// Like `limiter::timed::daemon::two_sessions_share_the_device_without_slicing_it`.
#[test]
fn two_share_the_device_without_slicing_it() {
    for shares in [[500, 500], [250, 750], [100, 900]] {
        let dense = |share: u32| {
            let quota = ComputeLimit::fixed(share * 1_000);
            Tenant::new(quota, Program::Dense { kernel: MS })
        };
        for got in both_ways(&shares.map(dense)) {
            assert!(got.iter().sum::<u64>() >= 970, "{got:?}");
            near(&got, &shares.map(u64::from), 25);
        }
    }
}

/// By weight: 10 and 15, 10 and 45, and 20 of 100.
#[test]
fn idle_time_goes_to_those_who_may_have_it() {
    let dense = |quota| Tenant::new(quota, Program::Dense { kernel: MS });
    let tenants = [
        dense(ComputeLimit::balance(100_000, 1)),
        dense(ComputeLimit::balance(100_000, 3)),
        dense(ComputeLimit::fixed(200_000)),
    ];
    for got in both_ways(&tenants) {
        near(&got, &[250, 550, 200], 40);
        assert!(got.iter().sum::<u64>() >= 960, "{got:?}");
    }
}

/// Like `limiter::timed::daemon::a_daemon_that_dies_and_returns` and `limiter::timed::kills`.
#[test]
fn a_daemon_that_dies_every_second() {
    let dies = |second: u64| (second * SECOND, Trouble::DaemonDies { for_ns: 300 * MS });
    let tenant = Tenant::new(ComputeLimit::fixed(400_000), Program::Dense { kernel: MS });
    for tenant in [tenant.clone(), tenant.in_stream()] {
        let outcome = happens(vec![tenant], 1, (1..19).map(dies).collect());
        let got = &outcome.got[&(0, 0)];
        near(&[got.used_ns / (20 * MS)], &[400], 30);
        assert!(got.longest_wait_ns < 250 * MS, "{got:?}");
    }
}

/// On its own account. Processes of a session share it; slicing the device between them costs about a tenth.
#[test]
fn without_a_daemon_a_session_has_its_share() {
    let never = (0, Trouble::DaemonDies { for_ns: 40 * SECOND });
    for share in [20, 250, 500, 750] {
        for processes in [1, 2, 3] {
            let program = Program::Dense { kernel: 2 * MS };
            let tenant = Tenant::new(ComputeLimit::fixed(share * 1_000), program);
            let tenant = Tenant { processes, ..tenant };
            for tenant in [tenant.clone(), tenant.in_stream()] {
                let got = happens(vec![tenant], 1, vec![never]).got[&(0, 0)].used_ns / (20 * MS);
                near(&[got], &[share.into()], 12);
            }
        }
    }
}
