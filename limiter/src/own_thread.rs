//! Starts the limiter's own threads in the program's process, with the program's signals blocked.

use core::mem;
use core::ptr;
use session::OwnThread;
use std::io;
use std::thread;

/// Enough for the calls that these threads make.
const STACK_BYTES: usize = 512 * 1024;

/// Starts a thread with all signals blocked, because signals are for the program's own threads. While the thread is
/// awake, SIGBUS is open unless the program blocks it: it reports an access to a truncated page.
pub(crate) fn start(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
    start_boxed(name, Box::new(body))
}

/// Not generic, because starting a thread takes kilobytes of code.
fn start_boxed(name: &str, body: Box<dyn FnOnce() + Send>) -> io::Result<()> {
    let blocked = SignalsBlocked::new();
    let stack = STACK_BYTES.saturating_add(taken_from_each_stack());
    // SAFETY: a set of signals.
    let faults = unsafe { libc::sigismember(&raw const blocked.0, libc::SIGBUS) } == 0;
    let body = move || {
        let _not_the_programs = OwnThread::new();
        if faults {
            open_to_faults();
        }
        body();
    };
    let started =
        thread::Builder::new().name(name.to_owned()).stack_size(stack).spawn(body).map(drop);
    drop(blocked);
    started
}

/// The CPU time of one of the limiter's threads.
#[derive(Default)]
pub(crate) struct CpuTime(u64);

impl CpuTime {
    /// Nanoseconds of CPU time that the calling thread has used since the previous call.
    pub(crate) fn since(&mut self) -> u64 {
        let now = session::clock::thread_cpu_ns();
        now.saturating_sub(core::mem::replace(&mut self.0, now))
    }
}

/// Sleeps with all signals blocked. Otherwise the thread might run a handler by which the program has replaced the
/// limiter's.
pub(crate) fn asleep<R>(sleep: impl FnOnce() -> R) -> R {
    let mut blocked = SignalsBlocked::new();
    let slept = sleep();
    // SAFETY: sets of signals.
    let faults = unsafe {
        let faults = libc::sigismember(&raw const blocked.0, libc::SIGBUS) == 0;
        libc::sigaddset(&raw mut blocked.0, libc::SIGBUS);
        faults
    };
    drop(blocked);
    if faults {
        open_to_faults();
    }
    slept
}

/// Unblocks SIGBUS for the calling thread, unless one is pending for the program.
fn open_to_faults() {
    // SAFETY: the sets are initialised by the calls.
    unsafe {
        let (mut pending, mut open) = (mem::zeroed(), mem::zeroed());
        libc::sigpending(&raw mut pending);
        if libc::sigismember(&raw const pending, libc::SIGBUS) == 0 {
            libc::sigemptyset(&raw mut open);
            libc::sigaddset(&raw mut open, libc::SIGBUS);
            libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const open, ptr::null_mut());
        }
    }
    session::faults_may_change();
}

/// Bytes of each thread's stack that the C library takes for thread-local variables of the program and all its
/// libraries, possibly more than the rest. The standard library queries it in the same way for its minimum stack size.
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

/// Blocks all signals of the calling thread, and of threads started meanwhile.
struct SignalsBlocked(libc::sigset_t);

impl SignalsBlocked {
    fn new() -> Self {
        // SAFETY: both sets are initialised by the calls.
        unsafe {
            let (mut all, mut old) = mem::zeroed();
            libc::sigfillset(&raw mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut old);
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
