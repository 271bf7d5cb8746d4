//! What a file that was cut short no longer holds is still mapped, and whoever touches it gets `SIGBUS`.
//!
//! For pages there is a handler: it puts zeros in the place of the file, and the access goes on. Zeros are
//! no page, so whoever looks next is told that it was damaged. This costs nothing while a page is whole.
//!
//! The signal belongs to the program that this library is a guest in. Whatever is not an access to a page
//! goes where it would go without this handler ([`former`]). A program that sets a handler of its own
//! afterwards, ignores the signal or blocks it in a thread is left alone: then the kernel is asked before
//! each access instead ([`super::probe`]).

mod caught;
mod former;
mod ranges;

pub use caught::are_caught;
pub(super) use ranges::Range;

use super::probe;
use core::ffi::{c_int, c_void};
use core::ptr;
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::Relaxed;
use libc::siginfo_t;

/// Installs the handler, unless that was done before. Once in a process, forked children included: who
/// takes it away has his reasons.
pub(super) fn install() {
    static TRIED: AtomicBool = AtomicBool::new(false);
    if TRIED.swap(true, Relaxed) {
        return;
    }
    let Some(old) = exchange(None) else { return };
    // A signal that is ignored interrupts nothing; one with a handler does.
    if old.sa_sigaction == libc::SIG_IGN {
        return;
    }
    // First, so that the handler finds it however early it is called.
    former::remember(&old);
    let new = libc::sigaction { sa_sigaction: address(), sa_flags: former::flags(&old), ..old };
    // Another thread may have been quicker.
    if let Some(replaced) = exchange(Some(&new)) {
        former::remember(&replaced);
    }
}

/// The handler's address.
fn address() -> usize {
    on_bus_error as *const () as usize
}

/// What happens at the signal; from now on `new`, if given.
fn exchange(new: Option<&libc::sigaction>) -> Option<libc::sigaction> {
    // SAFETY: zero bytes are a value of this type, and the call fills it.
    unsafe {
        let mut old = core::mem::zeroed();
        let new = new.map_or(ptr::null(), ptr::from_ref);
        (libc::sigaction(libc::SIGBUS, new, &raw mut old) == 0).then_some(old)
    }
}

/// What a signal says of itself.
#[derive(Clone, Copy)]
struct Cause {
    code: c_int,
    /// Of the access, where the code is one of accesses.
    address: usize,
}

/// The program's handler may leave by a jump or by unwinding: nothing here is to be cleaned up.
unsafe extern "C-unwind" fn on_bus_error(
    signal: c_int,
    info: *mut siginfo_t,
    context: *mut c_void,
) {
    // SAFETY: as the kernel, or whoever was installed after this handler, gave them.
    unsafe {
        let cause = cause(info);
        if !cause.is_some_and(is_of_page) {
            former::handle(signal, info, context, cause);
        }
    }
}

/// Whether an access to a page raised the signal; if so, there is other memory now.
fn is_of_page(cause: Cause) -> bool {
    let of_access = [libc::BUS_ADRERR, libc::BUS_OBJERR, libc::BUS_MCEERR_AR];
    of_access.contains(&cause.code) && ranges::put_zeros(cause.address)
}

/// The cause of a signal, unless it is not told: a handler that was installed afterwards may pass on the
/// signal's number and nothing else, and then `info` is anything.
///
/// # Safety
/// If `info` can be read, it does not change meanwhile.
unsafe fn cause(info: *const siginfo_t) -> Option<Cause> {
    // SAFETY: what is read is within the bytes that the kernel has been asked about. The interrupted
    // code's `errno` is put back.
    unsafe {
        let errno = libc::__errno_location();
        let before = *errno;
        let readable = probe::is_readable(info) != Some(false);
        *errno = before;
        (info.is_aligned() && readable && (*info).si_signo == libc::SIGBUS)
            .then(|| Cause { code: (*info).si_code, address: (*info).si_addr().addr() })
    }
}
