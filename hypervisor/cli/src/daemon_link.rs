//! Chooses the daemon for a session, and checks that it answers.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use http_bidir_comm::client::{BlockingHttpClient, ClientError, Endpoint, Stranger};

use super::{Error, remote};

/// How long a daemon may take to answer. A running one needs far less than a millisecond; this is
/// for a machine under heavy load.
pub(crate) const PATIENCE: Duration = Duration::from_secs(2);

/// How a notice ends if the session can do without the daemon.
pub(crate) const OWN_ACCOUNT: &str = ": continuing with this session's own account";

/// The daemon to use, and a notice about it for the user.
#[derive(Debug, PartialEq, Eq, Default)]
pub struct Choice {
    /// Its socket.
    pub socket: Option<PathBuf>,
    /// A line for stderr.
    pub notice: Option<String>,
}

/// Chooses a daemon: the one that `--daemon` or the variable names, none, or the first of
/// `defaults` that answers. Another user's daemon counts as absent.
///
/// # Errors
/// [`Error::Usage`]: `--daemon` names another user's daemon.
pub fn choose(
    option: Option<&OsStr>,
    variable: Option<&OsStr>,
    defaults: &[PathBuf],
) -> Result<Choice, Error> {
    let variable = variable.map(|value| (limits::env::DAEMON_SOCKET, value));
    let (source, asked) = match option.map(|value| ("--daemon", value)).or(variable) {
        Some(asked) => asked,
        None => return Ok(first_of(defaults)),
    };
    if asked.is_empty() || asked == "none" {
        return Ok(Choice::default());
    }
    let name = asked.display();
    let notice = match answers(Path::new(asked)) {
        Ok(()) => return Ok(Choice { socket: Some(absolute(asked)), notice: None }),
        Err(Unanswered::Stranger(stranger)) if option.is_some() => {
            return Err(Error::Usage(format!("{source} {name}: {stranger}")));
        }
        Err(Unanswered::Stranger(stranger)) => {
            format!("{source} {name}: ignored, because {stranger}")
        }
        Err(reason) => format!("{source} {name}: no daemon answers there ({reason})"),
    };
    let notice = Some(format!("{notice}{OWN_ACCOUNT}"));
    Ok(Choice { socket: None, notice })
}

/// A client, for changes, of the daemon that an option or the variable names, or of the first default one that answers.
///
/// # Errors
/// [`Error::Usage`], [`Error::Daemon`].
pub(crate) fn connect(option: Option<&OsStr>) -> Result<BlockingHttpClient, Error> {
    remote::check_may_change(option)?;
    let variable = std::env::var_os(limits::env::DAEMON_SOCKET);
    let defaults = protocol::socket::default_sockets();
    let asked = option.map(|option| ("--daemon", option));
    let asked = asked.or(variable.as_deref().map(|name| (limits::env::DAEMON_SOCKET, name)));
    if let Some((source, _)) = asked.filter(|(_, name)| *name == "none") {
        let message = format!(
            "{source} none: this command needs a daemon; name its socket, or leave the setting out"
        );
        return Err(Error::Usage(message));
    }
    let choice = choose(option, variable.as_deref(), &defaults)?;
    let none = || {
        let places: Vec<_> = defaults.iter().map(|path| path.display().to_string()).collect();
        let looked_for =
            format!("none answers at {}; name another socket with --daemon", places.join(", "));
        let notice = choice.notice.map(|notice| notice.replace(OWN_ACCOUNT, ""));
        Error::Daemon(notice.unwrap_or(looked_for))
    };
    let socket = choice.socket.ok_or_else(none)?;
    Ok(BlockingHttpClient::new(Endpoint::Unix(socket)))
}

/// The first default socket that answers.
fn first_of(defaults: &[PathBuf]) -> Choice {
    let mut choice = Choice::default();
    for path in defaults {
        match answers(path) {
            Ok(()) => return Choice { socket: Some(path.clone()), ..choice },
            Err(Unanswered::Stranger(stranger)) => {
                choice.notice =
                    Some(format!("the daemon at {}: ignored, because {stranger}", path.display()));
            }
            Err(_) => {}
        }
    }
    choice
}

/// The program may change its directory before its first CUDA call.
fn absolute(path: &OsStr) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.into())
}

/// Why a socket is not that of a running daemon.
#[derive(Debug, thiserror::Error)]
pub enum Unanswered {
    /// No process listens there.
    #[error(transparent)]
    Connect(io::Error),
    /// Another user runs it.
    #[error(transparent)]
    Stranger(Stranger),
    /// It closed the connection.
    #[error("it closed the connection")]
    HungUp,
    /// It took longer than `PATIENCE`.
    #[error("no answer within {} s", PATIENCE.as_secs())]
    Silent,
    /// Its answer is not HTTP.
    #[error("it does not speak HTTP")]
    NotHttp,
}

/// Asks whether it lives: any HTTP answer will do.
///
/// # Errors
/// [`Unanswered`]
pub fn answers(socket: &Path) -> Result<(), Unanswered> {
    let client = BlockingHttpClient::new(Endpoint::Unix(socket.to_owned()));
    match client.reach(api::path::HEALTH, PATIENCE) {
        Ok(_) => Ok(()),
        Err(ClientError::Connect { source, .. }) => match source.kind() {
            io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => {
                Err(Unanswered::HungUp)
            }
            _ => Err(Unanswered::Connect(source)),
        },
        Err(ClientError::Untrusted { stranger, .. }) => Err(Unanswered::Stranger(stranger)),
        Err(ClientError::Timeout { .. }) => Err(Unanswered::Silent),
        Err(
            ClientError::Protocol { .. } | ClientError::Refused { .. } | ClientError::Tls { .. },
        ) => Err(Unanswered::NotHttp),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixListener;
    use std::thread;

    fn listener(folder: &Path, answer: &'static [u8]) -> PathBuf {
        let path = folder.join("d.sock");
        let listener = UnixListener::bind(&path).unwrap();
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 64];
            let _ = stream.read(&mut request);
            stream.write_all(answer).unwrap();
        });
        path
    }

    #[test]
    fn a_default_that_answers_is_used_and_a_silent_one_is_not_mentioned() {
        let folder = tempfile::tempdir().unwrap();
        let path = listener(folder.path(), b"HTTP/1.1 200 OK\r\n\r\n");
        let absent = folder.path().join("absent");
        let choice = choose(None, None, &[absent.clone(), path.clone()]).unwrap();
        assert_eq!(choice, Choice { socket: Some(path), notice: None });
        assert_eq!(choose(None, None, &[absent]).unwrap(), Choice::default());
    }

    #[test]
    fn a_daemon_that_hangs_up_or_says_something_else() {
        let folder = tempfile::tempdir().unwrap();
        let socket = listener(folder.path(), b"");
        assert_eq!(answers(&socket).unwrap_err().to_string(), "it closed the connection");
        std::fs::remove_file(&socket).unwrap();
        let socket = listener(folder.path(), b"SSH-2.0-OpenSSH\r\n");
        assert_eq!(answers(&socket).unwrap_err().to_string(), "it does not speak HTTP");
        let absent = answers(&folder.path().join("absent")).unwrap_err().to_string();
        assert!(absent.starts_with("No such file"), "{absent}");
    }

    #[test]
    fn none_means_none_and_the_option_wins() {
        let none = Some(OsStr::new("none"));
        assert_eq!(
            choose(none, Some(OsStr::new("/x")), &["/y".into()]).unwrap(),
            Choice::default()
        );
        assert_eq!(choose(None, Some(OsStr::new("")), &["/y".into()]).unwrap(), Choice::default());
        let notice = choose(None, Some(OsStr::new("/nowhere/x")), &[]).unwrap().notice.unwrap();
        assert!(notice.starts_with("SLUICE_DAEMON /nowhere/x"), "{notice}");
    }
}
