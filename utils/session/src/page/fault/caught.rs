//! Tells whether this crate's handler would get a `SIGBUS` raised by the calling thread.

use crate::clock;
use core::cell::Cell;

/// How long a thread uses the kernel's answer.
const PERIOD_NS: u64 = 100_000_000;

thread_local! {
    /// Until when the last answer is valid (ns), and the answer.
    static ANSWER: Cell<(u64, bool)> = const { Cell::new((0, false)) };
}

/// Whether this thread can access pages safely, whatever happens to their files. The program may change that at any
/// moment; a change is noticed within 100 ms.
#[inline]
#[must_use]
pub fn are_caught() -> bool {
    let now = clock::tick_ns();
    ANSWER.with(|answer| {
        let (until, caught) = answer.get();
        if now < until { caught } else { ask(answer, now) }
    })
}

/// Drops the calling thread's answer, because its signal mask has changed.
pub fn forget() {
    ANSWER.set((0, false));
}

#[cold]
fn ask(answer: &Cell<(u64, bool)>, now: u64) -> bool {
    let caught = is_installed() && !is_blocked();
    answer.set((now.saturating_add(PERIOD_NS), caught));
    caught
}

/// Whether the signal goes to this crate's handler, with its cause. Queries the kernel, because a library that replaces
/// `sigaction` may answer something else.
pub(super) fn is_installed() -> bool {
    /// The kernel's `struct sigaction`, with room for the additional fields of some architectures.
    #[repr(C)]
    struct Action {
        handler: usize,
        flags: libc::c_ulong,
        rest: [u64; 16],
    }
    const SET_BYTES: usize = 8;
    const WITH_CAUSE: libc::c_ulong = libc::SA_SIGINFO as libc::c_ulong;
    let mut action = Action { handler: 0, flags: 0, rest: [0; 16] };
    let nothing = core::ptr::null::<Action>();
    // SAFETY: changes nothing, and the kernel writes less than there is room for.
    let answer = unsafe {
        libc::syscall(libc::SYS_rt_sigaction, libc::SIGBUS, nothing, &raw mut action, SET_BYTES)
    };
    answer == 0 && action.handler == super::address() && action.flags & WITH_CAUSE != 0
}

/// Whether the calling thread blocks the signal. An access that raises a blocked signal ends the process.
fn is_blocked() -> bool {
    // SAFETY: changes nothing; zero bytes are a signal set.
    unsafe {
        let mut mask = core::mem::zeroed();
        let asked = libc::pthread_sigmask(libc::SIG_BLOCK, core::ptr::null(), &raw mut mask);
        asked != 0 || libc::sigismember(&raw const mask, libc::SIGBUS) != 0
    }
}
