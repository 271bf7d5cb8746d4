//! One call, byte by byte.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use crate::process::PATIENCE;

/// The answer's status and body.
pub(crate) fn call(socket: &Path, method: &str, path: &str, body: Option<&str>) -> (u16, String) {
    let kind = if body.is_some() { "content-type: application/json\r\n" } else { "" };
    let body = body.unwrap_or("");
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{kind}content-length: {}\r\n\r\n{body}",
        body.len()
    );
    send(socket, head.as_bytes())
}

/// Sends any bytes.
pub(crate) fn send(socket: &Path, bytes: &[u8]) -> (u16, String) {
    let mut connection = UnixStream::connect(socket).unwrap();
    connection.set_read_timeout(Some(PATIENCE)).unwrap();
    // It may be refused before it is read.
    let _ = connection.write_all(bytes);
    let mut answer = Vec::new();
    let _ = connection.read_to_end(&mut answer);
    let answer = String::from_utf8_lossy(&answer);
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
    (status, body.to_owned())
}
