//! Jobs that use several devices together, in virtual time.

use fake_world::{Program, Scenario, Tenant, Trouble, run};
use limits::ComputeLimit;

const MS: u64 = 1_000_000;
const LENGTH: u64 = 20_000 * MS;

fn job(devices: std::ops::Range<u32>, program: Program) -> Tenant {
    Tenant { devices: devices.collect(), ..Tenant::new(ComputeLimit::fixed(450_000), program) }
}

/// Checks each session's use of each of its devices, in thousandths of the time, with gates on threads and in streams.
fn each_within(tenants: &[Tenant], devices: u32, least: u64, most: u64) {
    for in_stream in [false, true] {
        let tenants: Vec<_> =
            tenants.iter().map(|tenant| Tenant { in_stream, ..tenant.clone() }).collect();
        // Otherwise devices that are opened separately would be open together by chance.
        let troubles = vec![(0, Trouble::LateMessages { most_ns: MS, for_ns: LENGTH })];
        let scenario = Scenario { seed: 7, devices, tenants, troubles, length: LENGTH, way: None };
        let outcome = run(&scenario);
        assert_eq!(outcome.violation, None, "in streams: {in_stream}");
        for (whose, got) in &outcome.got {
            let part = got.used_ns * 1_000 / LENGTH;
            assert!((least..=most).contains(&part), "{whose:?}, in streams {in_stream}: {part}");
        }
    }
}

/// Steps of 1.8 ms and of 9 ms of awaited work.
const SHORT: Program = Program::DataParallel { compute: 1_600_000, collective: 200_000 };
const LONG: Program = Program::DataParallel { compute: 8 * MS, collective: MS };

#[test]
fn two_jobs_take_turns_on_both_devices() {
    for program in [SHORT, LONG] {
        each_within(&[job(0..2, program), job(0..2, program)], 2, 434, 450);
    }
}

/// A single job, beside another one, and beside jobs on two of its devices each.
#[test]
fn jobs_on_four_devices() {
    each_within(&[job(0..4, LONG)], 4, 434, 450);
    each_within(&[job(0..4, LONG), job(0..4, LONG)], 4, 434, 450);
    each_within(&[job(0..2, LONG), job(2..4, LONG), job(0..4, LONG)], 4, 434, 450);
}

#[test]
fn a_job_on_both_devices_beside_one_on_each() {
    let dense = |device: u32| {
        let quota = ComputeLimit::fixed(500_000);
        let dense = Tenant::new(quota, Program::Dense { kernel: 500_000 });
        Tenant { devices: vec![device], ..dense }
    };
    each_within(&[job(0..2, SHORT), dense(0), dense(1)], 2, 425, 515);
}
