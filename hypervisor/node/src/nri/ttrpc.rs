//! ttrpc as NRI uses it: one socket carries two connections. On one the runtime calls the plugin; on the other the
//! plugin calls the runtime, once. The crate `ttrpc` needs a socket per connection.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::future::Future;
use std::io;

use prost::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use crate::proto::ttrpc::{Request, Response, Status};

/// Connection id of the runtime's calls.
pub(crate) const OF_PLUGIN: u32 = 1;
/// Connection id of the plugin's calls.
pub(crate) const OF_RUNTIME: u32 = 2;
/// The longest frame that a runtime accepts, in bytes. A longer one ends the connection.
const PIECE: usize = 4096;
/// The longest ttrpc message, in bytes.
const MOST_BYTES: usize = 4 << 20;
/// Bytes of a message header: length, stream, type and flags.
const HEAD: usize = 10;
const REQUEST: u8 = 1;
const RESPONSE: u8 = 2;
/// gRPC status FAILED_PRECONDITION.
const FAILED_PRECONDITION: i32 = 9;

/// Why the connection to a runtime has ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NriError {
    #[error("{0}")]
    Socket(#[from] io::Error),
    #[error("a message of {0} bytes; expected at most {MOST_BYTES}")]
    TooLong(usize),
    #[error("a message that cannot be read: {0}")]
    Message(#[from] prost::DecodeError),
    #[error("the runtime refuses the plugin: {0}")]
    Refused(String),
}

/// A message, with the connection that it belongs to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) connection: u32,
    pub(crate) stream: u32,
    pub(crate) kind: u8,
    pub(crate) payload: Vec<u8>,
}

impl Frame {
    /// The bytes to send, split into frames.
    pub(crate) fn encoded(&self) -> Vec<u8> {
        let length = |bytes: usize| u32::try_from(bytes).unwrap_or(u32::MAX).to_be_bytes();
        let mut message = length(self.payload.len()).to_vec();
        message.extend(self.stream.to_be_bytes());
        message.extend([self.kind, 0]);
        message.extend(&self.payload);
        let mut sent = Vec::new();
        for piece in message.chunks(PIECE) {
            sent.extend(self.connection.to_be_bytes());
            sent.extend(length(piece.len()));
            sent.extend(piece);
        }
        sent
    }
}

/// The unread bytes of each connection.
#[derive(Debug, Default)]
pub(crate) struct Incoming(BTreeMap<u32, Vec<u8>>);

impl Incoming {
    /// Reads from the socket until some connection has a complete message.
    pub(crate) async fn next(
        &mut self,
        from: &mut (impl AsyncReadExt + Unpin),
    ) -> Result<Frame, NriError> {
        loop {
            for (connection, known) in &mut self.0 {
                if let Some(frame) = taken(*connection, known)? {
                    return Ok(frame);
                }
            }
            let (connection, length) = (from.read_u32().await?, from.read_u32().await?);
            let length = usize::try_from(length).unwrap_or(usize::MAX);
            let known = self.0.entry(connection).or_default();
            if length > HEAD + MOST_BYTES || known.len() > HEAD + MOST_BYTES {
                return Err(NriError::TooLong(length));
            }
            let begin = known.len();
            known.resize(begin + length, 0);
            let Some(piece) = known.get_mut(begin..) else { continue };
            from.read_exact(piece).await?;
        }
    }
}

/// Removes the first message, if it is complete.
fn taken(connection: u32, known: &mut Vec<u8>) -> Result<Option<Frame>, NriError> {
    let Some((head, rest)) = known.split_first_chunk::<HEAD>() else { return Ok(None) };
    let [a, b, c, d, e, f, g, h, kind, _] = *head;
    let length = usize::try_from(u32::from_be_bytes([a, b, c, d])).unwrap_or(usize::MAX);
    if length > MOST_BYTES {
        return Err(NriError::TooLong(length));
    }
    let Some(payload) = rest.get(..length).map(<[u8]>::to_vec) else { return Ok(None) };
    known.drain(..HEAD + length);
    Ok(Some(Frame { connection, stream: u32::from_be_bytes([e, f, g, h]), kind, payload }))
}

/// Handles the runtime's calls.
pub(crate) trait Answers {
    /// The response to a call. An error refuses it.
    fn answer(
        &mut self,
        method: &str,
        payload: &[u8],
    ) -> impl Future<Output = Result<Vec<u8>, String>> + Send;
}

/// Sends the first request, and then answers the runtime's calls until the socket ends.
pub(crate) async fn serve(
    mut socket: UnixStream,
    first: &Request,
    mut who: impl Answers,
) -> Result<Infallible, NriError> {
    let payload = first.encode_to_vec();
    let call = Frame { connection: OF_RUNTIME, stream: 1, kind: REQUEST, payload };
    socket.write_all(&call.encoded()).await?;
    let mut incoming = Incoming::default();
    loop {
        let frame = incoming.next(&mut socket).await?;
        match (frame.connection, frame.kind) {
            (OF_PLUGIN, REQUEST) => {
                let request = Request::decode(&*frame.payload)?;
                let handled = who.answer(&request.method, &request.payload).await;
                let response = match handled {
                    Ok(payload) => Response { status: None, payload },
                    Err(message) => {
                        let status = Status { code: FAILED_PRECONDITION, message };
                        Response { status: Some(status), payload: Vec::new() }
                    }
                };
                let payload = response.encode_to_vec();
                let answer = Frame { kind: RESPONSE, payload, ..frame };
                socket.write_all(&answer.encoded()).await?;
            }
            (OF_RUNTIME, RESPONSE) => {
                let status = Response::decode(&*frame.payload)?.status;
                if let Some(status) = status.filter(|status| status.code != 0) {
                    return Err(NriError::Refused(status.message));
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn messages_of_any_length_come_through_in_pieces_that_runtimes_read() {
        let mut incoming = Incoming::default();
        for length in [0, 1, PIECE - HEAD, PIECE - HEAD + 1, 3 * PIECE, 100_000] {
            let payload: Vec<u8> = (0..length).map(|at| (at % 251) as u8).collect();
            let frame = Frame { connection: OF_PLUGIN, stream: 7, kind: REQUEST, payload };
            let sent = frame.encoded();
            let mut rest = &sent[..];
            while let [_, _, _, _, a, b, c, d, more @ ..] = rest {
                let piece = u32::from_be_bytes([*a, *b, *c, *d]) as usize;
                assert!(piece <= PIECE);
                rest = &more[piece..];
            }
            assert_eq!(incoming.next(&mut &sent[..]).await.unwrap(), frame);
        }
        let long = [0, 0, 0, 1, 0x7f, 0, 0, 0];
        assert!(matches!(incoming.next(&mut &long[..]).await, Err(NriError::TooLong(_))));
        let mut claims = vec![0, 0, 0, 1, 0, 0, 0, 10];
        claims.extend([0x7f, 0, 0, 0, 0, 0, 0, 1, 1, 0]);
        assert!(matches!(incoming.next(&mut &claims[..]).await, Err(NriError::TooLong(_))));
    }
}
