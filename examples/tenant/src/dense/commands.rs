//! Commands on stdin that control a run.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;
use std::time::Duration;

/// The latest command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Said {
    Go,
    Pause,
    End,
}

/// The latest command, and the threads waiting for the next one.
pub(super) struct Commands {
    said: Mutex<Said>,
    changed: Condvar,
}

impl Commands {
    /// Without a source: always 'go'.
    pub(super) fn none() -> Arc<Self> {
        Arc::new(Self { said: Mutex::new(Said::Go), changed: Condvar::new() })
    }

    /// Reads stdin in a thread, which ends with stdin or the program.
    pub(super) fn from_stdin() -> std::io::Result<Arc<Self>> {
        let commands = Self::none();
        let heard = Arc::clone(&commands);
        Builder::new().name("commands".into()).spawn(move || heard.listen())?;
        Ok(commands)
    }

    fn listen(&self) {
        for line in std::io::stdin().lines().map_while(Result::ok) {
            match parse(&line) {
                Some(said) => self.say(said),
                None => eprintln!("tenant: stdin: '{line}': expected pause, go or end"),
            }
        }
        self.say(Said::End);
    }

    fn say(&self, said: Said) {
        *self.lock() = said;
        self.changed.notify_all();
    }

    pub(super) fn said(&self) -> Said {
        *self.lock()
    }

    /// Waits while the latest command is 'pause', for at most `most`.
    pub(super) fn wait_out_pause(&self, most: Duration) {
        let paused = |said: &mut Said| *said == Said::Pause;
        let result = self.changed.wait_timeout_while(self.lock(), most, paused);
        drop(result.unwrap_or_else(PoisonError::into_inner));
    }

    fn lock(&self) -> MutexGuard<'_, Said> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn parse(line: &str) -> Option<Said> {
    match line.trim() {
        "go" => Some(Said::Go),
        "pause" => Some(Said::Pause),
        "end" => Some(Said::End),
        _ => None,
    }
}
