//! WEKA's compact sessions: a row for each request, with how many blocks it has in common with the one before it.
//!
//! A session has a main thread and perhaps sub-agents; each is a conversation. A sub-agent's times count from its own
//! beginning, which is when the request of the main thread above its first row had ended.

use std::collections::BTreeMap;
use std::io::Read;
use std::time::Duration;

use serde::Deserialize;

use super::TraceError;
use crate::conversation::{Ask, Conversation, Turn};
use crate::prompt::{Prompt, Run};

/// Times are in seconds; those that were not recorded are none.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct WekaRecord {
    pub trace: String,
    pub idx: u32,
    /// Name of the sub-agent; empty for the main thread.
    pub sub: String,
    pub t: f64,
    #[serde(rename = "in")]
    pub input: u32,
    #[serde(rename = "out")]
    pub output: u32,
    pub block_size: u32,
    pub nblocks: u32,
    /// Blocks in common with the same thread's previous request.
    pub prefix_hit_blocks: u32,
    pub think_time: Option<f64>,
    pub api_time: Option<f64>,
}

/// One record a row, from text that is unpacked.
pub fn records(text: impl Read) -> impl Iterator<Item = Result<WekaRecord, TraceError>> {
    let rows = csv::Reader::from_reader(text).into_deserialize();
    rows.zip(1..).map(|(row, number)| row.map_err(|error| TraceError::record(number, error)))
}

pub(super) fn conversations(text: impl Read) -> Result<Vec<Conversation>, TraceError> {
    let mut sessions = Sessions::default();
    for (record, number) in records(text).zip(1..) {
        sessions.take(&record?).map_err(|what| TraceError::record(number, what))?;
    }
    sessions.end_session();
    Ok(sessions.done)
}

#[derive(Default)]
struct Sessions {
    done: Vec<Conversation>,
    session: u32,
    trace: String,
    /// The current session's, by sub-agent; in the order of their first rows.
    threads: Vec<Thread>,
    by_sub: BTreeMap<String, usize>,
    /// When the main thread's latest request had ended.
    main_ended_s: f64,
    /// Threads of all sessions: no key of one is another's.
    thread_count: u64,
}

struct Thread {
    conversation: Conversation,
    last: Prompt,
    next_key: u64,
}

impl Sessions {
    fn take(&mut self, record: &WekaRecord) -> Result<(), String> {
        if record.trace != self.trace {
            self.end_session();
            self.trace.clone_from(&record.trace);
        }
        let index = match self.by_sub.get(&record.sub) {
            Some(index) => *index,
            None => self.begin_thread(record)?,
        };
        let thread = &mut self.threads[index];
        let prompt = thread.prompt(record)?;
        let first = thread.conversation.turns.is_empty();
        let think_s = if first { 0.0 } else { record.think_time.unwrap_or(0.0) };
        thread.conversation.turns.push(Turn {
            think: seconds(think_s)?,
            ask: Ask::Whole(prompt),
            // A request that was cut off has no output; an answer has one token at least.
            output_tokens: Some(record.output.max(1)),
        });
        if record.sub.is_empty() {
            self.main_ended_s = record.t + record.api_time.unwrap_or(0.0);
        }
        Ok(())
    }

    fn begin_thread(&mut self, record: &WekaRecord) -> Result<usize, String> {
        let (name, offset_s) = match record.sub.as_str() {
            "" => (self.trace.clone(), record.t),
            sub => (format!("{}/{sub}", self.trace), self.main_ended_s),
        };
        let (session, offset) = (self.session, seconds(offset_s)?);
        // 2^32 blocks are more than any thread has.
        let next_key = self.thread_count << 32;
        self.thread_count += 1;
        self.threads.push(Thread {
            conversation: Conversation { name: Some(name), session, offset, turns: Vec::new() },
            last: Prompt::from_keys(0, record.block_size, [], 0),
            next_key,
        });
        self.by_sub.insert(record.sub.clone(), self.threads.len() - 1);
        Ok(self.threads.len() - 1)
    }

    fn end_session(&mut self) {
        if !self.threads.is_empty() {
            self.session += 1;
        }
        self.done.extend(self.threads.drain(..).map(|thread| thread.conversation));
        self.by_sub.clear();
        self.main_ended_s = 0.0;
    }
}

impl Thread {
    /// What it has in common with the prompt before, and new blocks.
    fn prompt(&mut self, record: &WekaRecord) -> Result<Prompt, String> {
        let WekaRecord { input, block_size, nblocks, prefix_hit_blocks: hits, .. } = *record;
        let had: u32 = self.last.runs.iter().map(|run| run.blocks).sum();
        if block_size == 0 || hits > had || hits > nblocks {
            return Err(format!("{hits} blocks of {nblocks} in common with a prompt of {had}"));
        }
        let mut runs = self.last.prefix(hits);
        let new = nblocks - hits;
        if new > 0 {
            runs.push(Run { first: self.next_key, blocks: new });
            self.next_key += u64::from(new);
        }
        // Unique: there is at most one prompt for each key that was next.
        let tail_key = self.next_key ^ (u64::from(record.idx) << 48);
        self.last = Prompt { tokens: input, block_tokens: block_size, runs, tail_key };
        Ok(self.last.clone())
    }
}

fn seconds(seconds: f64) -> Result<Duration, String> {
    Duration::try_from_secs_f64(seconds).map_err(|error| format!("{seconds} s: {error}"))
}
