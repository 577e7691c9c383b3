//! The emulated model: real KV bytes, and a next token that is a function of every one of them.
//!
//! It computes no attention, but it is as strict as a model about its KV: each position's bytes depend on the token, the
//! position and the stored bytes of the position before, and each sampled token on all bytes of all positions, read through
//! the block table. A stale, misplaced, torn or reused block changes the text from there on.
#![allow(unsafe_code)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use baton_engine::{Batch, BatchEntry, ModelRunner, RunnerError, StepResult};
use baton_types::{BlockId, HeapRegion, KvDtype, KvLayout, KvOrder, SamplingParams, SeqId, TokenId};
use serde::{Deserialize, Serialize};

use crate::cost_profile::CostProfile;
use crate::kv_memory::{KvMemory, KvMemoryError};

/// What stands for weights and configuration: two equal values give equal text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EmulatedModel {
    pub vocab: u32,
    /// Sampled ids are in `first_token..vocab`, so that special tokens below are never sampled.
    pub first_token: u32,
    /// Two seeds are two models: their KV means nothing to one another.
    pub weights_seed: u64,
}

impl Default for EmulatedModel {
    fn default() -> Self {
        Self { vocab: 32_000, first_token: 256, weights_seed: 0 }
    }
}

impl EmulatedModel {
    /// A small geometry for it: 512 bytes of KV a token.
    pub fn default_layout(block_tokens: u32) -> KvLayout {
        let dtype = KvDtype::F32;
        KvLayout {
            layers: 2,
            kv_heads: 1,
            head_dim: 32,
            dtype,
            block_tokens,
            ranks: 1,
            order: KvOrder::BlockMajor,
        }
    }

    /// What must be equal on two engines that exchange its KV.
    pub fn fingerprint(&self) -> String {
        format!("emulated-{}-{}-{:016x}", self.vocab, self.first_token, self.weights_seed)
    }
}

/// Why there can be no emulated runner.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EmulatedError {
    #[error("the emulated model samples ids in {first_token}..{vocab}, which is empty")]
    NoTokens { first_token: u32, vocab: u32 },
    #[error("a head of one token has {0} bytes; the emulated model needs a multiple of 8")]
    HeadBytes(usize),
    #[error(transparent)]
    Memory(#[from] KvMemoryError),
}

/// Runs an [`EmulatedModel`] over a KV pool, taking no time of its own; [`Paced`] adds the time.
#[derive(Debug)]
pub struct EmulatedRunner {
    model: EmulatedModel,
    memory: KvMemory,
    /// Bytes of one head of one token.
    slot_bytes: usize,
    /// Heads of one token, over K and V and all layers.
    slots: usize,
}

impl EmulatedRunner {
    pub fn new(model: EmulatedModel, memory: KvMemory) -> Result<Self, EmulatedError> {
        if model.first_token >= model.vocab {
            return Err(EmulatedError::NoTokens { first_token: model.first_token, vocab: model.vocab });
        }
        let layout = memory.layout();
        let slot_bytes = layout.head_dim as usize * layout.dtype.bytes();
        if !slot_bytes.is_multiple_of(8) {
            return Err(EmulatedError::HeadBytes(slot_bytes));
        }
        let slots = layout.token_bytes() / slot_bytes;
        Ok(Self { model, slot_bytes, slots, memory })
    }

    pub fn memory(&self) -> &KvMemory {
        &self.memory
    }

    /// Where the words of slot `slot` of `position` are.
    fn slot(&self, table: &[BlockId], position: usize, slot: usize) -> *mut u64 {
        let layout = self.memory.layout();
        let block_tokens = layout.block_tokens as usize;
        let block = self.memory.head_run(table[position / block_tokens], 0, 0, 0);
        let offset = slot * layout.head_run_bytes() + position % block_tokens * self.slot_bytes;
        // SAFETY: a block has `slots` runs of `head_run_bytes`, and a run has a slot for each token in the block. Words are
        // aligned: the region is to 64 bytes, and blocks, runs and slots are multiples of 8 bytes (`new`).
        unsafe { block.as_ptr().add(offset).cast() }
    }

    fn digest_slot(&self, table: &[BlockId], position: usize, slot: usize) -> u64 {
        let words = self.slot(table, position, slot);
        // SAFETY: `slot_bytes` initialised bytes start there, and this sequence may read its blocks (I3).
        unsafe { digest(words, self.slot_bytes / 8, key(position, slot)) }
    }

    /// A function of every stored byte of `position`.
    fn digest_position(&self, table: &[BlockId], position: usize) -> u64 {
        // A sum of mixed values: cheap, and each value knows its position and slot.
        (0..self.slots).fold(0, |sum, slot| sum.wrapping_add(self.digest_slot(table, position, slot)))
    }

    fn write_position(&self, table: &[BlockId], position: usize, token: TokenId) {
        let before = match position {
            0 => self.model.weights_seed,
            _ => self.digest_position(table, position - 1),
        };
        let state = fold(before ^ KEYS[0], (u64::from(token.0) << 32 | position as u64) ^ KEYS[1]);
        for slot in 0..self.slots {
            let words = self.slot(table, position, slot);
            for i in 0..self.slot_bytes / 8 {
                let word = mix(state ^ key(i, slot));
                // SAFETY: inside the slot; the block holds this entry's own tokens, so it is this sequence's to write (I3).
                unsafe { words.add(i).write(word) };
            }
        }
    }

    fn sample(&self, entry: &BatchEntry, params: &SamplingParams) -> TokenId {
        let positions = 0..entry.end();
        let mut state =
            positions.fold(0u64, |sum, p| sum.wrapping_add(self.digest_position(&entry.table, p)));
        if !params.is_greedy() {
            state ^= mix(params.seed ^ KEYS[2]);
        }
        let choices = self.model.vocab - self.model.first_token;
        TokenId(self.model.first_token + (mix(state ^ self.model.weights_seed) % u64::from(choices)) as u32)
    }
}

impl ModelRunner for EmulatedRunner {
    fn run(&mut self, batch: &Batch) -> Result<StepResult, RunnerError> {
        for entry in &batch.entries {
            self.memory.check_entry(entry)?;
        }
        let mut sampled = Vec::new();
        for entry in &batch.entries {
            for (position, &token) in (entry.start as usize..).zip(&entry.tokens) {
                self.write_position(&entry.table, position, token);
            }
            if let Some(params) = &entry.sample {
                sampled.push((entry.seq, self.sample(entry, params)));
            }
        }
        Ok(StepResult { step: batch.step, sampled })
    }
}

/// Makes each step of a runner take at least the time that a profile says.
#[derive(Debug)]
pub struct Paced<R> {
    pub runner: R,
    pub profile: CostProfile,
}

impl<R: ModelRunner> ModelRunner for Paced<R> {
    fn run(&mut self, batch: &Batch) -> Result<StepResult, RunnerError> {
        let end = Instant::now() + self.profile.step_time(batch);
        let result = self.runner.run(batch);
        let left = end.saturating_duration_since(Instant::now());
        if left > Duration::ZERO {
            std::thread::sleep(left);
        }
        result
    }
}

/// What one undisturbed sequence gives: `max_tokens` tokens after `prompt`, computed alone, at once, in fresh memory.
///
/// # Panics
/// If the model cannot run on `layout` (see [`EmulatedRunner::new`]) or `prompt` is empty.
pub fn oracle(
    model: EmulatedModel,
    layout: &KvLayout,
    prompt: &[TokenId],
    max_tokens: usize,
    sampling: &SamplingParams,
) -> Vec<TokenId> {
    assert!(!prompt.is_empty(), "a sequence starts with a token");
    let blocks = layout.blocks_for(prompt.len() + max_tokens);
    let region = Arc::new(HeapRegion::new(blocks * layout.block_bytes()));
    let memory = KvMemory::new(region, layout.clone()).expect("the region holds the blocks");
    let mut runner = EmulatedRunner::new(model, memory).expect("the model fits the layout");
    let table: Vec<BlockId> = (0..blocks as u32).map(BlockId).collect();
    let mut out = Vec::with_capacity(max_tokens);
    let (mut start, mut tokens) = (0, prompt.to_vec());
    while out.len() < max_tokens {
        let next = start + tokens.len() as u32;
        let sample = Some(sampling.clone());
        let entry = BatchEntry { seq: SeqId(0), tokens, start, table: table.clone(), sample };
        let batch = Batch { step: out.len() as u64, entries: vec![entry] };
        let token = runner.run(&batch).expect("the entry fits the pool").sampled[0].1;
        out.push(token);
        (start, tokens) = (next, vec![token]);
    }
    out
}

/// Odd constants with no structure (digits of pi).
const KEYS: [u64; 4] =
    [0x243f_6a88_85a3_08d3, 0x1319_8a2e_0370_7345, 0xa409_3822_299f_31d1, 0x082e_fa98_ec4e_6c89];

/// The key of element `a` in slot `b`: different for every pair that a pool can have.
fn key(a: usize, b: usize) -> u64 {
    (a as u64).wrapping_mul(KEYS[2]) ^ (b as u64).rotate_left(32).wrapping_mul(KEYS[3])
}

/// Both halves of the 128-bit product.
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

fn mix(x: u64) -> u64 {
    fold(x ^ KEYS[0], x.rotate_left(29) ^ KEYS[3])
}

/// A function of `len` words and `key`: one multiplication for two words, no chain between them.
///
/// # Safety
/// `len` initialised words must be readable at `words`.
unsafe fn digest(words: *const u64, len: usize, key: u64) -> u64 {
    let (mut sum, mut lane) = (0u64, key);
    let mut i = 0;
    while i < len {
        // SAFETY: `i < len`, and the second word is read only where there is one.
        let (a, b) = unsafe { (*words.add(i), if i + 1 < len { *words.add(i + 1) } else { 0 }) };
        lane = lane.wrapping_add(KEYS[1]);
        sum = sum.wrapping_add(fold(a ^ lane, b ^ lane.rotate_left(32) ^ KEYS[0]));
        i += 2;
    }
    fold(sum ^ key, KEYS[2])
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODEL: EmulatedModel = EmulatedModel { vocab: 1_000, first_token: 10, weights_seed: 3 };

    fn tokens(n: u32) -> Vec<TokenId> {
        (0..n).map(|i| TokenId(i * 7 % 900)).collect()
    }

    fn runner(blocks: usize, block_tokens: u32) -> EmulatedRunner {
        runner_of(MODEL, blocks, block_tokens)
    }

    fn runner_of(model: EmulatedModel, blocks: usize, block_tokens: u32) -> EmulatedRunner {
        let layout = EmulatedModel::default_layout(block_tokens);
        let region = Arc::new(HeapRegion::new(blocks * layout.block_bytes()));
        EmulatedRunner::new(model, KvMemory::new(region, layout).unwrap()).unwrap()
    }

    fn entry(tokens: &[TokenId], start: u32, table: &[u32], sample: bool) -> BatchEntry {
        BatchEntry {
            seq: SeqId(1),
            tokens: tokens.to_vec(),
            start,
            table: table.iter().copied().map(BlockId).collect(),
            sample: sample.then_some(SamplingParams::GREEDY),
        }
    }

    fn run(runner: &mut EmulatedRunner, entries: Vec<BatchEntry>) -> Vec<TokenId> {
        let result = runner.run(&Batch { step: 0, entries }).unwrap();
        result.sampled.into_iter().map(|(_, token)| token).collect()
    }

    /// I7: neither chunks, nor the table, nor the block size, nor neighbours in the batch change the next token.
    #[test]
    fn the_next_token_is_the_oracle_s_in_any_chunks_and_company() {
        let prompt = tokens(50);
        let want = oracle(MODEL, &EmulatedModel::default_layout(16), &prompt, 1, &SamplingParams::GREEDY);
        for (block_tokens, chunk) in [(16, 50), (16, 1), (8, 7), (4, 16), (64, 3)] {
            let mut runner = runner(40, block_tokens);
            let blocks = 50u32.div_ceil(block_tokens);
            let table: Vec<u32> = (0..blocks).map(|i| 39 - i).collect();
            let other: Vec<u32> = (0..blocks).collect();
            let mut last = Vec::new();
            for (i, chunk_tokens) in prompt.chunks(chunk).enumerate() {
                let (start, end) = ((i * chunk) as u32, i * chunk + chunk_tokens.len());
                let company = entry(&tokens(5), 0, &other, false);
                last = run(&mut runner, vec![company, entry(chunk_tokens, start, &table, end == 50)]);
            }
            assert_eq!(last, want, "blocks of {block_tokens}, chunks of {chunk}");
        }
    }

    #[test]
    fn every_byte_of_every_position_matters() {
        // So many ids that two of some thousand states do not meet in one by chance.
        let mut runner = runner_of(EmulatedModel { vocab: u32::MAX, ..MODEL }, 3, 16);
        let prompt = tokens(40);
        run(&mut runner, vec![entry(&prompt, 0, &[0, 1, 2], false)]);
        let next =
            |runner: &mut EmulatedRunner| run(runner, vec![entry(&[TokenId(5)], 40, &[0, 1, 2], true)]);
        let want = next(&mut runner);
        let layout = runner.memory.layout().clone();
        for block in 0..3 {
            let held = runner.memory.read_block(BlockId(block));
            // Positions 0..=40 are read; of the last block that is 9 tokens of each run, the ninth rewritten by the step.
            let read = if block < 2 { 16 } else { 8 };
            for byte in (0..held.len()).filter(|b| b % layout.head_run_bytes() / 128 < read).step_by(5) {
                let mut torn = held.clone();
                torn[byte] ^= 0x40;
                runner.memory.write_block(BlockId(block), &torn);
                assert_ne!(next(&mut runner), want, "byte {byte} of block {block}");
            }
            runner.memory.write_block(BlockId(block), &held);
        }
        assert_eq!(next(&mut runner), want);
    }

    #[test]
    fn swapped_blocks_and_another_model_change_the_token() {
        let prompt = tokens(48);
        let mut runner = runner(6, 16);
        let want = run(&mut runner, vec![entry(&prompt, 0, &[0, 1, 2], true)]);
        let swapped = run(&mut runner, vec![entry(&[prompt[47]], 47, &[1, 0, 2], true)]);
        assert_ne!(swapped, want);
        let layout = EmulatedModel::default_layout(16);
        let other = EmulatedModel { weights_seed: 4, ..MODEL };
        assert_ne!(oracle(other, &layout, &prompt, 4, &SamplingParams::GREEDY)[0], want[0]);
        assert_ne!(other.fingerprint(), MODEL.fingerprint());
    }

    #[test]
    fn sampled_ids_stay_in_range_and_seeds_matter() {
        let layout = EmulatedModel::default_layout(16);
        let sampling = |seed| SamplingParams { temperature: 1.0, seed, ..SamplingParams::GREEDY };
        let [greedy, one, two] = [SamplingParams::GREEDY, sampling(1), sampling(2)]
            .map(|params| oracle(MODEL, &layout, &tokens(3), 64, &params));
        assert!(greedy.iter().all(|t| (10..1_000).contains(&t.0)));
        assert!(greedy != one && one != two);
        let distinct: std::collections::BTreeSet<u32> = greedy.iter().map(|t| t.0).collect();
        assert!(distinct.len() > 50, "{} distinct ids of 64", distinct.len());
    }

    #[test]
    fn a_layout_without_whole_words_is_refused() {
        let layout = KvLayout { head_dim: 1, ..EmulatedModel::default_layout(16) };
        let memory = KvMemory::new(Arc::new(HeapRegion::new(4_096)), layout).unwrap();
        assert_eq!(EmulatedRunner::new(MODEL, memory).unwrap_err(), EmulatedError::HeadBytes(4));
    }
}
