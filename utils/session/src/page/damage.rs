//! What happens to a page while it is in use.

use super::layout::{Kind, Layout, MAGIC, SLOTS};
use super::{Page, PageError, Seat, fault};
use crate::ledger::Bound;
use core::sync::atomic::Ordering::Relaxed;
use core::time::Duration;
use limits::{GpuId, Limits, MemoryLimit};
use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Instant;
use tempfile::TempDir;

const DEVICE: GpuId = GpuId::from_bytes([9; 16]);

fn limits() -> Limits {
    Limits { memory: Some(MemoryLimit { limit: 1000, real: Some(600) }), ..Limits::NONE }
}

fn page(dir: &Path) -> Page {
    Page::open(dir, DEVICE, &limits()).unwrap()
}

fn stage() -> (TempDir, Seat, PathBuf) {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let seat = Seat::claim(page(dir.path())).unwrap();
    seat.book().unwrap().reserve(seat.slot(), Kind::Data, 100).unwrap();
    let path = dir.path().join(format!("{DEVICE}.page"));
    (dir, seat, path)
}

#[track_caller]
fn damaged(seat: &Seat, what: &str) {
    for _ in 0..2 {
        let error = seat.book().map(|_| ()).unwrap_err();
        assert!(matches!(error, PageError::Damaged { .. }), "{error}");
        assert!(error.to_string().contains(what), "{error}");
    }
    let _ = seat.reap();
}

/// Runs a test in a thread where an access to what is gone reads zeros, or in one that it would end,
/// because the thread blocks the signal.
fn in_thread(caught: bool, test: impl FnOnce() + Send + 'static) {
    let thread = std::thread::spawn(move || {
        // SAFETY: the set is made by the calls, and they concern this thread only.
        unsafe {
            let mut signals = core::mem::zeroed();
            libc::sigemptyset(&raw mut signals);
            libc::sigaddset(&raw mut signals, libc::SIGBUS);
            let how = if caught { libc::SIG_UNBLOCK } else { libc::SIG_BLOCK };
            libc::pthread_sigmask(how, &raw const signals, core::ptr::null_mut());
        }
        // The first page brings the handler.
        drop(stage());
        assert_eq!(fault::are_caught(), caught);
        test();
    });
    thread.join().unwrap();
}

fn caught_or_not(test: fn()) {
    in_thread(true, test);
    in_thread(false, test);
}

fn cut(path: &Path, length: u64) {
    OpenOptions::new().write(true).open(path).unwrap().set_len(length).unwrap();
}

#[test]
fn cut_short() {
    caught_or_not(|| {
        for length in [0, 1, 4096, size_of::<Layout>() as u64 - 1] {
            let (_dir, seat, path) = stage();
            cut(&path, length);
            assert!(seat.look().is_err());
            seat.still_holding(1);
            damaged(&seat, &format!("it has {length} bytes instead of"));
        }
    });
}

/// The file that the descriptor named is not the page any more: the page is looked up by its name.
#[test]
fn cut_short_where_the_program_has_closed_the_descriptor() {
    caught_or_not(|| {
        let (_dir, seat, path) = stage();
        seat.close_descriptor();
        seat.book().unwrap().reserve(seat.slot(), Kind::Data, 1).unwrap();
        cut(&path, 0);
        damaged(&seat, "it has 0 bytes instead of");
    });
}

/// Nobody can tell any more how long the file is.
#[test]
fn cut_short_without_a_descriptor_and_a_name() {
    caught_or_not(|| {
        let (_dir, seat, path) = stage();
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        seat.close_descriptor();
        fs::remove_file(&path).unwrap();
        seat.book().unwrap().reserve(seat.slot(), Kind::Data, 1).unwrap();
        file.set_len(4096).unwrap();
        damaged(&seat, "it has been cut short");
    });
}

#[test]
fn cut_short_and_made_as_long_as_before() {
    let looked_at_meanwhile = |looked: bool, what: &'static str| {
        move || {
            let (_dir, seat, path) = stage();
            cut(&path, 4096);
            assert!(!looked || seat.look().is_err());
            cut(&path, size_of::<Layout>() as u64);
            damaged(&seat, what);
        }
    };
    in_thread(true, looked_at_meanwhile(true, "it has been cut short"));
    in_thread(true, looked_at_meanwhile(false, "it does not end like a page"));
    in_thread(false, looked_at_meanwhile(true, "it does not end like a page"));
}

/// Between the look at the page and the access to it.
#[test]
fn cut_short_in_the_middle() {
    in_thread(true, || {
        for length in [0, 4096] {
            let (_dir, seat, path) = stage();
            let layout = seat.look().unwrap();
            let mut book = seat.book().unwrap();
            cut(&path, length);
            assert!(layout.slots.iter().skip(64).all(|slot| slot.pid.load(Relaxed) == 0));
            assert!(
                book.reserve(seat.slot(), Kind::Data, 1).is_err(),
                "there is no limit any more"
            );
            book.release(seat.slot(), Kind::Data, 100).unwrap_err();
            book.recount();
            assert_eq!(book.used(), 0);
            drop(book);
            layout.end[3].store(MAGIC, Relaxed);
            damaged(&seat, &format!("it has {length} bytes instead of"));
        }
    });
}

/// Threads that work on pages which are cut short meanwhile, wherever they are.
#[test]
fn cut_short_while_threads_work() {
    const ROUNDS: u64 = 300;
    in_thread(true, || {
        for round in 0..ROUNDS {
            let (_dir, seat, path) = stage();
            let seat = &seat;
            let work = || {
                let slot = seat.slot();
                loop {
                    let reserved = seat.book().map(|mut book| book.reserve(slot, Kind::Data, 1));
                    let released = seat.book().map(|mut book| book.release(slot, Kind::Data, 1));
                    seat.still_holding(round);
                    if let Err(error) = reserved.map(drop).and(released.map(drop)) {
                        return error;
                    }
                }
            };
            std::thread::scope(|scope| {
                let threads = [scope.spawn(work), scope.spawn(work), scope.spawn(work)];
                std::thread::sleep(Duration::from_micros(100 + 13 * round));
                cut(&path, round % 3 * 4096);
                for thread in threads {
                    let error = thread.join().unwrap();
                    assert!(matches!(error, PageError::Damaged { .. }), "{error}");
                }
            });
        }
    });
}

/// The handler's list has room for the pages of a process, not for all that it ever had.
#[test]
fn pages_that_are_closed_leave_their_place() {
    in_thread(true, || {
        for _ in 0..1200 {
            let (_dir, seat, path) = stage();
            let layout = seat.look().unwrap();
            cut(&path, 0);
            assert_eq!(layout.magic.load(Relaxed), 0);
        }
    });
}

/// A program may take the handler away; then the kernel is asked, as soon as that is noticed.
#[test]
fn cut_short_where_the_program_has_a_handler_of_its_own() {
    extern "C" fn handler(_: libc::c_int) {
        // SAFETY: ends this process.
        unsafe { libc::_exit(2) };
    }
    in_thread(true, || {
        let (_dir, seat, path) = stage();
        seat.look().unwrap();
        // SAFETY: the child changes the handler, looks and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let change = |new: *const libc::sigaction| {
                // SAFETY: a handler that does nothing it must not do, or the one that was there before.
                let former = unsafe {
                    let mut former = core::mem::zeroed();
                    libc::sigaction(libc::SIGBUS, new, &raw mut former);
                    former
                };
                std::thread::sleep(Duration::from_millis(130));
                former
            };
            // SAFETY: zero bytes are a value: no flags, an empty mask.
            let mut own: libc::sigaction = unsafe { core::mem::zeroed() };
            own.sa_sigaction = handler as *const () as usize;
            let former = change(&raw const own);
            cut(&path, 4096);
            let asked = seat.look().is_err() && !fault::are_caught();
            // Given back, but as a handler that is not told the cause.
            change(&libc::sigaction { sa_flags: 0, ..former });
            let asked = asked && seat.look().is_err() && !fault::are_caught();
            change(&raw const former);
            let again = fault::are_caught() && seat.look().is_err();
            // SAFETY: ends without the test's own cleaning up.
            unsafe { libc::_exit(if asked && again { 0 } else { 1 }) };
        }
        let mut status = 0;
        // SAFETY: our own child.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!(status, 0);
    });
}

/// The child has its parent's pages, and the handler with them.
#[test]
fn cut_short_in_a_forked_child() {
    caught_or_not(|| {
        let (_dir, seat, path) = stage();
        let layout = seat.look().unwrap();
        // SAFETY: the child touches the page and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            cut(&path, 0);
            let caught = fault::are_caught();
            let gone = seat.look().is_err() && (!caught || layout.used.load(Relaxed) == 0);
            // SAFETY: ends without the test's own cleaning up.
            unsafe { libc::_exit(if gone { 0 } else { 1 }) };
        }
        let mut status = 0;
        // SAFETY: our own child.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!(status, 0);
        damaged(&seat, "it has 0 bytes instead of");
    });
}

#[test]
fn filled_with_noise() {
    for byte in [0_u8, 0x5a, 0xff] {
        let (_dir, seat, path) = stage();
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        file.write_all_at(&vec![byte; size_of::<Layout>()], 0).unwrap();
        damaged(&seat, "it does not start like a page");
    }
}

#[test]
fn noise_in_the_own_slot() {
    let (_dir, seat, _) = stage();
    seat.look().unwrap().slots[seat.slot()].bytes[Kind::Array as usize].store(5, Relaxed);
    damaged(&seat, "slot");
}

#[test]
fn a_slot_given_back_by_mistake_is_taken_again() {
    let (_dir, seat, _) = stage();
    seat.book().unwrap().vacate(seat.slot());
    // Not through the guard, which takes note of what it leaves behind.
    let layout = seat.look().unwrap();
    seat.book().unwrap().charge(seat.slot(), Kind::Pool, 77);
    let slot = &layout.slots[seat.slot()];
    slot.pid.store(0, Relaxed);
    slot.bytes[Kind::Pool as usize].store(0, Relaxed);
    layout.used.store(0, Relaxed);
    let book = seat.book().unwrap();
    assert_eq!((book.used(), book.has(seat.slot(), Kind::Pool)), (77, 77));
    assert_eq!(slot.pid.load(Relaxed), std::process::id());
}

#[test]
fn sums_that_are_wrong_are_made_again() {
    let (_dir, seat, _) = stage();
    let layout = seat.look().unwrap();
    layout.used.store(0, Relaxed);
    assert_eq!(seat.book().unwrap().used(), 100);
    layout.used.store(100_000, Relaxed);
    // As many slots as one process of a new session can have come to use.
    let mended = (0..64 + 4 * 64).any(|_| seat.book().unwrap().used() == 100);
    assert!(mended);
}

#[test]
fn a_lock_that_names_nobody_there_can_be() {
    for owner in [u32::MAX, SLOTS as u32 + 1] {
        let (_dir, seat, _) = stage();
        seat.look().unwrap().lock.store(owner, Relaxed);
        damaged(&seat, &owner.to_string());
    }
}

#[test]
fn a_lock_that_names_an_empty_slot_is_taken() {
    let (_dir, seat, _) = stage();
    seat.look().unwrap().lock.store(SLOTS as u32, Relaxed);
    assert_eq!(seat.book().unwrap().used(), 100);
}

/// A living process that keeps the book open, stopped in the middle: nobody waits for ever, and when it
/// goes on so do the others.
#[test]
fn a_lock_that_is_not_given_back() {
    let (dir, seat, _) = stage();
    let ready = dir.path().join("ready");
    // SAFETY: the child only uses what it opens itself, and is killed.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let other = Seat::claim(page(dir.path())).unwrap();
        let open = other.book().unwrap();
        fs::write(&ready, "").unwrap();
        std::thread::sleep(Duration::from_secs(60));
        drop(open);
    }
    while !ready.exists() {
        std::thread::yield_now();
    }
    for longest in [1_000, 500] {
        let begun = Instant::now();
        let error = seat.book().map(|_| ()).unwrap_err();
        assert!(matches!(error, PageError::Busy { .. }), "{error}");
        assert!(error.to_string().contains(&child.to_string()), "{error}");
        assert!(begun.elapsed() < Duration::from_millis(longest), "{:?}", begun.elapsed());
    }
    // What is given back meanwhile is not lost.
    for bytes in [10, 20] {
        seat.owe(Kind::Data, bytes);
    }
    assert_eq!(seat.look().unwrap().used.load(Relaxed), 100);
    // SAFETY: our own child.
    unsafe {
        libc::kill(child, libc::SIGKILL);
        libc::waitpid(child, core::ptr::null_mut(), 0);
    }
    assert_eq!(seat.book().unwrap().used(), 70);
    assert_eq!(seat.book().unwrap().has(seat.slot(), Kind::Data), 70);
}

#[test]
fn new_limits_are_seen_by_the_next_reservation() {
    let (dir, seat, path) = stage();
    // In a process of its own, as `Page::open_existing` asks for.
    let change = |limit, real| {
        // SAFETY: the child only uses what it opens itself, and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let memory = Some(MemoryLimit { limit, real: Some(real) });
            let limits = Limits { memory, ..limits() };
            let page = Page::open_existing(&path).unwrap();
            page.change_limits(&limits).unwrap();
            assert_eq!(page.summary().unwrap().total(), 100);
            // SAFETY: ends without the test's own cleaning up.
            unsafe { libc::_exit(0) };
        }
        let mut status = 0;
        // SAFETY: our own child.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!(status, 0);
    };
    let reserve = |kind, bytes| {
        let mut book = seat.book().unwrap();
        book.reserve(seat.slot(), kind, bytes).map_err(|refusal| refusal.bound)
    };
    assert_eq!(reserve(Kind::Data, 501), Err(Bound::Real));
    change(1000, 1000);
    assert_eq!(reserve(Kind::Data, 501), Ok(()));
    change(50, 1000);
    // Below what is in use: nothing is taken away, nothing more is given.
    assert_eq!(reserve(Kind::Data, 1), Err(Bound::Limit));
    assert_eq!(reserve(Kind::Data, 0), Err(Bound::Limit));
    let mut book = seat.book().unwrap();
    assert_eq!(book.used(), 601);
    book.release(seat.slot(), Kind::Data, 560).unwrap();
    drop(book);
    assert_eq!(reserve(Kind::Oversubscribed, 9), Ok(()));
    drop(dir);
}

#[test]
fn a_page_opened_by_its_path_says_who_has_what() {
    let (dir, seat, path) = stage();
    seat.book().unwrap().reserve(seat.slot(), Kind::Oversubscribed, 30).unwrap();
    // In this process too: the slot's lock is its own, so the summary goes by `/proc`.
    let looked = Page::open_existing(&path).unwrap();
    let summary = looked.summary().unwrap();
    assert_eq!((summary.limits, summary.used), (limits(), 130));
    assert_eq!((summary.total(), summary.on_device()), (130, 100));
    assert_eq!(summary.bytes(Kind::Data), 100);
    assert_eq!(summary.processes.len(), 1);
    let process = summary.processes[0];
    assert_eq!((process.pid, process.total()), (std::process::id(), 130));
    assert_eq!(looked.device(), DEVICE);
    let elsewhere = dir.path().join("GPU-00000000-0000-0000-0000-000000000000.page");
    fs::rename(&path, &elsewhere).unwrap();
    for (path, reason) in [
        (elsewhere, "it is of another device"),
        (dir.path().join("page"), "its name is not a GPU's UUID"),
        (dir.path().join(format!("{DEVICE}.page")), "No such file"),
    ] {
        let error = Page::open_existing(&path).unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
    }
}

#[test]
fn many_short_processes_use_few_slots() {
    let (dir, seat, _) = stage();
    for _ in 0..300 {
        // SAFETY: the child only uses what it opens itself, and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let own = Seat::claim(page(dir.path())).unwrap();
            let _ = own.book().unwrap().reserve(own.slot(), Kind::Data, 1);
            // SAFETY: ends without giving anything back.
            unsafe { libc::_exit(0) };
        }
        // SAFETY: our own child.
        unsafe { libc::waitpid(child, core::ptr::null_mut(), 0) };
    }
    assert!(seat.look().unwrap().high_water.load(Relaxed) <= 64);
    let used = || seat.look_reaped(Duration::MAX).unwrap().used.load(Relaxed);
    assert!(used() > 100);
    assert_eq!(seat.look_reaped(Duration::ZERO).unwrap().used.load(Relaxed), 100);
}

/// A process id that another program has now, and a program that has another in its place, are no
/// members of the session; one that has only lost its lock is.
#[test]
fn who_is_alive_without_a_lock() {
    let (dir, seat, _) = stage();
    let go = dir.path().join("go");
    let ready = dir.path().join("ready");
    // SAFETY: the child only uses what it opens itself, and is killed.
    let child = unsafe { libc::fork() };
    if child == 0 {
        while !go.exists() {
            std::thread::yield_now();
        }
        let other = Seat::claim(page(dir.path())).unwrap();
        other.book().unwrap().reserve(other.slot(), Kind::Data, 40).unwrap();
        other.close_descriptor();
        fs::write(&ready, "").unwrap();
        std::thread::sleep(Duration::from_secs(60));
    }
    let pid = child.cast_unsigned();
    let start = super::alive::process_start(pid).unwrap();
    // Its pages are the parent's copies, the session's among them: as if it were a member.
    for (started, dead) in [(start + 1, 1), (start, 0)] {
        let mut book = seat.book().unwrap();
        book.seat(500, pid, started);
        book.charge(500, Kind::Data, 7);
        drop(book);
        assert_eq!(seat.reap().unwrap(), dead);
        seat.book().unwrap().vacate(500);
    }
    fs::write(&go, "").unwrap();
    while !ready.exists() {
        std::thread::yield_now();
    }
    assert_eq!(seat.reap().unwrap(), 0);
    assert_eq!(seat.book().unwrap().used(), 140);
    // SAFETY: our own child.
    unsafe {
        libc::kill(child, libc::SIGKILL);
        libc::waitpid(child, core::ptr::null_mut(), 0);
    }
    assert_eq!(seat.reap().unwrap(), 1);
    assert_eq!(seat.book().unwrap().used(), 100);
}
