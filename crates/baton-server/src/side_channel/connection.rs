//! One connection of the side channel: frames in and out until either side ends it.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use baton_proto::{ConnId, Input, codec};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::timeout;

use super::door::{PeerStream, unexpected_opening};
use crate::inbox::Inbox;

/// Frames that wait to be written on one connection, and their bytes; one that does not fit closes the
/// connection.
const MAX_QUEUED_FRAMES: usize = 1024;
const MAX_QUEUED_BYTES: usize = 4 * codec::MAX_FRAME_BYTES;
/// How long one frame may take to be written, or to arrive once it has begun.
const FRAME_TIMEOUT: Duration = Duration::from_secs(10);
/// The first frames of a connection come from a stranger and are short: Hello and Welcome. Until they are
/// there it cannot make us hold more.
const HANDSHAKE_FRAMES: usize = 2;
const MAX_HANDSHAKE_FRAME_BYTES: usize = codec::MAX_METADATA_BYTES + 1024;

/// The engine's end of a connection's queue. Dropping it closes the connection behind what is queued.
#[derive(Debug)]
pub(super) struct FrameSender {
    frames: mpsc::Sender<Vec<u8>>,
    queued_bytes: Arc<AtomicUsize>,
}

/// The connection's end.
#[derive(Debug)]
pub(super) struct FrameQueue {
    frames: mpsc::Receiver<Vec<u8>>,
    queued_bytes: Arc<AtomicUsize>,
}

pub(super) fn frames() -> (FrameSender, FrameQueue) {
    let (sender, receiver) = mpsc::channel(MAX_QUEUED_FRAMES);
    let queued_bytes = Arc::new(AtomicUsize::new(0));
    let queue = FrameQueue { frames: receiver, queued_bytes: queued_bytes.clone() };
    (FrameSender { frames: sender, queued_bytes }, queue)
}

impl FrameSender {
    /// False if the queue has no place. A connection that is over takes everything: its end is being told.
    pub fn send(&self, frame: Vec<u8>) -> bool {
        let bytes = frame.len();
        if self.queued_bytes.load(Ordering::Relaxed) + bytes > MAX_QUEUED_BYTES {
            return false;
        }
        self.queued_bytes.fetch_add(bytes, Ordering::Relaxed);
        !matches!(self.frames.try_send(frame), Err(mpsc::error::TrySendError::Full(_)))
    }
}

/// Reads and writes until the peer closes, the queue's sender is dropped, or something is wrong.
pub(super) async fn carry(
    stream: Box<dyn PeerStream>,
    conn: ConnId,
    queue: FrameQueue,
    inbox: &Inbox,
    received: &Arc<Semaphore>,
) -> io::Result<()> {
    let (reader, writer) = tokio::io::split(stream);
    tokio::select! {
        read = read_frames(BufReader::new(reader), conn, inbox, received) => read,
        written = write_frames(writer, queue) => written,
    }
}

async fn read_frames(
    mut stream: impl AsyncRead + Unpin,
    conn: ConnId,
    inbox: &Inbox,
    received: &Arc<Semaphore>,
) -> io::Result<()> {
    for count in 0_usize.. {
        let limit = if count < HANDSHAKE_FRAMES { MAX_HANDSHAKE_FRAME_BYTES } else { codec::MAX_FRAME_BYTES };
        let Some(frame) = read_frame(&mut stream, limit).await? else { break };
        // A peer that sends faster than the engine takes waits here. One permit at least, so that empty
        // frames count too.
        let share = u32::try_from(frame.len().max(1)).expect("a frame is shorter than its limit");
        let Ok(share) = received.clone().acquire_many_owned(share).await else { break };
        let input = baton_engine::Input::Proto(Input::Received { conn, frame });
        inbox.send_budgeted(input, share).await;
    }
    Ok(())
}

/// The next frame, or nothing at the end of the stream. Memory grows with what has arrived, not with what was
/// announced.
async fn read_frame(stream: &mut (impl AsyncRead + Unpin), limit: usize) -> io::Result<Option<Vec<u8>>> {
    let first = match stream.read_u8().await {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        first => first?,
    };
    let rest = async {
        let mut len = [first, 0, 0, 0];
        stream.read_exact(&mut len[1..]).await?;
        let opening = unexpected_opening(len);
        let len = u32::from_le_bytes(len);
        if len as usize > limit {
            let why = opening.map_or_else(|| format!("it sends a frame of {len} bytes"), str::to_owned);
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        let mut frame = Vec::new();
        stream.take(u64::from(len)).read_to_end(&mut frame).await?;
        if frame.len() < len as usize {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(Some(frame))
    };
    timeout(FRAME_TIMEOUT, rest).await?
}

async fn write_frames(mut stream: impl AsyncWrite + Unpin, mut queue: FrameQueue) -> io::Result<()> {
    while let Some(frame) = queue.frames.recv().await {
        timeout(FRAME_TIMEOUT, write_frame(&mut stream, &frame)).await??;
        queue.queued_bytes.fetch_sub(frame.len(), Ordering::Relaxed);
    }
    timeout(FRAME_TIMEOUT, stream.shutdown()).await?
}

/// One write for length and payload: with TCP_NODELAY two would be two packets.
async fn write_frame(stream: &mut (impl AsyncWrite + Unpin), frame: &[u8]) -> io::Result<()> {
    let len = u32::try_from(frame.len()).map_err(io::Error::other)?;
    let mut bytes = Vec::with_capacity(4 + frame.len());
    bytes.extend(len.to_le_bytes());
    bytes.extend(frame);
    stream.write_all(&bytes).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn frames_are_read_as_written_and_limits_hold() {
        let mut bytes = Vec::new();
        for frame in [&b"hello"[..], b"", b"x"] {
            write_frame(&mut bytes, frame).await.unwrap();
        }
        let mut reader = &bytes[..];
        for frame in [&b"hello"[..], b"", b"x"] {
            assert_eq!(read_frame(&mut reader, 5).await.unwrap().as_deref(), Some(frame));
        }
        assert_eq!(read_frame(&mut reader, 5).await.unwrap(), None);

        assert!(read_frame(&mut &bytes[..], 4).await.is_err(), "longer than the limit");
        assert!(read_frame(&mut &bytes[..7], 5).await.is_err(), "cut off");
        assert!(read_frame(&mut &bytes[..2], 5).await.is_err(), "cut off in its length");
    }

    #[tokio::test]
    async fn a_queue_is_bounded_in_frames_and_in_bytes() {
        let (sender, queue) = frames();
        assert!((0..MAX_QUEUED_FRAMES).all(|_| sender.send(vec![0])));
        assert!(!sender.send(vec![0]));
        drop(queue);

        let (sender, _queue) = frames();
        assert!((0..4).all(|_| sender.send(vec![0; codec::MAX_FRAME_BYTES])));
        assert!(!sender.send(vec![0]));
    }
}
