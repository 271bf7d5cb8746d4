//! Client and server against arbitrary bytes: the other side may be a different program, or a malicious one.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use http_bidir_comm::client::{BlockingHttpClient, ClientError, Endpoint};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::round_trip::{TestServer, socket};

/// A call's timeout, and a margin for a busy machine.
const CALL: Duration = Duration::from_millis(150);
const LATE: Duration = Duration::from_secs(5);

/// A server that sends `bytes` in pieces on each connection, then waits or hangs up.
fn server(path: &Path, bytes: Vec<u8>, piece: usize, hangs_up: bool) {
    let listener = UnixListener::bind(path).unwrap();
    thread::spawn(move || {
        let mut kept = Vec::new();
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 4096]);
            let bytes = bytes.clone();
            kept.extend((!hangs_up).then(|| stream.try_clone().unwrap()));
            thread::spawn(move || {
                let pause = Duration::from_millis(if piece < 64 { 5 } else { 0 });
                let sent = bytes.chunks(piece).try_for_each(|piece| {
                    thread::sleep(pause);
                    stream.write_all(piece)
                });
                drop(sent);
            });
        }
    });
}

#[track_caller]
fn call(bytes: &[u8], piece: usize, hangs_up: bool) -> Result<Value, ClientError> {
    let (_dir, path) = socket();
    server(&path, bytes.to_vec(), piece, hangs_up);
    let client = BlockingHttpClient::new(Endpoint::Unix(path));
    let start = Instant::now();
    let answer = client.post("/v1/admission", &json!({"worker": 1}), CALL);
    let took = start.elapsed();
    assert!(took < CALL + LATE, "{took:?}");
    answer
}

/// Peak memory of this process, in MiB.
fn memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() / 1024
}

#[test]
fn answers_without_end_are_given_up() {
    let with = |head: &str, rest: &str, times: usize| {
        [format!("HTTP/1.1 200 OK\r\n{head}").as_bytes(), &rest.as_bytes().repeat(times)].concat()
    };
    let before = memory();
    for (what, bytes) in [
        ("a long header", with("x: ", "a", 4 << 20)),
        ("many headers", with("", "x: a\r\n", 1 << 20)),
        ("a length of 10^9", with("content-length: 1000000000\r\n\r\n", " ", 4 << 20)),
        ("a length of 2^64", with("content-length: 18446744073709551616\r\n\r\n", " ", 100)),
        ("a negative length", with("content-length: -1\r\n\r\n", "1", 1)),
        ("two lengths", with("content-length: 1\r\ncontent-length: 2\r\n\r\n", "1", 2)),
        (
            "chunks without end",
            with("transfer-encoding: chunked\r\n\r\n", "4\r\n    \r\n", 1 << 20),
        ),
        ("a huge chunk", with("transfer-encoding: chunked\r\n\r\n", "ffffffffffffffff\r\n1", 1)),
        ("a cut chunk", with("transfer-encoding: chunked\r\n\r\n", "400\r\n1", 1)),
        ("a chunk of no size", with("transfer-encoding: chunked\r\n\r\n", "\r\n\r\n", 9)),
        ("a long chunk's name", with("transfer-encoding: chunked\r\n\r\n1;", "a", 4 << 20)),
        ("a cut body", with("content-length: 10\r\n\r\n", "1", 5)),
        ("words before the answer", b"HTTP/1.1 100 Continue\r\n\r\n".repeat(1 << 18)),
        ("another place", with("location: /x\r\n\r\n", "", 1)),
        ("deep values", with("content-length: 50000\r\n\r\n", "[", 50_000)),
        ("nothing", Vec::new()),
    ] {
        for hangs_up in [false, true] {
            let answer = call(&bytes, 1 << 16, hangs_up);
            assert!(answer.is_err(), "{what}: {answer:?}");
        }
    }
    // The test itself uses a few MiB.
    assert!(memory() < before + 200, "{before} MiB became {}", memory());
}

/// One byte at a time keeps the connection alive; the call times out nevertheless.
#[test]
fn a_slow_answer_takes_no_longer_than_the_call_may() {
    let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 10000\r\n\r\n";
    let bytes = [answer.as_slice(), &[b' '; 10_000]].concat();
    for hangs_up in [false, true] {
        let start = Instant::now();
        let late = call(&bytes, 1, hangs_up).unwrap_err();
        assert!(matches!(late, ClientError::Timeout { .. }), "{late}");
        assert!(start.elapsed() < Duration::from_secs(5));
    }
}

/// Fragments of answers and calls, in any order.
fn pieces() -> impl Strategy<Value = Vec<u8>> {
    let words = prop::sample::select(vec![
        "HTTP/1.1 200 OK\r\n",
        "HTTP/1.0 999 \r\n",
        "HTTP/2 200\r\n",
        "POST /who HTTP/1.1\r\n",
        "GET /nowhere HTTP/1.1\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "host: x\r\n",
        "content-length: 3\r\n",
        "content-length: 99999999999999999999\r\n",
        "transfer-encoding: chunked\r\n",
        "connection: upgrade\r\nupgrade: h2c\r\n",
        "expect: 100-continue\r\n",
        "content-encoding: gzip\r\n",
        "\r\n",
        "\r\n\r\n",
        "3\r\n{}\n\r\n",
        "0\r\n\r\n",
        "null",
        "{\"a\":",
        "\0",
        "\u{202e}",
    ]);
    let word = words.prop_map(|word| word.as_bytes().to_vec());
    let noise = prop::collection::vec(any::<u8>(), 0..64);
    prop::collection::vec(prop_oneof![4 => word, 1 => noise], 0..12)
        .prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn any_answer_is_read_or_refused(
        head in any::<bool>(), bytes in pieces(), piece in 64usize..4096,
    ) {
        let start: &[u8] = if head { b"HTTP/1.1 200 OK\r\n" } else { b"" };
        let _ = call(&[start, &bytes].concat(), piece, true);
    }

    #[test]
    fn any_call_is_answered_or_refused(calls in prop::collection::vec(pieces(), 1..8)) {
        let (_dir, path) = socket();
        let _server = TestServer::start(&path);
        let connections: Vec<_> = calls
            .iter()
            .map(|bytes| {
                let mut connection = UnixStream::connect(&path).unwrap();
                let _ = connection.write_all(bytes);
                connection
            })
            .collect();
        let client = BlockingHttpClient::new(Endpoint::Unix(path));
        let got: Value = client.post("/who", &json!(1), Duration::from_secs(10)).unwrap();
        prop_assert_eq!(&got["got"], &json!(1));
        drop(connections);
    }
}
