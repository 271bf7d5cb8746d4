//! A page's file is truncated while the page is in use.

use crate::stage::{close_descriptor, damaged, stage};
use core::sync::atomic::Ordering::Relaxed;
use core::time::Duration;
use session::layout::{MAGIC, MemoryKind, PageLayout};
use session::{PageError, faults_are_caught};
use std::fs::{self, OpenOptions};
use std::path::Path;

/// Runs a test in a thread in which an access to the missing part reads zeros, or in one that such an access would end,
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
        // Opening the first page installs the handler.
        drop(stage());
        assert_eq!(faults_are_caught(), caught);
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
        for length in [0, 1, 4096, size_of::<PageLayout>() as u64 - 1] {
            let (_dir, membership, path) = stage();
            cut(&path, length);
            assert!(membership.look().is_err());
            membership.still_holding(1);
            damaged(&membership, &format!("it has {length} bytes instead of"));
        }
    });
}

/// The descriptor no longer refers to the page's file, which is then looked up by its name.
#[test]
fn cut_short_where_the_program_has_closed_the_descriptor() {
    caught_or_not(|| {
        let (_dir, membership, path) = stage();
        close_descriptor(&path);
        membership.open().unwrap().reserve(membership.slot(), MemoryKind::Data, 1).unwrap();
        cut(&path, 0);
        damaged(&membership, "it has 0 bytes instead of");
    });
}

/// The file's length can no longer be determined.
#[test]
fn cut_short_without_a_descriptor_and_a_name() {
    caught_or_not(|| {
        let (_dir, membership, path) = stage();
        close_descriptor(&path);
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        fs::remove_file(&path).unwrap();
        membership.open().unwrap().reserve(membership.slot(), MemoryKind::Data, 1).unwrap();
        file.set_len(4096).unwrap();
        damaged(&membership, "it has been cut short");
    });
}

#[test]
fn cut_short_and_made_as_long_as_before() {
    let looked_at_meanwhile = |looked: bool, what: &'static str| {
        move || {
            let (_dir, membership, path) = stage();
            cut(&path, 4096);
            assert!(!looked || membership.look().is_err());
            cut(&path, size_of::<PageLayout>() as u64);
            damaged(&membership, what);
        }
    };
    in_thread(true, looked_at_meanwhile(true, "it has been cut short"));
    in_thread(true, looked_at_meanwhile(false, "it does not end like a page"));
    in_thread(false, looked_at_meanwhile(true, "it does not end like a page"));
}

/// Truncated between the check of the page and the access to it.
#[test]
fn cut_short_in_the_middle() {
    in_thread(true, || {
        for length in [0, 4096] {
            let (_dir, membership, path) = stage();
            let layout = membership.look().unwrap();
            let mut ledger = membership.open().unwrap();
            cut(&path, length);
            assert!(layout.slots.iter().skip(64).all(|slot| slot.pid.load(Relaxed) == 0));
            assert!(
                ledger.reserve(membership.slot(), MemoryKind::Data, 1).is_err(),
                "there is no limit any more"
            );
            ledger.release(membership.slot(), MemoryKind::Data, 100).unwrap_err();
            ledger.recount();
            assert_eq!(ledger.used(), 0);
            drop(ledger);
            layout.end[3].store(MAGIC, Relaxed);
            damaged(&membership, &format!("it has {length} bytes instead of"));
        }
    });
}

/// Threads work on pages that are truncated at any point meanwhile.
#[test]
fn cut_short_while_threads_work() {
    const ROUNDS: u64 = 300;
    in_thread(true, || {
        for round in 0..ROUNDS {
            let (_dir, membership, path) = stage();
            let membership = &membership;
            let work = || {
                let slot = membership.slot();
                loop {
                    let reserved = membership
                        .open()
                        .map(|mut ledger| ledger.reserve(slot, MemoryKind::Data, 1));
                    let released = membership
                        .open()
                        .map(|mut ledger| ledger.release(slot, MemoryKind::Data, 1));
                    membership.still_holding(round);
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

/// The handler's list has room for a process's present pages, not for all that it ever had.
#[test]
fn pages_that_are_closed_leave_their_place() {
    in_thread(true, || {
        for _ in 0..1200 {
            let (_dir, membership, path) = stage();
            let layout = membership.look().unwrap();
            cut(&path, 0);
            assert_eq!(layout.magic.load(Relaxed), 0);
        }
    });
}

/// A program may replace the handler. Once that is noticed, accesses are preceded by a query to the kernel.
#[test]
fn cut_short_where_the_program_has_a_handler_of_its_own() {
    extern "C" fn handler(_: libc::c_int) {
        // SAFETY: ends this process.
        unsafe { libc::_exit(2) };
    }
    in_thread(true, || {
        let (_dir, membership, path) = stage();
        membership.look().unwrap();
        // SAFETY: the child changes the handler, looks and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let change = |new: *const libc::sigaction| {
                // SAFETY: a handler that does nothing forbidden in a handler, or the one that was
                // there before.
                let former = unsafe {
                    let mut former = core::mem::zeroed();
                    libc::sigaction(libc::SIGBUS, new, &raw mut former);
                    former
                };
                std::thread::sleep(Duration::from_millis(130));
                former
            };
            // SAFETY: zero bytes are a valid value: no flags, an empty mask.
            let mut own: libc::sigaction = unsafe { core::mem::zeroed() };
            own.sa_sigaction = handler as *const () as usize;
            let former = change(&raw const own);
            cut(&path, 4096);
            let asked = membership.look().is_err() && !faults_are_caught();
            // The handler is back, but without the flag that passes it the cause.
            change(&libc::sigaction { sa_flags: 0, ..former });
            let asked = asked && membership.look().is_err() && !faults_are_caught();
            change(&raw const former);
            let again = faults_are_caught() && membership.look().is_err();
            // SAFETY: ends without the test's own clean-up.
            unsafe { libc::_exit(if asked && again { 0 } else { 1 }) };
        }
        let mut status = 0;
        // SAFETY: our own child.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!(status, 0);
    });
}

/// The child inherits its parent's pages and the handler.
#[test]
fn cut_short_in_a_forked_child() {
    caught_or_not(|| {
        let (_dir, membership, path) = stage();
        let layout = membership.look().unwrap();
        // SAFETY: the child touches the page and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            cut(&path, 0);
            let caught = faults_are_caught();
            let gone = membership.look().is_err() && (!caught || layout.used.load(Relaxed) == 0);
            // SAFETY: ends without the test's own clean-up.
            unsafe { libc::_exit(if gone { 0 } else { 1 }) };
        }
        let mut status = 0;
        // SAFETY: our own child.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!(status, 0);
        damaged(&membership, "it has 0 bytes instead of");
    });
}
