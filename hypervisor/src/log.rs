//! The daemon's log on stderr: text, JSON, or systemd's journal. A thread of its own writes, so a blocked or closed
//! stderr neither stops nor delays the daemon; lost lines are counted.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::{self, Full, Writer};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// Lines queued for the writing thread.
const QUEUE: usize = 1024;
/// Longer lines are cut, in bytes.
const LONGEST_LINE: usize = 4096;
/// Rate limit: burst of lines, and lines per second. A caller that registers repeatedly must not fill the disk.
const AT_ONCE: f64 = 2_000.0;
const EACH_SECOND: f64 = 100.0;
/// Longest wait for the remaining lines when the daemon ends.
const LAST_WORDS: Duration = Duration::from_millis(200);

static LOST: AtomicU64 = AtomicU64::new(0);
static LOG: OnceLock<Log> = OnceLock::new();

/// Lines lost since the daemon's start, because they could not be written or exceeded the rate limit.
pub(crate) fn lines_lost() -> u64 {
    LOST.load(Ordering::Relaxed)
}

/// How a line is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// For a person: time, level, words and values
    #[default]
    Text,
    /// One JSON object each
    Json,
    /// For systemd's journal: the level as sd-daemon(3) writes it, and no time, which the journal adds
    Journal,
}

impl Format {
    /// Formats a line that is not a tracing event.
    fn line(self, level: Level, words: &str) -> String {
        match self {
            Self::Text => format!("{words}\n"),
            Self::Json => {
                let line = serde_json::json!({"level": level.as_str(), "message": words});
                format!("{line}\n")
            }
            Self::Journal => format!("<{}>{words}\n", priority(level)),
        }
    }
}

/// Priority of syslog(3).
const fn priority(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        Level::DEBUG | Level::TRACE => 7,
    }
}

/// Formats events for systemd's journal.
struct Journal(format::Format<Full, ()>);

impl<S, N> FormatEvent<S, N> for Journal
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut to: Writer<'_>,
        event: &Event<'_>,
    ) -> std::fmt::Result {
        write!(to, "<{}>", priority(*event.metadata().level()))?;
        self.0.format_event(context, to, event)
    }
}

/// Starts the log, with lines up to `level`. Call once.
///
/// # Errors
/// The writing thread could not be started.
pub fn start(level: LevelFilter, format: Format) -> io::Result<()> {
    let (sender, lines) = sync_channel(QUEUE);
    let stderr = io::stderr().as_fd().try_clone_to_owned().map(File::from);
    // If stderr cannot be duplicated, lines are discarded. A stderr closed at the start is `/dev/null` here.
    let stderr: Box<dyn Write + Send> = stderr.map_or(Box::new(Nowhere), |file| Box::new(file));
    thread::Builder::new().name("log".to_owned()).spawn(move || write(lines, stderr, format))?;
    let rate = Mutex::new(Rate { left: AT_ONCE, at: Instant::now() });
    let _ = LOG.set(Log { sender, rate, format, taken: AtomicU64::new(0) });
    let lines =
        tracing_subscriber::fmt().with_max_level(level).with_ansi(false).with_writer(|| Line);
    match format {
        Format::Text => lines.init(),
        Format::Json => lines.json().flatten_event(true).init(),
        Format::Journal => {
            let words = format::format().without_time().with_level(false).with_ansi(false);
            lines.event_format(Journal(words)).init();
        }
    }
    // The standard library's report would block on a stderr that nobody reads.
    std::panic::set_hook(Box::new(|panic| say(&format!("hypervisor: {panic}"))));
    Ok(())
}

/// Logs an error line, whatever the level.
pub fn say(line: &str) {
    if let Some(log) = LOG.get() {
        log.take(log.format.line(Level::ERROR, line).into_bytes());
    }
}

/// Waits briefly for queued lines to be written.
pub fn finish() {
    let Some(log) = LOG.get() else { return };
    let start = Instant::now();
    while WRITTEN.load(Ordering::Acquire) < log.taken.load(Ordering::Acquire)
        && start.elapsed() < LAST_WORDS
    {
        thread::sleep(Duration::from_millis(1));
    }
}

/// Lines that the thread has processed.
static WRITTEN: AtomicU64 = AtomicU64::new(0);

#[derive(Debug)]
struct Log {
    sender: SyncSender<Vec<u8>>,
    rate: Mutex<Rate>,
    format: Format,
    /// Lines passed to the thread.
    taken: AtomicU64,
}

#[derive(Debug)]
struct Rate {
    left: f64,
    at: Instant,
}

impl Rate {
    fn allows_one(&mut self, now: Instant) -> bool {
        let earned = now.saturating_duration_since(self.at).as_secs_f64() * EACH_SECOND;
        (self.left, self.at) = ((self.left + earned).min(AT_ONCE), now);
        let allowed = self.left >= 1.0;
        if allowed {
            self.left -= 1.0;
        }
        allowed
    }
}

impl Log {
    fn take(&self, mut line: Vec<u8>) {
        if line.len() > LONGEST_LINE {
            line.truncate(LONGEST_LINE - 1);
            line.push(b'\n');
        }
        let allowed = {
            let mut rate = self.rate.lock().unwrap_or_else(PoisonError::into_inner);
            rate.allows_one(Instant::now())
        };
        if allowed && self.sender.try_send(line).is_ok() {
            self.taken.fetch_add(1, Ordering::Release);
        } else {
            LOST.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Writes the lines; reports lost lines as soon as a line can be written.
fn write(lines: Receiver<Vec<u8>>, mut to: impl Write, format: Format) {
    let mut told = 0;
    for line in lines {
        let lost = lines_lost();
        if lost > told {
            let words = format!("hypervisor: {} log lines were lost", lost - told);
            if to.write_all(format.line(Level::WARN, &words).as_bytes()).is_ok() {
                told = lost;
            }
        }
        if to.write_all(&line).is_err() {
            LOST.fetch_add(1, Ordering::Relaxed);
        }
        WRITTEN.fetch_add(1, Ordering::Release);
    }
}

struct Nowhere;

impl Write for Nowhere {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        Err(io::ErrorKind::BrokenPipe.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The subscriber's writer: takes each line in one piece.
struct Line;

impl Write for Line {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if let Some(log) = LOG.get() {
            log.take(bytes.to_vec());
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_lines_is_cut_to_a_rate() {
        let start = Instant::now();
        let mut rate = Rate { left: AT_ONCE, at: start };
        let mut written = |from: u64, to: u64| {
            let times =
                (from * 10_000..to * 10_000).map(|n| start + Duration::from_micros(n * 100));
            times.filter(|&at| rate.allows_one(at)).count()
        };
        assert!((2_090..=2_100).contains(&written(0, 1)));
        assert!((990..=1_010).contains(&written(1, 11)));
    }
}
