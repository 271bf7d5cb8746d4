//! The handler that was there before, called as the kernel would have called it.

use super::Cause;
use super::caught::is_installed;
use core::ffi::{c_int, c_void};
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicI32, AtomicUsize};
use libc::siginfo_t;

static HANDLER: AtomicUsize = AtomicUsize::new(libc::SIG_DFL);
static FLAGS: AtomicI32 = AtomicI32::new(0);

/// With three arguments whether it wants them or not, as the kernel does.
type Handler = unsafe extern "C-unwind" fn(c_int, *mut siginfo_t, *mut c_void);

/// Notes what happened at the signal.
pub(super) fn remember(old: &libc::sigaction) {
    FLAGS.store(old.sa_flags, Relaxed);
    HANDLER.store(old.sa_sigaction, Release);
}

/// The flags of a handler that is to stand in for another one: on which stack it runs, what it interrupts
/// and whether it can be interrupted by the same signal stay as they were.
pub(super) fn flags(old: &libc::sigaction) -> c_int {
    const KEPT: c_int = libc::SA_ONSTACK | libc::SA_RESTART | libc::SA_NODEFER;
    let default = old.sa_sigaction == libc::SIG_DFL;
    // Programs with small stacks have another one for signals.
    let kept = if default { libc::SA_ONSTACK | libc::SA_RESTART } else { old.sa_flags & KEPT };
    kept | libc::SA_SIGINFO
}

/// Handles the signal.
///
/// # Safety
/// The first three arguments are those that a handler was called with.
pub(super) unsafe fn handle(
    signal: c_int,
    info: *mut siginfo_t,
    context: *mut c_void,
    cause: Option<Cause>,
) {
    match HANDLER.load(Acquire) {
        libc::SIG_IGN if cause.is_some_and(|cause| !is_fault(cause)) => {}
        libc::SIG_DFL | libc::SIG_IGN => end(signal, info, cause),
        handler if FLAGS.load(Relaxed) & libc::SA_RESETHAND != 0 && !take(handler) => {
            end(signal, info, cause);
        }
        // SAFETY: what is neither of the two constants is the address of a handler that the program gave.
        handler => unsafe {
            core::mem::transmute::<usize, Handler>(handler)(signal, info, context);
        },
    }
}

/// Takes a handler that is for one signal only; `false`: another thread was quicker.
fn take(handler: usize) -> bool {
    // Another handler that passes signals on stays where it is.
    if !is_installed() {
        return true;
    }
    set_default();
    HANDLER.compare_exchange(handler, libc::SIG_DFL, AcqRel, Relaxed).is_ok()
}

/// Whether the signal was raised by an instruction, which raises it again when the handler returns.
const fn is_fault(cause: Cause) -> bool {
    cause.code > 0 && cause.code != libc::BUS_MCEERR_AO
}

/// Has the process ended by the signal, as soon as the handler returns: by the instruction that raised it,
/// or by the same signal once more.
fn end(signal: c_int, info: *const siginfo_t, cause: Option<Cause>) {
    set_default();
    if cause.is_some_and(is_fault) {
        return;
    }
    // SAFETY: the calls take no memory but `info`, which the kernel reads where there is a cause in it.
    unsafe {
        let (process, thread) = (libc::getpid(), libc::syscall(libc::SYS_gettid));
        let sent = cause.is_some()
            && libc::syscall(libc::SYS_rt_tgsigqueueinfo, process, thread, signal, info) == 0;
        if !sent {
            libc::raise(signal);
        }
    }
}

fn set_default() {
    // SAFETY: zero bytes are a value of this type: no flags, an empty mask.
    let mut action: libc::sigaction = unsafe { core::mem::zeroed() };
    action.sa_sigaction = libc::SIG_DFL;
    super::exchange(Some(&action));
}
