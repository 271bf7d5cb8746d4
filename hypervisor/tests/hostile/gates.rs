//! Processes that name something as their gate page.

use std::fs::{self, File};
use std::io::{self, Read};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use http_bidir_comm::client::{BlockingHttpClient, Endpoint};
use protocol::{GatesInStream, LeaseReport, Register, Registered, path};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use serde_json::json;
use session::gate_page::GatePage;

use crate::process::{Daemon, GPU_ID, PATIENCE, admission, admission_by, place, registration};

/// How long a registration may take on a busy machine.
const SOON: Duration = Duration::from_secs(5);

fn register(client: &BlockingHttpClient, session: &str, descriptor: i64) -> u64 {
    let gates = Some(GatesInStream { descriptor });
    let message = Register { gates, ..registration(session, 500_000) };
    let start = Instant::now();
    let registered: Registered = client.post(path::REGISTER, &message, PATIENCE).unwrap();
    assert!(start.elapsed() < SOON, "{descriptor}: {:?}", start.elapsed());
    registered.worker
}

/// How many gate pages a process has mapped, and how many descriptors it has.
fn kept(pid: u32) -> (usize, usize) {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count();
    (maps.lines().filter(|line| line.contains("memfd:")).count(), descriptors)
}

fn raw(file: &dyn AsFd) -> i64 {
    file.as_fd().as_raw_fd().into()
}

/// A daemon that tells all, and the file that it tells it to.
fn talkative(dir: &Path, socket: &Path) -> Daemon {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hypervisor"));
    command
        .env_clear()
        .args(["daemon", "--log", "debug", "--nvml", "none", "--socket"])
        .arg(socket);
    command.stderr(File::create(dir.join("log")).unwrap());
    Daemon::start_by(&mut command, socket)
}

#[test]
fn what_is_no_page_counts_as_none() {
    let (dir, socket) = place();
    let mut daemon = talkative(dir.path(), &socket);
    let client = daemon.client();
    let sealing = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let memory = |bytes: u64, seals| {
        let memory = memfd_create("x", sealing).unwrap();
        ftruncate(&memory, bytes).unwrap();
        fcntl_add_seals(&memory, seals).unwrap();
        memory
    };
    let sealed = SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW;
    let fifo = dir.path().join("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let files: [(Box<dyn AsFd>, &str); 10] = [
        (Box::new(memory(12_288, SealFlags::empty())), "seals 0x0"),
        (Box::new(memory(4_096, sealed)), "4096 bytes"),
        (Box::new(memory(1 << 40, sealed)), "1099511627776 bytes"),
        (Box::new(memory(12_288, sealed)), "magic is 0x0"),
        (Box::new(File::options().read(true).write(true).open(&fifo).unwrap()), "a memfd"),
        (Box::new(io::pipe().unwrap().0), "a memfd"),
        (Box::new(File::open("/proc/self/mem").unwrap()), "a memfd"),
        (Box::new(File::open("/").unwrap()), "a memfd"),
        (Box::new(stream), "a memfd"),
        (Box::new(File::open("/dev/tty").or_else(|_| File::open("/dev/null")).unwrap()), "a memfd"),
    ];
    // A connection and a watched process.
    let _: Registered = client.post(path::REGISTER, &registration("a", 1), PATIENCE).unwrap();
    let before = kept(daemon.process.id());
    let mut reasons: Vec<&str> = Vec::new();
    for (file, reason) in &files {
        register(&client, "a", raw(file));
        reasons.push(reason);
    }
    for number in [-1, i64::MIN, 1 << 31, i64::MAX] {
        register(&client, "a", number);
        reasons.push("expected 0 to 2147483647");
    }
    let worker = register(&client, "a", 1_000_000);
    reasons.push("looking up the descriptor");
    // What the daemon had open for a moment when it was counted first may be closed by now.
    let (maps, descriptors) = kept(daemon.process.id());
    assert!(maps == before.0 && descriptors <= before.1, "{maps}, {descriptors}; {before:?}");
    // Whatever it named, it is served.
    assert!(admission(&client, worker, None, Some(PATIENCE)).unwrap().is_some());
    for gates in
        [json!({}), json!({"descriptor": u64::MAX}), json!({"descriptor": 1e300}), json!(3)]
    {
        let mut message = serde_json::to_value(registration("a", 1)).unwrap();
        message["gates"] = gates;
        let refused = client.post::<_, Registered>(path::REGISTER, &message, PATIENCE);
        assert!(refused.is_err(), "{message}");
    }
    assert!(daemon.process.try_wait().unwrap().is_none());
    daemon.signal(rustix::process::Signal::TERM);
    let log = fs::read_to_string(dir.path().join("log")).unwrap();
    let said: Vec<_> =
        log.lines().filter(|line| line.contains("leases do not end early")).collect();
    assert_eq!(said.len(), reasons.len(), "{log}");
    for (line, reason) in said.iter().zip(reasons) {
        assert!(line.contains(reason), "{line} does not say {reason}");
    }
}

#[test]
fn a_thousand_registrations_leave_one_page_and_no_descriptor() {
    let (_dir, socket) = place();
    let daemon = Daemon::start(&socket);
    let client = daemon.client();
    let page = GatePage::create().unwrap();
    page.block_of(GPU_ID).unwrap();
    register(&client, "a", raw(&page.as_fd()));
    let (pages, descriptors) = kept(daemon.process.id());
    assert_eq!(pages, 1);
    let time = |descriptor| {
        let start = Instant::now();
        for n in 0..1_000 {
            // The same session again, and another one.
            register(&client, ["a", "b"][n / 2 % 2], descriptor);
        }
        start.elapsed() / 1_000
    };
    println!("without a page {:?}", time(-1));
    println!("with one {:?}", time(raw(&page.as_fd())));
    let (pages, after) = kept(daemon.process.id());
    // The connection by which the test saw that the daemon listens may have been there before.
    assert!(pages == 1 && after <= descriptors, "{pages} pages, {descriptors} became {after}");
}

/// It says that a lease has ended, and another one, and the first one again, without a pause.
#[test]
fn a_process_that_says_anything_of_its_leases_keeps_nobody_busy() {
    const LENGTH: Duration = Duration::from_secs(2);
    let (_dir, socket) = place();
    let daemon = Daemon::start(&socket);
    let client = daemon.client();
    let page = GatePage::create().unwrap();
    let block = page.block(page.block_of(GPU_ID).unwrap());
    let worker = register(&client, "liar", raw(&page.as_fd()));
    let done = AtomicBool::new(false);
    let (start, mut leases) = (Instant::now(), 0);
    thread::scope(|scope| {
        scope.spawn(|| {
            for lease in (0..100).cycle() {
                block.end(lease);
                if done.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        let mut last = None;
        while start.elapsed() < LENGTH {
            let ask = Some(Duration::from_millis(15));
            let lease = admission_by(&client, worker, last.take(), ask, block.ask()).unwrap();
            if let Some(lease) = lease {
                leases += 1;
                thread::sleep(Duration::from_millis(5));
                last = Some(LeaseReport::busy(lease.id, 5_000));
            }
            block.withdraw();
        }
        done.store(true, Ordering::Relaxed);
    });
    let watched = daemon.watched_for();
    println!("{leases} leases, watched for {watched:?}");
    // A thread that does not sleep takes all of a core; this one a fiftieth, on a quiet machine.
    assert!(leases > 20 && watched * 8 < LENGTH, "{leases}, {watched:?}");
    assert_eq!(daemon.devices(), 1);
}

/// A process that registers with a page, and another one that exchanges the descriptor meanwhile.
#[test]
fn a_descriptor_that_changes_all_the_time() {
    let (_dir, socket) = place();
    let daemon = Daemon::start(&socket);
    let client = daemon.client();
    let page = GatePage::create().unwrap();
    page.block_of(GPU_ID).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let mut target = rustix::io::dup(page.as_fd()).unwrap();
    let number = raw(&target);
    register(&client, "a", number);
    let (_, descriptors) = kept(daemon.process.id());
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let stream = TcpStream::connect(address).unwrap();
                rustix::io::dup2(&stream, &mut target).unwrap();
                rustix::io::dup2(page.as_fd(), &mut target).unwrap();
                drop(listener.accept());
            }
        });
        for _ in 0..500 {
            register(&client, "a", number);
        }
        done.store(true, Ordering::Relaxed);
    });
    let (pages, after) = kept(daemon.process.id());
    assert!(pages <= 1 && after <= descriptors, "{pages} pages, {descriptors} became {after}");
}

fn registered(socket: &Path) -> Child {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "gates::helper_that_registers", "--ignored", "--nocapture"])
        .env("REGISTERS", socket)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = child.stdout.take().unwrap();
    let (mut seen, mut byte) = (Vec::new(), [0]);
    while !seen.ends_with(b"REGISTERED") {
        assert_eq!(out.read(&mut byte).unwrap(), 1, "{}", String::from_utf8_lossy(&seen));
        seen.push(byte[0]);
    }
    child
}

#[test]
#[ignore = "a helper process of the other tests"]
fn helper_that_registers() {
    let Ok(socket) = std::env::var("REGISTERS") else { return };
    let client = BlockingHttpClient::new(Endpoint::Unix(socket.into()));
    let page = GatePage::create().unwrap();
    page.block_of(GPU_ID).unwrap();
    register(&client, "dies", raw(&page.as_fd()));
    println!("REGISTERED");
    thread::sleep(Duration::from_secs(600));
}

#[test]
fn a_page_goes_with_its_process() {
    let (_dir, socket) = place();
    let daemon = Daemon::start(&socket);
    let before = kept(daemon.process.id());
    let mut children: Vec<_> = (0..4).map(|_| registered(&socket)).collect();
    assert_eq!(kept(daemon.process.id()).0, 4);
    for child in &mut children {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let start = Instant::now();
    // The daemon may open one for itself meanwhile.
    let is_as_before = |(maps, files)| maps == before.0 && files <= before.1 + 1;
    while !is_as_before(kept(daemon.process.id())) {
        assert!(start.elapsed() < PATIENCE, "{:?}", kept(daemon.process.id()));
        thread::sleep(Duration::from_millis(10));
    }
}
