//! What survives a restart of the daemon: a file, and the thread that writes it.

mod file;
mod folder;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

pub(super) use self::file::StateFile;
use self::file::Unreadable;
pub(super) use self::folder::{Choice, choose};
use super::core::Core;
use super::node::Snapshot;

/// How often the file is written at most. A daemon that is killed loses this much.
const EVERY: Duration = Duration::from_secs(2);
/// A counter that goes on is shown no lower than it may have become by then: the next two times that
/// the file is written.
const AHEAD_NS: u64 = 4_000_000_000;
/// How long the last writing may keep the daemon's end waiting.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// Takes the file in a folder. A daemon that ends may be writing it for the last time.
pub(super) fn take(folder: &Path) -> io::Result<StateFile> {
    let until = Instant::now() + LAST_WORDS;
    loop {
        match StateFile::take(folder) {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy && Instant::now() < until => {
                thread::sleep(Duration::from_millis(20));
            }
            taken => return taken,
        }
    }
}

/// How the writing goes, as `/readyz` shows it.
#[derive(Debug)]
pub(super) struct Writing {
    path: PathBuf,
    problem: Mutex<Option<String>>,
}

impl Writing {
    /// The file.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Why it could not be written the last time. `None`: it is up to date.
    pub(super) fn problem(&self) -> Option<String> {
        self.problem.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Notes how it went. The log tells of changes only.
    fn note(&self, written: io::Result<()>) {
        let problem = written.err().map(|error| error.to_string());
        let mut present = self.problem.lock().unwrap_or_else(PoisonError::into_inner);
        let path = self.path.display();
        match (&*present, &problem) {
            (None, Some(problem)) => {
                tracing::warn!(%path, %problem, "the state cannot be written: tried again");
            }
            (Some(_), None) => tracing::info!(%path, "the state is written again"),
            _ => {}
        }
        *present = problem;
    }
}

/// What a daemon begins with.
#[derive(Debug)]
pub(super) struct Beginning {
    file: StateFile,
    pub(super) snapshot: Snapshot,
    pub(super) writing: Arc<Writing>,
}

impl Beginning {
    /// Reads what an earlier daemon wrote. A file that makes no sense is kept aside, and the daemon
    /// starts with nothing. One that the system cannot read just now is left where it is.
    pub(super) fn read(file: StateFile) -> io::Result<Self> {
        let path = file.path().to_owned();
        let snapshot = match file.read() {
            Ok(snapshot) => snapshot.unwrap_or_default(),
            Err(Unreadable::Io(error)) => return Err(error),
            Err(problem) => {
                let aside = match file.put_aside() {
                    Ok(aside) => format!("it is kept as {}", aside.display()),
                    Err(error) => format!("it cannot be renamed: {error}"),
                };
                let path = path.display();
                tracing::error!("{path}: {problem}; {aside}; the daemon starts without it");
                Snapshot::default()
            }
        };
        let sessions = snapshot.sessions.len();
        if sessions > 0 {
            tracing::info!(path = %path.display(), sessions, "goes on where an earlier daemon was");
        }
        Ok(Self { file, snapshot, writing: Arc::new(Writing { path, problem: Mutex::default() }) })
    }

    /// Starts the thread that writes.
    pub(super) fn keep(self, core: Arc<Core>) -> io::Result<Keeper> {
        let over = Arc::new((Mutex::new(false), Condvar::new()));
        let (writes, seen) = (Arc::clone(&over), self.snapshot);
        let write = move || write_on(&core, &self.file, &self.writing, seen, &writes);
        let thread = thread::Builder::new().name("state".to_owned()).spawn(write)?;
        Ok(Keeper { over, thread: Some(thread) })
    }
}

type Over = (Mutex<bool>, Condvar);

fn lock(over: &Over) -> MutexGuard<'_, bool> {
    over.0.lock().unwrap_or_else(PoisonError::into_inner)
}

fn write_on(core: &Core, file: &StateFile, writing: &Writing, mut written: Snapshot, over: &Over) {
    loop {
        let is_over = *over
            .1
            .wait_timeout_while(lock(over), EVERY, |over| !*over)
            .map_or_else(|poisoned| poisoned.into_inner().0, |(guard, _)| guard);
        let now = core.snapshot(if is_over { 0 } else { AHEAD_NS });
        if now != written || writing.problem().is_some() {
            let result = file.write(&now);
            if result.is_ok() {
                written = now;
            }
            writing.note(result);
        }
        if is_over {
            return;
        }
    }
}

/// Writes for the last time when it is dropped.
#[derive(Debug)]
pub(super) struct Keeper {
    over: Arc<Over>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Keeper {
    fn drop(&mut self) {
        *lock(&self.over) = true;
        self.over.1.notify_all();
        let Some(thread) = self.thread.take() else { return };
        let start = Instant::now();
        // A disk that hangs does not keep the daemon from ending.
        while !thread.is_finished() && start.elapsed() < LAST_WORDS {
            thread::sleep(Duration::from_millis(1));
        }
    }
}
