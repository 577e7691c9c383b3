//! The thread that writes the file, so that nobody else ever waits for a disk.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::chrome_event::Lines;
use crate::chrome_file::TraceFile;
use crate::clock::WallClock;
use crate::error::TraceError;
use crate::span::Span;
use crate::tracer::Process;

/// Spans that may wait to be written (I11); a second's worth of a very busy engine.
const MAX_WAITING: usize = 16 << 10;
/// Lines that are written at once, about.
const WRITE_BYTES: usize = 64 << 10;
/// How often somebody is told that spans are lost.
const COMPLAINT: Duration = Duration::from_secs(10);
/// How long to wait for a place in the queue.
const FULL_PAUSE: Duration = Duration::from_millis(2);

enum Message {
    Span(Box<Span>),
    /// Everything before this must be in the file.
    Flush(SyncSender<()>),
}

/// Dropping it writes what waits.
#[derive(Debug)]
pub(crate) struct ChromeWriter {
    /// Gone first when it is dropped: that is what ends the thread.
    messages: Option<SyncSender<Message>>,
    lost: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl ChromeWriter {
    /// # Errors
    /// If the operating system gives no thread.
    pub fn spawn(file: TraceFile, pid: u32, process: &Process, clock: WallClock) -> Result<Self, TraceError> {
        let (messages, receiver) = sync_channel(MAX_WAITING);
        let lost = Arc::new(AtomicU64::new(0));
        let mut lines = Lines { pid, bytes: Vec::new() };
        lines.process(process);
        let writer = Writer {
            file,
            lines,
            clock,
            named: BTreeSet::new(),
            lost: Arc::clone(&lost),
            told: 0,
            told_at: None,
            broken: false,
        };
        let thread = thread::Builder::new()
            .name("baton-trace".to_owned())
            .spawn(move || writer.run(&receiver))
            .map_err(TraceError::Thread)?;
        Ok(Self { messages: Some(messages), lost, thread: Some(thread) })
    }

    /// Never waits.
    pub fn write(&self, span: Span) {
        let Some(messages) = &self.messages else { return };
        if let Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) =
            messages.try_send(Message::Span(Box::new(span)))
        {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub fn add_lost(&self, spans: u64) {
        self.lost.fetch_add(spans, Ordering::Relaxed);
    }

    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Waits until what was given before is in the file, or for `limit`.
    pub fn flush(&self, limit: Duration) {
        let until = Instant::now() + limit;
        let (done, is_done) = sync_channel(1);
        let Some(messages) = &self.messages else { return };
        while let Err(TrySendError::Full(_)) = messages.try_send(Message::Flush(done.clone())) {
            if Instant::now() >= until {
                return;
            }
            thread::sleep(FULL_PAUSE);
        }
        drop(done);
        // It may take too long, or the thread may be gone.
        let _ = is_done.recv_timeout(until.saturating_duration_since(Instant::now()));
    }
}

impl Drop for ChromeWriter {
    fn drop(&mut self) {
        self.messages = None;
        if let Some(thread) = self.thread.take() {
            // It panics on nothing that a program can help.
            let _ = thread.join();
        }
    }
}

struct Writer {
    file: TraceFile,
    lines: Lines,
    clock: WallClock,
    /// Lanes that have their names: as many as there ever were at once.
    named: BTreeSet<u32>,
    lost: Arc<AtomicU64>,
    /// How many of the lost ones somebody was told of, and when.
    told: u64,
    told_at: Option<Instant>,
    /// A write failed: the file is as it is.
    broken: bool,
}

impl Writer {
    fn run(mut self, messages: &Receiver<Message>) {
        self.write();
        while let Ok(message) = messages.recv() {
            let mut waiting = Vec::new();
            let mut next = Some(message);
            while let Some(message) = next {
                match message {
                    Message::Span(span) => self.add(&span),
                    Message::Flush(done) => waiting.push(done),
                }
                next = if self.lines.bytes.len() < WRITE_BYTES { messages.try_recv().ok() } else { None };
            }
            self.tell_lost(!waiting.is_empty());
            self.write();
            for done in waiting {
                // Whoever waited may have lost patience.
                let _ = done.send(());
            }
        }
        self.tell_lost(true);
        self.write();
    }

    fn add(&mut self, span: &Span) {
        if self.broken {
            self.lost.fetch_add(1, Ordering::Relaxed);
            return;
        }
        if self.named.insert(span.lane.tid()) {
            self.lines.lane(span.lane);
        }
        if !self.lines.span(span) {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn write(&mut self) {
        if !self.broken
            && let Err(error) = self.file.write(&self.lines.bytes)
        {
            self.broken = true;
            tracing::error!(%error, "the trace cannot be written any more");
        }
        self.lines.bytes.clear();
    }

    /// In the log and in the trace itself.
    fn tell_lost(&mut self, now: bool) {
        let lost = self.lost.load(Ordering::Relaxed);
        let due = now || self.told_at.is_none_or(|at| at.elapsed() >= COMPLAINT);
        if lost > self.told && due {
            tracing::warn!(lost, "spans are missing from the trace");
            self.lines.lost(lost - self.told, self.clock.unix_ns(Instant::now()));
            (self.told, self.told_at) = (lost, Some(Instant::now()));
        }
    }
}
