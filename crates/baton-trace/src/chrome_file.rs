//! The file of a Chrome trace: a JSON array with an event on each line, which several processes write at the same time.
//!
//! Lines are only ever appended, whole ones in one write, so they do not mix. The array's end is missing until the last process has
//! gone, or for good if it was killed: Perfetto and chrome://tracing do not mind.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;

use rustix::fs::{FlockOperation, flock};

use crate::error::TraceError;

const BEGIN: &[u8] = b"[\n";
const END: &[u8] = b"]\n";

#[derive(Debug)]
pub struct TraceFile(File);

impl TraceFile {
    /// A new trace; what was in the file is gone.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn create(path: &Path) -> Result<Self, TraceError> {
        // Truncated only where it can be written, and not before.
        Self::open(path, true)
    }

    /// To add to the trace that others write, or to begin it.
    ///
    /// # Errors
    /// If it cannot be written, or is complete already.
    pub fn append(path: &Path) -> Result<Self, TraceError> {
        Self::open(path, false)
    }

    fn open(path: &Path, anew: bool) -> Result<Self, TraceError> {
        let failed = |error| TraceError::File { path: path.to_owned(), error };
        let mut file = OpenOptions::new().read(true).append(true).create(true).open(path).map_err(failed)?;
        // Whoever comes first begins the array; the others must not write before that.
        flock(&file, FlockOperation::LockExclusive).map_err(|error| failed(error.into()))?;
        if anew {
            file.set_len(0).map_err(failed)?;
        }
        let closed = match file.metadata().map_err(failed)?.len() {
            0 => file.write_all(BEGIN).map(|()| false),
            _ => ends_with(&mut file, END),
        };
        flock(&file, FlockOperation::Unlock).map_err(|error| failed(error.into()))?;
        if closed.map_err(failed)? { Err(TraceError::Closed(path.to_owned())) } else { Ok(Self(file)) }
    }

    /// Appends whole lines, each an event and a comma.
    ///
    /// # Errors
    /// The operating system's.
    pub fn write(&mut self, lines: &[u8]) -> io::Result<()> {
        self.0.write_all(lines)
    }

    /// Ends the array: from here on the file is JSON to the letter, and nobody may add to it.
    ///
    /// # Errors
    /// The operating system's.
    pub fn close(mut self) -> io::Result<()> {
        // An event without a comma has to come last. Of a process that does nothing, this one shows nothing.
        let pid = std::process::id();
        let last = format!(
            "{{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":{pid},\"args\":{{\"name\":\"baton\"}}}}\n]\n"
        );
        self.0.write_all(last.as_bytes())
    }
}

fn ends_with(file: &mut File, end: &[u8]) -> io::Result<bool> {
    let from = file.metadata()?.len().saturating_sub(end.len() as u64);
    file.seek(SeekFrom::Start(from))?;
    let mut tail = Vec::new();
    file.read_to_end(&mut tail)?;
    Ok(tail == end)
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn several_processes_write_one_array() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("trace.json");
        std::fs::write(&path, "an older trace").unwrap();
        let whole = TraceFile::create(&path).unwrap();
        let mut writers = [TraceFile::append(&path).unwrap(), TraceFile::append(&path).unwrap()];
        for i in 0..4 {
            writers[i % 2].write(format!("{{\"name\":\"{i}\"}},\n").as_bytes()).unwrap();
        }
        whole.close().unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let events: Vec<Value> = serde_json::from_str(&text).unwrap();
        let names: Vec<&str> = events.iter().filter_map(|event| event["name"].as_str()).collect();
        assert_eq!(names, ["0", "1", "2", "3", "process_name"]);
    }

    #[test]
    fn a_complete_trace_is_not_added_to_and_one_that_was_cut_off_is() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("trace.json");
        TraceFile::append(&path).unwrap().write(b"{},\n").unwrap();
        TraceFile::append(&path).unwrap().close().unwrap();
        assert!(matches!(TraceFile::append(&path), Err(TraceError::Closed(_))));
        let nowhere = dir.path().join("none").join("trace.json");
        assert!(matches!(TraceFile::append(&nowhere), Err(TraceError::File { .. })));
    }
}
