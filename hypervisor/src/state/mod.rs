//! State that survives a restart of the daemon: a file, and the thread that writes it.

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

/// Interval of writing when nobody waits. A killed daemon loses this much.
const EVERY: Duration = Duration::from_secs(2);
/// Shortest time between two writes; callers that wait share a write.
const GAP: Duration = Duration::from_millis(20);
/// Longest time that an answer waits for the disk.
const WAIT: Duration = Duration::from_secs(1);
/// How far counters may advance until they are saved again: two write intervals. A restart publishes no lower value.
const AHEAD_NS: u64 = 4_000_000_000;
/// Longest wait for the last write when the daemon ends.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// Locks the state file of a directory. Waits for an earlier daemon that is writing its last state.
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

/// Requests to the writing thread.
#[derive(Debug, Default)]
struct Asked {
    /// Number of requests to write so far.
    times: u64,
    /// Write for the last time.
    over: bool,
}

/// Status of the writing, for `/readyz`, and requests to the thread.
#[derive(Debug)]
pub(super) struct Writing {
    path: PathBuf,
    problem: Mutex<Option<String>>,
    asked: Mutex<Asked>,
    wake: Condvar,
    /// Number of requests served, whether or not the write succeeded.
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

    /// Waits until the current state is written, or the disk fails or takes too long.
    pub(super) async fn catch_up(&self) {
        let own = {
            let mut asked = self.asked();
            asked.times += 1;
            asked.times
        };
        self.wake.notify_all();
        let mut served = self.served.subscribe();
        // Fails only without a sender, which `self` holds.
        let up_to = served.wait_for(|served| *served >= own);
        let in_time = tokio::time::timeout(WAIT, up_to).await.is_ok();
        if !in_time {
            let problem =
                format!("the disk has not completed the write within {} s", WAIT.as_secs());
            self.note(Err(io::Error::new(io::ErrorKind::TimedOut, problem)));
        }
    }

    /// Waits until a write is due. Returns the number of requests that it serves, and whether it is the last one.
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

    /// Path of the state file.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Why the latest write failed. `None`: the file is up to date.
    pub(super) fn problem(&self) -> Option<String> {
        self.problem.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Records the result of a write; logs only changes.
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

/// The state that a daemon starts from.
#[derive(Debug)]
pub(super) struct Beginning {
    file: StateFile,
    pub(super) snapshot: Snapshot,
    pub(super) writing: Arc<Writing>,
}

impl Beginning {
    /// Reads an earlier daemon's state. A damaged file is renamed and the daemon starts without state; a file that the
    /// system cannot read at the moment is left alone.
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

    /// Starts the writing thread.
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

/// The writing thread; writes for the last time on drop.
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
        // A hung disk does not keep the daemon from ending.
        while !thread.is_finished() && start.elapsed() < LAST_WORDS {
            thread::sleep(Duration::from_millis(1));
        }
    }
}
