//! What the benchmark `load` does, shortened: nothing here depends on how fast the machine is.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use crate::crowd::{self, Crowd, Plan, Worker, most_memory, now_us};
use crate::process::{Daemon, place};

const MIB: u64 = 1 << 20;
const NOBODY: u32 = 65_534;

#[test]
#[ignore = "a helper process of the other tests"]
fn helper_of_the_crowd() {
    crowd::play();
}

fn helper() -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "load::helper_of_the_crowd", "--ignored"]);
    command
}

fn restartable(socket: &Path, folder: &Path) -> Daemon {
    let mut command = Daemon::command(socket);
    Daemon::start_by(command.arg("--state").arg(folder.join("state")), socket)
}

/// Each process gets leases, before and after the daemon is killed under them.
#[test]
fn a_crowd_is_served_and_comes_back_after_a_kill() {
    const PLAN: Plan = Plan {
        workers: 60,
        sessions: 12,
        devices: 8,
        every: Duration::from_millis(300),
        lasts: Duration::from_secs(6),
    };
    let (dir, socket) = place();
    let mut first = restartable(&socket, dir.path());
    let crowd = Crowd::start(&PLAN, &socket, dir.path(), &helper);
    let killed_at = crowd.begin_us + 2_000_000;
    sleep(Duration::from_micros(killed_at.saturating_sub(now_us())));
    assert!(most_memory(first.process.id()) < 128 * MIB);
    first.signal(rustix::process::Signal::KILL);
    let second = restartable(&socket, dir.path());
    for (number, told) in crowd.collect().into_iter().enumerate() {
        let granted =
            |after: bool| told.granted.iter().filter(|(at, _)| (*at > killed_at) == after).count();
        assert!(granted(false) > 0 && granted(true) > 0, "{number}: {told:?}");
    }
    assert!(most_memory(second.process.id()) < 128 * MIB);
}

/// One user floods the daemon with calls that make no sense, and leaves calls half sent. Another one is served.
#[test]
fn malformed_calls_and_slow_callers_keep_nobody_away() {
    const CALLS: u32 = 1_500;
    let (dir, socket) = place();
    let mut daemon = Daemon::start(&socket);
    let mut flooding = helper();
    if rustix::process::geteuid().is_root() {
        for path in [dir.path(), &socket] {
            std::fs::set_permissions(path, PermissionsExt::from_mode(0o777)).unwrap();
        }
        flooding.uid(NOBODY);
    }
    let mut worker = Worker::new(&socket, "somebody", 500_000);
    worker.turn();
    let before = most_memory(daemon.process.id());
    let flood = crowd::malformed(CALLS, 32, &socket, dir.path(), flooding);
    let slow = crowd::slow(&socket, 200);
    for _ in 0..100 {
        worker.turn();
    }
    let statuses = crowd::ended(flood).statuses;
    for _ in 0..100 {
        worker.turn();
    }
    drop(slow);
    assert_eq!((worker.told.granted.len(), worker.told.failed), (201, 0), "{:?}", worker.told);
    assert_eq!(statuses.iter().sum::<u64>(), u64::from(CALLS));
    // No success, and no fault of the daemon's own.
    assert_eq!((statuses[2], statuses[5]), (0, 0), "{statuses:?}");
    assert!(statuses[4] > u64::from(CALLS) * 9 / 10, "{statuses:?}");
    let grown = most_memory(daemon.process.id()) - before;
    assert!(grown < 32 * MIB, "{} MiB", grown / MIB);
    assert!(daemon.process.try_wait().unwrap().is_none(), "the daemon ended");
}
