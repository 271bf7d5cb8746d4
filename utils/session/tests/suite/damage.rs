//! Other damage to a page while it is in use.

use crate::stage::{DEVICE, close_descriptor, damaged, limits, page, stage};
use core::sync::atomic::Ordering::Relaxed;
use core::time::Duration;
use limits::{Limits, MemoryLimit};
use session::layout::{MemoryKind, PageLayout, SLOTS};
use session::ledger::MemoryBound;
use session::process::{ProcessIdentity, start_time};
use session::{Membership, Page, PageError};
use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::time::Instant;

#[test]
fn filled_with_noise() {
    for byte in [0_u8, 0x5a, 0xff] {
        let (_dir, membership, path) = stage();
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        file.write_all_at(&vec![byte; size_of::<PageLayout>()], 0).unwrap();
        damaged(&membership, "it does not start like a page");
    }
}

/// Nothing was ever launched.
const NOW: u64 = 1;

#[test]
fn noise_in_the_own_slot() {
    let (_dir, membership, _) = stage();
    membership.look().unwrap().slots[membership.slot()].bytes[MemoryKind::Array as usize]
        .store(5, Relaxed);
    damaged(&membership, "slot");
}

#[test]
fn a_slot_given_back_by_mistake_is_taken_again() {
    let (_dir, membership, _) = stage();
    membership.open().unwrap().vacate(membership.slot(), NOW);
    // Directly, because the guard remembers the state that it leaves.
    let layout = membership.look().unwrap();
    membership.open().unwrap().charge(membership.slot(), MemoryKind::Pool, 77);
    let slot = &layout.slots[membership.slot()];
    slot.pid.store(0, Relaxed);
    slot.bytes[MemoryKind::Pool as usize].store(0, Relaxed);
    layout.used.store(0, Relaxed);
    let ledger = membership.open().unwrap();
    assert_eq!((ledger.used(), ledger.has(membership.slot(), MemoryKind::Pool)), (77, 77));
    assert_eq!(slot.pid.load(Relaxed), std::process::id());
}

#[test]
fn sums_that_are_wrong_are_made_again() {
    let (_dir, membership, _) = stage();
    let layout = membership.look().unwrap();
    layout.used.store(0, Relaxed);
    assert_eq!(membership.open().unwrap().used(), 100);
    layout.used.store(100_000, Relaxed);
    // Enough openings to recompute the slots that one process of a new session can have used.
    let mended = (0..64 + 4 * 64).any(|_| membership.open().unwrap().used() == 100);
    assert!(mended);
}

#[test]
fn a_lock_that_names_nobody_there_can_be() {
    for owner in [u32::MAX, SLOTS as u32 + 1] {
        let (_dir, membership, _) = stage();
        membership.look().unwrap().lock.store(owner, Relaxed);
        damaged(&membership, &owner.to_string());
    }
}

#[test]
fn a_lock_that_names_an_empty_slot_is_taken() {
    let (_dir, membership, _) = stage();
    membership.look().unwrap().lock.store(SLOTS as u32, Relaxed);
    assert_eq!(membership.open().unwrap().used(), 100);
}

/// A living process is stopped while it has the ledger open. No other process waits for ever, and all continue when it
/// does.
#[test]
fn a_lock_that_is_not_given_back() {
    let (dir, membership, _) = stage();
    let ready = dir.path().join("ready");
    // SAFETY: the child only uses what it opens itself, and is killed.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let other = Membership::claim(page(dir.path())).unwrap();
        let open = other.open().unwrap();
        fs::write(&ready, "").unwrap();
        std::thread::sleep(Duration::from_secs(60));
        drop(open);
    }
    while !ready.exists() {
        std::thread::yield_now();
    }
    for _ in 0..2 {
        let begun = Instant::now();
        let error = membership.open().map(|_| ()).unwrap_err();
        assert!(matches!(error, PageError::Busy { .. }), "{error}");
        assert!(error.to_string().contains(&child.to_string()), "{error}");
        // The child keeps the lock for a minute.
        assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    }
    // Bytes released meanwhile are not lost.
    for bytes in [10, 20] {
        membership.owe(MemoryKind::Data, bytes);
    }
    assert_eq!(membership.look().unwrap().used.load(Relaxed), 100);
    // SAFETY: our own child.
    unsafe {
        libc::kill(child, libc::SIGKILL);
        libc::waitpid(child, core::ptr::null_mut(), 0);
    }
    assert_eq!(membership.open().unwrap().used(), 70);
    assert_eq!(membership.open().unwrap().has(membership.slot(), MemoryKind::Data), 70);
}

#[test]
fn new_limits_are_seen_by_the_next_reservation() {
    let (dir, membership, path) = stage();
    // In a process of its own, as `Page::open_existing` requires.
    let change = |limit, real| {
        // SAFETY: the child only uses what it opens itself, and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let memory = Some(MemoryLimit { limit, real: Some(real) });
            let limits = Limits { memory, ..limits() };
            let page = Page::open_existing(&path).unwrap();
            page.change_limits(&limits).unwrap();
            assert_eq!(page.summary().unwrap().total(), 100);
            // SAFETY: ends without the test's own clean-up.
            unsafe { libc::_exit(0) };
        }
        let mut status = 0;
        // SAFETY: our own child.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!(status, 0);
    };
    let reserve = |kind, bytes| {
        let mut ledger = membership.open().unwrap();
        ledger.reserve(membership.slot(), kind, bytes).map_err(|refusal| refusal.bound)
    };
    assert_eq!(reserve(MemoryKind::Data, 501), Err(MemoryBound::Real));
    change(1000, 1000);
    assert_eq!(reserve(MemoryKind::Data, 501), Ok(()));
    change(50, 1000);
    // A limit below the use: nothing is taken away, and nothing more is granted.
    assert_eq!(reserve(MemoryKind::Data, 1), Err(MemoryBound::Limit));
    assert_eq!(reserve(MemoryKind::Data, 0), Err(MemoryBound::Limit));
    let mut ledger = membership.open().unwrap();
    assert_eq!(ledger.used(), 601);
    ledger.release(membership.slot(), MemoryKind::Data, 560).unwrap();
    drop(ledger);
    assert_eq!(reserve(MemoryKind::Overcommitted, 9), Ok(()));
    drop(dir);
}

#[test]
fn a_page_opened_by_its_path_says_who_has_what() {
    let (dir, membership, path) = stage();
    membership.open().unwrap().reserve(membership.slot(), MemoryKind::Overcommitted, 30).unwrap();
    // This process holds the slot's lock itself, so the summary relies on `/proc`.
    let looked = Page::open_existing(&path).unwrap();
    let summary = looked.summary().unwrap();
    assert_eq!((summary.limits, summary.used), (limits(), 130));
    assert_eq!((summary.total(), summary.on_device()), (130, 100));
    assert_eq!(summary.bytes(MemoryKind::Data), 100);
    assert_eq!(summary.processes.len(), 1);
    let process = summary.processes[0];
    assert_eq!((process.pid, process.total()), (std::process::id(), 130));
    assert_eq!(looked.device(), DEVICE);
    let elsewhere = dir.path().join("GPU-00000000-0000-0000-0000-000000000000.page");
    fs::rename(&path, &elsewhere).unwrap();
    assert_eq!(Page::open_any(&elsewhere).unwrap().device(), DEVICE);
    let missing = Page::open_any(&dir.path().join("page")).unwrap_err().to_string();
    assert!(missing.contains("No such file"), "{missing}");
    for (path, reason) in [
        (elsewhere, "it belongs to another device"),
        (dir.path().join("page"), "its name is not a GPU's UUID"),
        (dir.path().join(format!("{DEVICE}.page")), "No such file"),
    ] {
        let error = Page::open_existing(&path).unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
    }
}

#[test]
fn many_short_processes_use_few_slots() {
    let (dir, membership, _) = stage();
    for _ in 0..300 {
        // SAFETY: the child only uses what it opens itself, and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let own = Membership::claim(page(dir.path())).unwrap();
            let _ = own.open().unwrap().reserve(own.slot(), MemoryKind::Data, 1);
            // SAFETY: ends without giving anything back.
            unsafe { libc::_exit(0) };
        }
        // SAFETY: our own child.
        unsafe { libc::waitpid(child, core::ptr::null_mut(), 0) };
    }
    assert!(membership.look().unwrap().high_water.load(Relaxed) <= 64);
    let used = || membership.look_reaped(Duration::MAX).unwrap().used.load(Relaxed);
    assert!(used() > 100);
    assert_eq!(membership.look_reaped(Duration::ZERO).unwrap().used.load(Relaxed), 100);
}

/// A reused process id is no member of the session, nor is a process that has executed another program. A process that
/// has only lost its lock is a member.
#[test]
fn who_is_alive_without_a_lock() {
    let (dir, membership, path) = stage();
    let go = dir.path().join("go");
    let ready = dir.path().join("ready");
    // SAFETY: the child only uses what it opens itself, and is killed.
    let child = unsafe { libc::fork() };
    if child == 0 {
        while !go.exists() {
            std::thread::yield_now();
        }
        let other = Membership::claim(page(dir.path())).unwrap();
        other.open().unwrap().reserve(other.slot(), MemoryKind::Data, 40).unwrap();
        close_descriptor(&path);
        fs::write(&ready, "").unwrap();
        std::thread::sleep(Duration::from_secs(60));
    }
    let pid = child.cast_unsigned();
    let start = start_time(pid).unwrap();
    // The child has copies of the parent's mappings, including the session's page, so it looks like a member.
    for (started, dead) in [(start + 1, 1), (start, 0)] {
        let mut ledger = membership.open().unwrap();
        ledger.enroll(500, pid, started, NOW);
        ledger.charge(500, MemoryKind::Data, 7);
        drop(ledger);
        assert_eq!(membership.reap().unwrap(), dead);
        membership.open().unwrap().vacate(500, NOW);
    }
    fs::write(&go, "").unwrap();
    while !ready.exists() {
        std::thread::yield_now();
    }
    assert_eq!(membership.reap().unwrap(), 0);
    assert_eq!(membership.open().unwrap().used(), 140);
    // In another pid namespace it may have the same id and start time as this process.
    let layout = membership.look().unwrap();
    let child_slot = layout.slots.iter().find(|slot| slot.pid.load(Relaxed) == pid).unwrap();
    let me = ProcessIdentity::own();
    child_slot.pid.store(me.pid, Relaxed);
    child_slot.start_time.store(me.start_time, Relaxed);
    assert_eq!(membership.reap().unwrap(), 0);
    assert_eq!(membership.open().unwrap().used(), 140);
    // SAFETY: our own child.
    unsafe {
        libc::kill(child, libc::SIGKILL);
        libc::waitpid(child, core::ptr::null_mut(), 0);
    }
    assert_eq!(membership.reap().unwrap(), 1);
    assert_eq!(membership.open().unwrap().used(), 100);
}
