//! The handler that was installed before this crate's, called as the kernel would have called it.

use super::Cause;
use super::caught::is_installed;
use core::ffi::{c_int, c_void};
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicI32, AtomicUsize};
use libc::siginfo_t;

static HANDLER: AtomicUsize = AtomicUsize::new(libc::SIG_DFL);
static FLAGS: AtomicI32 = AtomicI32::new(0);

/// Called with three arguments even if it expects one, as the kernel does.
type Handler = unsafe extern "C-unwind" fn(c_int, *mut siginfo_t, *mut c_void);

/// Stores the previous handler.
pub(super) fn remember(old: &libc::sigaction) {
    FLAGS.store(old.sa_flags, Relaxed);
    HANDLER.store(old.sa_sigaction, Release);
}

/// The flags for a handler that replaces another one. Its stack, its effect on system calls and its reentrancy stay the
/// same.
pub(super) fn flags(old: &libc::sigaction) -> c_int {
    const KEPT: c_int = libc::SA_ONSTACK | libc::SA_RESTART | libc::SA_NODEFER;
    let default = old.sa_sigaction == libc::SIG_DFL;
    // Programs with small stacks have an alternate signal stack.
    let kept = if default { libc::SA_ONSTACK | libc::SA_RESTART } else { old.sa_flags & KEPT };
    kept | libc::SA_SIGINFO
}

/// Passes the signal to the previous handler.
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
        // SAFETY: a value other than the two constants is the address of a handler that the program
        // installed.
        handler => unsafe {
            core::mem::transmute::<usize, Handler>(handler)(signal, info, context);
        },
    }
}

/// Takes a handler that was installed for one signal only; `false`: another thread was faster.
fn take(handler: usize) -> bool {
    // A handler installed since, which passes signals on, stays.
    if !is_installed() {
        return true;
    }
    set_default();
    HANDLER.compare_exchange(handler, libc::SIG_DFL, AcqRel, Relaxed).is_ok()
}

/// Whether an instruction raised the signal, and will raise it again when the handler returns.
const fn is_fault(cause: Cause) -> bool {
    cause.code > 0 && cause.code != libc::BUS_MCEERR_AO
}

/// Makes the signal end the process as soon as the handler returns: the instruction raises it again, or it is sent once
/// more.
fn end(signal: c_int, info: *const siginfo_t, cause: Option<Cause>) {
    set_default();
    if cause.is_some_and(is_fault) {
        return;
    }
    // SAFETY: the only memory that the calls take is `info`; the kernel reads it only if it holds a
    // cause.
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
    // SAFETY: zero bytes are a valid value of this type: no flags, an empty mask.
    let mut action: libc::sigaction = unsafe { core::mem::zeroed() };
    action.sa_sigaction = libc::SIG_DFL;
    super::exchange(Some(&action));
}
