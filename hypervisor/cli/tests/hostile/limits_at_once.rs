//! Two changes at the same time.

use crate::program::{Program, device_of, limit};
use crate::support::Sluice;
use ::limits::{GpuId, Limits};
use rustix::fs::FlockOperation;
use session::{Page, directory};
use std::fs::{self, OpenOptions};
use std::thread;
use std::time::{Duration, Instant};

/// One changes the memory and one the compute limit, again and again. Both changes hold each time.
#[test]
fn neither_of_two_changes_is_lost() {
    const ROUNDS: u32 = 400;
    let sluice = Sluice::new();
    let program = Program::run(&sluice, &["--mem", "1GiB", "--compute", "10"]);
    let change = |options: &[&str]| {
        let (code, _, stderr) = limit(&sluice, &program.name(), options);
        assert_eq!((code, stderr.as_str()), (0, ""));
    };
    let mut lost = Vec::new();
    for round in 0..ROUNDS {
        let (memory, share) = (1024 + round, 10 + round % 80);
        thread::scope(|scope| {
            scope.spawn(|| change(&["--mem", &format!("{memory}MiB")]));
            scope.spawn(|| change(&["--compute", &share.to_string()]));
        });
        let device = device_of(&sluice, &program);
        let found = (&device["memory"]["limit"], &device["compute"]["share_ppm"]);
        if (found.0, found.1) != (&(u64::from(memory) << 20).into(), &(share * 10_000).into()) {
            lost.push((round, found.0.clone(), found.1.clone()));
        }
    }
    assert!(lost.is_empty(), "{lost:?}");
}

/// A member of the session may lock whatever it likes in its own page.
#[test]
fn a_lock_that_is_kept_is_not_waited_for_without_end() {
    let sluice = Sluice::new();
    let base = directory::base(rustix::process::geteuid().as_raw());
    let name = format!("env-kept-{}", std::process::id());
    let folder = base.join(&name);
    fs::create_dir_all(&folder).unwrap();
    let page = Page::open(&folder, GpuId::from_bytes([9; 16]), &Limits::NONE).unwrap();
    let file = OpenOptions::new().read(true).write(true).open(page.path()).unwrap();
    rustix::fs::fcntl_lock(&file, FlockOperation::LockExclusive).unwrap();
    let begun = Instant::now();
    let (code, stdout, stderr) = limit(&sluice, &name, &["--mem", "2GiB"]);
    fs::remove_dir_all(folder).unwrap();
    assert_eq!(code, 0, "{stderr}");
    assert!(stdout.contains("memory was no limit, is now 2GiB"), "{stdout}");
    assert!(stderr.contains("another process has held the lock on the limits for 1 s"), "{stderr}");
    println!("{:?} {stderr}", begun.elapsed());
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
}
