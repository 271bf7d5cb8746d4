//! What the limiter says: on standard error, one line for each kind of trouble, and more only where
//! the log level asks for it.

use core::fmt::{self, Write};
use std::collections::HashSet;
use std::sync::Mutex;
use tracing::Level;
use tracing_subscriber::fmt as subscriber;

static SAID: Mutex<Option<HashSet<String>>> = Mutex::new(None);

/// Says a line on standard error, unless this process has said it before.
pub(crate) fn once(message: fmt::Arguments<'_>) {
    let mut line = String::new();
    if writeln!(line, "sluice: {message}").is_err() {
        return;
    }
    // Twice is better than never: after a fork the lock may belong to a thread that is not there.
    let first =
        SAID.try_lock().map_or(true, |mut said| said.get_or_insert_default().insert(line.clone()));
    if first {
        write_error(line.as_bytes());
    }
}

/// Writes to standard error as one piece, by the bare system call: no lock, no cancellation point. A
/// closed or full one is not this library's trouble.
fn write_error(bytes: &[u8]) {
    let _ = rustix::io::write(rustix::stdio::stderr(), bytes);
}

/// Standard error without the locks of the standard library.
struct Stderr;

impl std::io::Write for Stderr {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        write_error(bytes);
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
        // The library's own copy of the dispatcher: the program's is not touched.
        let _ = tracing::subscriber::set_global_default(log);
    }
}
