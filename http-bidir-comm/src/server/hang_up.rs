//! Notices at once that a caller has gone.
//!
//! hyper reports the end of a connection while a handler is still busy. Poem 3.1 then goes on
//! waiting for that handler, and for a long poll this may take as long as the poll. Therefore, a
//! connection whose reading side has ended also refuses to be written to: hyper fails a second
//! time, Poem gives up, and the handler is dropped.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A connection that ends when its peer has finished sending. It holds a `P` until it is closed.
#[derive(Debug)]
pub struct HangUp<S, P = ()> {
    stream: S,
    ended: bool,
    // Dropped after the stream.
    _permit: P,
}

impl<S, P> HangUp<S, P> {
    pub(super) fn new(stream: S, permit: P) -> Self {
        Self { stream, ended: false, _permit: permit }
    }

    fn check(&self) -> io::Result<()> {
        if self.ended { Err(io::ErrorKind::BrokenPipe.into()) } else { Ok(()) }
    }
}

impl<S: AsyncRead + Unpin, P: Unpin> AsyncRead for HangUp<S, P> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let asked = buffer.remaining() > 0;
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        self.ended |= asked && buffer.filled().len() == before;
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin, P: Unpin> AsyncWrite for HangUp<S, P> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check()?;
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check()?;
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
