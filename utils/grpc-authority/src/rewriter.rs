//! Rewrites an HTTP/2 client's byte stream so that every authority is valid. No I/O;
//! [`AuthorityStream`](crate::AuthorityStream) uses this.

use core::fmt;
use core::mem;

use loona_hpack::decoder::DecoderError;

use crate::block::{BadBlock, Blocks, MOST_BLOCK, MOST_LIST};
use crate::frame::{
    self, CONTINUATION, END_HEADERS, HEAD, HEADERS, Head, MOST_PAYLOAD, PADDED, PREFACE, PRIORITY,
    PRIORITY_LENGTH,
};

/// Most frames of a header block.
pub const MOST_FRAMES: usize = 64;
/// HTTP/2's default size of the header table.
const TABLE_SIZE: usize = 4096;
/// Most bytes of a HEADERS frame beside the block: padding length, priority and padding.
const BESIDE_BLOCK: usize = 1 + PRIORITY_LENGTH + 255;

/// Why a stream is refused.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum AuthorityError {
    /// The client speaks another protocol.
    #[error("not HTTP/2: the stream does not begin with its preface")]
    NotHttp2,
    /// An encoded header block is too long.
    #[error("stream {stream}: a header block of more than {MOST_BLOCK} bytes")]
    BlockTooLong {
        /// The stream.
        stream: u32,
    },
    /// A decoded header block is too long.
    #[error("stream {stream}: header fields of more than {MOST_LIST} bytes")]
    ListTooLong {
        /// The stream.
        stream: u32,
    },
    /// A header block has too many frames.
    #[error("stream {stream}: a header block in more than {MOST_FRAMES} frames")]
    TooManyFrames {
        /// The stream.
        stream: u32,
    },
    /// A frame is shorter than its flags require.
    #[error("stream {stream}: a HEADERS frame of {length} bytes lacks its padding or priority")]
    FrameTooShort {
        /// The stream.
        stream: u32,
        /// The frame's length.
        length: usize,
    },
    /// Another frame interrupts a header block.
    #[error(
        "a frame of type {kind} on stream {stream}, where the header block of stream {expected} has to go on"
    )]
    Interrupted {
        /// The frame's type.
        kind: u8,
        /// The stream.
        stream: u32,
        /// Stream of the open header block.
        expected: u32,
    },
    /// A header block is continued that has not begun.
    #[error("stream {stream}: CONTINUATION without HEADERS")]
    Unexpected {
        /// The stream.
        stream: u32,
    },
    /// A header block cannot be decoded.
    #[error("stream {stream}: header block: {reason}")]
    Malformed {
        /// The stream.
        stream: u32,
        /// The decoder's reason.
        reason: DecoderError,
    },
}

/// Rewrites the bytes of one connection.
pub struct Rewriter {
    blocks: Blocks,
    state: State,
    /// The header block in progress.
    open: Option<OpenBlock>,
}

enum State {
    /// Bytes of the preface received so far.
    Preface(usize),
    /// A frame's head, and its bytes received so far.
    Head([u8; HEAD], usize),
    /// Bytes left of a frame that is passed on unchanged.
    Passes(usize),
    /// A frame of a header block, received so far.
    Gathers(Head, Vec<u8>),
    /// The stream was refused.
    Refused(AuthorityError),
}

const BETWEEN_FRAMES: State = State::Head([0; HEAD], 0);

struct OpenBlock {
    stream: u32,
    /// Flags of the HEADERS frame.
    flags: u8,
    priority: Vec<u8>,
    fragments: Vec<u8>,
    frames: usize,
}

impl Default for Rewriter {
    fn default() -> Self {
        Self::with_table_size(TABLE_SIZE)
    }
}

impl fmt::Debug for Rewriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rewriter").finish_non_exhaustive()
    }
}

impl Rewriter {
    /// A rewriter for a server that announces this SETTINGS_HEADER_TABLE_SIZE. HTTP/2's default is 4096.
    #[must_use]
    pub fn with_table_size(bytes: usize) -> Self {
        Self { blocks: Blocks::new(bytes), state: State::Preface(0), open: None }
    }

    /// Takes the client's next bytes, and appends the bytes for the server to `out`.
    ///
    /// # Errors
    /// [`AuthorityError`], now and at every later call. `out` contains everything before the fault.
    pub fn push(&mut self, mut bytes: &[u8], out: &mut Vec<u8>) -> Result<(), AuthorityError> {
        while !bytes.is_empty() {
            let state = mem::replace(&mut self.state, BETWEEN_FRAMES);
            match self.step(state, &mut bytes, out) {
                Ok(state) => self.state = state,
                Err(error) => {
                    self.state = State::Refused(error.clone());
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Consumes at least one byte.
    fn step(
        &mut self,
        state: State,
        bytes: &mut &[u8],
        out: &mut Vec<u8>,
    ) -> Result<State, AuthorityError> {
        match state {
            State::Preface(came) => {
                let now = take(bytes, PREFACE.len() - came);
                if !PREFACE[came..].starts_with(now) {
                    return Err(AuthorityError::NotHttp2);
                }
                let came = came + now.len();
                if came < PREFACE.len() {
                    return Ok(State::Preface(came));
                }
                out.extend_from_slice(PREFACE);
                Ok(BETWEEN_FRAMES)
            }
            State::Head(mut head, came) => {
                let now = take(bytes, HEAD - came);
                head[came..came + now.len()].copy_from_slice(now);
                let came = came + now.len();
                if came < HEAD {
                    return Ok(State::Head(head, came));
                }
                self.begin(head, out)
            }
            State::Passes(left) => {
                let now = take(bytes, left);
                out.extend_from_slice(now);
                Ok(passes(left - now.len()))
            }
            State::Gathers(head, mut payload) => {
                payload.extend_from_slice(take(bytes, head.length - payload.len()));
                if payload.len() < head.length {
                    return Ok(State::Gathers(head, payload));
                }
                self.gathered(head, &payload, out)?;
                Ok(BETWEEN_FRAMES)
            }
            State::Refused(error) => Err(error),
        }
    }

    /// Starts a frame whose head is complete.
    fn begin(&mut self, bytes: [u8; HEAD], out: &mut Vec<u8>) -> Result<State, AuthorityError> {
        let head = Head::read(bytes);
        let Head { length, kind, stream, .. } = head;
        match &self.open {
            Some(open) if kind != CONTINUATION || stream != open.stream => {
                return Err(AuthorityError::Interrupted { kind, stream, expected: open.stream });
            }
            None if kind == CONTINUATION => return Err(AuthorityError::Unexpected { stream }),
            Some(open) if open.frames >= MOST_FRAMES => {
                return Err(AuthorityError::TooManyFrames { stream });
            }
            Some(_) => {}
            None if kind == HEADERS => {}
            None => {
                out.extend_from_slice(&bytes);
                return Ok(passes(length));
            }
        }
        let before = self.open.as_ref().map_or(0, |open| open.fragments.len());
        if before + length > MOST_BLOCK + BESIDE_BLOCK {
            return Err(AuthorityError::BlockTooLong { stream });
        }
        if length > 0 {
            return Ok(State::Gathers(head, Vec::with_capacity(length)));
        }
        self.gathered(head, &[], out)?;
        Ok(BETWEEN_FRAMES)
    }

    /// Takes a complete frame of a header block.
    fn gathered(
        &mut self,
        head: Head,
        payload: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), AuthorityError> {
        let mut open = match self.open.take() {
            Some(mut open) => {
                open.fragments.extend_from_slice(payload);
                open
            }
            None => OpenBlock::begin(head, payload)?,
        };
        open.frames += 1;
        let stream = open.stream;
        if open.fragments.len() > MOST_BLOCK {
            return Err(AuthorityError::BlockTooLong { stream });
        }
        if !head.is_last_of_block() {
            self.open = Some(open);
            return Ok(());
        }
        let block = self.blocks.rewrite(&open.fragments).map_err(|bad| match bad {
            BadBlock::Malformed(reason) => AuthorityError::Malformed { stream, reason },
            BadBlock::TooLong => AuthorityError::ListTooLong { stream },
        })?;
        open.write(&block, out);
        Ok(())
    }
}

impl OpenBlock {
    fn begin(head: Head, payload: &[u8]) -> Result<Self, AuthorityError> {
        let Head { length, flags, stream, .. } = head;
        let short = AuthorityError::FrameTooShort { stream, length };
        let mut rest = payload;
        let mut padding = 0;
        if flags & PADDED != 0 {
            let (&first, others) = rest.split_first().ok_or(short.clone())?;
            (padding, rest) = (usize::from(first), others);
        }
        let priority = if flags & PRIORITY == 0 { 0 } else { PRIORITY_LENGTH };
        let (priority, rest) = rest.split_at_checked(priority).ok_or(short.clone())?;
        let end = rest.len().checked_sub(padding).ok_or(short)?;
        let (priority, fragments) = (priority.to_vec(), rest[..end].to_vec());
        Ok(Self { stream, flags: flags & !(PADDED | END_HEADERS), priority, fragments, frames: 0 })
    }

    /// Writes the block in frames that every receiver accepts, without padding.
    fn write(&self, block: &[u8], out: &mut Vec<u8>) {
        let room = MOST_PAYLOAD - self.priority.len();
        let (first, rest) = block.split_at(block.len().min(room));
        let last = |is_last| if is_last { END_HEADERS } else { 0 };
        let flags = self.flags | last(rest.is_empty());
        frame::write(out, HEADERS, flags, self.stream, &[&self.priority, first]);
        let mut pieces = rest.chunks(MOST_PAYLOAD).peekable();
        while let Some(piece) = pieces.next() {
            let flags = last(pieces.peek().is_none());
            frame::write(out, CONTINUATION, flags, self.stream, &[piece]);
        }
    }
}

/// Splits off at most `most` bytes.
fn take<'a>(bytes: &mut &'a [u8], most: usize) -> &'a [u8] {
    let (taken, rest) = bytes.split_at(bytes.len().min(most));
    *bytes = rest;
    taken
}

fn passes(left: usize) -> State {
    if left > 0 { State::Passes(left) } else { BETWEEN_FRAMES }
}
