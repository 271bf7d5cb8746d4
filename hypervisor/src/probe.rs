//! `hypervisor probe`: checks whether a running component is ready. For exec probes of the kubelet: the image has no
//! shell or client, and the components listen where a kubelet's HTTP probes do not reach.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Longest time for each step of a probe. Kubelets are configured with 5 s in total.
const WITHIN: Duration = Duration::from_secs(2);
/// The length of `HTTP/1.1 200`.
const STATUS: u64 = 12;

/// The component to check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// A daemon's Unix socket.
    Socket(PathBuf),
    /// The kubelet's plugin directory: any of the sockets of `hypervisor node` there, since some may be stale. No
    /// socket means that no GPU is offered, which is no fault.
    Plugins(PathBuf),
    /// A scheduler extender's address.
    Address(SocketAddr),
}

/// Why a probe failed.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// The text is not a target.
    #[error(
        "{0:?} cannot be probed; expected a Unix socket's path, a kubelet's directory device-plugins, or ADDRESS:PORT"
    )]
    Target(String),
    /// The component does not answer.
    #[error("{whom}: {source}")]
    Silent {
        /// The target.
        whom: String,
        /// The system's reason.
        source: io::Error,
    },
    /// The component answered with a status other than 200.
    #[error("{whom} answered {answer:?}; expected status 200")]
    NotReady {
        /// The target.
        whom: String,
        /// Beginning of the answer.
        answer: String,
    },
}

impl Target {
    /// Parses the command's argument.
    ///
    /// # Errors
    /// [`ProbeError::Target`]
    pub fn named(text: &str) -> Result<Self, ProbeError> {
        if text.starts_with('/') {
            let path = PathBuf::from(text);
            return Ok(if path.is_dir() { Self::Plugins(path) } else { Self::Socket(path) });
        }
        text.parse().map(Self::Address).map_err(|_| ProbeError::Target(text.to_owned()))
    }
}

/// Gets `path` by HTTP, or only connects if there is no path, as for plugins, which speak gRPC.
///
/// # Errors
/// [`ProbeError`]
pub fn probe(target: &Target, path: Option<&str>) -> Result<(), ProbeError> {
    match target {
        Target::Socket(socket) => ask_socket(socket, path),
        Target::Plugins(folder) => {
            let silent = |source| ProbeError::Silent { whom: folder.display().to_string(), source };
            let mut last = Ok(());
            for socket in plugins(folder).map_err(silent)? {
                last = ask_socket(&socket, None);
                if last.is_ok() {
                    break;
                }
            }
            last
        }
        Target::Address(address) => {
            let whom = address.to_string();
            let silent = |source| ProbeError::Silent { whom: whom.clone(), source };
            let stream = TcpStream::connect_timeout(address, WITHIN).map_err(silent)?;
            stream.set_read_timeout(Some(WITHIN)).map_err(silent)?;
            stream.set_write_timeout(Some(WITHIN)).map_err(silent)?;
            ask(stream, &whom, path)
        }
    }
}

fn ask_socket(socket: &Path, path: Option<&str>) -> Result<(), ProbeError> {
    let whom = socket.display().to_string();
    let silent = |source| ProbeError::Silent { whom: whom.clone(), source };
    let stream = UnixStream::connect(socket).map_err(silent)?;
    stream.set_read_timeout(Some(WITHIN)).map_err(silent)?;
    stream.set_write_timeout(Some(WITHIN)).map_err(silent)?;
    ask(stream, &whom, path)
}

/// This program's sockets in the plugin directory.
fn plugins(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        let is_ours = name.to_str().is_some_and(|name| name.starts_with("sluice-"));
        if is_ours && entry.file_type()?.is_socket() {
            found.push(entry.path());
        }
    }
    Ok(found)
}

fn ask(mut stream: impl Read + Write, whom: &str, path: Option<&str>) -> Result<(), ProbeError> {
    let Some(path) = path else { return Ok(()) };
    let silent = |source| ProbeError::Silent { whom: whom.to_owned(), source };
    let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).map_err(silent)?;
    let mut begin = Vec::new();
    stream.take(STATUS).read_to_end(&mut begin).map_err(silent)?;
    if begin.ends_with(b" 200") {
        return Ok(());
    }
    let answer = String::from_utf8_lossy(&begin).into_owned();
    Err(ProbeError::NotReady { whom: whom.to_owned(), answer })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::os::unix::net::UnixListener;

    fn asked(text: &str, path: Option<&str>) -> Result<(), String> {
        let target = Target::named(text).map_err(|error| error.to_string())?;
        probe(&target, path).map_err(|error| error.to_string())
    }

    /// Answers one call with this text; returns the request.
    fn answers(
        answer: &'static str,
        accept: impl FnOnce() -> Box<dyn ReadWrite> + Send + 'static,
    ) -> std::thread::JoinHandle<String> {
        std::thread::spawn(move || {
            let mut stream = accept();
            let mut asked = [0; 64];
            let length = stream.read(&mut asked).unwrap();
            stream.write_all(answer.as_bytes()).unwrap();
            String::from_utf8_lossy(&asked[..length]).lines().next().unwrap_or_default().to_owned()
        })
    }

    trait ReadWrite: Read + Write {}
    impl<T: Read + Write> ReadWrite for T {}

    #[test]
    fn only_status_200_is_ready() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("daemon.sock");
        let name = socket.display().to_string();
        for (answer, is_ready) in [
            ("HTTP/1.1 200 OK\r\n\r\n", true),
            ("HTTP/1.1 503 Service Unavailable\r\n\r\n", false),
            ("", false),
        ] {
            let listener = UnixListener::bind(&socket).unwrap();
            let server = answers(answer, move || Box::new(listener.accept().unwrap().0));
            let said = asked(&name, Some("/readyz"));
            assert_eq!(server.join().unwrap(), "GET /readyz HTTP/1.1");
            assert_eq!(said.is_ok(), is_ready, "{said:?}");
            fs::remove_file(&socket).unwrap();
        }
        assert!(asked(&name, Some("/readyz")).unwrap_err().contains("No such file"));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let server = answers("HTTP/1.1 200 OK", move || Box::new(listener.accept().unwrap().0));
        assert_eq!(asked(&address, Some("/healthz")), Ok(()));
        assert_eq!(server.join().unwrap(), "GET /healthz HTTP/1.1");
        assert!(asked(&address, Some("/healthz")).unwrap_err().contains("refused"));
        let wrong = asked("localhost", None).unwrap_err();
        assert!(wrong.starts_with("\"localhost\" cannot be probed; expected"), "{wrong}");
    }

    #[test]
    fn a_plugin_that_was_killed_is_not_ready_and_none_is_no_fault() {
        let folder = tempfile::tempdir().unwrap();
        let name = folder.path().display().to_string();
        assert_eq!(asked(&name, None), Ok(()));
        let foreign = folder.path().join("nvidia-gpu.sock");
        drop(UnixListener::bind(&foreign).unwrap());
        assert_eq!(asked(&name, None), Ok(()), "it belongs to another plugin");
        drop(UnixListener::bind(folder.path().join("sluice-given-up.sock")).unwrap());
        assert!(asked(&name, None).unwrap_err().contains("refused"));
        let own = folder.path().join("sluice-vgpu-number.sock");
        let listener = UnixListener::bind(&own).unwrap();
        assert_eq!(asked(&name, None), Ok(()));
        drop(listener);
        let said = asked(&name, None).unwrap_err();
        assert!(said.contains("/sluice-") && said.contains("refused"), "{said}");
    }
}
