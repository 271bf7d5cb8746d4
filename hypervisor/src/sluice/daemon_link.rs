//! Which daemon a session uses, and whether it answers at all.

use std::ffi::OsStr;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long a daemon may take for its first byte. One that is alive needs well under a
/// millisecond; this is for a machine under heavy load.
const PATIENCE: Duration = Duration::from_secs(2);

/// The daemon to use, and what the user is to be told about it.
#[derive(Debug, PartialEq, Eq, Default)]
pub struct Choice {
    /// Its socket.
    pub socket: Option<PathBuf>,
    /// A line for stderr.
    pub notice: Option<String>,
}

/// Chooses: the daemon that `--daemon` or the variable names, `none`, or whichever of `defaults`
/// answers.
#[must_use]
pub fn choose(option: Option<&OsStr>, variable: Option<&OsStr>, defaults: &[PathBuf]) -> Choice {
    let variable = variable.map(|value| (limits::env::DAEMON_SOCKET, value));
    let (source, asked) = match option.map(|value| ("--daemon", value)).or(variable) {
        Some(asked) => asked,
        None => {
            let socket = defaults.iter().find(|path| answers(path).is_ok()).cloned();
            return Choice { socket, notice: None };
        }
    };
    if asked.is_empty() || asked == "none" {
        return Choice::default();
    }
    match answers(Path::new(asked)) {
        Ok(()) => Choice { socket: Some(absolute(asked)), notice: None },
        Err(reason) => Choice {
            socket: None,
            notice: Some(format!(
                "{source} {}: no daemon answers there ({reason}): continuing with this session's own account",
                asked.display()
            )),
        },
    }
}

/// The program may change its directory before its first CUDA call.
fn absolute(path: &OsStr) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.into())
}

/// Asks for nothing in particular: any HTTP answer will do.
///
/// # Errors
/// Why `socket` is not a daemon's, or not of one that is alive.
pub fn answers(socket: &Path) -> io::Result<()> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.write_all(b"GET / HTTP/1.1\r\nHost: sluice\r\nConnection: close\r\n\r\n")?;
    let mut start = [0; 5];
    stream.read_exact(&mut start).map_err(|e| match e.kind() {
        io::ErrorKind::WouldBlock => io::Error::new(
            io::ErrorKind::TimedOut,
            format!("no answer within {} s", PATIENCE.as_secs()),
        ),
        io::ErrorKind::UnexpectedEof => io::Error::other("it hung up"),
        _ => e,
    })?;
    if &start == b"HTTP/" { Ok(()) } else { Err(io::Error::other("it does not speak HTTP")) }
}

/// Where a daemon listens unless told otherwise: the node's, then this user's own.
#[must_use]
pub fn default_sockets() -> Vec<PathBuf> {
    let uid = rustix::process::getuid();
    let mut sockets = vec![PathBuf::from("/run/sluice/hypervisor.sock")];
    if !uid.is_root() {
        let runtime = std::env::var_os("XDG_RUNTIME_DIR").filter(|value| !value.is_empty());
        sockets.push(match runtime {
            Some(folder) => Path::new(&folder).join("sluice/hypervisor.sock"),
            None => PathBuf::from(format!("/tmp/sluice-{}/hypervisor.sock", uid.as_raw())),
        });
    }
    sockets
}

#[cfg(test)]
mod tests {
    use super::*;
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
    fn a_daemon_that_answers_is_used() {
        let folder = tempfile::tempdir().unwrap();
        let path = listener(folder.path(), b"HTTP/1.1 404 Not Found\r\n\r\n");
        let choice = choose(Some(path.as_os_str()), None, &[]);
        assert_eq!(choice, Choice { socket: Some(path), notice: None });
    }

    #[test]
    fn a_default_that_answers_is_used_and_a_silent_one_is_not_mentioned() {
        let folder = tempfile::tempdir().unwrap();
        let path = listener(folder.path(), b"HTTP/1.1 200 OK\r\n\r\n");
        let absent = folder.path().join("absent");
        let choice = choose(None, None, &[absent.clone(), path.clone()]);
        assert_eq!(choice, Choice { socket: Some(path), notice: None });
        assert_eq!(choose(None, None, &[absent]), Choice::default());
    }

    #[test]
    fn an_absent_or_strange_daemon_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let absent = folder.path().join("absent");
        let strange = listener(folder.path(), b"SSH-2.0-OpenSSH\r\n");
        for path in [absent, strange] {
            let choice = choose(Some(path.as_os_str()), None, &[]);
            assert_eq!(choice.socket, None);
            let notice = choice.notice.unwrap();
            assert!(notice.contains("--daemon"), "{notice}");
            assert!(notice.contains(&*path.to_string_lossy()), "{notice}");
            assert!(notice.ends_with("continuing with this session's own account"), "{notice}");
        }
    }

    #[test]
    fn none_means_none_and_the_option_wins() {
        let none = Some(OsStr::new("none"));
        assert_eq!(choose(none, Some(OsStr::new("/x")), &["/y".into()]), Choice::default());
        assert_eq!(choose(None, Some(OsStr::new("")), &["/y".into()]), Choice::default());
        let notice = choose(None, Some(OsStr::new("/nowhere/x")), &[]).notice.unwrap();
        assert!(notice.starts_with("SLUICE_DAEMON /nowhere/x"), "{notice}");
    }
}
