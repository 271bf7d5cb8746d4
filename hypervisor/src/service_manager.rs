//! What passes between the daemon and the service manager that started it (systemd): a socket that is
//! already open, and word on how it goes (sd_listen_fds(3), sd_notify(3), sd_watchdog_enabled(3)).
//! Without a manager nothing of this happens.

use std::io;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use listenfd::ListenFd;
use sd_notify::NotifyState;

use crate::core::{Alive, Core};

/// The status is told this often at least, if it has changed.
const STATUS_EVERY: Duration = Duration::from_secs(5);
/// How long the last word may take.
const LAST_WORD: Duration = Duration::from_millis(200);

/// Why what the manager passes cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PassedError {
    /// Too many, or not even one that can be used.
    #[error("LISTEN_FDS passes {0} sockets; expected one Unix stream socket")]
    Count(usize),
    /// It is of another kind.
    #[error("the socket that LISTEN_FDS passes: {0}; expected a listening Unix stream socket")]
    Kind(io::Error),
    /// It is at no path, or somewhere else than the user wants.
    #[error(
        "LISTEN_FDS passes the socket {found}, but --socket names {wanted}; name the same path, or leave --socket out"
    )]
    Elsewhere {
        /// Where it is.
        found: String,
        /// What the user said.
        wanted: String,
    },
}

/// The socket that the manager opened, and its path.
pub(crate) fn passed_socket(
    wanted: Option<&PathBuf>,
) -> Result<Option<(UnixListener, PathBuf)>, PassedError> {
    let mut passed = ListenFd::from_env();
    let listener = match passed.len() {
        0 => return Ok(None),
        1 => passed.take_unix_listener(0).map_err(PassedError::Kind)?,
        more => return Err(PassedError::Count(more)),
    };
    let listener = listener.ok_or(PassedError::Count(0))?;
    let address = listener.local_addr().map_err(PassedError::Kind)?;
    match address.as_pathname() {
        Some(path) if wanted.is_none_or(|wanted| wanted == path) => {
            let path = path.to_owned();
            Ok(Some((listener, path)))
        }
        found => Err(PassedError::Elsewhere {
            found: found.map_or_else(|| "no path".to_owned(), |path| path.display().to_string()),
            wanted: wanted.map_or_else(|| "nothing".to_owned(), |path| path.display().to_string()),
        }),
    }
}

/// Tells the manager that the daemon serves, how it goes, and at last that it ends. A thread of its own
/// does so: a manager that does not read must hold nobody up.
#[derive(Debug)]
pub(crate) struct Told {
    end: Sender<()>,
    ended: Receiver<()>,
}

impl Told {
    /// From now on calls are answered.
    pub(crate) fn serves(core: &Arc<Core>) -> io::Result<Self> {
        let (end, asked) = channel();
        let (done, ended) = channel();
        let core = Arc::clone(core);
        let telling = move || {
            tell(&core, &asked);
            let _ = done.send(());
        };
        if std::env::var_os("NOTIFY_SOCKET").is_some() {
            thread::Builder::new().name("manager".to_owned()).spawn(telling)?;
        }
        Ok(Self { end, ended })
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        if self.end.send(()).is_ok() {
            let _ = self.ended.recv_timeout(LAST_WORD);
        }
    }
}

fn tell(core: &Core, end: &Receiver<()>) {
    // Twice in the time in which it wants to hear of the daemon.
    let watchdog = sd_notify::watchdog_enabled().map(|within| within / 2);
    let every = watchdog.map_or(STATUS_EVERY, |watchdog| watchdog.min(STATUS_EVERY));
    let mut told = None;
    let mut ready = Some(NotifyState::Ready);
    loop {
        let alive = core.alive();
        match &alive {
            Ok(alive) => {
                let status = status(*alive);
                let mut states: Vec<NotifyState<'_>> = ready.take().into_iter().collect();
                if told != Some(*alive) {
                    states.push(NotifyState::Status(&status));
                }
                states.extend(watchdog.map(|_| NotifyState::Watchdog));
                said(&states);
                told = Some(*alive);
            }
            // Who is watched and says nothing is started anew.
            Err(stuck) => {
                tracing::error!(%stuck, "not signalling the watchdog, because the daemon cannot serve");
                let status = format!("Cannot serve: {stuck}");
                said(&[NotifyState::Status(&status)]);
                told = None;
            }
        }
        if end.recv_timeout(every) != Err(RecvTimeoutError::Timeout) {
            return said(&[NotifyState::Stopping, NotifyState::Status("Ends")]);
        }
    }
}

fn status(alive: Alive) -> String {
    let Alive { sessions, processes } = alive;
    let processes = counted(processes, "process", "processes");
    format!("Serves {processes} of {}", counted(sessions, "session", "sessions"))
}

fn counted(count: usize, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

fn said(states: &[NotifyState<'_>]) {
    if states.is_empty() {
        return;
    }
    if let Err(error) = sd_notify::notify(states) {
        tracing::debug!(%error, "cannot notify the service manager");
    }
}
