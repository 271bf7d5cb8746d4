//! Sessions whose reports are false, beside sessions that tell the truth.

use limits::{ComputeLimit, Policy};
use proptest::prelude::*;
use scheduler::SessionId;

use crate::simulation::{MS, SECOND, Simulation, Tenant, Words};
use crate::tenants::{balance, sparse, used};

/// No liar may have more than its share and this on top, over ten seconds. Nobody may lose more.
const POINTS: u64 = 50_000;
/// And this in its first ten seconds.
const BELIEVED: u64 = 30_000;
const WINDOW: u64 = 10 * SECOND;

fn liar(share_ppm: u32, words: Words) -> Tenant {
    Tenant { words, ..Tenant::busy(share_ppm) }
}

/// What a session gets at least, of those that tell the truth: its share, or that part of its solo
/// speed. Where one that fills the device claims a loss, word stands against word, and turns decide.
fn due(tenant: &Tenant) -> u64 {
    u64::from(tenant.quota.share_ppm) * tenant.density_ppm / 1_000_000
}

/// What slicing may cost is not told from a lie: for each unit that a session reports in its turns
/// beside one that does not fill the device, it may hide this much.
const SLICING_PPM: u64 = 280_000;

fn most(liar: &Tenant, others: &[Tenant]) -> u64 {
    let share = u64::from(liar.quota.share_ppm);
    let sliced = others.iter().any(|other| other.density_ppm < 1_000_000);
    share + POINTS + if sliced { share * SLICING_PPM / 1_000_000 } else { 0 }
}

/// Time that nobody else wants costs nobody anything.
fn could_use_everything(tenant: &Tenant) -> bool {
    tenant.words == Words::True
        && tenant.density_ppm == 1_000_000
        && tenant.quota.policy == Policy::Balance
}

/// Lets the tenants run, and checks each window of ten seconds.
fn check(tenants: &[Tenant], seed: u64) -> Result<(), String> {
    let mut simulation = Simulation::new(tenants, seed);
    let mut seen = vec![used(&simulation)];
    for _ in 0..20 {
        simulation.run_for(SECOND);
        seen.push(used(&simulation));
        let Some(from) = seen.len().checked_sub(1 + (WINDOW / SECOND) as usize) else { continue };
        for (index, tenant) in tenants.iter().enumerate() {
            let rate = (seen.last().unwrap()[index] - seen[from][index]) * 1_000_000 / WINDOW;
            let share = u64::from(tenant.quota.share_ppm);
            let wanted = tenants.iter().any(could_use_everything);
            // Until it is found out, it is believed while all hold leases at once.
            let believed = if from < 2 { BELIEVED } else { 0 };
            let most = most(tenant, tenants) + believed;
            if wanted && tenant.words != Words::True && rate > most {
                return Err(format!("{index} has {rate} for {share}, second {from}"));
            }
            // At first it has to be found out what each of them is.
            if tenant.words == Words::True && from >= 2 && rate + POINTS < due(tenant) {
                return Err(format!("{index} has {rate} of {}, second {from}", due(tenant)));
            }
        }
    }
    for (index, tenant) in tenants.iter().enumerate().filter(|(_, t)| t.words == Words::True) {
        let longest = simulation.books[&SessionId(index as u64)].waits.iter().max();
        // A small share needs a while to earn the shortest turn.
        let bound = SECOND + 20 * MS * 1_000_000 / u64::from(tenant.quota.share_ppm);
        if longest.is_some_and(|&longest| longest > bound) {
            return Err(format!("{index} waits {longest:?}"));
        }
    }
    Ok(())
}

fn all_words() -> Vec<Words> {
    let mut all = vec![Words::Nothing, Words::Idle, Words::Anything];
    for part in [100, 300, 500, 700, 850] {
        all.push(Words::Part { part, queued: false });
        all.push(Words::Part { part, queued: true });
        all.push(Words::Loss { part });
    }
    all
}

fn mixes() -> Vec<Vec<Tenant>> {
    let half = Tenant::busy(500_000);
    vec![
        vec![half],
        vec![balance(500_000, 1)],
        vec![Tenant::busy(400_000), sparse(200_000, 100_000)],
        vec![balance(400_000, 1), sparse(200_000, 200_000)],
        vec![balance(300_000, 1), balance(300_000, 1)],
        vec![sparse(300_000, 250_000), sparse(300_000, 250_000)],
    ]
}

#[test]
fn a_liar_gets_its_share_and_others_theirs() {
    let mut failed = Vec::new();
    for (number, honest) in mixes().into_iter().enumerate() {
        for words in all_words() {
            for share in [10_000, 100_000, 300_000] {
                for lies in [(0, 0), (9 * SECOND, SECOND)] {
                    let tenants: Vec<Tenant> = honest
                        .iter()
                        .copied()
                        .chain([Tenant { lies, ..liar(share, words) }])
                        .collect();
                    if let Err(why) = check(&tenants, 7) {
                        failed.push(format!("mix {number}, {words:?} {lies:?} {share}: {why}"));
                    }
                }
            }
        }
    }
    assert!(failed.is_empty(), "{} failed:\n{}", failed.len(), failed.join("\n"));
}

/// The least that the first session got in any window of ten seconds, and the most that the others
/// got together. Each second, `change` may do something.
fn windows(
    tenants: &[Tenant],
    mut change: impl FnMut(&mut Simulation, u64),
) -> (u64, u64, Simulation) {
    let mut simulation = Simulation::new(tenants, 3);
    let mut seen = Vec::new();
    let (mut least, mut most) = (u64::MAX, 0);
    for tenth in 0..300 {
        change(&mut simulation, tenth);
        let all = used(&simulation);
        seen.push((all[0], all[1..].iter().sum::<u64>()));
        if let Some(from) = seen.len().checked_sub(101) {
            least = least.min((seen[from + 100].0 - seen[from].0) * 1_000_000 / WINDOW);
            most = most.max((seen[from + 100].1 - seen[from].1) * 1_000_000 / WINDOW);
        }
        simulation.run_for(SECOND / 10);
    }
    (least, most, simulation)
}

#[test]
fn two_that_help_each_other_gain_nothing() {
    for (one, other) in [
        (Words::Idle, Words::Loss { part: 100 }),
        (Words::Nothing, Words::Part { part: 100, queued: true }),
        (Words::Idle, Words::Part { part: 990, queued: true }),
    ] {
        let tenants = [balance(500_000, 1), liar(100_000, one), liar(100_000, other)];
        let (least, most, _) = windows(&tenants, |_, _| {});
        assert!(least + POINTS >= 500_000, "{least} beside {one:?} and {other:?}");
        assert!(most <= 200_000 + 2 * POINTS, "{most} for {one:?} and {other:?}");
    }
}

/// A session that is known to lie ends, and the same owner's next one begins.
#[test]
fn a_new_name_is_no_new_beginning() {
    for words in [Words::Idle, Words::Nothing, Words::Part { part: 100, queued: false }] {
        let (least, most, _) = windows(&[balance(500_000, 1)], |simulation, tenth| {
            // The first is found out; the others stay for shorter than that takes.
            if tenth % 3 == 0 && (tenth == 0 || tenth > 10) {
                if tenth > 0 {
                    simulation.depart(SessionId(simulation.books.len() as u64 - 1));
                }
                let session = simulation.arrive(liar(50_000, words));
                simulation.scheduler.belongs_to(session, 1000, simulation.now);
            }
        });
        assert!(least + POINTS >= 500_000, "{least} beside {words:?}");
        assert!(most <= 50_000 + 2 * POINTS, "{most} for {words:?}");
    }
}

#[test]
fn a_quota_that_changes_all_the_time_gains_nothing() {
    let tenants = [balance(500_000, 1), liar(50_000, Words::Idle)];
    let (least, most, _) = windows(&tenants, |simulation, tenth| {
        let soft_ppm = (tenth % 4 == 1).then_some(50_000);
        let quota = ComputeLimit { soft_ppm, ..ComputeLimit::fixed(50_000) };
        simulation.set_quota(SessionId(1), quota);
    });
    assert!(least + POINTS >= 500_000 && most <= 50_000 + POINTS, "{least}, {most}");
}

/// It asks, and never uses what it is given.
#[test]
fn one_that_takes_turns_for_nothing_costs_others_its_share_at_most() {
    for words in [Words::True, Words::Nothing] {
        let idle = Tenant { density_ppm: 0, ..liar(50_000, words) };
        let (least, _, simulation) = windows(&[balance(500_000, 1), idle], |_, _| {});
        assert!(least >= 900_000, "{least}");
        let longest = simulation.books[&SessionId(0)].waits.iter().max();
        assert!(longest.is_some_and(|&wait| wait < 120 * MS), "{longest:?}");
    }
}

fn any_words() -> impl Strategy<Value = Words> {
    prop_oneof![
        Just(Words::Nothing),
        Just(Words::Idle),
        Just(Words::Anything),
        (0u64..1000, any::<bool>()).prop_map(|(part, queued)| Words::Part { part, queued }),
        (0u64..1000).prop_map(|part| Words::Loss { part }),
    ]
}

fn any_liar() -> impl Strategy<Value = Tenant> {
    (
        any_words(),
        1u32..=30,
        prop_oneof![Just(1_000_000u64), 100_000u64..1_000_000],
        1u64..4,
        prop_oneof![Just((0, 0)), (0..9 * SECOND, 100 * MS..2 * SECOND)],
        prop_oneof![Just((0, 0)), (10 * MS..SECOND, 0..SECOND)],
        prop_oneof![Just(0), 0..20 * MS],
        MS..100 * MS,
    )
        .prop_map(|(words, percent, density_ppm, workers, lies, phases, think_ns, tell_ns)| {
            let liar = liar(percent * 10_000, words);
            Tenant { density_ppm, workers, lies, phases, think_ns, tell_ns, ..liar }
        })
}

/// Sessions that tell the truth, with about `percent` of the device. The first takes all that it
/// can get.
fn any_honest() -> impl Strategy<Value = Vec<Tenant>> {
    let density = prop_oneof![Just(1_000_000u64), Just(1_000_000), 50_000u64..700_000];
    let other = (5u32..=20, density, any::<bool>()).prop_map(|(percent, density, fixed)| {
        let share = percent * 10_000;
        let quota =
            if fixed { ComputeLimit::fixed(share) } else { ComputeLimit::balance(share, 1) };
        Tenant::new(quota, density)
    });
    let first = (10u32..=30).prop_map(|percent| balance(percent * 10_000, 1));
    (first, prop::collection::vec(other, 0..2))
        .prop_map(|(first, others)| [first].into_iter().chain(others).collect())
}

proptest! {
    #![proptest_config(ProptestConfig::default())]

    /// Whatever is reported, and whoever else is there.
    #[test]
    fn any_liar_gets_its_share_and_others_theirs(
        honest in any_honest(),
        liar in any_liar(),
        seed in any::<u64>(),
    ) {
        let tenants: Vec<Tenant> = honest.into_iter().chain([liar]).collect();
        if let Err(why) = check(&tenants, seed) {
            prop_assert!(false, "{}", why);
        }
    }
}
