//! Programs that launch and are killed, again and again.

use fake_world::{Program, Scenario, Tenant, Trouble, run};
use limits::ComputeLimit;

const MS: u64 = 1_000_000;
const LENGTH: u64 = 20_000 * MS;

/// Such programs get next to nothing more than their share: what a process leaves running is charged. At a twentieth,
/// long kernels are so rare that there may be few.
#[test]
fn programs_that_are_killed_again_and_again_get_their_share() {
    for (kernel, lives) in [(MS, 30), (MS, 300), (30 * MS, 30), (300 * MS, 300)] {
        for in_stream in [false, true] {
            for with_daemon in [false, true] {
                let quota = ComputeLimit::fixed(50_000);
                let program = Program::Dense { kernel };
                let tenant = Tenant { in_stream, ..Tenant::new(quota, program) };
                let killed = (1..LENGTH / (lives * MS))
                    .map(|life| (life * lives * MS, Trouble::Killed { tenant: 0, for_ns: 2 * MS }));
                let never =
                    (!with_daemon).then_some((0, Trouble::DaemonDies { for_ns: 2 * LENGTH }));
                let troubles = never.into_iter().chain(killed).collect();
                let tenants = vec![tenant];
                let outcome = run(&Scenario {
                    seed: 11,
                    devices: 1,
                    tenants,
                    troubles,
                    length: LENGTH,
                    way: None,
                });
                let what = format!("{kernel} ns, {lives} ms, {in_stream}, {with_daemon}");
                assert_eq!(outcome.violation, None, "{what}");
                let part = outcome.got[&(0, 0)].used_ns * 1_000 / LENGTH;
                assert!((5..=70).contains(&part), "{what}: {part}");
            }
        }
    }
}
