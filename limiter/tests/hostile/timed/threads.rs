//! Programs that launch from very many threads and streams.

use super::device_time::{Device, Worked, daemon};
use crate::common::{COMPUTE_LIMIT, SESSION_DIR, Stage, built, first_device, start};
use std::time::Duration;

fn beside(threads: &str, us: &str) -> Worked {
    let stage = Stage::new();
    let program = stage.compile("threads.c", "threads", &[]);
    let device = Device::of(&stage);
    let (socket, daemon) = daemon(&stage);
    let tenant = |name: &str, mut command: std::process::Command| {
        command
            .env(SESSION_DIR, stage.session(name))
            .env(COMPUTE_LIMIT, first_device(50))
            .env("SLUICE_DAEMON", &socket);
        command
    };
    let mut many = tenant("many", stage.limited(&program));
    let many = start(many.args([threads, "9", us]));
    let mut one = tenant("one", stage.limited(built("tenant")));
    let one = start(one.args(["dense", "--kernel-us", "2000", "--seconds", "9"]));
    std::thread::sleep(Duration::from_millis(2500));
    let pids = [&many, &one].map(|running| running.pid().as_raw_nonzero().get().unsigned_abs());
    let worked = device.watch(&pids, Duration::from_secs(5));
    println!("{threads} threads of {us} us: {worked:.2?}");
    many.end().silent();
    one.end().silent();
    daemon.kill();
    worked
}

#[test]
fn each_gets_its_share_beside_many_threads() {
    for (threads, us) in
        [("1", "2000"), ("32", "2000"), ("200", "2000"), ("500", "2000"), ("200", "100")]
    {
        let worked = beside(threads, us);
        let [many, one] = worked.percent[..] else { panic!() };
        println!("{many} {one} {:?} {}", worked.longest_pause, worked.all);
    }
}
