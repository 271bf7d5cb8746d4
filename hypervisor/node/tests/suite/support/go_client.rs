//! A client of gRPC that sends what grpc-go sends: the socket's path as authority, strings Huffman-coded where that is
//! shorter, and fields that later calls name by their place in the table.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};

use prost::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{Mutex as AsyncMutex, mpsc};

use super::in_time;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RESET: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GO_AWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;

/// Names of HPACK's static table, as Go's encoder finds them.
const STATIC_NAMES: [(&str, u8); 4] =
    [(":path", 5), (":authority", 1), ("content-type", 31), ("user-agent", 58)];
const STATIC_FIELDS: [(&str, &str, u8); 2] = [(":method", "POST", 3), (":scheme", "http", 6)];
const TABLE: usize = 4096;

/// Go's encoder (golang.org/x/net/http2/hpack): it remembers each field.
#[derive(Debug, Default)]
pub(crate) struct GoEncoder {
    newest_first: VecDeque<(String, String)>,
}

impl GoEncoder {
    pub(crate) fn block(&mut self, fields: &[(&str, &str)]) -> Vec<u8> {
        let mut block = Vec::new();
        for (name, value) in fields {
            self.field(&mut block, name, value);
        }
        block
    }

    fn field(&mut self, out: &mut Vec<u8>, name: &str, value: &str) {
        if let Some((.., place)) = STATIC_FIELDS.iter().find(|(n, v, _)| *n == name && *v == value)
        {
            out.push(0x80 | place);
            return;
        }
        let place = |found: usize| 62 + found;
        if let Some(at) = self.newest_first.iter().position(|(n, v)| n == name && v == value) {
            integer(out, place(at), 7, 0x80);
            return;
        }
        let known = STATIC_NAMES.iter().find(|(n, _)| *n == name).map(|(_, at)| usize::from(*at));
        let known =
            known.or_else(|| self.newest_first.iter().position(|(n, _)| n == name).map(place));
        integer(out, known.unwrap_or_default(), 6, 0x40);
        if known.is_none() {
            string(out, name);
        }
        string(out, value);
        self.newest_first.push_front((name.to_owned(), value.to_owned()));
        let size = |table: &VecDeque<(String, String)>| -> usize {
            table.iter().map(|(name, value)| name.len() + value.len() + 32).sum()
        };
        while size(&self.newest_first) > TABLE {
            self.newest_first.pop_back();
        }
    }
}

fn integer(out: &mut Vec<u8>, value: usize, prefix: u32, first: u8) {
    let most = (1_usize << prefix) - 1;
    if value < most {
        out.push(first | u8::try_from(value).unwrap());
        return;
    }
    out.push(first | u8::try_from(most).unwrap());
    let mut rest = value - most;
    while rest >= 128 {
        out.push(u8::try_from(rest % 128).unwrap() | 0x80);
        rest /= 128;
    }
    out.push(u8::try_from(rest).unwrap());
}

fn string(out: &mut Vec<u8>, text: &str) {
    let mut coded = Vec::new();
    httlib_huffman::encode(text.as_bytes(), &mut coded).unwrap();
    if coded.len() < text.len() {
        integer(out, coded.len(), 7, 0x80);
        out.extend(coded);
    } else {
        integer(out, text.len(), 7, 0);
        out.extend(text.as_bytes());
    }
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let [.., high, middle, low] = payload.len().to_be_bytes();
    let mut bytes = vec![high, middle, low, kind, flags];
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

#[derive(Debug)]
enum Event {
    Message(Vec<u8>),
    /// The number and text of `grpc-status`, or why there is none.
    End(Result<(), (String, String)>),
}

type Streams = Arc<Mutex<HashMap<u32, mpsc::UnboundedSender<Event>>>>;

struct Out {
    write: OwnedWriteHalf,
    encoder: GoEncoder,
    next: u32,
}

/// One connection.
#[derive(Clone)]
pub(crate) struct GoClient {
    authority: Arc<str>,
    out: Arc<AsyncMutex<Out>>,
    streams: Streams,
}

/// A call whose answers come one after the other.
pub(crate) struct Watched(mpsc::UnboundedReceiver<Event>);

impl Watched {
    /// The next answer; `None`: the call has ended.
    pub(crate) async fn next<T: Message + Default>(&mut self) -> Option<T> {
        match in_time(self.0.recv()).await {
            Some(Event::Message(bytes)) => Some(T::decode(&bytes[..]).unwrap()),
            Some(Event::End(_)) | None => None,
        }
    }
}

impl GoClient {
    pub(crate) async fn connect(socket: &Path) -> Self {
        Self::try_connect(socket).await.unwrap()
    }

    pub(crate) async fn try_connect(socket: &Path) -> io::Result<Self> {
        let (read, mut write) = UnixStream::connect(socket).await?.into_split();
        let mut begin = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        begin.extend(frame(SETTINGS, 0, 0, b""));
        write.write_all(&begin).await?;
        let out = Out { write, encoder: GoEncoder::default(), next: 1 };
        let (out, streams) = (Arc::new(AsyncMutex::new(out)), Streams::default());
        tokio::spawn(read_all(read, Arc::clone(&out), Arc::clone(&streams)));
        Ok(Self { authority: socket.to_str().unwrap().into(), out, streams })
    }

    /// `method`: of the device plugin's service, or SERVICE/METHOD.
    pub(crate) async fn watch(&self, method: &str, request: &impl Message) -> Watched {
        let (send, receive) = mpsc::unbounded_channel();
        let service = if method.contains('/') { "" } else { "v1beta1.DevicePlugin/" };
        let path = format!("/{service}{method}");
        let body = request.encode_to_vec();
        let mut message = vec![0];
        message.extend(u32::try_from(body.len()).unwrap().to_be_bytes());
        message.extend(body);
        let mut out = self.out.lock().await;
        let stream = out.next;
        out.next += 2;
        self.streams.lock().unwrap().insert(stream, send);
        let block = out.encoder.block(&[
            (":method", "POST"),
            (":scheme", "http"),
            (":path", &path),
            (":authority", &self.authority),
            ("content-type", "application/grpc"),
            ("user-agent", "grpc-go/1.27.1"),
            ("te", "trailers"),
        ]);
        let mut bytes = frame(HEADERS, 4, stream, &block);
        // Requests of tests fit into the first window.
        let pieces: Vec<_> = message.chunks(16_384).collect();
        for (index, piece) in pieces.iter().enumerate() {
            let last = u8::from(index + 1 == pieces.len());
            bytes.extend(frame(DATA, last, stream, piece));
        }
        // Nobody is there any more: there is no answer.
        if out.write.write_all(&bytes).await.is_err() {
            self.streams.lock().unwrap().remove(&stream);
        }
        Watched(receive)
    }

    /// A call with one answer, or the number and text of its status.
    pub(crate) async fn call<T: Message + Default>(
        &self,
        method: &str,
        request: &impl Message,
    ) -> Result<T, (String, String)> {
        let mut events = self.watch(method, request).await.0;
        let mut answer = None;
        loop {
            match in_time(events.recv()).await {
                Some(Event::Message(bytes)) => answer = Some(T::decode(&bytes[..]).unwrap()),
                Some(Event::End(Ok(()))) => return Ok(answer.unwrap()),
                Some(Event::End(Err(status))) => return Err(status),
                None => return Err(("closed".to_owned(), String::new())),
            }
        }
    }
}

async fn read_all(mut read: OwnedReadHalf, out: Arc<AsyncMutex<Out>>, streams: Streams) {
    let mut decoder = loona_hpack::Decoder::new();
    let mut bodies: HashMap<u32, Vec<u8>> = HashMap::new();
    let mut head = [0; 9];
    while read.read_exact(&mut head).await.is_ok() {
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; usize::try_from(length).unwrap()];
        if read.read_exact(&mut payload).await.is_err() {
            break;
        }
        let (kind, flags) = (head[3], head[4]);
        let stream = u32::from_be_bytes(head[5..].try_into().unwrap());
        let tell = |event| {
            if let Some(send) = streams.lock().unwrap().get(&stream) {
                _ = send.send(event);
            }
        };
        let mut answer = Vec::new();
        match kind {
            SETTINGS if flags & 1 == 0 => answer = frame(SETTINGS, 1, 0, b""),
            PING if flags & 1 == 0 => answer = frame(PING, 1, 0, &payload),
            DATA => {
                let body = bodies.entry(stream).or_default();
                body.extend(&payload);
                while let Some(length) = body.get(1..5) {
                    let length = u32::from_be_bytes(length.try_into().unwrap());
                    let end = 5 + usize::try_from(length).unwrap();
                    if body.len() < end {
                        break;
                    }
                    let rest = body.split_off(end);
                    tell(Event::Message(std::mem::replace(body, rest)[5..].to_vec()));
                }
                if length > 0 {
                    for of in [0, stream] {
                        answer.extend(frame(WINDOW_UPDATE, 0, of, &length.to_be_bytes()));
                    }
                }
            }
            HEADERS => {
                let fields = decoder.decode(&payload).unwrap();
                if flags & 1 == 1 {
                    let value = |name: &[u8]| {
                        let found = fields.iter().find(|(known, _)| known == name);
                        found.map(|(_, value)| String::from_utf8(value.clone()).unwrap())
                    };
                    let status = value(b"grpc-status").unwrap();
                    let said = value(b"grpc-message").unwrap_or_default();
                    tell(Event::End(if status == "0" { Ok(()) } else { Err((status, said)) }));
                }
            }
            RESET => {
                let code = u32::from_be_bytes(payload[..].try_into().unwrap());
                tell(Event::End(Err(("reset".to_owned(), code.to_string()))));
            }
            GO_AWAY => break,
            _ => {}
        }
        if !answer.is_empty() && out.lock().await.write.write_all(&answer).await.is_err() {
            break;
        }
    }
    streams.lock().unwrap().clear();
}
