//! A stream that gives up on whoever takes nothing.

use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// Writing fails once the other end has not taken a byte for `patience`. Nobody else notices: to TCP, a client that is alive and
/// does not read is in good order for ever.
#[derive(Debug)]
pub(crate) struct Patient<S> {
    stream: S,
    patience: Duration,
    /// While the other end takes nothing.
    stall: Option<Pin<Box<Sleep>>>,
}

impl<S> Patient<S> {
    pub fn new(stream: S, patience: Duration) -> Self {
        Self { stream, patience, stall: None }
    }

    /// What came of a write, or the end of the patience with it.
    fn watch(
        &mut self,
        written: Poll<io::Result<usize>>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        if written.is_ready() {
            self.stall = None;
            return written;
        }
        let stall = self.stall.get_or_insert_with(|| Box::pin(sleep(self.patience)));
        stall.as_mut().poll(context).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Patient<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Patient<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.watch(written, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, parts);
        self.watch(written, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
    use tokio::time::{Instant, timeout};

    use super::*;

    #[tokio::test]
    async fn writing_to_who_takes_nothing_ends_and_to_who_is_slow_does_not() {
        let patience = Duration::from_millis(200);
        let (ours, mut theirs) = duplex(16);
        let mut patient = Patient::new(ours, patience);
        let slow = tokio::spawn(async move {
            for _ in 0..8 {
                tokio::time::sleep(patience / 4).await;
                theirs.read_exact(&mut [0; 8]).await.unwrap();
            }
            theirs
        });
        // Twice the patience in all, and never so long without a byte.
        patient.write_all(&[7; 64]).await.unwrap();
        let _theirs = slow.await.unwrap();
        let begun = Instant::now();
        let written = timeout(patience * 20, patient.write_all(&[7; 64])).await.expect("it ends");
        assert_eq!(written.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert!(begun.elapsed() >= patience);
    }
}
