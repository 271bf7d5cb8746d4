//! The client against peers that misbehave.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use http_bidir_comm::client::{BlockingHttpClient, ClientError, Endpoint};
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(10);

struct Place {
    _dir: tempfile::TempDir,
    path: PathBuf,
}

fn place() -> Place {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    Place { _dir: dir, path }
}

fn client(place: &Place) -> BlockingHttpClient {
    BlockingHttpClient::new(Endpoint::Unix(place.path.clone()))
}

fn call(client: &BlockingHttpClient, timeout: Duration) -> Result<Value, ClientError> {
    client.post("/v1/echo", &json!({"n": 1}), timeout)
}

/// Reads one request; false at the end of the connection.
fn read_request(stream: &mut UnixStream) -> bool {
    let mut seen = Vec::new();
    let mut buffer = [0u8; 4096];
    loop {
        let text = String::from_utf8_lossy(&seen).to_lowercase();
        if let Some(head) = text.find("\r\n\r\n") {
            let length: usize = text
                .lines()
                .find_map(|line| line.strip_prefix("content-length: "))
                .map_or(0, |length| length.trim().parse().unwrap());
            if seen.len() >= head + 4 + length {
                return true;
            }
        }
        match stream.read(&mut buffer) {
            Ok(0) | Err(_) => return false,
            Ok(count) => seen.extend_from_slice(&buffer[..count]),
        }
    }
}

fn answer(stream: &mut UnixStream, status: &str, body: &str) {
    let _ = write!(stream, "HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n{body}", body.len());
}

/// A server that answers each connection's requests with `body`, closing after `per_connection`.
fn serve(
    place: &Place,
    per_connection: usize,
    status: &'static str,
    body: String,
) -> Arc<AtomicUsize> {
    let listener = UnixListener::bind(&place.path).unwrap();
    let connections = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&connections);
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            count.fetch_add(1, Ordering::SeqCst);
            for _ in 0..per_connection {
                if !read_request(&mut stream) {
                    break;
                }
                answer(&mut stream, status, &body);
            }
        }
    });
    connections
}

#[test]
fn nobody_there() {
    let place = place();
    let error = call(&client(&place), PATIENCE).unwrap_err();
    assert!(matches!(error, ClientError::Connect { .. }), "{error:?}");
    assert!(error.to_string().contains("socket"), "{error}");
    // A socket file without a listener.
    drop(UnixListener::bind(&place.path).unwrap());
    assert!(matches!(call(&client(&place), PATIENCE), Err(ClientError::Connect { .. })));
}

#[test]
fn one_connection_serves_many_calls() {
    let place = place();
    let connections = serve(&place, usize::MAX, "200 OK", r#"{"ok":true}"#.into());
    let client = client(&place);
    for _ in 0..20 {
        assert_eq!(call(&client, PATIENCE).unwrap(), json!({"ok": true}));
    }
    assert_eq!(connections.load(Ordering::SeqCst), 1);
}

#[test]
fn a_closed_connection_is_replaced_without_notice() {
    let place = place();
    let connections = serve(&place, 2, "200 OK", "{}".into());
    let client = client(&place);
    for _ in 0..9 {
        call(&client, PATIENCE).unwrap();
    }
    assert!(connections.load(Ordering::SeqCst) >= 5);
}

#[test]
fn a_connection_that_dies_under_the_second_call_is_replaced_once() {
    let place = place();
    let listener = UnixListener::bind(&place.path).unwrap();
    let server = thread::spawn(move || {
        // Answers one call, then reads the second and ends without an answer.
        let (mut first, _) = listener.accept().unwrap();
        assert!(read_request(&mut first));
        answer(&mut first, "200 OK", "1");
        assert!(read_request(&mut first));
        drop(first);
        let (mut second, _) = listener.accept().unwrap();
        assert!(read_request(&mut second));
        answer(&mut second, "200 OK", "2");
    });
    let client = client(&place);
    assert_eq!(call(&client, PATIENCE).unwrap(), json!(1));
    assert_eq!(call(&client, PATIENCE).unwrap(), json!(2));
    server.join().unwrap();
}

#[test]
fn a_new_connection_that_dies_is_reported() {
    let place = place();
    let listener = UnixListener::bind(&place.path).unwrap();
    let server = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        assert!(read_request(&mut stream));
    });
    let error = call(&client(&place), PATIENCE).unwrap_err();
    assert!(matches!(error, ClientError::Connect { .. }), "{error:?}");
    server.join().unwrap();
}

#[test]
fn a_silent_server_costs_no_more_than_the_time_given() {
    let place = place();
    let _listener = UnixListener::bind(&place.path).unwrap();
    let started = Instant::now();
    let error = call(&client(&place), Duration::from_millis(200)).unwrap_err();
    assert!(matches!(error, ClientError::Timeout { .. }), "{error:?}");
    assert!(started.elapsed() >= Duration::from_millis(190), "{:?}", started.elapsed());
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
}

#[test]
fn a_server_whose_queue_is_full_costs_no_more_than_the_time_given() {
    let place = place();
    let socket = rustix::net::socket_with(
        rustix::net::AddressFamily::UNIX,
        rustix::net::SocketType::STREAM,
        rustix::net::SocketFlags::CLOEXEC,
        None,
    )
    .unwrap();
    rustix::net::bind(&socket, &rustix::net::SocketAddrUnix::new(&place.path).unwrap()).unwrap();
    rustix::net::listen(&socket, 0).unwrap();
    let client = client(&place);
    let started = Instant::now();
    for _ in 0..4 {
        let error = call(&client, Duration::from_millis(100)).unwrap_err();
        assert!(matches!(error, ClientError::Timeout { .. }), "{error:?}");
    }
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
}

#[test]
fn refusals_carry_the_servers_words() {
    let place = place();
    serve(&place, usize::MAX, "409 Conflict", r#"{"error":"taken"}"#.into());
    match call(&client(&place), PATIENCE).unwrap_err() {
        ClientError::Refused { status: 409, message } => assert_eq!(message, "taken"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_refusal_that_comes_before_the_request_is_sent_is_heard() {
    let place = place();
    let listener = UnixListener::bind(&place.path).unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut some = [0u8; 1024];
            let _ = stream.read(&mut some);
            answer(&mut stream, "413 Payload Too Large", r#"{"error":"too much"}"#);
        }
    });
    let large = json!({"text": "x".repeat(1 << 20)});
    for _ in 0..20 {
        match client(&place).post::<_, Value>("/v1/x", &large, PATIENCE).unwrap_err() {
            ClientError::Refused { status: 413, message } => assert_eq!(message, "too much"),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn nonsense_is_a_protocol_error() {
    for (status, body) in
        [("200 OK", "not json".to_owned()), ("200 OK", format!("\"{}\"", "x".repeat(100_000)))]
    {
        let place = place();
        serve(&place, usize::MAX, status, body);
        let error = call(&client(&place), PATIENCE).unwrap_err();
        assert!(matches!(error, ClientError::Protocol { .. }), "{error:?}");
    }
    let place = place();
    let listener = UnixListener::bind(&place.path).unwrap();
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let _ = stream.write_all(b"SSH-2.0-what\r\n\r\n");
        let _ = read_request(&mut stream);
    });
    let error = call(&client(&place), PATIENCE).unwrap_err();
    assert!(matches!(error, ClientError::Protocol { .. }), "{error:?}");
}

#[test]
fn a_peer_that_closes_while_we_write_raises_no_sigpipe() {
    let raised = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(signal_hook::consts::SIGPIPE, Arc::clone(&raised)).unwrap();
    let place = place();
    let listener = UnixListener::bind(&place.path).unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            drop(stream);
        }
    });
    let client = client(&place);
    let large = json!({"text": "x".repeat(1 << 20)});
    for _ in 0..20 {
        let error = client.post::<_, Value>("/v1/x", &large, PATIENCE).unwrap_err();
        assert!(matches!(error, ClientError::Connect { .. }), "{error:?}");
    }
    assert!(!raised.load(Ordering::SeqCst));
}

#[test]
fn tcp_carries_the_token_and_hides_it() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut seen = Vec::new();
        let mut buffer = [0u8; 4096];
        while !String::from_utf8_lossy(&seen).contains("}") {
            let count = stream.read(&mut buffer).unwrap();
            seen.extend_from_slice(&buffer[..count]);
        }
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").unwrap();
        String::from_utf8(seen).unwrap().to_lowercase()
    });
    let token = Some("secret-token".to_owned());
    let client = BlockingHttpClient::new(Endpoint::Tcp { host: "127.0.0.1".into(), port, token });
    call(&client, PATIENCE).unwrap();
    assert!(server.join().unwrap().contains("authorization: bearer secret-token"));
    assert!(!format!("{client:?}").contains("secret"), "{client:?}");
}

fn get(client: &BlockingHttpClient) -> Result<Value, ClientError> {
    client.get("/v1/state", PATIENCE)
}

#[test]
fn what_a_server_tells_of_itself_may_be_long() {
    let place = place();
    let long = "x".repeat(4 * http_bidir_comm::BODY_LIMIT);
    let connections = serve(&place, 2, "200 OK", format!("\"{long}\""));
    let client = client(&place);
    for _ in 0..5 {
        assert_eq!(get(&client).unwrap(), long);
    }
    // Connections were kept, and replaced when they had been closed.
    assert_eq!(connections.load(Ordering::SeqCst), 3);
    assert!(matches!(call(&client, PATIENCE), Err(ClientError::Protocol { .. })));
}

#[test]
fn a_get_may_be_refused() {
    let place = place();
    serve(&place, usize::MAX, "403 Forbidden", r#"{"error":"not yours"}"#.into());
    let error = get(&client(&place)).unwrap_err();
    assert_eq!(error.to_string(), "refused (403): not yours");
}

#[test]
fn any_http_answer_shows_that_a_server_is_there() {
    let reach = |status: &'static str, body: &str| {
        let place = place();
        serve(&place, usize::MAX, status, body.into());
        client(&place).reach("/", PATIENCE)
    };
    assert_eq!(reach("404 Not Found", "no such thing").unwrap(), 404);
    assert_eq!(reach("200 OK", "[]").unwrap(), 200);
    let place = place();
    assert!(matches!(client(&place).reach("/", PATIENCE), Err(ClientError::Connect { .. })));
    let listener = UnixListener::bind(&place.path).unwrap();
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        read_request(&mut stream);
        let _ = stream.write_all(b"SSH-2.0-OpenSSH\r\n");
    });
    let error = client(&place).reach("/", PATIENCE).unwrap_err();
    assert!(matches!(error, ClientError::Protocol { .. }), "{error:?}");
}
