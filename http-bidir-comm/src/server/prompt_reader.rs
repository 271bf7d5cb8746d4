//! A stream that cuts off a peer that does not read its answers: unread answers occupy memory.

use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// Longest time in which a peer takes nothing of an answer.
const READ_WITHIN: Duration = Duration::from_secs(5);

/// A stream whose writes fail if they stall.
#[derive(Debug)]
pub(super) struct PromptReader<S> {
    stream: S,
    /// Timer that runs while writes stall.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl<S> PromptReader<S> {
    pub(super) fn new(stream: S) -> Self {
        Self { stream, stalled: None }
    }

    /// Returns the result of a write, or a timeout if writes have stalled for too long.
    fn timed<T>(
        &mut self,
        context: &mut Context<'_>,
        went: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if went.is_ready() {
            self.stalled = None;
            return went;
        }
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep(READ_WITHIN)));
        match stalled.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for PromptReader<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for PromptReader<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let went = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.timed(context, went)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let went = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.timed(context, went)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let went = Pin::new(&mut self.stream).poll_flush(context);
        self.timed(context, went)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Over TLS the shutdown writes a closing alert.
        let went = Pin::new(&mut self.stream).poll_shutdown(context);
        self.timed(context, went)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_does_not_read_is_cut_off() {
        let (near, mut far) = duplex(1024);
        let mut near = PromptReader::new(near);
        near.write_all(&[0; 1024]).await.unwrap();
        let error = near.write_all(&[0; 1]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        // A slow reader is not cut off.
        let mut buffer = [0; 1024];
        far.read_exact(&mut buffer).await.unwrap();
        let reading = tokio::spawn(async move {
            for _ in 0..4096 / 512 {
                sleep(Duration::from_secs(4)).await;
                far.read_exact(&mut [0; 512]).await.unwrap();
            }
            far
        });
        near.write_all(&[0; 4096]).await.unwrap();
        reading.await.unwrap();
    }
}
