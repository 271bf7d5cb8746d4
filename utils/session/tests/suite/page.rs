//! A page shared by several processes.

use limits::{GpuId, Limits, MemoryLimit};
use session::layout::{MemoryKind, PageLayout};
use session::{Membership, Page, PageError};

const DEVICE: GpuId = GpuId::from_bytes([7; 16]);

fn limits(memory: u64) -> Limits {
    Limits { memory: Some(MemoryLimit::new(memory)), ..Limits::NONE }
}

#[test]
fn all_who_open_a_page_share_its_book_and_the_first_one_sets_the_limit() {
    let dir = tempfile::tempdir().unwrap();
    let first = Page::open(dir.path(), DEVICE, &limits(1000)).unwrap();
    let second = Page::open(dir.path(), DEVICE, &Limits::NONE).unwrap();
    assert_eq!(second.layout().memory_limit.load(std::sync::atomic::Ordering::Relaxed), 1000);
    let membership = Membership::claim(first).unwrap();
    membership.open().unwrap().reserve(membership.slot(), MemoryKind::Data, 600).unwrap();
    assert_eq!(second.layout().used.load(std::sync::atomic::Ordering::Relaxed), 600);
    let refusal =
        membership.open().unwrap().reserve(membership.slot(), MemoryKind::Data, 401).unwrap_err();
    assert_eq!((refusal.used, refusal.limit), (600, 1000));
    membership.open().unwrap().reserve(membership.slot(), MemoryKind::Data, 400).unwrap();
}

/// CUDA returns the bits of a MIG slice's UUID, NVML its text.
#[test]
fn both_spellings_of_a_slice_mean_one_page() {
    let dir = tempfile::tempdir().unwrap();
    let by_bits = DEVICE;
    let by_text: GpuId = DEVICE.to_string().replace("GPU-", "MIG-").parse().unwrap();
    assert_ne!(by_text.to_string(), by_bits.to_string());
    let first = Page::open(dir.path(), by_text, &limits(1000)).unwrap();
    assert!(Page::exists(dir.path(), by_bits));
    let second = Page::open(dir.path(), by_bits, &Limits::NONE).unwrap();
    assert_eq!(first.path(), second.path());
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn noise_and_short_files_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(format!("{DEVICE}.page"));
    std::fs::write(&path, b"short").unwrap();
    assert!(matches!(Page::open(dir.path(), DEVICE, &limits(1)), Err(PageError::Foreign { .. })));
    std::fs::write(&path, vec![0x5a; size_of::<PageLayout>()]).unwrap();
    assert!(matches!(Page::open(dir.path(), DEVICE, &limits(1)), Err(PageError::Foreign { .. })));
    std::fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", &path).unwrap();
    assert!(matches!(Page::open(dir.path(), DEVICE, &limits(1)), Err(PageError::Io { .. })));
}

/// A process killed at a random moment leaves its bytes, its slot and perhaps the lock. The next process takes them
/// over.
#[test]
fn a_killed_process_gives_everything_back() {
    let dir = tempfile::tempdir().unwrap();
    let open = || Page::open(dir.path(), DEVICE, &limits(1 << 40)).unwrap();
    let survivor = Membership::claim(open()).unwrap();
    survivor.open().unwrap().reserve(survivor.slot(), MemoryKind::Data, 5).unwrap();
    for round in 0..20 {
        // SAFETY: the child only uses what it opens itself, and is killed.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let membership = Membership::claim(open()).unwrap();
            loop {
                let _ = membership.open().unwrap().reserve(membership.slot(), MemoryKind::Pool, 1);
            }
        }
        while survivor.open().unwrap().used() < 1000 {
            std::thread::yield_now();
        }
        std::thread::sleep(std::time::Duration::from_micros(137 * round));
        // SAFETY: our own child.
        unsafe {
            libc::kill(child, libc::SIGKILL);
            libc::waitpid(child, core::ptr::null_mut(), 0);
        }
        survivor.reap().unwrap();
        assert_eq!(survivor.open().unwrap().used(), 5, "round {round}");
    }
}
