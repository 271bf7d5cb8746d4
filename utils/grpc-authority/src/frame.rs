//! HTTP/2 frames (RFC 9113, section 4.1), as far as header blocks need them.

/// The connection preface, which a client sends first.
pub(crate) const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Length of a frame's head, in bytes.
pub(crate) const HEAD: usize = 9;
/// Longest payload that every receiver accepts, in bytes.
pub(crate) const MOST_PAYLOAD: usize = 1 << 14;

/// Frame type that begins a header block.
pub(crate) const HEADERS: u8 = 1;
/// Frame type that continues a header block.
pub(crate) const CONTINUATION: u8 = 9;

/// Flag: the header block ends with this frame.
pub(crate) const END_HEADERS: u8 = 0x4;
/// Flag: padding follows the payload, and its length precedes the payload.
pub(crate) const PADDED: u8 = 0x8;
/// Flag: a priority precedes the header block.
pub(crate) const PRIORITY: u8 = 0x20;
/// Length of a priority, in bytes.
pub(crate) const PRIORITY_LENGTH: usize = 5;

/// A frame's head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) length: usize,
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    /// Including the reserved bit.
    pub(crate) stream: u32,
}

impl Head {
    pub(crate) fn read(bytes: [u8; HEAD]) -> Self {
        let [high, middle, low, kind, flags, stream @ ..] = bytes;
        let length = u32::from_be_bytes([0, high, middle, low]);
        // 24 bits fit.
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        Self { length, kind, flags, stream: u32::from_be_bytes(stream) }
    }

    pub(crate) fn is_last_of_block(self) -> bool {
        self.flags & END_HEADERS != 0
    }
}

/// Writes a frame with at most [`MOST_PAYLOAD`] bytes.
pub(crate) fn write(out: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[&[u8]]) {
    let length: usize = payload.iter().map(|part| part.len()).sum();
    let [.., high, middle, low] = length.to_be_bytes();
    out.extend([high, middle, low, kind, flags]);
    out.extend(stream.to_be_bytes());
    for part in payload {
        out.extend_from_slice(part);
    }
}
