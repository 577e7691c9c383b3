//! One step of an engine: what to compute, and what came of it.

use baton_types::{BlockId, SamplingParams, SeqId, TokenId};

/// What one step computes. Entries are independent of one another: an entry's result may not depend on the others (I7).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Batch {
    /// Counts up by one a step.
    pub step: u64,
    pub entries: Vec<BatchEntry>,
}

/// The next tokens of one sequence: a chunk of its prompt, or the one token it generated last.
#[derive(Clone, Debug, PartialEq)]
pub struct BatchEntry {
    pub seq: SeqId,
    /// At least one.
    pub tokens: Vec<TokenId>,
    /// Position of `tokens[0]`; the KV of every position before it is in `table` already.
    pub start: u32,
    /// Covers the positions `0..start + tokens.len()`, in order; the KV of `tokens` is written into it.
    pub table: Vec<BlockId>,
    /// Present if the token after the last of `tokens` is wanted.
    pub sample: Option<SamplingParams>,
}

impl BatchEntry {
    /// How many positions the table holds once the step is done.
    pub fn end(&self) -> usize {
        self.start as usize + self.tokens.len()
    }
}

impl Batch {
    pub fn tokens(&self) -> usize {
        self.entries.iter().map(|entry| entry.tokens.len()).sum()
    }
}

/// What a step gave: one token for each entry that asked for one, in the order of the entries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StepResult {
    pub step: u64,
    pub sampled: Vec<(SeqId, TokenId)>,
}
