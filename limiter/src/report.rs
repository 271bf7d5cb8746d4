//! The limiter's messages on standard error or in a file: one line for each kind of problem, and more at higher log
//! levels.

use core::fmt::{self, Write};
use core::mem;
use core::ptr;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicBool, AtomicU64};
use limits::Shown;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::borrow::Cow;
use std::ffi::{CStr, CString};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::OnceLock;
use tracing::Level;
use tracing_subscriber::fmt as subscriber;

/// How long a line waits for standard error to become writable.
const PATIENCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

const AT_ONCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// The most different lines that a process writes.
const MOST: usize = 128;

/// Hashes of the lines written so far, then zeros. Lock-free, because a lock could be taken at a `fork`, or block a
/// second thread.
static SAID: [AtomicU64; MOST] = [const { AtomicU64::new(0) }; MOST];

/// Writes a line to standard error unless this process has written it before. Lines that differ only in numbers count
/// as the same line: the numbers in a damaged page may change at each look.
pub(crate) fn once(message: fmt::Arguments<'_>) {
    say(message, hash_without_numbers);
}

/// Like [`once`], but lines that differ in a number are different lines.
pub(crate) fn each_once(message: fmt::Arguments<'_>) {
    say(message, hash);
}

fn say(message: fmt::Arguments<'_>, hash: fn(&str) -> u64) {
    let mut line = String::new();
    // Paths, names and values come from outside, so they are escaped.
    let message = message.to_string();
    if writeln!(line, "sluice: {}", Shown(&message)).is_ok() && is_first(&SAID, hash(&line)) {
        write_error(&line);
    }
}

/// Whether a hash is new; `false` also if there is no more room.
fn is_first(said: &[AtomicU64], hash: u64) -> bool {
    for cell in said {
        let found = match cell.compare_exchange(0, hash, Relaxed, Relaxed) {
            Ok(_) => return true,
            Err(found) => found,
        };
        if found == hash {
            return false;
        }
    }
    false
}

/// A hash other than 0.
fn hash(line: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    line.hash(&mut hasher);
    hasher.finish().max(1)
}

fn hash_without_numbers(line: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    for word in line.split_ascii_whitespace() {
        let bare = word.trim_matches(|c: char| !c.is_ascii_alphanumeric());
        let is_number =
            !bare.is_empty() && bare.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
        if is_number { "0" } else { word }.hash(&mut hasher);
    }
    hasher.finish().max(1)
}

/// The least time between two messages about a lost daemon.
const FLAPS_NS: u64 = 30_000_000_000;

/// Whether this process's last message said that the daemon is lost, and when (ns) it did.
static LOST: AtomicBool = AtomicBool::new(false);
static LOST_AT: AtomicU64 = AtomicU64::new(0);

/// Reports a lost daemon, unless that was reported a moment ago or by another device's governor. `false`: too soon
/// after the previous report.
pub(crate) fn lost(now: u64, message: fmt::Arguments<'_>) -> bool {
    if LOST.load(Relaxed) {
        return true;
    }
    let at = LOST_AT.load(Relaxed);
    if at != 0 && now.saturating_sub(at) < FLAPS_NS || LOST.swap(true, Relaxed) {
        return false;
    }
    LOST_AT.store(now, Relaxed);
    write_always(message);
    true
}

/// Reports that the daemon is back, if it was reported lost.
pub(crate) fn regained(message: fmt::Arguments<'_>) {
    if LOST.swap(false, Relaxed) {
        write_always(message);
    }
}

fn write_always(message: fmt::Arguments<'_>) {
    write_error(&format!("sluice: {}\n", Shown(&message.to_string())));
}

/// Whether standard error was full the last time; the next line then does not wait for it.
static STUCK: AtomicBool = AtomicBool::new(false);

/// The longest line in bytes. A writable pipe takes as many bytes at once (`PIPE_BUF`); a longer write could wait for a
/// reader for ever.
const LONGEST: usize = 4096;

/// The end of a line that was too long.
const CUT: &str = "...\n";

/// The line, cut to [`LONGEST`].
fn cut(line: &str) -> Cow<'_, str> {
    if line.len() <= LONGEST {
        return line.into();
    }
    let kept = &line[..line.floor_char_boundary(LONGEST - CUT.len())];
    format!("{kept}{CUT}").into()
}

/// The file that gets the lines instead of standard error.
static FILE: OnceLock<CString> = OnceLock::new();

/// Appends all further lines to a file, as long as it can be opened.
pub(crate) fn write_to(path: &Path) {
    // Values from the environment contain no NUL.
    if let Ok(path) = CString::new(path.as_os_str().as_bytes()) {
        let _ = FILE.set(path);
    }
}

/// Appends a line to the file. Opens the file each time: the program could close a descriptor that stays open, and
/// reuse its number. Does not wait for a reader if the path is a pipe.
fn write_file(path: &CStr, line: &str) -> Result<(), Errno> {
    let flags = OFlags::WRONLY
        | OFlags::APPEND
        | OFlags::CREATE
        | OFlags::CLOEXEC
        | OFlags::NONBLOCK
        | OFlags::NOCTTY;
    let file = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR)?;
    let no_signal = NoBrokenPipe::new();
    let written = rustix::io::write(&file, cut(line).as_bytes());
    no_signal.end(written == Err(Errno::PIPE));
    written.map(|_| ())
}

/// Writes a line in one piece by bare system calls: no lock, no cancellation point. A standard error that nobody reads
/// must neither block nor end the program.
fn write_error(line: &str) {
    if FILE.get().is_some_and(|path| write_file(path, line).is_ok()) {
        return;
    }
    let stderr = rustix::stdio::stderr();
    let mut room = [PollFd::new(&stderr, PollFlags::OUT)];
    let patience = if STUCK.load(Relaxed) { &AT_ONCE } else { &PATIENCE };
    let stuck = !matches!(rustix::event::poll(&mut room, Some(patience)), Ok(ready) if ready > 0);
    STUCK.store(stuck, Relaxed);
    if stuck {
        return;
    }
    let no_signal = NoBrokenPipe::new();
    let written = rustix::io::write(stderr, cut(line).as_bytes());
    no_signal.end(written == Err(Errno::PIPE));
}

/// Keeps SIGPIPE from the calling thread's write from ending the program.
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

    /// Ends the protection. `raised`: the write has raised the signal, which is consumed unless the program already had
    /// one pending.
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

/// Writer to standard error without the standard library's locks.
struct Stderr;

impl std::io::Write for Stderr {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        // The prefix tells the limiter's lines from the program's.
        let text = String::from_utf8_lossy(bytes);
        write_error(&format!("sluice: {}\n", Shown(text.trim())));
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
        // The library's own copy of the dispatcher; the program's is not touched.
        let _ = tracing::subscriber::set_global_default(log);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_differ_in_a_number_are_one_line() {
        let damaged =
            |bytes: u64| format!("slot {bytes} gives back {bytes} bytes: [{bytes}, 0].\n");
        assert_eq!(hash_without_numbers(&damaged(1)), hash_without_numbers(&damaged(20_000)));
        assert_ne!(hash(&damaged(1)), hash(&damaged(20_000)));
        // Digits within names are no numbers.
        assert_ne!(hash_without_numbers("GPU-1-2: no"), hash_without_numbers("GPU-1-3: no"));
    }

    #[test]
    fn no_line_is_longer_than_what_a_pipe_takes_at_once() {
        let line = |letters: usize| format!("{}\n", "\u{e4}".repeat(letters));
        assert_eq!(cut(&line(2047)), line(2047));
        for letters in [2048, 2049, 100_000] {
            let cut = cut(&line(letters)).into_owned();
            assert!((LONGEST - 3..=LONGEST).contains(&cut.len()), "{}", cut.len());
            assert!(cut.ends_with("\u{e4}...\n"), "{cut}");
        }
    }

    #[test]
    fn what_is_said_by_many_threads_is_said_once() {
        let said = [const { AtomicU64::new(0) }; 16];
        let firsts = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for hash in (1..=16).chain(1..=40) {
                        firsts.fetch_add(u64::from(is_first(&said, hash)), Relaxed);
                    }
                });
            }
        });
        assert_eq!(firsts.into_inner(), 16);
    }
}
