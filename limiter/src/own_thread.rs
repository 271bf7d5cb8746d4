//! The limiter's own threads in the program's process.

use core::mem;
use core::ptr;
use std::io;
use std::thread;

/// Enough for the calls that these threads make.
const STACK_BYTES: usize = 512 * 1024;

/// Starts a thread that blocks the program's signals: those are for the program's own threads.
pub(crate) fn start(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let signals = SignalsBlocked::new();
    let stack = STACK_BYTES.saturating_add(taken_from_each_stack());
    let started =
        thread::Builder::new().name(name.to_owned()).stack_size(stack).spawn(body).map(drop);
    drop(signals);
    started
}

/// The part of a thread's stack that the C library takes for thread-local variables of the program and all
/// its libraries. It may be more than the rest. The standard library asks in the same way when it makes sure
/// that a thread can be started at all.
fn taken_from_each_stack() -> usize {
    type LeastStack = unsafe extern "C" fn(*const libc::pthread_attr_t) -> libc::size_t;
    // SAFETY: a fixed name.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__pthread_get_minstack".as_ptr()) };
    if found.is_null() {
        // Other C libraries place these variables elsewhere, or on top of the stack.
        return 0;
    }
    // SAFETY: glibc's function of this name and signature; the attributes are initialised by the call.
    unsafe {
        let mut attributes = mem::zeroed();
        if libc::pthread_attr_init(&raw mut attributes) != 0 {
            return 0;
        }
        let least = mem::transmute::<*mut libc::c_void, LeastStack>(found)(&raw const attributes);
        libc::pthread_attr_destroy(&raw mut attributes);
        least
    }
}

/// Blocks signals for a thread that is started meanwhile. SIGBUS stays open unless the program blocks it: it
/// reports an access to a page that was cut short.
struct SignalsBlocked(libc::sigset_t);

impl SignalsBlocked {
    fn new() -> Self {
        // SAFETY: both sets are initialised by the calls.
        unsafe {
            let (mut all, mut old) = mem::zeroed();
            libc::sigfillset(&raw mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut old);
            if libc::sigismember(&raw const old, libc::SIGBUS) == 0 {
                libc::sigdelset(&raw mut all, libc::SIGBUS);
                libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, ptr::null_mut());
            }
            Self(old)
        }
    }
}

impl Drop for SignalsBlocked {
    fn drop(&mut self) {
        // SAFETY: the mask that was in force before.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, ptr::null_mut()) };
    }
}
