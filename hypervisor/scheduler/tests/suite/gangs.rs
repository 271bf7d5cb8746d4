//! Sessions that hold several devices together, beside others, under a virtual clock.

use limits::ComputeLimit;
use proptest::prelude::*;
use scheduler::{SessionId, Way};

use crate::simulation::node::{Node, Player, WHOLE, near, player, run, sparse, worker};
use crate::simulation::{MS, SECOND};

#[test]
fn a_gang_alone_has_its_share_of_all_devices_at_once() {
    for share in [100_000, 500_000, 900_000] {
        let (node, rates) = run(&[player(&[0, 1, 2, 3], share)]);
        near(&rates, &[share.into()], 2);
        assert!(node.part[0] < 23 * SECOND / 100, "{}", node.part[0]);
    }
}

#[test]
fn two_gangs_on_the_same_devices_take_turns() {
    for first in [500_000, 300_000] {
        let second = 1_000_000 - first;
        let (node, rates) = run(&[player(&[0, 1], first), player(&[0, 1], second)]);
        near(&rates, &[first.into(), second.into()], 3);
        assert!(rates.iter().sum::<u64>() > 970_000, "{rates:?}");
        assert!(node.hungry.iter().all(|&ns| ns < 300 * MS), "{:?}", node.hungry);
    }
}

/// Each could go on for longer, and none gets less because the other one waits already when it begins.
/// It can pay when the other one's turn has just begun, and earns on until that one ends.
#[test]
fn a_small_gang_beside_a_large_one_loses_nothing_while_it_waits() {
    for (large, small) in [(654_545, 145_454), (700_000, 100_000), (660_000, 140_000)] {
        let (_, rates) = run(&[player(&[0, 1], large), player(&[0, 1], small)]);
        let wanted = u64::from(small) / 100 * 92;
        assert!(rates[1] > wanted && rates[0] > u64::from(large) / 100 * 95, "{rates:?}");
    }
}

#[test]
fn turns_of_gangs_are_equal_where_there_is_too_little() {
    let (_, rates) = run(&[player(&[0, 1], 900_000), player(&[0, 1], 900_000)]);
    near(&rates, &[500_000; 2], 5);
}

/// Without holding them together, a session has all of its devices at once for a part of its time only.
#[test]
fn devices_that_are_not_held_together_are_open_at_different_times() {
    let singles = [player(&[0], 500_000), player(&[1], 250_000), player(&[1], 250_000)];
    let players = [&[player(&[0, 1], 500_000)], &singles[..]].concat();
    let mut node = Node::new(&players, false);
    node.rates(3 * SECOND);
    let apart = node.rates(20 * SECOND)[0];
    let (_, rates) = run(&players);
    assert!(rates[0] > 460_000 && apart < rates[0] / 10 * 8, "{apart} {rates:?}");
}

#[test]
fn a_gang_beside_singles_on_each_of_its_devices() {
    let players = [player(&[0, 1], 500_000), player(&[0], 500_000), player(&[1], 500_000)];
    let (node, rates) = run(&players);
    near(&rates, &[500_000; 3], 4);
    assert!(node.hungry.iter().all(|&ns| ns < 200 * MS), "{:?}", node.hungry);
    let players = [player(&[0, 1], 300_000), player(&[0], 700_000), player(&[1], 200_000)];
    near(&run(&players).1, &[300_000, 700_000, 200_000], 4);
}

/// One device is all that they have in common: they exclude each other all the same, and others fill the rest.
#[test]
fn gangs_that_overlap() {
    let players = [
        player(&[0, 1], 500_000),
        player(&[1, 2], 500_000),
        player(&[0], 400_000),
        player(&[2], 400_000),
    ];
    let (node, rates) = run(&players);
    near(&rates[..2], &[500_000; 2], 5);
    assert!(rates[2] > 350_000 && rates[3] > 350_000, "{rates:?}");
    assert!(node.hungry.iter().all(|&ns| ns < 250 * MS), "{:?}", node.hungry);
    // In a circle, at most one at a time.
    let players = [player(&[0, 1], 330_000), player(&[1, 2], 330_000), player(&[2, 0], 330_000)];
    near(&run(&players).1, &[330_000; 3], 5);
}

/// Gangs take turns with each other although they leave their devices idle part of the time: collectives of two would
/// spin beside each other.
#[test]
fn sparse_gangs_take_turns_with_each_other() {
    for use_ppm in [200_000, 500_000, 650_000, 800_000] {
        for spins in [false, true] {
            let job = Player { spins, ..sparse(&[0, 1], 500_000, use_ppm) };
            let (_, rates) = run(&[job.clone(), job]);
            near(&rates, &[500_000; 2], 3);
            assert!(rates.iter().sum::<u64>() > 940_000, "{use_ppm} {rates:?}");
        }
    }
}

/// On all of their devices, whichever of them the ways were compared on.
#[test]
fn gangs_with_gaps_hold_at_once_unless_their_collectives_spin() {
    let quota = ComputeLimit::balance(500_000, 1);
    for use_ppm in [350_000, 650_000] {
        let job = Player { quota, ..sparse(&[0, 1], 500_000, use_ppm) };
        let (mut node, rates) = run(&[job.clone(), job.clone()]);
        let least = (WHOLE * 95 / 100 * WHOLE / 2 / use_ppm).min(WHOLE * 95 / 100);
        assert!(rates.iter().all(|&rate| rate >= least), "{use_ppm} {rates:?}");
        assert_eq!(node.ways(), [Some((Way::Overlap, 2)), None]);
        let spins = Player { spins: true, ..job };
        let (mut node, rates) = run(&[spins.clone(), spins]);
        near(&rates, &[500_000; 2], 3);
        assert!(rates.iter().sum::<u64>() > 940_000, "{use_ppm} {rates:?}");
        assert_eq!(node.ways(), [Some((Way::Turns, 0)), None]);
    }
    let fills = Player { quota, ..player(&[0, 1], 500_000) };
    let (mut node, rates) = run(&[fills.clone(), fills]);
    assert!(rates.iter().sum::<u64>() > 960_000, "{rates:?}");
    assert_eq!(node.ways(), [Some((Way::Turns, 0)), None]);
}

/// Others on one of the devices end it at once.
#[test]
fn gangs_that_hold_at_once_take_turns_again_when_a_single_worker_comes() {
    let quota = ComputeLimit::balance(400_000, 1);
    let job = Player { quota, ..sparse(&[0, 1], 400_000, 600_000) };
    let late = Player { from: 5 * SECOND, ..player(&[1], 200_000) };
    let mut node = Node::new(&[job.clone(), job, late], true);
    node.rates(3 * SECOND);
    assert_eq!(node.ways(), [Some((Way::Overlap, 2)), None]);
    node.rates(3 * SECOND);
    assert_eq!(node.ways(), [None, None]);
    let rates = node.rates(10 * SECOND);
    assert!(rates[2] > 180_000 && rates[0] > 370_000 && rates[1] > 370_000, "{rates:?}");
}

/// A sparse one takes turns with a dense one, and with single workers that fill a device if it needs more than its share.
#[test]
fn a_sparse_gang_beside_dense_ones() {
    for use_ppm in [300_000, 700_000] {
        let job = sparse(&[0, 1], 500_000, use_ppm);
        let (_, rates) = run(&[job.clone(), player(&[0, 1], 500_000)]);
        near(&rates, &[500_000; 2], 3);
        let (node, rates) = run(&[job, player(&[0], 500_000), player(&[1], 500_000)]);
        let of_job = if use_ppm < 500_000 { 1_000_000 } else { 500_000 };
        near(&rates, &[of_job, 500_000, 500_000], 3);
        assert!(node.hungry.iter().all(|&ns| ns < 150 * MS), "{:?}", node.hungry);
    }
}

/// A session without a limit has no place in a scheduler. With its next limit it is what it was.
#[test]
fn a_session_that_comes_back_still_holds_its_devices_together() {
    let players = [
        player(&[0, 1], 400_000),
        player(&[0, 1], 400_000),
        player(&[0], 150_000),
        player(&[1], 50_000),
    ];
    let mut node = Node::new(&players, true);
    node.rates(3 * SECOND);
    let (session, now) = (SessionId(0), node.now);
    for (&device, scheduler) in &mut node.schedulers {
        scheduler.leave(worker(0), now);
        scheduler.forget(session);
        scheduler.set_session(session, node.players[0].quota, now).unwrap();
        scheduler.join(worker(0), session).unwrap();
        node.held.remove(&(0, device));
    }
    node.part.fill(0);
    let rates = node.rates(5 * SECOND);
    near(&rates[..2], &[400_000; 2], 4);
    assert_eq!(node.part[..2], [0, 0]);
}

/// What a device is used for outside of leases, because another one waits for it, is paid.
#[test]
fn time_outside_of_leases_is_charged() {
    let mut node = Node::new(&[player(&[0, 1], 500_000), player(&[0, 1], 500_000)], true);
    node.rates(3 * SECOND);
    let charged = |node: &mut Node| {
        let view = node.schedulers.get_mut(&0).unwrap().view(node.now);
        view.sessions.iter().find(|view| view.session == SessionId(0)).unwrap().charged_ns
    };
    while node.held.contains_key(&(0, 0)) {
        node.happen();
        let next = node.next();
        node.pass_until(next);
    }
    let (before, now) = (charged(&mut node), node.now);
    node.schedulers.get_mut(&0).unwrap().used_outside(worker(0), 5 * MS, now + 10 * MS);
    assert_eq!(charged(&mut node) - before, 5 * MS);
    // No more than the time since its last lease.
    node.schedulers.get_mut(&0).unwrap().used_outside(worker(0), SECOND, now + 10 * MS);
    assert!(charged(&mut node) - before < 100 * MS);
}

#[test]
fn a_device_on_which_a_gang_asks_for_nothing_holds_nothing_up() {
    let rests = Player { last_rests_every: Some(SECOND), ..player(&[0, 1], 500_000) };
    let (_, rates) = run(&[rests, player(&[0], 500_000), player(&[1], 500_000)]);
    assert!(rates.iter().all(|&rate| rate > 430_000), "{rates:?}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Whatever the gangs: nobody waits for ever, also where their shares are more than there is.
    #[test]
    fn nobody_starves_where_there_is_too_little(
        sets in prop::collection::vec(prop::collection::btree_set(0..4u32, 1..4), 2..6),
    ) {
        let share = 900_000;
        let players: Vec<Player> = sets
            .iter()
            .map(|set| player(&set.iter().copied().collect::<Vec<_>>(), share))
            .collect();
        let mut node = Node::new(&players, true);
        node.rates(SECOND);
        let rates = node.rates(3 * SECOND);
        let least = 1_000_000 / players.len() as u64 / 3;
        prop_assert!(rates.iter().all(|&rate| rate >= least), "{:?} {:?}", rates, players);
    }
}

/// Sparse gangs whose collectives spin while others hold beside them, and of which the reports tell nothing.
#[test]
fn sparse_gangs_that_spin_beside_each_other_get_their_share() {
    let spins =
        |devices: &[u32], share, used| Player { spins: true, ..sparse(devices, share, used) };
    let players = [
        spins(&[0, 1], 74_666, 320_000),
        sparse(&[0, 2], 298_666, 230_000),
        sparse(&[2], 224_000, 200_000),
        spins(&[1, 2], 202_666, 430_000),
    ];
    let (_, rates) = run(&players);
    for (rate, player) in rates.iter().zip(&players) {
        assert!(*rate >= u64::from(player.quota.share_ppm) / 100 * 70, "{rates:?}");
    }
}

proptest! {
    /// Whatever their sessions use of them: nobody waits for ever, no gang waits on some of its devices for others, and
    /// where all of it fits one after the other, each gets its share.
    #[test]
    fn nobody_starves(
        sets in prop::collection::vec(
            (prop::collection::btree_set(0..4u32, 1..4), 5..40u32, 20..=100u64, any::<bool>()),
            1..6,
        ),
        all_dense in any::<bool>(),
    ) {
        let sum: u32 = sets.iter().map(|(_, part, ..)| part).sum();
        let players: Vec<Player> = sets
            .iter()
            .map(|(set, part, used, spins)| {
                let devices: Vec<u32> = set.iter().copied().collect();
                let share_ppm = part * 800_000 / sum.max(40);
                let spins = *spins && devices.len() > 1;
                if all_dense {
                    player(&devices, share_ppm)
                } else {
                    Player { spins, ..sparse(&devices, share_ppm, used * 10_000) }
                }
            })
            .collect();
        let mut node = Node::new(&players, true);
        node.rates(3 * SECOND);
        node.part.fill(0);
        let rates = node.rates(5 * SECOND);
        for (session, player) in players.iter().enumerate() {
            // Whoever fills a device is slowed down beside others, and its windows are longer for it only later. What runs
            // past the end of a lease is charged and not counted: of short turns that is much.
            let part = if all_dense { 85 } else { 70 };
            let least = u64::from(player.quota.share_ppm) / 100 * part;
            prop_assert!(rates[session] + 10_000 >= least, "{:?} {:?}", rates, players);
            prop_assert!(all_dense || node.part[session] <= 5 * SECOND / 50, "{:?} {:?}", node.part, players);
        }
    }
}
