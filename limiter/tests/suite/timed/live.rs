//! Limits that are set and removed while programs run. These measure, so run one test at a time.

use crate::common::{
    Busy, CONTEXT, GIB, MIB, Measured, Running, SESSION_DIR, Stage, UUIDS, built, eventually,
    gates_are_in_streams, skipped, start,
};
use http_bidir_comm::client::{BlockingHttpClient, Endpoint};
use limits::env::GATES;
use limits::{ComputeLimit, Limits, MemoryLimit, Policy};
use serde_json::Value;
use session::layout::MemoryKind;
use session::{Page, Summary};
use std::fs;
use std::io::{ErrorKind, Read};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The page of the first device in a stage's session, once it exists.
fn page(stage: &Stage) -> Page {
    let path = stage.session("session").join(format!("{}.page", UUIDS[0]));
    eventually("a page", || path.exists());
    Page::open_existing(&path).unwrap()
}

/// Makes the change that `sluice limit` would make.
fn change(page: &Page, change: impl FnOnce(&mut Limits)) {
    let mut limits = page.look().unwrap().limits();
    change(&mut limits);
    page.change_limits(&limits).unwrap();
}

fn give_share(page: &Page, percent: u32) {
    change(page, |limits| {
        let compute = &mut limits.compute;
        (compute.policy, compute.share_ppm) = (Policy::Fixed, percent * 10_000);
    });
}

fn take_share(page: &Page) {
    change(page, |limits| limits.compute.policy = Policy::None);
}

/// The file that `tenant dense --progress` writes to.
struct Progress(PathBuf);

impl Progress {
    /// Seconds and kernels, reported four times a second.
    fn lines(&self) -> Vec<(f64, f64)> {
        let text = fs::read_to_string(&self.0).unwrap_or_default();
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        let line = |line: &str| -> Option<(f64, f64)> {
            let line: Value = serde_json::from_str(line).ok()?;
            Some((line["elapsed"].as_f64()?, line["kernels"].as_f64()?))
        };
        whole.lines().filter_map(line).collect()
    }

    fn has(&self, count: usize) {
        eventually("progress", || self.lines().len() >= count);
    }

    /// Percent of the device's time over `quarters` quarters of a second, from the next line on. Kernels take 2 ms.
    fn percent(&self, quarters: usize) -> f64 {
        let first = self.lines().len();
        self.has(first + quarters + 1);
        let lines = self.lines();
        let (from, to) = (lines[first], lines[first + quarters]);
        (to.1 - from.1) / (to.0 - from.0) * 0.2
    }
}

/// A shell in the stage's session, which has no limit. It runs `count` programs that keep the device busy, and one more
/// once a file `go` exists.
fn tenants(stage: &Stage, count: usize, variables: &[(&str, &Path)]) -> (Running, Vec<Progress>) {
    let file = |number: usize| stage.folder().join(format!("progress-{number}"));
    let tenant = |number: usize| {
        let (tenant, file) = (built("tenant"), file(number));
        let options = "dense --kernel-us 2000 --iterations 2000000 --seconds 60 --progress";
        format!("'{}' {options} >{} &", tenant.display(), file.display())
    };
    let mut script: String = (0..count).map(tenant).collect();
    let go = stage.folder().join("go");
    script +=
        &format!("until [ -e {} ]; do sleep 0.02; done; {} wait", go.display(), tenant(count));
    let mut command = stage.limited("sh");
    command.args(["-c", &script]).envs(variables.iter().copied());
    let running = start(&mut command);
    (running, (0..=count).map(|number| Progress(file(number))).collect())
}

/// Each second delivered the right rate: never more, and less only on a machine that has other work.
#[track_caller]
fn follow(rates: &[f64], shares: &[f64], busy: Busy) {
    println!("{rates:.1?} of {shares:?} %, {busy:?}");
    for (&rate, &share) in rates.iter().zip(shares) {
        let least = if share < 100.0 { share * 0.15 - 1.0 } else { busy.least(60.0, 0.0) };
        assert!((least..=share + 12.0).contains(&rate), "{rates:.1?} of {shares:?} %, {busy:?}");
    }
}

/// Starts one more program; returns its rate.
fn one_more(stage: &Stage, progress: &Progress) -> f64 {
    fs::write(stage.folder().join("go"), b"").unwrap();
    progress.has(2);
    progress.percent(4)
}

#[test]
fn a_share_comes_and_goes_while_a_program_runs() {
    let stage = Stage::new();
    let (_running, tenants) = tenants(&stage, 1, &[]);
    let page = page(&stage);
    let tenant = &tenants[0];
    tenant.has(2);
    let measured = Measured::begin();
    let free = tenant.percent(4);
    // Counted from the first quarter of a second after the change.
    give_share(&page, 20);
    let limited = tenant.percent(4);
    give_share(&page, 60);
    let more = tenant.percent(4);
    // With a debt that would take long to repay.
    give_share(&page, 1);
    let least = tenant.percent(4);
    take_share(&page);
    let again = tenant.percent(4);
    give_share(&page, 20);
    let at_last = tenant.percent(4);
    let rates = [free, limited, more, least, again, at_last];
    follow(&rates, &[100.0, 20.0, 60.0, 1.0, 100.0, 20.0], measured.end());
}

/// 64 kernels are queued, and a lease of 99 % lasts for 30 ms.
#[test]
fn a_share_that_is_lowered_holds_what_is_queued() {
    if !gates_are_in_streams() {
        return skipped("what a thread has launched cannot be held");
    }
    let stage = Stage::new();
    let (tenant, file) = (built("tenant"), stage.folder().join("progress"));
    let options = "dense --kernel-us 1000 --iterations 1000000 --seconds 60 --progress=0.01";
    let script = format!("exec '{}' {options} >{}", tenant.display(), file.display());
    let _running = start(stage.limited("sh").args(["-c", &script]));
    let (page, progress) = (page(&stage), Progress(file));
    progress.has(2);
    let kernels = || progress.lines().last().map_or(0.0, |last| last.1);
    let mut after: Vec<f64> = (0..7)
        .map(|_| {
            give_share(&page, 99);
            std::thread::sleep(Duration::from_millis(300));
            let before = kernels();
            give_share(&page, 1);
            std::thread::sleep(Duration::from_millis(200));
            kernels() - before
        })
        .collect();
    after.sort_by(f64::total_cmp);
    println!("{after:.0?} ms");
    // The earnings of 300 ms, one millisecond, the running work, and work that had been done before and not been seen.
    assert!(after[3] <= 3.0 + 1.0 + 2.0 + 10.0, "{after:.0?} ms");
}

#[test]
fn a_share_comes_and_goes_for_all_processes_of_a_session() {
    let stage = Stage::new();
    let (_running, tenants) = tenants(&stage, 2, &[]);
    let page = page(&stage);
    let (a, b) = (&tenants[0], &tenants[1]);
    a.has(2);
    b.has(2);
    let both = |quarters| {
        std::thread::scope(|scope| {
            let other = scope.spawn(move || b.percent(quarters));
            a.percent(quarters) + other.join().unwrap()
        })
    };
    give_share(&page, 20);
    // On a busy processor the programs pay for their earlier launches.
    let limited = both(12);
    assert!((2.0..=32.0).contains(&limited), "{limited:.1} % for two");
    // A program that starts later is limited from the start, and takes part of the others' time.
    let third = one_more(&stage, &tenants[2]);
    assert!((0.5..=32.0).contains(&third), "{third:.1} % for a third");
    let others = both(4);
    assert!(others + third <= 36.0, "{others:.1} and {third:.1} %");
    take_share(&page);
    // Slicing the device between them takes a tenth.
    let measured = Measured::begin();
    let [lifted, late] = [both(4), tenants[2].percent(4)];
    let busy = measured.end();
    println!("{limited:.1}, {third:.1} + {others:.1}, {lifted:.1} + {late:.1} %, {busy:?}");
    let least = busy.least(63.0, 0.0);
    assert!(lifted + late >= least, "{lifted:.1} and {late:.1} % without a limit, {busy:?}");
}

/// The sessions that a daemon serves on the first device.
fn sessions(socket: &Path) -> Option<Vec<Value>> {
    let client = BlockingHttpClient::new(Endpoint::Unix(socket.to_owned()));
    let status: Value = client.get("/api/v1/sessions", Duration::from_secs(2)).ok()?;
    let sessions = status["sessions"].as_array()?;
    Some(sessions.iter().flat_map(|one| one["devices"].as_array().unwrap().clone()).collect())
}

/// While a session has no limit, its processes register with the daemon.
#[test]
fn a_daemon_that_does_not_answer_delays_no_change() {
    let stage = Stage::new();
    let socket = stage.folder().join("daemon.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let (_running, _tenants) = tenants(&stage, 1, &[("SLUICE_DAEMON", &socket)]);
    let (mut call, _) = listener.accept().unwrap();
    call.set_nonblocking(true).unwrap();
    let page = page(&stage);
    give_share(&page, 30);
    let layout = page.look().unwrap();
    let change = layout.limit_changes.load(Ordering::Acquire);
    eventually("the change is taken", || {
        let processes = page.summary().unwrap().processes;
        processes.iter().any(|process| layout.has_taken(process.slot, change))
    });
    // It still waits for the answer.
    let mut request = Vec::new();
    let open = call.read_to_end(&mut request).map_err(|error| error.kind());
    assert_eq!(open, Err(ErrorKind::WouldBlock), "{}", String::from_utf8_lossy(&request));
}

#[test]
fn a_session_that_is_given_a_share_turns_to_the_daemon() {
    let stage = Stage::new();
    let socket = stage.folder().join("daemon.sock");
    let mut daemon = stage.native(built("hypervisor"));
    let _daemon = start(daemon.args(["daemon", "--log", "warn", "--socket"]).arg(&socket));
    eventually("the daemon listens", || UnixStream::connect(&socket).is_ok());
    let (running, tenants) = tenants(&stage, 1, &[("SLUICE_DAEMON", &socket)]);
    let page = page(&stage);
    let tenant = &tenants[0];
    tenant.has(2);
    let measured = Measured::begin();
    assert_eq!(sessions(&socket).unwrap(), [] as [Value; 0]);
    give_share(&page, 30);
    let limited = tenant.percent(4);
    let served = sessions(&socket).unwrap();
    assert_eq!((served.len(), &served[0]["share_ppm"]), (1, &300_000.into()), "{served:?}");
    assert!(served[0]["charged_us"].as_u64().unwrap() > 0, "{served:?}");
    take_share(&page);
    let lifted = tenant.percent(4);
    eventually("nobody asks", || sessions(&socket).unwrap().iter().all(|one| one["asks"] == false));
    let charged = |socket| sessions(socket).unwrap().first().map(|one| one["charged_us"].clone());
    let before = charged(&socket);
    let _ = tenant.percent(1);
    assert!(charged(&socket).is_none_or(|now| Some(now) == before), "it goes on paying");
    give_share(&page, 30);
    let again = tenant.percent(4);
    // All of the idle time, immediately, and no more than half of the device.
    change(&page, |limits| {
        (limits.compute.policy, limits.compute.weight) = (Policy::Balance, 7);
    });
    let balanced = tenant.percent(4);
    assert_eq!(sessions(&socket).unwrap()[0]["weight"], 7);
    change(&page, |limits| limits.compute.soft_ppm = Some(500_000));
    let soft = tenant.percent(4);
    let rates = [limited, lifted, again, balanced, soft];
    follow(&rates, &[30.0, 100.0, 30.0, 100.0, 50.0], measured.end());
    assert_eq!(sessions(&socket).unwrap().len(), 1);
    running.kill();
    assert_eq!(running.end().stderr, "");
}

/// While the session has no limit, its process registers with the daemon, without undoing an earlier registration: if
/// its gates were then taken to be on its threads, its leases would last for 30 ms, whoever waits.
#[test]
fn gates_stay_in_streams_after_a_time_without_a_limit() {
    let stage = Stage::new();
    let socket = stage.folder().join("daemon.sock");
    let mut daemon = stage.native(built("hypervisor"));
    let _daemon = start(daemon.args(["daemon", "--log", "warn", "--socket"]).arg(&socket));
    eventually("the daemon listens", || UnixStream::connect(&socket).is_ok());
    let variables = [("SLUICE_DAEMON", socket.as_path()), (GATES, Path::new("stream"))];
    let (running, tenants) = tenants(&stage, 1, &variables);
    let page = page(&stage);
    tenants[0].has(2);
    let in_stream = || {
        let client = BlockingHttpClient::new(Endpoint::Unix(socket.clone()));
        let workers: Option<Value> = client.get("/api/v1/workers", Duration::from_secs(2)).ok();
        workers.is_some_and(|workers| workers["workers"][0]["in_stream"][0] == UUIDS[0])
    };
    give_share(&page, 30);
    eventually("its gates are in its streams", in_stream);
    for _ in 0..2 {
        take_share(&page);
        let _ = tenants[0].percent(4);
        give_share(&page, 30);
        let _ = tenants[0].percent(4);
        assert!(in_stream());
    }
    running.kill();
    assert_eq!(running.end().stderr, "");
}

/// The program `steps` in the stage's session, without a limit.
fn steps(stage: &Stage, steps: &[&str]) -> Running {
    let program = stage.folder().join("steps");
    if !program.exists() {
        stage.compile("steps.c", "steps", &[]);
    }
    start(stage.limited(program).args(steps))
}

fn used(page: &Page) -> u64 {
    page.summary().as_ref().map_or(0, Summary::total)
}

#[test]
fn what_is_used_without_a_limit_is_known() {
    let stage = Stage::new();
    let running = steps(&stage, &["alloc:64", "pool:64", "load:300", "sleep:20000"]);
    let page = page(&stage);
    eventually("everything is counted", || used(&page) == CONTEXT + 428 * MIB);
    let summary = page.summary().unwrap();
    assert_eq!(summary.limits, Limits::NONE);
    assert_eq!(summary.bytes(MemoryKind::Data), 64 * MIB);
    assert_eq!(summary.bytes(MemoryKind::Pool), 64 * MIB);
    assert_eq!(summary.bytes(MemoryKind::Driver), 300 * MIB);
    // Unused memory is released as soon as it does not fit a new limit.
    change(&page, |limits| limits.memory = Some(MemoryLimit::new(GIB - 128 * MIB)));
    eventually("the pool is trimmed", || used(&page) == CONTEXT + 364 * MIB);
    running.kill();
}

/// A forked child does not inherit the threads that follow the limits; it starts its own.
#[test]
fn a_forked_child_follows_the_limits_as_well() {
    let stage = Stage::new();
    let running = steps(&stage, &["fork", "alloc:2", "sleep:5000", "alloc:1024", "info"]);
    let page = page(&stage);
    eventually("the first allocation", || used(&page) == CONTEXT + 2 * MIB);
    change(&page, |limits| limits.memory = Some(MemoryLimit::new(GIB)));
    let outcome = running.end().silent();
    assert!(outcome.stdout.contains("alloc=0 alloc=2 "), "{outcome:#?}");
    assert_eq!(page.look().unwrap().limits().memory, Some(MemoryLimit::new(GIB)));
}

/// A program started without a session cannot be limited later, and is left alone.
#[test]
fn outside_of_a_session_nothing_is_accounted() {
    let stage = Stage::new();
    stage.compile("steps.c", "steps", &[]);
    let mut command = stage.limited(stage.folder().join("steps"));
    command.env_remove(SESSION_DIR).args(["alloc:1", "threads"]);
    let outcome = start(&mut command).end().silent();
    assert!(outcome.stdout.contains("reconcilers=0"), "{outcome:#?}");
    assert_eq!(fs::read_dir(stage.session("session")).unwrap().count(), 0);
}

/// A page that cannot be made holds no limit: a program without limits of its own continues. A page that exists may
/// hold a limit, and so may the pages of a session that is gone.
#[test]
fn a_page_that_cannot_be_made_stops_no_program_without_limits() {
    let stage = Stage::new();
    stage.compile("steps.c", "steps", &[]);
    let program = || {
        let mut command = stage.limited(stage.folder().join("steps"));
        command.arg("alloc:1");
        command
    };
    // Nobody can create files there.
    let outcome = start(program().env(SESSION_DIR, "/proc/sys/kernel")).end().succeeded();
    assert!(outcome.stdout.contains("alloc=0"), "{outcome:#?}");
    assert_eq!(outcome.complaints().len(), 1, "{outcome:#?}");
    assert!(outcome.stderr.contains("has no limit in this process and cannot be given one"));
    let gone = stage.folder().join("gone");
    let outcome = start(program().env(SESSION_DIR, &gone)).end();
    assert_ne!(outcome.code(), 0, "{outcome:#?}");
    assert!(outcome.stderr.contains(SESSION_DIR), "{outcome:#?}");
    let mut limited = program();
    limited
        .env(SESSION_DIR, &gone)
        .env(crate::common::MEMORY_LIMIT, crate::common::first_device("1GiB"));
    assert_ne!(start(&mut limited).end().code(), 0);
    fs::write(stage.session("session").join(format!("{}.page", UUIDS[0])), b"noise").unwrap();
    let outcome = start(&mut program()).end();
    assert_ne!(outcome.code(), 0, "{outcome:#?}");
    assert!(outcome.stderr.contains("cannot be used"), "{outcome:#?}");
}

/// A process with write access to the page may write at any moment, in the middle of anything.
#[test]
fn a_page_that_changes_all_the_time_costs_little_and_harms_nothing() {
    let stage = Stage::new();
    let running = steps(&stage, &["alloc:2", "sleep:3000", "busy:1", "sync", "alloc:1"]);
    let page = page(&stage);
    eventually("the first allocation", || used(&page) == CONTEXT + 2 * MIB);
    let ended = std::sync::atomic::AtomicBool::new(false);
    let outcome = std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0_u32.. {
                if ended.load(std::sync::atomic::Ordering::Relaxed) {
                    break;
                }
                let compute = ComputeLimit {
                    policy: [Policy::None, Policy::Fixed, Policy::Balance][round as usize % 3],
                    ..ComputeLimit::fixed(round.wrapping_mul(0x9E37_79B9))
                };
                let memory = (round % 3 != 0).then_some(MemoryLimit::new(GIB));
                let limits = Limits { memory, compute };
                page.change_limits(&limits).unwrap();
                std::thread::yield_now();
            }
        });
        let outcome = running.end();
        ended.store(true, std::sync::atomic::Ordering::Relaxed);
        outcome
    });
    let outcome = outcome.silent();
    assert!(outcome.stdout.contains("busy=0 sync=0 alloc=0"), "{outcome:#?}");
}
