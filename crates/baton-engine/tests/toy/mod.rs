//! A model small enough to be understood: it keeps real KV in real blocks, and each token that it samples is a function of all KV that
//! it reads through the block table. A stale, misplaced or reused block changes the text.
#![allow(dead_code, reason = "each test file uses its part")]

pub mod describe;
pub mod pair;
pub mod solo;

use baton_engine::{Batch, HandOff, ModelRunner, Request, RunnerError, StepResult};
use baton_types::{BlockId, CacheSalt, SamplingParams, SeqId, TokenId};

/// Few enough that stop tokens and equal prefixes come up by chance.
pub const VOCABULARY: u64 = 50;
pub const STOP: TokenId = TokenId(13);

#[derive(Debug)]
pub struct ToyRunner {
    block_tokens: usize,
    /// One value a position.
    pub kv: Vec<u64>,
}

impl ToyRunner {
    pub fn new(num_blocks: u32, block_tokens: usize) -> Self {
        Self { block_tokens, kv: vec![0xdead; num_blocks as usize * block_tokens] }
    }

    fn slot(&self, table: &[BlockId], position: usize) -> usize {
        table[position / self.block_tokens].index() * self.block_tokens + position % self.block_tokens
    }
}

impl ModelRunner for ToyRunner {
    fn run(&mut self, batch: &Batch) -> Result<StepResult, RunnerError> {
        let mut sampled = Vec::new();
        for entry in &batch.entries {
            assert_eq!(entry.table.len(), entry.end().div_ceil(self.block_tokens), "covers, and no more");
            let start = entry.start as usize;
            for (i, token) in entry.tokens.iter().enumerate() {
                let position = start + i;
                let before = match position {
                    0 => 0,
                    _ => self.kv[self.slot(&entry.table, position - 1)],
                };
                let slot = self.slot(&entry.table, position);
                self.kv[slot] = next_kv(before, position, *token);
            }
            if entry.sample.is_some() {
                let kv = (0..entry.end()).map(|position| self.kv[self.slot(&entry.table, position)]);
                sampled.push((entry.seq, sample(kv)));
            }
        }
        Ok(StepResult { step: batch.step, sampled })
    }
}

fn mix(a: u64, b: u64) -> u64 {
    let mut z = (a ^ b.rotate_left(32)).wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn next_kv(before: u64, position: usize, token: TokenId) -> u64 {
    mix(mix(before, position as u64), u64::from(token.0))
}

fn sample(kv: impl Iterator<Item = u64>) -> TokenId {
    TokenId((kv.fold(0, mix) % VOCABULARY) as u32)
}

/// What the toy model says after a prompt, computed without blocks, batches or engines.
pub fn oracle(request: &Request, longest: usize) -> Vec<TokenId> {
    let mut tokens = request.prompt.clone();
    let mut said = Vec::new();
    while said.len() < request.max_tokens as usize && tokens.len() < longest {
        let mut kv = Vec::new();
        for (position, token) in tokens.iter().enumerate() {
            kv.push(next_kv(kv.last().copied().unwrap_or(0), position, *token));
        }
        let token = sample(kv.into_iter());
        tokens.push(token);
        said.push(token);
        if said.len() >= request.min_tokens as usize && request.stop_tokens.contains(&token) {
            break;
        }
    }
    said
}

/// A greedy request without stop tokens.
pub fn request(seq: u64, prompt: Vec<TokenId>, max_tokens: u32) -> Request {
    Request {
        seq: SeqId(seq),
        prompt,
        salt: CacheSalt::default(),
        max_tokens,
        min_tokens: 0,
        stop_tokens: Vec::new(),
        sampling: SamplingParams::GREEDY,
        hand_off: HandOff::None,
        reuse: None,
        retention: None,
    }
}

/// The `family` decides the tokens, so that two prompts of one family share their beginning.
pub fn prompt(family: u64, len: usize) -> Vec<TokenId> {
    (0..len as u64).map(|i| TokenId((mix(family, i) % VOCABULARY) as u32)).collect()
}

/// Small, seeded, and the same on every machine.
#[derive(Debug)]
pub struct Dice(pub u64);

impl Dice {
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(1);
        mix(self.0, 0x5eed) % n
    }

    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}
