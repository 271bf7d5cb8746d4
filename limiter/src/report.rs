//! The limiter's messages on standard error: one line for each kind of trouble, and more if the log level
//! asks for it.

use core::fmt::{self, Write};
use core::mem;
use core::ptr;
use limits::Shown;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use std::collections::HashSet;
use std::sync::Mutex;
use tracing::Level;
use tracing_subscriber::fmt as subscriber;

/// How long a line waits until standard error can take it.
const PATIENCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

static SAID: Mutex<Option<HashSet<String>>> = Mutex::new(None);

/// Writes a line to standard error, unless this process has written it before.
pub(crate) fn once(message: fmt::Arguments<'_>) {
    let mut line = String::new();
    // Some of it may come from others: a path, a name, a value.
    let message = message.to_string();
    if writeln!(line, "sluice: {}", Shown(&message)).is_err() {
        return;
    }
    // Twice is better than never: after a fork the lock may belong to a thread that does not exist.
    let first =
        SAID.try_lock().map_or(true, |mut said| said.get_or_insert_default().insert(line.clone()));
    if first {
        write_error(line.as_bytes());
    }
}

/// Writes to standard error in one piece, by the bare system call: no lock, no cancellation point. A standard
/// error that is not read must neither block the program nor end it.
fn write_error(bytes: &[u8]) {
    let stderr = rustix::stdio::stderr();
    let mut room = [PollFd::new(&stderr, PollFlags::OUT)];
    if !matches!(rustix::event::poll(&mut room, Some(&PATIENCE)), Ok(ready) if ready > 0) {
        return;
    }
    let no_signal = NoBrokenPipe::new();
    let written = rustix::io::write(stderr, bytes);
    no_signal.end(written == Err(Errno::PIPE));
}

/// Keeps the calling thread's write to a pipe without a reader from ending the program.
struct NoBrokenPipe {
    signal: libc::sigset_t,
    before: libc::sigset_t,
    was_pending: bool,
}

impl NoBrokenPipe {
    fn new() -> Self {
        // SAFETY: the sets are initialised by the calls.
        unsafe {
            let (mut signal, mut before, mut pending) = mem::zeroed();
            libc::sigemptyset(&raw mut signal);
            libc::sigaddset(&raw mut signal, libc::SIGPIPE);
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const signal, &raw mut before);
            libc::sigpending(&raw mut pending);
            let was_pending = libc::sigismember(&raw const pending, libc::SIGPIPE) == 1;
            Self { signal, before, was_pending }
        }
    }

    /// `raised`: the write has raised the signal. It is taken back, unless the program already had one
    /// pending.
    fn end(self, raised: bool) {
        let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the kernel's own call, which is no cancellation point, with its size of a set of signals; the
        // mask is the one that was in force before.
        unsafe {
            if raised && !self.was_pending {
                let (signal, nothing) = (&raw const self.signal, ptr::null::<libc::siginfo_t>());
                const SET_BYTES: usize = 8;
                libc::syscall(
                    libc::SYS_rt_sigtimedwait,
                    signal,
                    nothing,
                    &raw const at_once,
                    SET_BYTES,
                );
            }
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, ptr::null_mut());
        }
    }
}

/// Standard error without the locks of the standard library.
struct Stderr;

impl std::io::Write for Stderr {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let text = String::from_utf8_lossy(bytes);
        write_error(format!("{}\n", Shown(text.trim_end_matches('\n'))).as_bytes());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Turns logging on, up to `level`.
pub(crate) fn enable_log(level: Option<Level>) {
    if let Some(level) = level {
        let log = subscriber()
            .with_max_level(level)
            .with_ansi(false)
            .with_target(false)
            .without_time()
            .with_writer(|| Stderr)
            .finish();
        // This is the library's own copy of the dispatcher; the program's is not touched.
        let _ = tracing::subscriber::set_global_default(log);
    }
}
