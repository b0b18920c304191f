//! The stream under a connection: bytes that were read ahead, and a limit on how long a write may stand
//! still.
//!
//! A peer that stops reading blocks its connection's writes for ever; TCP itself notices only a dead peer,
//! not an idle one. [`Guarded`] fails a write that made no progress for its limit, which ends the connection
//! and everything that is served on it. A connection with nothing to write is never touched.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

pub struct Guarded<T> {
    inner: T,
    /// Read before the TLS layer came; handed out first.
    ahead: Vec<u8>,
    handed: usize,
    limit: Duration,
    /// Runs while a write is blocked.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl<T> Guarded<T> {
    pub fn new(inner: T, ahead: Vec<u8>, limit: Duration) -> Guarded<T> {
        Guarded { inner, ahead, handed: 0, limit, stalled: None }
    }

    fn judge<R>(&mut self, cx: &mut Context<'_>, polled: Poll<io::Result<R>>) -> Poll<io::Result<R>> {
        if polled.is_ready() {
            self.stalled = None;
            return polled;
        }
        let limit = self.limit;
        let timer =
            self.stalled.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(Instant::now() + limit)));
        ready!(timer.as_mut().poll(cx));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the peer stopped reading")))
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Guarded<T> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let left = &this.ahead[this.handed..];
        if !left.is_empty() {
            let take = left.len().min(buffer.remaining());
            buffer.put_slice(&left[..take]);
            this.handed += take;
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut this.inner).poll_read(cx, buffer)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Guarded<T> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let polled = Pin::new(&mut this.inner).poll_write(cx, bytes);
        this.judge(cx, polled)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let polled = Pin::new(&mut this.inner).poll_flush(cx);
        this.judge(cx, polled)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let polled = Pin::new(&mut this.inner).poll_shutdown(cx);
        this.judge(cx, polled)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let polled = Pin::new(&mut this.inner).poll_write_vectored(cx, buffers);
        this.judge(cx, polled)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[tokio::test(start_paused = true)]
    async fn a_write_that_stands_still_fails_and_a_moving_one_does_not() {
        let (near, mut far) = tokio::io::duplex(8);
        let mut near = Guarded::new(near, b"ab".to_vec(), Duration::from_secs(1));
        far.write_all(b"cd").await.unwrap();
        let mut seen = [0u8; 4];
        near.read_exact(&mut seen).await.unwrap();
        assert_eq!(&seen, b"abcd");

        let slow = tokio::spawn(async move {
            let mut seen = vec![0u8; 4];
            for _ in 0..4 {
                tokio::time::sleep(Duration::from_millis(700)).await;
                far.read_exact(&mut seen).await.unwrap();
            }
            far
        });
        near.write_all(&[7; 24]).await.unwrap();
        let _far = slow.await.unwrap();
        let failed = near.write_all(&[7; 64]).await.unwrap_err();
        assert_eq!(failed.kind(), io::ErrorKind::TimedOut);
    }
}
