//! How much of an engine is simulated: down to its KV's bytes, or down to its blocks.

use baton_engine::{Batch, ModelRunner, StepResult};
use baton_model::{EmulatedRunner, KvMemory};
use baton_types::{KvLayout, TokenId};

use crate::ask::Ask;
use crate::client::whole_answer;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Depth {
    /// Tokens come out of the KV's bytes, and everything is checked after each input.
    Bytes,
    /// For more and longer prompts than that has time for: the cores decide the same, no byte of KV moves, and only the answers and
    /// who may touch which block are checked.
    Blocks,
}

/// What computes at a node.
#[derive(Debug)]
pub(crate) enum Runner {
    Emulated(EmulatedRunner),
    /// A token follows from the one before it and its place.
    Counting,
}

impl Runner {
    /// # Panics
    /// If the core asked for a step that cannot be computed.
    pub fn run(&mut self, batch: &Batch) -> StepResult {
        match self {
            Self::Emulated(runner) => runner.run(batch).expect("a step stays inside the pool"),
            Self::Counting => {
                let samples = batch.entries.iter().filter(|entry| entry.sample.is_some());
                let token = |entry: &baton_engine::BatchEntry| {
                    let last = *entry.tokens.last().expect("an entry has tokens");
                    (entry.seq, token_after(last, entry.end()))
                };
                StepResult { step: batch.step, sampled: samples.map(token).collect() }
            }
        }
    }

    /// The KV, if there are bytes of it.
    pub fn memory(&self) -> Option<KvMemory> {
        match self {
            Self::Emulated(runner) => Some(runner.memory().clone()),
            Self::Counting => None,
        }
    }
}

impl Depth {
    /// What an undisturbed engine says to that.
    pub fn answer(self, ask: &Ask, layout: &KvLayout) -> Vec<TokenId> {
        match self {
            Self::Bytes => whole_answer(ask, layout),
            Self::Blocks => {
                let mut last = ask.prompt.last().copied().unwrap_or_default();
                let places = ask.prompt.len()..ask.prompt.len() + ask.max_tokens as usize;
                let next = |place| {
                    last = token_after(last, place);
                    last
                };
                places.map(next).collect()
            }
        }
    }
}

fn token_after(last: TokenId, place: usize) -> TokenId {
    TokenId((last.0 ^ place as u32).wrapping_mul(0x9e37_79b1).rotate_left(13))
}
