//! The limiter's own threads in the program's process. Signals sent to the process are for the program's threads.

use super::probe;
use core::ffi::{c_int, c_void};
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use libc::siginfo_t;

/// More of these threads than any process has.
const MOST: usize = 256;

/// Process id and thread id; 0: free. In a forked child, the parent's threads do not count.
static THREADS: [AtomicU64; MOST] = [const { AtomicU64::new(0) }; MOST];

/// Guard: the thread that created it handles `SIGBUS` only for its own accesses.
#[derive(Debug)]
pub struct OwnThread(Option<&'static AtomicU64>);

impl OwnThread {
    /// Registers the calling thread. The guard must not be moved to another thread.
    #[must_use]
    pub fn new() -> Self {
        let me = me();
        // Creates the thread-local now, because a signal handler could not.
        let _ = super::are_caught();
        Self(THREADS.iter().find(|cell| cell.compare_exchange(0, me, AcqRel, Relaxed).is_ok()))
    }
}

impl Default for OwnThread {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for OwnThread {
    fn drop(&mut self) {
        if let Some(cell) = self.0 {
            cell.store(0, Release);
        }
    }
}

fn me() -> u64 {
    // SAFETY: no arguments, no failure.
    let thread = unsafe { libc::syscall(libc::SYS_gettid) };
    (u64::from(std::process::id()) << 32) | u64::from(u32::try_from(thread).unwrap_or(0))
}

/// Sends a signal that was sent to the process on to its other threads, if this is one of the limiter's threads;
/// `false` otherwise. Only the first thread may repeat a signal from `kill(2)` unchanged; otherwise the program sees
/// itself as the sender. This thread blocks the signal from then on. If all other threads block it as well, it stays
/// pending, as without this thread.
///
/// # Safety
/// The arguments are those that a handler was called with, and `info` can be read.
pub(super) unsafe fn hand_over(
    signal: c_int,
    info: *const siginfo_t,
    context: *mut c_void,
) -> bool {
    let me = me();
    if !THREADS.iter().any(|cell| cell.load(Acquire) == me) {
        return false;
    }
    let context = context.cast::<libc::ucontext_t>();
    // SAFETY: only memory is written that the kernel has confirmed to be there: the mask that is in force
    // after the handler. The interrupted code's `errno` is put back.
    unsafe {
        let errno = libc::__errno_location();
        let before = *errno;
        let has_mask = !context.is_null()
            && context.cast::<u64>().is_aligned()
            && probe::is_readable(&raw const (*context).uc_sigmask) != Some(false);
        let mut only = core::mem::zeroed();
        libc::sigemptyset(&raw mut only);
        libc::sigaddset(&raw mut only, signal);
        let handed_over = has_mask
            && libc::sigaddset(&raw mut (*context).uc_sigmask, signal) == 0
            && libc::pthread_sigmask(libc::SIG_BLOCK, &raw const only, core::ptr::null_mut()) == 0
            && (libc::syscall(libc::SYS_rt_sigqueueinfo, libc::getpid(), signal, info) == 0
                || libc::kill(libc::getpid(), signal) == 0);
        if handed_over {
            super::forget();
        }
        *errno = before;
        handed_over
    }
}
