//! Which session holds when, and for how long.

use std::thread;
use std::time::Duration;

use api::{Class, Policy};
use protocol::DeviceQuota;

use crate::holders::holder;
use crate::process::{Daemon, GPU_ID, place, seen};
use crate::programs::{Program, Seen, overlap, total};

#[test]
fn a_lone_holder_keeps_its_lease() {
    let (_dir, socket) = place();
    let daemon = Daemon::start(&socket);
    let quota = DeviceQuota::fixed(GPU_ID, 1_000_000);
    let length = Duration::from_secs(2);
    let lone = Program { session: "lone", quota, density: 1.0, length }.start(&socket);
    thread::sleep(Duration::from_millis(1_200));
    let (_, session) = daemon.limited().remove(0);
    assert_eq!((session.class, session.policy), (Class::Dense, Policy::Fixed));
    assert!(session.density_ppm.is_some_and(|ppm| ppm > 900_000), "{session:?}");
    let seen: Seen = seen(lone);
    // A scheduling delay of the machine may cost it a lease.
    assert!(seen.held.len() <= 5 && seen.renewed >= 20, "{seen:?}");
    assert!(total(&seen.held) > 1_800_000, "{seen:?}");
}

#[test]
fn two_sparse_sessions_hold_at_the_same_time() {
    let (_dir, socket) = place();
    let daemon = Daemon::start(&socket);
    let program = |session| {
        let (quota, length) = (DeviceQuota::fixed(GPU_ID, 500_000), Duration::from_secs(3));
        Program { session, quota, density: 0.3, length }
    };
    let children = ["a", "b"].map(|session| program(session).start(&socket));
    thread::sleep(Duration::from_millis(2_000));
    for (_, session) in daemon.limited() {
        assert_eq!(session.class, Class::Sparse, "{session:?}");
        assert!(session.density_ppm.is_some_and(|ppm| ppm.abs_diff(300_000) < 30_000));
        // It is charged for what it uses.
        assert!(session.charged_us < 1_000_000, "{session:?}");
    }
    let [a, b] = children.map(seen::<Seen>);
    let (held_a, held_b) = (total(&a.held), total(&b.held));
    assert!(overlap(&a.held, &b.held) * 10 > held_a.min(held_b) * 7, "{a:?} {b:?}");
    assert!(a.shared > 0 && b.shared > 0);
    assert!(held_a > 2_000_000 && held_b > 2_000_000, "{held_a} {held_b}");
}

#[test]
fn two_sessions_alternate_by_weight_without_overlap() {
    let (_dir, socket) = place();
    let daemon = Daemon::start(&socket);
    let length = Duration::from_secs(4);
    let large = holder(&socket, "large", 750_000, length).spawn().unwrap();
    let small = holder(&socket, "small", 250_000, length).spawn().unwrap();
    thread::sleep(Duration::from_secs(2));
    let sessions = daemon.limited();
    let mut names: Vec<&str> = sessions.iter().map(|(name, _)| name.as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, ["large", "small"]);
    // Callers read the UUID as NVML prints it.
    assert_eq!(sessions[0].1.uuid, "GPU-5a1ce000-0000-4000-8000-000000000000");
    let [large, small] = [large, small].map(seen::<Vec<(u64, u64)>>);

    for a in &large {
        for b in &small {
            assert!(a.1 <= b.0 || b.1 <= a.0, "both held: {a:?} and {b:?}");
        }
    }
    // Counted from when both were there. A busy machine slows both down, but equally.
    let from = large[0].0.max(small[0].0) + 500_000;
    let to = large.last().unwrap().1.min(small.last().unwrap().1);
    let sum = |held: &[(u64, u64)]| -> u64 {
        held.iter().map(|&(a, b)| b.min(to).saturating_sub(a.max(from))).sum()
    };
    let (large, small) = (sum(&large), sum(&small));
    let weight = large as f64 / (large + small) as f64;
    assert!((0.68..0.82).contains(&weight), "large {large} us, small {small} us");
    let used = (large + small) as f64 / (to - from) as f64;
    assert!(used > 0.6, "the device was used for {used} of the time");
}
