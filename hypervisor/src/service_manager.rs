//! Communication with the service manager (systemd): takes over a socket that is already open, and reports state
//! (sd_listen_fds(3), sd_notify(3), sd_watchdog_enabled(3)). Without a service manager nothing happens.

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

/// Longest time between two reports, if the status has changed.
const STATUS_EVERY: Duration = Duration::from_secs(5);
/// Longest time for the last report.
const LAST_WORD: Duration = Duration::from_millis(200);

/// Why the passed socket cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PassedError {
    /// Not exactly one usable socket.
    #[error("LISTEN_FDS passes {0} sockets; expected one Unix stream socket")]
    Count(usize),
    /// Not a listening Unix stream socket.
    #[error("the socket that LISTEN_FDS passes: {0}; expected a listening Unix stream socket")]
    Kind(io::Error),
    /// The socket has no path, or another path than the user wants.
    #[error(
        "LISTEN_FDS passes the socket {found}, but --socket names {wanted}; name the same path, or leave --socket out"
    )]
    Elsewhere {
        /// The socket's path.
        found: String,
        /// The user's path.
        wanted: String,
    },
}

/// The socket passed by the service manager, and its path.
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

/// Reports to the service manager: ready, status, watchdog, stopping. In a thread of its own, so that a manager that
/// does not read cannot block the daemon.
#[derive(Debug)]
pub(crate) struct Told {
    end: Sender<()>,
    ended: Receiver<()>,
}

impl Told {
    /// Reports that calls are answered, and starts the thread.
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
    // Half the watchdog interval, as sd_watchdog_enabled(3) recommends.
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
            // Without the signal the service manager restarts the daemon.
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
