//! Recorded requests. Each format has a reader that gives its records one by one, and a way to make conversations of them.

pub mod figures;
mod key_set;
pub mod mooncake;
pub mod sharegpt;
pub mod weka;
pub mod weka_raw;

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use flate2::read::MultiGzDecoder;

use crate::conversation::Conversation;
pub use figures::Figures;

/// Which format a trace has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceKind {
    Mooncake,
    Weka,
    WekaRaw,
    ShareGpt,
}

impl TraceKind {
    /// Looks at a file's beginning.
    ///
    /// # Errors
    /// If it cannot be read or is of no known kind.
    pub fn of(path: &Path) -> Result<Self, TraceError> {
        look(path).map(|(kind, _)| kind)
    }
    pub const fn name(self) -> &'static str {
        match self {
            Self::Mooncake => "mooncake",
            Self::Weka => "weka",
            Self::WekaRaw => "weka_raw",
            Self::ShareGpt => "sharegpt",
        }
    }

    /// Whether the trace says when its sessions began, so that it can be replayed as it was.
    pub const fn has_arrivals(self) -> bool {
        matches!(self, Self::Mooncake)
    }
}

/// Why a trace cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    #[error("cannot read {path}: {error}")]
    Io { path: PathBuf, error: std::io::Error },
    #[error("record {record}: {what}")]
    Record { record: u64, what: String },
    #[error(
        "{path} is no trace of a known kind: Mooncake jsonl, WEKA csv or session json, ShareGPT-like json"
    )]
    Unknown { path: PathBuf },
    #[error("{path} holds no request")]
    Empty { path: PathBuf },
}

impl TraceError {
    fn record(record: u64, what: impl ToString) -> Self {
        Self::Record { record, what: what.to_string() }
    }
}

/// A trace, read whole. Prompts are keys of blocks, so even a large one is small.
#[derive(Clone, Debug)]
pub struct Trace {
    pub kind: TraceKind,
    /// The file's name.
    pub name: String,
    pub conversations: Vec<Conversation>,
}

/// Enough of a file to tell what it is.
const HEAD_BYTES: usize = 4096;

impl Trace {
    /// Reads a file of any known kind, packed by gzip or not.
    ///
    /// # Errors
    /// If it cannot be read, is of no known kind, has a record that makes no sense, or none at all.
    pub fn read(path: &Path) -> Result<Self, TraceError> {
        let (kind, whole) = look(path)?;
        let conversations = match kind {
            TraceKind::Mooncake => mooncake::conversations(whole)?,
            TraceKind::Weka => weka::conversations(whole)?,
            TraceKind::WekaRaw => weka_raw::conversations(whole)?,
            TraceKind::ShareGpt => sharegpt::conversations(whole)?,
        };
        if conversations.is_empty() {
            return Err(TraceError::Empty { path: path.to_owned() });
        }
        let name = path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        Ok(Self { kind, name, conversations })
    }
}

/// What a file is, and all of its text, unpacked.
fn look(path: &Path) -> Result<(TraceKind, impl BufRead + use<>), TraceError> {
    let io = |error| TraceError::Io { path: path.to_owned(), error };
    let mut text = open(path).map_err(io)?;
    let mut head = Vec::new();
    text.by_ref().take(HEAD_BYTES as u64).read_to_end(&mut head).map_err(io)?;
    let kind = detect(&head).ok_or_else(|| TraceError::Unknown { path: path.to_owned() })?;
    Ok((kind, BufReader::new(std::io::Cursor::new(head).chain(text))))
}

fn open(path: &Path) -> std::io::Result<Box<dyn BufRead>> {
    let mut file = BufReader::new(File::open(path)?);
    let packed = file.fill_buf()?.starts_with(&[0x1f, 0x8b]);
    Ok(if packed { Box::new(BufReader::new(MultiGzDecoder::new(file))) } else { Box::new(file) })
}

fn detect(head: &[u8]) -> Option<TraceKind> {
    let text = String::from_utf8_lossy(head);
    let has = |word: &str| text.contains(word);
    match text.trim_start().chars().next()? {
        '{' if has("\"hash_ids\"") && has("\"timestamp\"") => Some(TraceKind::Mooncake),
        '{' if has("\"block_size\"") && has("\"requests\"") => Some(TraceKind::WekaRaw),
        '[' | '{' if has("\"conversations\"") || has("\"messages\"") => Some(TraceKind::ShareGpt),
        't' if text.starts_with("trace,") && has("prefix_hit_blocks") => Some(TraceKind::Weka),
        _ => None,
    }
}
