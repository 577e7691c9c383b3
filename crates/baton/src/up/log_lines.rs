//! What a child writes: each line goes to the terminal or to a file, and the last ones are kept for the obituary.

use std::collections::VecDeque;
use std::fs::File;
use std::io::Write;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, BufReader};

use super::screen::Screen;

/// Lines that are kept.
const KEPT_LINES: usize = 20;
/// A longer line is cut into lines of this many bytes.
const MAX_LINE_BYTES: u64 = 16 << 10;

/// Where lines go.
#[derive(Debug)]
pub enum Sink {
    /// The terminal, each line behind the prefix.
    Screen {
        screen: Arc<Screen>,
        prefix: String,
    },
    File(File),
}

/// The log of one child; its two streams share it.
#[derive(Clone, Debug)]
pub struct LogLines(Arc<Mutex<Inner>>);

#[derive(Debug)]
struct Inner {
    sink: Sink,
    last: VecDeque<String>,
}

impl LogLines {
    pub fn new(sink: Sink) -> Self {
        Self(Arc::new(Mutex::new(Inner { sink, last: VecDeque::with_capacity(KEPT_LINES) })))
    }

    /// Takes every line of a stream until its end.
    pub async fn pump(self, stream: impl AsyncRead + Unpin) {
        let mut reader = BufReader::new(stream);
        let mut line = Vec::new();
        loop {
            line.clear();
            match (&mut reader).take(MAX_LINE_BYTES).read_until(b'\n', &mut line).await {
                Ok(1..) => self.add(String::from_utf8_lossy(&line).trim_end_matches(['\n', '\r'])),
                Ok(0) | Err(_) => return,
            }
        }
    }

    /// The last lines, oldest first.
    pub fn last(&self) -> Vec<String> {
        self.lock().last.iter().cloned().collect()
    }

    fn add(&self, line: &str) {
        let mut inner = self.lock();
        match &mut inner.sink {
            Sink::Screen { screen, prefix } => screen.line(&format!("{prefix}{line}")),
            // A full disk must not end the system: the last lines are kept all the same.
            Sink::File(file) => drop(writeln!(file, "{line}")),
        }
        if inner.last.len() == KEPT_LINES {
            inner.last.pop_front();
        }
        inner.last.push_back(line.to_owned());
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn lines_are_written_and_the_last_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let log = LogLines::new(Sink::File(File::create(&path).unwrap()));
        let text: String = (0..100).map(|i| format!("line {i}\n")).collect();
        log.clone().pump(text.as_bytes()).await;
        assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        let last = log.last();
        assert_eq!((last.len(), last[0].as_str(), last[19].as_str()), (KEPT_LINES, "line 80", "line 99"));
    }

    #[tokio::test]
    async fn a_line_without_an_end_is_cut_and_foreign_bytes_do_no_harm() {
        let dir = tempfile::tempdir().unwrap();
        let log = LogLines::new(Sink::File(File::create(dir.path().join("log")).unwrap()));
        let mut text = vec![b'x'; 3 * MAX_LINE_BYTES as usize];
        text.extend(b"\xff\xfe end");
        log.clone().pump(&text[..]).await;
        let last = log.last();
        assert_eq!(last.len(), 4);
        assert!(last.iter().all(|line| line.len() <= MAX_LINE_BYTES as usize));
        assert!(last[3].ends_with(" end"));
    }
}
