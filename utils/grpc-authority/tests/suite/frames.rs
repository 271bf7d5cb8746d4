//! Builds frames for tests, and reads them like a receiver.

pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let [.., high, middle, low] = payload.len().to_be_bytes();
    let mut bytes = vec![high, middle, low, kind, flags];
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// The rewritten bytes of a whole stream.
pub(crate) fn rewritten(bytes: &[u8]) -> Result<Vec<u8>, grpc_authority::AuthorityError> {
    let mut out = Vec::new();
    grpc_authority::Rewriter::default().push(bytes, &mut out).map(|()| out)
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) stream: u32,
    pub(crate) payload: Vec<u8>,
}

/// The frames after the preface.
pub(crate) fn frames(bytes: &[u8]) -> Vec<Frame> {
    let mut rest = bytes.strip_prefix(PREFACE).unwrap();
    let mut frames = Vec::new();
    while !rest.is_empty() {
        let length = usize::from(rest[0]) << 16 | usize::from(rest[1]) << 8 | usize::from(rest[2]);
        let stream = u32::from_be_bytes(rest[5..9].try_into().unwrap());
        let payload = rest[9..9 + length].to_vec();
        frames.push(Frame { kind: rest[3], flags: rest[4], stream, payload });
        rest = &rest[9 + length..];
    }
    frames
}

/// The fields of each header block, decoded like a server with one table for all of them.
pub(crate) fn fields(bytes: &[u8]) -> Vec<Vec<(String, String)>> {
    let mut decoder = loona_hpack::Decoder::new();
    let mut block = Vec::new();
    let mut blocks = Vec::new();
    for frame in frames(bytes).iter().filter(|frame| matches!(frame.kind, 1 | 9)) {
        let priority = if frame.kind == 1 && frame.flags & 0x20 != 0 { 5 } else { 0 };
        block.extend(&frame.payload[priority..]);
        if frame.flags & 4 != 0 {
            let text = |bytes| String::from_utf8(bytes).unwrap();
            let read = decoder.decode(&std::mem::take(&mut block)).unwrap();
            blocks.push(read.into_iter().map(|(name, value)| (text(name), text(value))).collect());
        }
    }
    blocks
}

/// Bytes from hexadecimal digits.
pub(crate) fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(|c| !c.is_ascii_whitespace()).collect();
    let digit = |c: u8| u8::try_from(char::from(c).to_digit(16).unwrap()).unwrap();
    digits.chunks_exact(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
}
