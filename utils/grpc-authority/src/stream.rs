//! The wrapper of an accepted connection.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::rewriter::{AuthorityError, Rewriter};

/// Bytes per read.
const CHUNK: usize = 8 << 10;

/// A server's end of a connection. Reading returns the client's bytes with valid authorities; writing passes bytes
/// through.
///
/// If the client violates HTTP/2, reading ends with [`io::ErrorKind::InvalidData`] around an [`AuthorityError`].
#[derive(Debug)]
pub struct AuthorityStream<S> {
    inner: S,
    rewriter: Rewriter,
    /// Bytes as received.
    raw: Box<[u8]>,
    /// Rewritten bytes; those from `read` on have not been read.
    ready: Vec<u8>,
    read: usize,
    /// The error to return after all rewritten bytes.
    fault: Option<AuthorityError>,
}

impl<S> AuthorityStream<S> {
    /// Wraps an accepted connection from which nothing was read.
    #[must_use]
    pub fn new(inner: S) -> Self {
        Self::of(inner, Rewriter::default())
    }

    /// Like [`Self::new`], for a server that announces this SETTINGS_HEADER_TABLE_SIZE.
    #[must_use]
    pub fn with_table_size(inner: S, bytes: usize) -> Self {
        Self::of(inner, Rewriter::with_table_size(bytes))
    }

    fn of(inner: S, rewriter: Rewriter) -> Self {
        let raw = vec![0; CHUNK].into_boxed_slice();
        Self { inner, rewriter, raw, ready: Vec::new(), read: 0, fault: None }
    }

    /// The wrapped connection.
    pub const fn get_ref(&self) -> &S {
        &self.inner
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for AuthorityStream<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if buffer.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        while this.read == this.ready.len() {
            if let Some(fault) = &this.fault {
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, fault.clone())));
            }
            this.ready.clear();
            this.read = 0;
            let mut raw = ReadBuf::new(&mut this.raw);
            ready!(Pin::new(&mut this.inner).poll_read(context, &mut raw))?;
            if raw.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
            this.fault = this.rewriter.push(raw.filled(), &mut this.ready).err();
        }
        let rest = &this.ready[this.read..];
        let now = rest.len().min(buffer.remaining());
        buffer.put_slice(&rest[..now]);
        this.read += now;
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for AuthorityStream<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().inner).poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_shutdown(context)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().inner).poll_write_vectored(context, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }
}

#[cfg(feature = "tonic")]
impl<S: tonic::transport::server::Connected> tonic::transport::server::Connected
    for AuthorityStream<S>
{
    type ConnectInfo = S::ConnectInfo;

    fn connect_info(&self) -> Self::ConnectInfo {
        self.inner.connect_info()
    }
}
