//! Mooncake's traces: a JSON object for each request, with the ids of its 512-token blocks. Equal ids are equal prefixes.

use std::io::BufRead;
use std::time::Duration;

use serde::Deserialize;

use super::TraceError;
use crate::conversation::Conversation;
use crate::prompt::Prompt;

pub const BLOCK_TOKENS: u32 = 512;

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct MooncakeRecord {
    /// Milliseconds since the trace began.
    pub timestamp: u64,
    pub input_length: u32,
    pub output_length: u32,
    pub hash_ids: Vec<u64>,
}

/// One record a line.
pub fn records(lines: impl BufRead) -> impl Iterator<Item = Result<MooncakeRecord, TraceError>> {
    lines.lines().zip(1..).filter_map(|(line, number)| {
        let line = match line {
            Ok(line) if line.trim().is_empty() => return None,
            Ok(line) => line,
            Err(error) => return Some(Err(TraceError::record(number, error))),
        };
        Some(serde_json::from_str(&line).map_err(|error| TraceError::record(number, error)))
    })
}

pub(super) fn conversations(lines: impl BufRead) -> Result<Vec<Conversation>, TraceError> {
    records(lines).zip(0..).map(|(record, number)| Ok(conversation(record?, number))).collect()
}

fn conversation(record: MooncakeRecord, number: u32) -> Conversation {
    let MooncakeRecord { timestamp, input_length, output_length, hash_ids } = record;
    let prompt = Prompt::from_keys(input_length, BLOCK_TOKENS, hash_ids, u64::from(number));
    Conversation {
        session: number,
        offset: Duration::from_millis(timestamp),
        ..Conversation::single(prompt, output_length)
    }
}
