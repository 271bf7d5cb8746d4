//! What survives a restart of the daemon: a file, and the thread that writes it.

mod file;
mod folder;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tokio::sync::watch;

pub(super) use self::file::StateFile;
use self::file::Unreadable;
pub(super) use self::folder::{Choice, choose};
use super::core::Core;
use super::node::Snapshot;

/// How often the file is written, if nobody waits for it. A daemon that is killed loses this much.
const EVERY: Duration = Duration::from_secs(2);
/// The file is not written more often than this, however many wait: they wait for it together.
const GAP: Duration = Duration::from_millis(20);
/// How long an answer may wait for a disk.
const WAIT: Duration = Duration::from_secs(1);
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

/// What the writing thread is asked for.
#[derive(Debug, Default)]
struct Asked {
    /// How often somebody has asked for the file to be written.
    times: u64,
    /// It is to be written for the last time.
    over: bool,
}

/// How the writing goes, as `/readyz` shows it, and what is to be written.
#[derive(Debug)]
pub(super) struct Writing {
    path: PathBuf,
    problem: Mutex<Option<String>>,
    asked: Mutex<Asked>,
    wake: Condvar,
    /// How many of those who asked have been served, whether or not the disk took it.
    served: watch::Sender<u64>,
}

impl Writing {
    fn new(path: PathBuf) -> Self {
        let (problem, asked, wake) = (Mutex::default(), Mutex::default(), Condvar::new());
        Self { path, problem, asked, wake, served: watch::Sender::new(0) }
    }

    fn asked(&self) -> MutexGuard<'_, Asked> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until all that has happened is in the file, or the disk refuses it, or takes too long.
    pub(super) async fn catch_up(&self) {
        let own = {
            let mut asked = self.asked();
            asked.times += 1;
            asked.times
        };
        self.wake.notify_all();
        let mut served = self.served.subscribe();
        // Fails only without a sender, which this has.
        let up_to = served.wait_for(|served| *served >= own);
        let in_time = tokio::time::timeout(WAIT, up_to).await.is_ok();
        if !in_time {
            let problem =
                format!("the disk has not completed the write within {} s", WAIT.as_secs());
            self.note(Err(io::Error::new(io::ErrorKind::TimedOut, problem)));
        }
    }

    /// Waits until the file is to be written. Returns for how many who asked, and whether it is for the last time.
    fn next(&self, served: u64) -> (u64, bool) {
        let wait = |asked, time, is_enough: &dyn Fn(&Asked) -> bool| {
            self.wake
                .wait_timeout_while(asked, time, |asked| !is_enough(asked))
                .map_or_else(|poisoned| poisoned.into_inner().0, |(asked, _)| asked)
        };
        let asked = wait(self.asked(), GAP, &|asked| asked.over);
        let asked = wait(asked, EVERY - GAP, &|asked| asked.over || asked.times != served);
        (asked.times, asked.over)
    }

    fn end(&self) {
        self.asked().over = true;
        self.wake.notify_all();
    }

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
                tracing::warn!(%path, %problem, "cannot write the state; will try again");
            }
            (Some(_), None) => tracing::info!(%path, "writing the state again"),
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
                    Ok(aside) => format!("renamed to {}", aside.display()),
                    Err(error) => format!("renaming it failed: {error}"),
                };
                let path = path.display();
                tracing::error!("{path}: {problem}; {aside}; starting without it");
                Snapshot::default()
            }
        };
        let sessions = snapshot.sessions.len();
        if sessions > 0 {
            tracing::info!(path = %path.display(), sessions, "restored the sessions of an earlier daemon");
        }
        Ok(Self { file, snapshot, writing: Arc::new(Writing::new(path)) })
    }

    /// Starts the thread that writes.
    pub(super) fn keep(self, core: Arc<Core>) -> io::Result<Keeper> {
        let Self { file, snapshot, writing } = self;
        let writes = Arc::clone(&writing);
        let write = move || write_on(&core, &file, &writes, snapshot);
        let thread = thread::Builder::new().name("state".to_owned()).spawn(write)?;
        Ok(Keeper { writing, thread: Some(thread) })
    }
}

fn write_on(core: &Core, file: &StateFile, writing: &Writing, mut written: Snapshot) {
    let mut served = 0;
    loop {
        let (asked, is_over) = writing.next(served);
        let now = core.snapshot(if is_over { 0 } else { AHEAD_NS });
        if now != written || writing.problem().is_some() {
            let result = file.write(&now);
            if result.is_ok() {
                written = now;
            }
            writing.note(result);
        }
        served = asked;
        writing.served.send_replace(served);
        if is_over {
            return;
        }
    }
}

/// Writes for the last time when it is dropped.
#[derive(Debug)]
pub(super) struct Keeper {
    writing: Arc<Writing>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.writing.end();
        let Some(thread) = self.thread.take() else { return };
        let start = Instant::now();
        // A disk that hangs does not keep the daemon from ending.
        while !thread.is_finished() && start.elapsed() < LAST_WORDS {
            thread::sleep(Duration::from_millis(1));
        }
    }
}
