//! Handles `SIGBUS` for pages. When a file is truncated, the missing part stays mapped, and a thread that touches it
//! gets `SIGBUS`.
//!
//! The handler maps zeros over the page, and the access continues. Zeros are not a valid page, so the next check
//! reports damage. This costs nothing as long as a page is whole.
//!
//! The signal belongs to the program into which this library is loaded. A signal that does not concern a page goes to
//! the previous handler ([`former`]). The program may later set its own handler, ignore the signal, or block it in a
//! thread. That is respected: each access is then preceded by a query to the kernel ([`super::probe`]).

mod caught;
mod former;
mod own_threads;
mod ranges;

pub use caught::{are_caught, forget};
pub use own_threads::OwnThread;
pub(crate) use ranges::Range;

use super::probe;
use core::ffi::{c_int, c_void};
use core::ptr;
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::Relaxed;
use libc::siginfo_t;

/// Installs the handler, once per process; forked children inherit it. If the program removes it, it is not installed
/// again.
pub(crate) fn install() {
    static TRIED: AtomicBool = AtomicBool::new(false);
    if TRIED.swap(true, Relaxed) {
        return;
    }
    let Some(old) = exchange(None) else { return };
    // Unlike a handler, an ignored signal interrupts nothing, so it stays ignored.
    if old.sa_sigaction == libc::SIG_IGN {
        return;
    }
    // Done first, because the handler may be called at once.
    former::remember(&old);
    let new = libc::sigaction { sa_sigaction: address(), sa_flags: former::flags(&old), ..old };
    // Another thread may have installed a handler meanwhile.
    if let Some(replaced) = exchange(Some(&new)) {
        former::remember(&replaced);
    }
}

/// The handler's address.
fn address() -> usize {
    on_bus_error as *const () as usize
}

/// Returns the present action for the signal, and installs `new` if given.
fn exchange(new: Option<&libc::sigaction>) -> Option<libc::sigaction> {
    // SAFETY: zero bytes are a valid value of this type, and the call fills it.
    unsafe {
        let mut old = core::mem::zeroed();
        let new = new.map_or(ptr::null(), ptr::from_ref);
        (libc::sigaction(libc::SIGBUS, new, &raw mut old) == 0).then_some(old)
    }
}

/// The parts of a signal's `siginfo_t` that matter.
#[derive(Clone, Copy)]
struct Cause {
    code: c_int,
    /// The accessed address, if `code` is that of an access.
    address: usize,
}

/// The program's handler may leave by a jump or by unwinding, so nothing here needs cleaning up.
unsafe extern "C-unwind" fn on_bus_error(
    signal: c_int,
    info: *mut siginfo_t,
    context: *mut c_void,
) {
    // SAFETY: as the kernel gave them, or a handler that was installed after this one.
    unsafe {
        let cause = cause(info);
        let is_sent = cause.is_some_and(|cause| cause.code <= 0);
        if is_sent && own_threads::hand_over(signal, info, context) {
            return;
        }
        if !cause.is_some_and(is_of_page) {
            former::handle(signal, info, context, cause);
        }
    }
}

/// Whether an access to a page raised the signal. If so, zeros are mapped there now.
fn is_of_page(cause: Cause) -> bool {
    let of_access = [libc::BUS_ADRERR, libc::BUS_OBJERR, libc::BUS_MCEERR_AR];
    of_access.contains(&cause.code) && ranges::put_zeros(cause.address)
}

/// The cause of a signal. `None` if unknown: a later handler may pass on only the signal's number, and `info` can then
/// be any value.
///
/// # Safety
/// If `info` can be read, it does not change meanwhile.
unsafe fn cause(info: *const siginfo_t) -> Option<Cause> {
    // SAFETY: only bytes are read that the kernel has confirmed to be readable. The interrupted
    // code's `errno` is put back.
    unsafe {
        let errno = libc::__errno_location();
        let before = *errno;
        // The kernel takes null for "no value", and does not check it.
        let readable = !info.is_null() && probe::is_readable(info) != Some(false);
        *errno = before;
        (info.is_aligned() && readable && (*info).si_signo == libc::SIGBUS)
            .then(|| Cause { code: (*info).si_code, address: (*info).si_addr().addr() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A handler of the program that passes on only the signal's number leaves any values in the registers.
    #[test]
    fn a_cause_that_is_none_is_not_read() {
        let of_another_signal = [0_u64; 16];
        let unaligned = (of_another_signal.as_ptr().addr() + 1) as *const siginfo_t;
        for info in [ptr::null(), ptr::dangling(), unaligned, of_another_signal.as_ptr().cast()] {
            // SAFETY: nothing changes what can be read there.
            assert!(unsafe { cause(info) }.is_none(), "{info:?}");
        }
    }
}
