//! The gate page between the two sides, and invalid pages given to the daemon's side.

use limits::GpuId;
use proptest::prelude::*;
use rustix::fs::{
    FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, fcntl_get_seals, ftruncate,
    memfd_create,
};
use rustix::io::pwrite;
use session::gate_page::layout::{BLOCKS, LENGTH, MAGIC, VERSION};
use session::gate_page::{AwaitedEnd, Bell, End, GatePage, GatePageError, Opened, PeerGatePage};
use std::fs::{self, File};
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const DEVICE: GpuId = GpuId::from_bytes([0x5a; 16]);
const OTHER: GpuId = GpuId::from_bytes([0x6b; 16]);
const LONG: Duration = Duration::from_secs(20);

fn of_own(descriptor: i64) -> Result<PeerGatePage, GatePageError> {
    let uid = rustix::process::geteuid().as_raw();
    PeerGatePage::of_process(std::process::id(), uid, descriptor)
}

fn raw<F: AsFd + ?Sized>(file: &F) -> i64 {
    file.as_fd().as_raw_fd().into()
}

/// A memfd with these bytes and seals.
fn memory(bytes: &[u8], seals: SealFlags) -> OwnedFd {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let memory = memfd_create("other", flags).unwrap();
    assert_eq!(pwrite(&memory, bytes, 0).unwrap(), bytes.len());
    fcntl_add_seals(&memory, seals).unwrap();
    memory
}

const SEALED: SealFlags = SealFlags::SEAL.union(SealFlags::SHRINK).union(SealFlags::GROW);

#[test]
fn a_lease_is_ended_early_and_the_next_one_is_not() {
    let page = GatePage::create().unwrap();
    let block = page.block(page.block_of(DEVICE).unwrap());
    let peer = PeerGatePage::map(page.as_fd()).unwrap();
    assert_eq!(block.open(Some(7)), Opened::Open);
    assert!(block.is_open() && !block.is_stopped(7));
    let rings = block.rings();
    assert!(peer.stop_early(DEVICE, 7));
    assert!(!block.is_open() && block.is_stopped(7) && block.rings() != rings);
    // The bell has rung, so this does not sleep.
    block.wait(rings, LONG);
    assert_eq!(block.open(Some(7)), Opened::Stopped);
    assert!(!block.is_open());
    // Another lease, and one of the own account.
    assert_eq!(block.open(Some(8)), Opened::Open);
    assert!(peer.stop_early(DEVICE, 7));
    assert_eq!(block.open(Some(8)), Opened::Open);
    block.close();
    assert!(!block.is_open());
    for stopped in [0, 9] {
        assert!(peer.stop_early(DEVICE, stopped));
        assert_eq!(block.open(None), Opened::Open);
    }
    block.close();
    // Lease numbers start anew with a registration.
    assert_eq!(block.open(Some(9)), Opened::Stopped);
    block.forget_leases();
    assert_eq!(block.open(Some(9)), Opened::Open);
    assert!(!peer.stop_early(OTHER, 9) && block.is_open());
}

#[test]
fn a_lease_may_be_kept_until_somebody_waits() {
    let page = GatePage::create().unwrap();
    let block = page.block(page.block_of(DEVICE).unwrap());
    let peer = PeerGatePage::map(page.as_fd()).unwrap();
    assert!(!block.may_keep(7) && !block.may_keep(0));
    let rings = block.rings();
    peer.let_keep(OTHER, 7, true);
    assert!(!block.may_keep(7));
    peer.let_keep(DEVICE, 7, true);
    assert!(block.may_keep(7) && !block.may_keep(8) && !block.may_keep(0));
    assert_eq!(block.rings(), rings);
    peer.let_keep(DEVICE, 7, false);
    assert!(!block.may_keep(7) && !block.may_keep(0));
    // The bell has rung, so this does not sleep.
    block.wait(rings, LONG);
    peer.let_keep(DEVICE, 8, true);
    // The lease is unused now, and used again.
    assert!(!peer.is_idle(DEVICE, 8));
    block.rests(8);
    assert!(peer.is_idle(DEVICE, 8) && !peer.is_idle(DEVICE, 7) && !peer.is_idle(OTHER, 8));
    block.goes_on();
    assert!(!peer.is_idle(DEVICE, 8) && !peer.is_idle(DEVICE, 0));
    block.rests(8);
    block.forget_leases();
    assert!(!block.may_keep(8) && !peer.is_idle(DEVICE, 8));
}

#[test]
fn a_grant_opens_the_gate_of_the_ask_that_it_answers() {
    let page = GatePage::create().unwrap();
    let block = page.block(page.block_of(DEVICE).unwrap());
    let peer = PeerGatePage::map(page.as_fd()).unwrap();
    let first = block.ask().unwrap();
    assert!(!block.is_open() && !peer.grant(OTHER, 1, first));
    // Withdrawn: a grant for that request has no effect, nor has one that names an open word.
    assert!(!block.withdraw());
    assert!(!peer.grant(DEVICE, 1, first) && !peer.grant(DEVICE, 1, first | 1));
    assert!(!block.is_open() && block.granted_at(1).is_none());
    let second = block.ask().unwrap();
    assert!(!peer.grant(DEVICE, 2, first));
    let before = session::clock::now_ns();
    assert!(peer.grant(DEVICE, 2, second) && block.is_open());
    let at = block.granted_at(2).unwrap();
    assert!((before..=session::clock::now_ns()).contains(&at) && block.granted_at(1).is_none());
    assert!(!peer.grant(DEVICE, 3, second) && block.ask().is_none());
    // The answer was lost.
    assert!(block.withdraw() && !block.is_open());
    // The lease was ended before the governor took it over.
    let third = block.ask().unwrap();
    assert!(peer.grant(DEVICE, 4, third) && peer.stop_early(DEVICE, 4));
    assert_eq!((block.is_open(), block.open(Some(4))), (false, Opened::Stopped));
}

/// One side opens while the other withdraws: whichever is first, the gate is closed in the end.
#[test]
fn granting_and_giving_up_at_the_same_moment() {
    const ASKS: u64 = 20_000;
    let page = GatePage::create().unwrap();
    let block = page.block(page.block_of(DEVICE).unwrap());
    let peer = PeerGatePage::map(page.as_fd()).unwrap();
    let (asked, answered) = (AtomicU64::new(0), AtomicU64::new(0));
    thread::scope(|scope| {
        scope.spawn(|| {
            for lease in 1..=ASKS {
                let message = loop {
                    let message = asked.load(Ordering::Acquire);
                    if message >> 32 == lease {
                        break message;
                    }
                    std::hint::spin_loop();
                };
                let opened = peer.grant(DEVICE, lease, message as u32);
                answered.store(lease << 1 | u64::from(opened), Ordering::Release);
            }
        });
        for lease in 1..=ASKS {
            let word = block.ask().unwrap();
            asked.store(lease << 32 | u64::from(word), Ordering::Release);
            if lease % 3 == 0 {
                thread::yield_now();
            }
            let was_open = block.withdraw();
            while answered.load(Ordering::Acquire) >> 1 < lease {
                std::hint::spin_loop();
            }
            assert_eq!(was_open, answered.load(Ordering::Acquire) & 1 == 1, "{lease}");
            assert!(!block.is_open(), "{lease}");
        }
    });
}

#[test]
fn the_daemon_is_woken_by_the_end_of_a_lease() {
    let pages = [(); 2].map(|()| GatePage::create().unwrap());
    let blocks = [0, 1].map(|n: usize| pages[n].block(pages[n].block_of(DEVICE).unwrap()));
    let peers = [0, 1].map(|n: usize| Arc::new(PeerGatePage::map(pages[n].as_fd()).unwrap()));
    let bell = Bell::default();
    assert!(AwaitedEnd::new(&peers[0], OTHER, 1).is_none());
    let await_ends =
        |lease: u64| peers.clone().map(|peer| AwaitedEnd::new(&peer, DEVICE, lease).unwrap());
    let ends = await_ends(5);
    assert!(ends.iter().all(|end| end.look() == End::Ahead));
    for own in [true, false] {
        thread::scope(|scope| {
            let rings = bell.rings();
            let (ends, bell) = (&ends, &bell);
            let woken = scope.spawn(move || AwaitedEnd::wait_for_any(ends, bell, rings));
            thread::sleep(Duration::from_millis(20));
            assert!(!woken.is_finished());
            if own {
                bell.ring();
                assert_eq!(woken.join().unwrap().unwrap(), None);
            } else {
                blocks[1].end(5);
                assert_eq!(woken.join().unwrap().unwrap(), Some(1));
            }
        });
    }
    assert_eq!(ends.each_ref().map(AwaitedEnd::look), [End::Ahead, End::Reached]);
    // A reached end does not sleep, and an unexpected number is not trusted.
    assert_eq!(AwaitedEnd::wait_for_any(&ends, &bell, bell.rings()).unwrap(), None);
    let next = await_ends(6);
    assert!(next.iter().all(|end| end.look() == End::Ahead));
    blocks[0].end(7);
    assert_eq!(next[0].look(), End::Unclear);
}

#[test]
fn a_sleeping_governor_is_woken() {
    let page = GatePage::create().unwrap();
    let block = page.block(page.block_of(DEVICE).unwrap());
    let peer = of_own(raw(&page.as_fd())).unwrap();
    let rings = block.rings();
    assert_eq!(block.open(Some(1)), Opened::Open);
    let start = Instant::now();
    block.wait(rings, Duration::from_millis(20));
    assert!(start.elapsed() >= Duration::from_millis(20) && block.is_open());
    thread::scope(|scope| {
        let woken = scope.spawn(|| {
            while !block.is_stopped(1) {
                block.wait(rings, LONG);
            }
        });
        thread::sleep(Duration::from_millis(20));
        assert!(!woken.is_finished());
        assert!(peer.stop_early(DEVICE, 1));
    });
    assert!(start.elapsed() < LONG / 2, "{:?}", start.elapsed());
}

/// Both sides at once, on real memory: whichever is first, no lease that was ended is open.
#[test]
fn opening_and_stopping_at_the_same_moment() {
    const LEASES: u64 = 20_000;
    let page = GatePage::create().unwrap();
    let block = page.block(page.block_of(DEVICE).unwrap());
    let peer = PeerGatePage::map(page.as_fd()).unwrap();
    let (begun, stopped) = (AtomicU64::new(0), AtomicU64::new(0));
    thread::scope(|scope| {
        scope.spawn(|| {
            for lease in 1..=LEASES {
                while begun.load(Ordering::Acquire) < lease {
                    std::hint::spin_loop();
                }
                peer.stop_early(DEVICE, lease);
                stopped.store(lease, Ordering::Release);
            }
        });
        let mut early = 0;
        for lease in 1..=LEASES {
            begun.store(lease, Ordering::Release);
            early += u64::from(block.open(Some(lease)) == Opened::Stopped);
            while stopped.load(Ordering::Acquire) < lease {
                std::hint::spin_loop();
            }
            assert!(!block.is_open(), "lease {lease}");
        }
        assert!(early < LEASES);
    });
}

#[test]
fn a_page_has_a_block_for_each_of_64_devices() {
    let page = GatePage::create().unwrap();
    let device = |n: u8| GpuId::from_bytes([n + 1; 16]);
    let blocks: Vec<_> = (0..64).map(|n| page.block_of(device(n)).unwrap()).collect();
    assert!(matches!(page.block_of(device(64)), Err(GatePageError::Full)));
    assert_eq!(page.block_of(device(5)).unwrap(), blocks[5]);
    let peer = PeerGatePage::map(page.as_fd()).unwrap();
    for (n, &block) in blocks.iter().enumerate() {
        let block = page.block(block);
        assert_eq!(block.open(Some(3)), Opened::Open);
        assert!(peer.stop_early(device(n as u8), 3));
        assert!(!block.is_open());
    }
    assert!(!peer.stop_early(device(64), 3));
}

#[test]
fn each_mapping_is_the_same_memory_at_another_address() {
    let page = GatePage::create().unwrap();
    let number = page.block_of(DEVICE).unwrap();
    let mappings: Vec<_> = (0..3).map(|_| page.map_again().unwrap()).collect();
    let word = |n: usize| -> *const u32 {
        assert_eq!(mappings[n].length(), LENGTH);
        mappings[n].as_ptr().wrapping_add(number.word_offset()).cast()
    };
    assert!(word(0) != word(1) && word(1) != word(2));
    // SAFETY: the mappings are as long as a page, and stay.
    let bits = || (0..3).map(|n| unsafe { word(n).read_volatile() } & 1).sum::<u32>();
    assert_eq!(bits(), 0);
    let _ = page.block(number).open(None);
    assert_eq!(bits(), 3);
    page.block(number).close();
    assert_eq!(bits(), 0);
    // The mappings outlive the page.
    drop(page);
    assert_eq!(bits(), 0);
    for mapping in mappings {
        // SAFETY: nobody looks at it any more.
        unsafe { mapping.unmap() };
    }
}

#[test]
fn the_memory_can_neither_shrink_nor_grow_nor_be_inherited() {
    let page = GatePage::create().unwrap();
    assert!(ftruncate(page.as_fd(), 0).is_err() && ftruncate(page.as_fd(), 1 << 20).is_err());
    assert!(fcntl_get_seals(page.as_fd()).unwrap().contains(SEALED));
    assert!(fcntl_add_seals(page.as_fd(), SealFlags::WRITE).is_err());
    let descriptor = page.as_fd().as_raw_fd();
    let seen = Command::new("test").args(["-e", &format!("/proc/self/fd/{descriptor}")]).status();
    assert!(!seen.unwrap().success());
}

/// The owner punches holes into the memory while the daemon uses it.
#[test]
fn holes_are_survived() {
    let page = GatePage::create().unwrap();
    page.block_of(DEVICE).unwrap();
    let peer = PeerGatePage::map(page.as_fd()).unwrap();
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(page.as_fd(), hole, 0, LENGTH as u64).unwrap();
    assert!(!peer.stop_early(DEVICE, 1));
    assert!(matches!(
        PeerGatePage::map(page.as_fd()),
        Err(GatePageError::Foreign { field: "magic", found: 0, wanted: MAGIC })
    ));
}

#[test]
fn what_is_no_page_is_refused_with_a_reason() {
    let refused = |file: &dyn AsFd, words: &str| {
        let error = of_own(raw(file)).unwrap_err().to_string();
        assert!(error.contains(words), "{error:?} does not say {words:?}");
    };
    let page = vec![0; LENGTH];
    for seals in [
        SealFlags::empty(),
        SealFlags::SEAL,
        SealFlags::SEAL | SealFlags::SHRINK,
        SealFlags::SHRINK | SealFlags::GROW,
        SEALED | SealFlags::WRITE,
        SEALED | SealFlags::FUTURE_WRITE,
    ] {
        refused(&memory(&page, seals), "seals");
    }
    refused(&memory(&page[1..], SEALED), "12287 bytes");
    refused(&memory(&[], SEALED), "0 bytes");
    refused(&memory(&vec![0; LENGTH + 4096], SEALED), "16384 bytes");
    refused(&memory(&page, SEALED), "magic");
    let mut other = page.clone();
    other[..8].copy_from_slice(&MAGIC.to_ne_bytes());
    refused(&memory(&other, SEALED), "version");
    other[8..12].copy_from_slice(&VERSION.to_ne_bytes());
    refused(&memory(&other, SEALED), "count");
    other[12..16].copy_from_slice(&(BLOCKS as u32).to_ne_bytes());
    assert!(of_own(raw(&memory(&other, SEALED))).is_ok());

    const KIND: &str = "a memfd";
    let dir = tempfile::tempdir().unwrap();
    for path in ["/proc/self/mem", "/dev/null", "/dev/zero", "/proc/self/status", "/"] {
        refused(&File::open(path).unwrap(), KIND);
    }
    let fifo = dir.path().join("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    // A file that takes for ever to open, as an O_PATH descriptor.
    let path = rustix::fs::OFlags::PATH;
    refused(&rustix::fs::open(&fifo, path, rustix::fs::Mode::empty()).unwrap(), KIND);
    refused(&File::options().read(true).write(true).open(&fifo).unwrap(), KIND);
    refused(&tempfile::tempfile_in("/dev/shm").unwrap(), KIND);
    refused(&tempfile::tempfile().unwrap(), KIND);
    refused(&UnixStream::pair().unwrap().0, KIND);
    refused(&io::pipe().unwrap().1, KIND);
    if let Ok(huge) = memfd_create("huge", MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB) {
        refused(&huge, KIND);
    }
    for number in [-1, i64::MIN, 1 << 31, i64::MAX] {
        let error = of_own(number).unwrap_err();
        assert!(matches!(error, GatePageError::Descriptor(told) if told == number), "{error}");
    }
    let error = of_own(1_000_000).unwrap_err().to_string();
    assert!(error.contains("looking up the descriptor"), "{error}");
}

/// A page of another user's process is not accessed.
#[test]
fn a_process_of_another_user_and_one_that_has_ended_are_not_asked() {
    let page = GatePage::create().unwrap();
    let (pid, uid) = (std::process::id(), rustix::process::geteuid().as_raw());
    let of = |pid, uid| PeerGatePage::of_process(pid, uid, raw(&page.as_fd()));
    assert!(of(pid, uid).is_ok());
    let other = |result| matches!(result, Err(GatePageError::OtherProcess { .. }));
    assert!(other(of(pid, uid + 1)));
    assert!(other(of(u32::MAX, uid)));
    let mut child = Command::new("sleep").arg("600").stdin(Stdio::null()).spawn().unwrap();
    assert!(matches!(
        of(child.id(), uid),
        Err(GatePageError::Io { .. } | GatePageError::NotAMemfd)
    ));
    child.kill().unwrap();
    // Still a zombie.
    thread::sleep(Duration::from_millis(50));
    assert!(other(of(child.id(), uid)));
    child.wait().unwrap();
}

#[test]
fn as_many_pages_are_mapped_as_can_be_kept_track_of() {
    let page = GatePage::create().unwrap();
    let all = || -> Vec<_> {
        let mapped = std::iter::from_fn(|| PeerGatePage::map(page.as_fd()).ok());
        mapped.take(10_000).collect()
    };
    let first = all();
    assert_eq!(first.len(), 2047);
    let refused = PeerGatePage::map(page.as_fd()).unwrap_err();
    assert!(matches!(refused, GatePageError::TooMany), "{refused}");
    drop(first);
    assert_eq!(all().len(), 2047);
}

/// The descriptor refers to another file at each look.
#[test]
fn a_descriptor_that_changes_all_the_time() {
    let page = GatePage::create().unwrap();
    let other = File::open("/dev/null").unwrap();
    let target = other.try_clone().unwrap();
    let done = AtomicBool::new(false);
    let descriptors = || fs::read_dir("/proc/self/fd").unwrap().count();
    let before = descriptors();
    thread::scope(|scope| {
        scope.spawn(|| {
            let number = target.as_raw_fd();
            while !done.load(Ordering::Relaxed) {
                for from in [page.as_fd().as_raw_fd(), other.as_raw_fd()] {
                    // SAFETY: both are open, and nobody reads or writes the target.
                    unsafe { libc::dup2(from, number) };
                }
            }
        });
        for _ in 0..2_000 {
            match of_own(raw(&target)) {
                Ok(peer) => assert!(!peer.stop_early(OTHER, 1)),
                Err(error) => assert!(matches!(error, GatePageError::NotAMemfd), "{error}"),
            }
        }
        done.store(true, Ordering::Relaxed);
    });
    assert!(descriptors() <= before + 2, "{before} became {}", descriptors());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Arbitrary bytes in the page, before and after it was mapped.
    #[test]
    fn any_content_is_survived(
        start in prop::collection::vec(any::<u8>(), 0..400),
        changes in prop::collection::vec((0..LENGTH, any::<u8>()), 0..40),
        sound: bool,
        lease: u64,
    ) {
        let mut bytes = vec![0; LENGTH];
        if sound {
            bytes[..8].copy_from_slice(&MAGIC.to_ne_bytes());
            bytes[8..12].copy_from_slice(&VERSION.to_ne_bytes());
            bytes[12..16].copy_from_slice(&(BLOCKS as u32).to_ne_bytes());
            bytes[128 + 128 * 3..][..16].copy_from_slice(&DEVICE.bytes());
        } else {
            bytes[..start.len()].copy_from_slice(&start);
        }
        let memory = memory(&bytes, SEALED);
        if let Ok(peer) = PeerGatePage::map(memory.as_fd()) {
            prop_assert_eq!(peer.stop_early(DEVICE, lease), sound);
            for (place, byte) in changes {
                pwrite(&memory, &[byte], place as u64).unwrap();
                let _ = peer.stop_early(DEVICE, lease);
                let _ = peer.stop_early(OTHER, lease);
            }
        } else {
            prop_assert!(!sound);
        }
    }
}

/// As on an old kernel or in a sandbox: there is no page, and an error says so.
#[test]
fn where_the_system_has_no_such_memory_there_is_no_page() {
    let made = thread::spawn(|| {
        forbid_memfd();
        GatePage::create().map(drop)
    });
    let error = made.join().unwrap().unwrap_err();
    let GatePageError::Io { what, source } = &error else { panic!("{error}") };
    assert_eq!(
        (*what, source.raw_os_error()),
        ("making memory without a name", Some(libc::ENOSYS))
    );
}

/// Makes memfd_create(2) fail in this thread as if it did not exist.
fn forbid_memfd() {
    let [load, equal, answer] = [
        libc::BPF_LD | libc::BPF_W | libc::BPF_ABS,
        libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
        libc::BPF_RET | libc::BPF_K,
    ]
    .map(|code| code as u16);
    let step = |code, jf, k| libc::sock_filter { code, jt: 0, jf, k };
    let mut steps = [
        step(load, 0, 0),
        step(equal, 1, libc::SYS_memfd_create as u32),
        step(answer, 0, libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32),
        step(answer, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: 4, filter: steps.as_mut_ptr() };
    // SAFETY: the program is whole, and copied by the kernel.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let filter = libc::SECCOMP_MODE_FILTER;
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, filter, &raw const program), 0);
    }
}

/// Daemonising programs close all descriptors, and open others.
#[test]
fn another_file_at_the_descriptor_is_not_taken_for_the_page() {
    let page = GatePage::create().unwrap();
    assert!(page.map_again().is_ok());
    let other = memory(&[0; LENGTH], SealFlags::empty());
    // SAFETY: closed below, by nobody else before that.
    let mut own = ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(page.as_fd().as_raw_fd()) });
    rustix::io::dup2(&other, &mut own).unwrap();
    assert!(matches!(page.check_descriptor(), Err(GatePageError::Replaced)));
    assert!(matches!(page.map_again(), Err(GatePageError::Replaced)));
}
