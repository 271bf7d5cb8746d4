//! The daemon over TCP: who has the token reads, and nobody does more.

use std::ffi::OsString;
use std::fs::{self, File, Permissions};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use api::{SessionAction, SessionList};
use http_bidir_comm::client::{BlockingHttpClient, ClientError, Endpoint, TrustedRoots};
use protocol::{Registered, path};

use crate::authority::Authority;
use crate::flood::{MIB, memory, registration_takes};
use crate::process::{Daemon, PATIENCE, place, register, registration};

const TOKEN: &str = "0123456789abcdef";

fn secret(path: &Path, token: &str, mode: u32) {
    fs::write(path, token).unwrap();
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

fn command(socket: &Path, token: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hypervisor"));
    command.env_clear().arg("daemon").arg("--socket").arg(socket);
    command.args(["--listen", "127.0.0.1:0", "--token-file"]).arg(token);
    command
}

/// A daemon that listens on a port of this machine.
fn start() -> (tempfile::TempDir, Daemon, SocketAddr) {
    start_with(None)
}

/// The same, with TLS if there is a CA.
fn start_with(authority: Option<&Authority>) -> (tempfile::TempDir, Daemon, SocketAddr) {
    let (dir, socket) = place();
    let (token, log) = (dir.path().join("token"), dir.path().join("log"));
    secret(&token, &format!("{TOKEN}\n"), 0o600);
    let mut command = command(&socket, &token);
    if let Some(authority) = authority {
        command.args(tls_files(dir.path(), authority.signs("127.0.0.1")));
    }
    let daemon = Daemon::start_by(command.stderr(File::create(&log).unwrap()), &socket);
    let address = listens_at(&log);
    (dir, daemon, address)
}

/// Where a daemon says that it listens.
fn listens_at(log: &Path) -> SocketAddr {
    let start = Instant::now();
    loop {
        let said = fs::read_to_string(log).unwrap();
        let address =
            said.lines().find(|line| line.contains("serving the state to callers with the token"));
        let address = address.and_then(|line| line.split("address=").nth(1)?.trim().parse().ok());
        if let Some(address) = address {
            return address;
        }
        assert!(start.elapsed() < PATIENCE, "{said}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// The options for a certificate and a key.
fn tls_files(folder: &Path, (certificate, key): (String, String)) -> [OsString; 4] {
    let (certificate_file, key_file) = (folder.join("cert.pem"), folder.join("key.pem"));
    fs::write(&certificate_file, certificate).unwrap();
    secret(&key_file, &key, 0o600);
    ["--tls-cert".into(), certificate_file.into(), "--tls-key".into(), key_file.into()]
}

fn over_tls(address: SocketAddr, token: Option<&str>, ca: &str) -> BlockingHttpClient {
    let (host, token) = (address.ip().to_string(), token.map(str::to_owned));
    let roots = TrustedRoots::from_pem(ca.as_bytes()).unwrap();
    BlockingHttpClient::over_tls(host, address.port(), token, roots).unwrap()
}

fn client(address: SocketAddr, token: Option<&str>) -> BlockingHttpClient {
    let (host, token) = (address.ip().to_string(), token.map(str::to_owned));
    BlockingHttpClient::new(Endpoint::Tcp { host, port: address.port(), token })
}

fn status_of<T: std::fmt::Debug>(answer: Result<T, ClientError>) -> u16 {
    match answer {
        Err(ClientError::Refused { status, .. }) => status,
        other => panic!("{other:?}"),
    }
}

#[test]
fn who_has_the_token_may_read_and_nobody_may_do_more() {
    let (_dir, daemon, address) = start();
    register(&daemon.client(), "a", 1000).unwrap();
    let read = |token: Option<&str>| client(address, token).get(api::path::SESSIONS, PATIENCE);
    let seen: SessionList = read(Some(TOKEN)).unwrap();
    let session = &seen.sessions[0];
    assert_eq!((&*session.name, session.pids.len()), ("a", 1));
    for wrong in [None, Some("0123456789abcdeg"), Some("0123456789abcde"), Some("x")] {
        assert_eq!(status_of(read(wrong)), 401, "{wrong:?}");
    }
    for (token, status) in [("", 401), (TOKEN, 200)] {
        let mut stream = TcpStream::connect(address).unwrap();
        let head = "GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\nauthorization: Bearer";
        write!(stream, "{head} {token}\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        assert!(text.starts_with(&format!("HTTP/1.1 {status} ")), "{text}");
        assert_eq!(text.contains("sluice_session_share_ratio{session=\"a\""), status == 200);
    }
    // With and without the token: a process there cannot be watched.
    for token in [None, Some(TOKEN)] {
        let message = registration("a", 1000);
        let answer: Result<Registered, _> =
            client(address, token).post(path::REGISTER, &message, PATIENCE);
        let words = answer.as_ref().unwrap_err().to_string();
        assert!(words.contains("Unix socket"), "{words}");
        assert_eq!(status_of(answer), 403);
    }
    assert_eq!(daemon.sessions()[0].pids.len(), 1);
    // Nor is anything changed.
    let freeze = api::path::session(session.id, "/freeze");
    let answer: Result<SessionAction, _> =
        client(address, Some(TOKEN)).post(&freeze, &(), PATIENCE);
    assert_eq!(status_of(answer), 403);
    assert_eq!(daemon.sessions()[0].state, api::SessionState::Running);
}

/// Who is turned away before any route is found gets the same body as everybody else.
#[test]
fn refusals_over_tcp_are_the_api_s() {
    let (_dir, _daemon, address) = start();
    let refused = |method: &str, path: &str, token: &str| -> (String, api::Problem) {
        let mut stream = TcpStream::connect(address).unwrap();
        let head = format!("{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n");
        write!(stream, "{head}content-length: 0\r\nauthorization: Bearer {token}\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.contains("application/json"), "{text}");
        (head[9..12].to_owned(), serde_json::from_str(body).unwrap())
    };
    use api::ProblemCode::{Forbidden, MethodNotAllowed, NotFound};
    for (method, path, token, status, code, accepted) in [
        ("GET", api::path::SESSIONS, "x", "401", Forbidden, "Authorization: Bearer"),
        ("GET", "/nowhere", "x", "401", Forbidden, "Authorization: Bearer"),
        ("GET", "/%ff", "x", "401", Forbidden, "Authorization: Bearer"),
        ("POST", api::path::SESSIONS, TOKEN, "403", Forbidden, "Unix socket"),
        ("DELETE", "/nowhere", "x", "403", Forbidden, "Unix socket"),
        ("GET", "/api/v1/nowhere", TOKEN, "404", NotFound, "openapi.json"),
        ("GET", "/api/v1/sessions/1/freeze", TOKEN, "405", MethodNotAllowed, "openapi.json"),
    ] {
        let (said, problem) = refused(method, path, token);
        assert_eq!((said.as_str(), problem.code), (status, code), "{method} {path}: {problem:?}");
        assert!(problem.accepted.contains(accepted) && !problem.message.is_empty(), "{problem:?}");
    }
}

#[test]
fn a_crowd_on_the_port_leaves_the_socket_alone() {
    let (_dir, daemon, address) = start();
    let mut crowd: Vec<_> = (0..32).map(|_| TcpStream::connect(address).unwrap()).collect();
    for (n, one) in crowd.iter_mut().enumerate() {
        let garbage: Vec<u8> = (0..=255).cycle().skip(n).take(64).collect();
        let _ = one.write_all(if n % 2 == 0 { &garbage } else { b"GET / HT" });
    }
    register(&daemon.client(), "a", 1000).unwrap();
    // Those who sent garbage are let go; the others have all places but theirs.
    let start = Instant::now();
    let answer = loop {
        let mut more: Vec<_> = (0..32).map(|_| TcpStream::connect(address).unwrap()).collect();
        let mut refused = more.iter_mut().filter_map(|one| {
            one.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
            let mut answer = String::new();
            one.read_to_string(&mut answer).ok().map(|_| answer)
        });
        if let Some(answer) = refused.next() {
            break answer;
        }
        assert!(start.elapsed() < PATIENCE);
    };
    assert!(answer.contains(" 503 ") && answer.contains("expected at most 32"), "{answer}");
    drop(crowd);
    let start = Instant::now();
    while client(address, Some(TOKEN)).get::<SessionList>(api::path::SESSIONS, PATIENCE).is_err() {
        assert!(start.elapsed() < PATIENCE);
    }
}

#[test]
fn a_token_that_is_no_secret_is_refused() {
    let (dir, socket) = place();
    let token = dir.path().join("token");
    let refused = |words: &str| {
        let output = command(&socket, &token).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(words) && said.contains(&*token.to_string_lossy()), "{said}");
        assert!(!said.contains(TOKEN) && !socket.exists(), "{said}");
    };
    refused("No such file");
    for mode in [0o644, 0o640, 0o604, 0o666] {
        secret(&token, TOKEN, mode);
        refused("mode 600");
    }
    for weak in ["", "\n", "fifteen bytes..", "with a blank in it", "0123456789abcdef\n\0"] {
        secret(&token, weak, 0o600);
        refused("at least 16");
    }
    fs::remove_file(&token).unwrap();
    fs::create_dir(&token).unwrap();
    refused("mode");
    // Neither option is of use alone.
    for alone in [&["--listen", "127.0.0.1:0"][..], &["--token-file", "x"], &["--listen", "x"]] {
        let output = Daemon::command(&socket).args(alone).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{alone:?}");
    }
}

#[test]
fn a_token_in_the_variable_does_as_well_and_a_wrong_one_ends_the_connection() {
    let (dir, socket) = place();
    let log = dir.path().join("log");
    let mut command = Command::new(env!("CARGO_BIN_EXE_hypervisor"));
    command.env_clear().args(["daemon", "--nvml", "none", "--listen", "127.0.0.1:0", "--socket"]);
    let said = command.arg(&socket).output().unwrap();
    let said = String::from_utf8_lossy(&said.stderr);
    assert!(said.contains("--listen needs a token") && said.contains("SLUICE_TOKEN"), "{said}");
    let weak = command.env("SLUICE_TOKEN", "short").output().unwrap();
    let said = String::from_utf8_lossy(&weak.stderr);
    assert!(said.contains("the token in SLUICE_TOKEN: a token of 5 bytes"), "{said}");
    command.env("SLUICE_TOKEN", TOKEN).stderr(File::create(&log).unwrap());
    let _daemon = Daemon::start_by(&mut command, &socket);
    let address = listens_at(&log);
    let list: SessionList =
        client(address, Some(TOKEN)).get(api::path::SESSIONS, PATIENCE).unwrap();
    assert!(list.sessions.is_empty());
    // What comes after a wrong token on the same connection is not read any more.
    let mut stream = TcpStream::connect(address).unwrap();
    let call = |token: &str| {
        format!("GET /api/v1/sessions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\n\r\n")
    };
    stream.write_all((call("x") + &call(TOKEN)).as_bytes()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut answers = String::new();
    stream.read_to_string(&mut answers).unwrap();
    assert!(answers.starts_with("HTTP/1.1 401") && !answers.contains("HTTP/1.1 200"), "{answers}");
}

#[test]
fn over_tls_the_same_holds_and_either_side_says_what_it_would_accept() {
    let authority = Authority::new();
    let (_dir, daemon, address) = start_with(Some(&authority));
    register(&daemon.client(), "a", 1000).unwrap();
    let read = |token: Option<&str>, ca: &Authority| {
        over_tls(address, token, &ca.pem).get::<SessionList>(api::path::SESSIONS, PATIENCE)
    };
    assert_eq!(read(Some(TOKEN), &authority).unwrap().sessions.len(), 1);
    for wrong in [None, Some("0123456789abcdeg"), Some("x")] {
        assert_eq!(status_of(read(wrong, &authority)), 401, "{wrong:?}");
    }
    let said = read(Some(TOKEN), &Authority::new()).unwrap_err();
    assert!(matches!(said, ClientError::Tls { .. }), "{said:?}");
    let answer: Result<Registered, _> = over_tls(address, Some(TOKEN), &authority.pem).post(
        path::REGISTER,
        &registration("a", 1000),
        PATIENCE,
    );
    assert_eq!(status_of(answer), 403);
    // Nobody is answered who does not speak TLS, whatever is sent.
    for token in [None, Some(TOKEN)] {
        let said = client(address, token).get::<SessionList>(api::path::SESSIONS, PATIENCE);
        assert!(
            said.as_ref().unwrap_err().to_string().contains("speaks TLS; use https"),
            "{said:?}"
        );
        assert_eq!(status_of(said), 400);
    }
    let (_dir, _daemon, address) = start();
    let said = over_tls(address, Some(TOKEN), &authority.pem);
    let said = said.get::<SessionList>(api::path::SESSIONS, PATIENCE).unwrap_err();
    assert!(said.to_string().contains("does not speak TLS"), "{said}");
}

#[test]
fn handshakes_that_are_never_done_end_and_leave_the_socket_alone() {
    let authority = Authority::new();
    let (_dir, daemon, address) = start_with(Some(&authority));
    let mut crowd: Vec<_> = (0..32).map(|_| TcpStream::connect(address).unwrap()).collect();
    for (n, one) in crowd.iter_mut().enumerate() {
        // Nothing; the first byte; the beginning of a hello that never ends.
        let _ = one.write_all([&[][..], &[22], &[22, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3]][n % 3]);
    }
    register(&daemon.client(), "a", 1000).unwrap();
    // All of them have a place until their time is over, and are closed then.
    for one in &mut crowd {
        one.set_read_timeout(Some(4 * PATIENCE)).unwrap();
        let mut answer = Vec::new();
        let ended = one.read_to_end(&mut answer);
        let waits = |error: &std::io::Error| error.kind() == ErrorKind::WouldBlock;
        assert!(!ended.as_ref().is_err_and(waits), "{ended:?}");
    }
    let start = Instant::now();
    let read = over_tls(address, Some(TOKEN), &authority.pem);
    while read.get::<SessionList>(api::path::SESSIONS, PATIENCE).is_err() {
        assert!(start.elapsed() < PATIENCE);
    }
}

/// Whoever opens connections, and whoever sends heads without end, waits for a place: there are few, and new ones come
/// at a pace.
#[test]
fn heads_without_end_and_floods_of_handshakes_take_little_and_leave_the_socket_alone() {
    const HANDSHAKES: usize = 400;
    let (authority, stranger) = (Authority::new(), Authority::new());
    let (_dir, daemon, address) = start_with(Some(&authority));
    let socket = daemon.client();
    let read = |ca: &str, token: &str| {
        over_tls(address, Some(token), ca).get::<SessionList>(api::path::SESSIONS, PATIENCE)
    };
    read(&authority.pem, TOKEN).unwrap();
    let (before, alone) = (memory(&daemon), registration_takes(&socket));
    let start = Instant::now();
    let beside = thread::scope(|scope| {
        let huge = "a".repeat(400_000);
        let (read, pem) = (&read, &authority.pem);
        for _ in 0..16 {
            let huge = huge.clone();
            scope.spawn(move || {
                for _ in 0..4 {
                    // It is told so, or hung up on in the middle of it.
                    let answer = read(pem, &huge);
                    assert!(answer.is_err(), "{answer:?}");
                }
            });
        }
        for _ in 0..4 {
            // The daemon has done its part of the handshake when its caller finds the CA strange.
            scope.spawn(|| {
                for _ in 0..HANDSHAKES / 4 {
                    let answer = read(&stranger.pem, TOKEN);
                    assert!(answer.is_err(), "{answer:?}");
                }
            });
        }
        registration_takes(&socket)
    });
    // 100 at once, and 100 a second.
    assert!(start.elapsed() > Duration::from_secs(3), "{:?}", start.elapsed());
    let grown = memory(&daemon) - before;
    println!("{} KiB; a registration takes {beside:?}, {alone:?} alone", grown / 1024);
    assert!(grown < 16 * MIB, "{} MiB", grown / MIB);
    assert!(beside < alone * 20 + Duration::from_millis(10), "{beside:?}, {alone:?}");
    let start = Instant::now();
    while read(&authority.pem, TOKEN).is_err() {
        assert!(start.elapsed() < PATIENCE);
    }
}

#[test]
fn a_key_that_is_no_secret_or_not_the_certificates_is_refused() {
    let authority = Authority::new();
    let (dir, socket) = place();
    let token = dir.path().join("token");
    secret(&token, TOKEN, 0o600);
    let refused = |options: &[OsString], words: &str| {
        let output = command(&socket, &token).args(options).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(words), "{said}");
        assert!(!said.contains("-----") && !socket.exists(), "{said}");
    };
    let options = tls_files(dir.path(), authority.signs("127.0.0.1"));
    fs::set_permissions(dir.path().join("key.pem"), Permissions::from_mode(0o640)).unwrap();
    refused(&options, "the key in");
    let (certificate, key) = authority.signs("127.0.0.1");
    let (_, other) = authority.signs("127.0.0.1");
    refused(
        &tls_files(dir.path(), (certificate.clone(), other)),
        "the key of the first certificate",
    );
    refused(&tls_files(dir.path(), (key, certificate.clone())), "BEGIN CERTIFICATE'");
    refused(&tls_files(dir.path(), (certificate.clone(), certificate)), "BEGIN PRIVATE KEY'");
    fs::remove_file(dir.path().join("cert.pem")).unwrap();
    refused(&options, "the certificate in");
    // Neither is of use alone, nor without a port.
    refused(&options[..2], "--tls-key");
    refused(&options[2..], "--tls-cert");
    let output = Daemon::command(&socket).args(&options).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
}
