//! Sessions whose reports are false.

use fake_world::{Program, Scenario, Tenant, Words, run};
use limits::ComputeLimit;

const MS: u64 = 1_000_000;
const LENGTH: u64 = 20_000 * MS;

/// A liar gets its share and 5 points at most, and costs an honest session 5 points at most.
#[test]
fn a_liar_beside_an_honest_one() {
    for words in [Words::Idle, Words::Nothing, Words::Half] {
        for in_stream in [false, true] {
            let dense = |share: u32| {
                let program = Program::Dense { kernel: 2 * MS };
                let tenant = Tenant::new(ComputeLimit::fixed(share * 10_000), program);
                Tenant { in_stream, ..tenant }
            };
            let tenants = vec![dense(50), Tenant { words, ..dense(1) }];
            let scenario =
                Scenario { seed: 9, devices: 1, tenants, troubles: Vec::new(), length: LENGTH };
            let outcome = run(&scenario);
            assert_eq!(outcome.violation, None, "{words:?}, in streams: {in_stream}");
            let [honest, liar] =
                [0, 1].map(|number| outcome.got[&(number, 0)].used_ns * 100 / LENGTH);
            assert!(honest >= 45 && liar <= 6, "{words:?}, {in_stream}: {honest}, {liar}");
        }
    }
}
