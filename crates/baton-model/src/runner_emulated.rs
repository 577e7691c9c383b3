//! The emulated model: real KV bytes, and a next token that is a function of every one of them.
//!
//! It computes no attention, but it is as strict as a model about its KV: each position's bytes depend on the token, the
//! position and the stored bytes of the position before, and each sampled token on all bytes of all positions, read through
//! the block table. A stale, misplaced, torn or reused block changes the text from there on. Block size, ranks and element type
//! of the pool do not.
#![allow(unsafe_code)]

mod words;

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use baton_engine::{Batch, BatchEntry, ModelRunner, RunnerError, StepResult};
use baton_types::{BlockId, HeapRegion, KvDtype, KvLayout, KvOrder, SamplingParams, SeqId, TokenId};
use serde::{Deserialize, Serialize};

use self::words::{Bf16Quad, Digest, F16Quad, F32Quad, KEYS, Quad, fold, four, mix};
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
    /// Each token depends on all bytes of every so many-th group of [`GROUP`] positions, and of the last position; the next token
    /// on the groups before those. 1 is all of them. With more, reading costs less, and a wrong byte shows within so many tokens.
    pub reads_every: u32,
}

/// Positions that are read together, because they lie together; whatever the block size is.
pub const GROUP: usize = 16;

impl Default for EmulatedModel {
    fn default() -> Self {
        Self { vocab: 32_000, first_token: 256, weights_seed: 0, reads_every: 1 }
    }
}

impl EmulatedModel {
    /// A small geometry for it: 512 bytes of KV a token, and heads for 1, 2 or 4 ranks.
    pub fn default_layout(block_tokens: u32) -> KvLayout {
        let (dtype, order) = (KvDtype::F32, KvOrder::BlockMajor);
        KvLayout { layers: 2, kv_heads: 4, head_dim: 8, dtype, block_tokens, ranks: 1, order }
    }

    /// What must be equal on two engines that exchange its KV.
    pub fn fingerprint(&self) -> String {
        let Self { vocab, first_token, weights_seed, reads_every } = self;
        format!("emulated-{vocab}-{first_token}-{weights_seed:016x}-{reads_every}")
    }
}

/// Why there can be no emulated runner.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EmulatedError {
    #[error("the emulated model samples ids in {first_token}..{vocab}, which is empty")]
    NoTokens { first_token: u32, vocab: u32 },
    #[error("the emulated model reads every position, or every second, but not every 0th")]
    ReadsNothing,
    #[error("a head of one token has {0} elements; the emulated model needs a multiple of 4")]
    HeadDim(u32),
    #[error("the emulated model has no KV of type {0:?}")]
    Dtype(KvDtype),
    #[error(transparent)]
    Memory(#[from] KvMemoryError),
}

/// Runs an [`EmulatedModel`] over a KV pool, taking no time of its own; [`Paced`] adds the time.
#[derive(Debug)]
pub struct EmulatedRunner {
    model: EmulatedModel,
    memory: KvMemory,
    /// Where each head of each layer's K and V starts in the pool's first block, in bytes.
    runs: Vec<usize>,
}

impl EmulatedRunner {
    pub fn new(model: EmulatedModel, memory: KvMemory) -> Result<Self, EmulatedError> {
        if model.first_token >= model.vocab {
            return Err(EmulatedError::NoTokens { first_token: model.first_token, vocab: model.vocab });
        }
        if model.reads_every == 0 {
            return Err(EmulatedError::ReadsNothing);
        }
        let layout = memory.layout();
        if layout.head_dim == 0 || !layout.head_dim.is_multiple_of(4) {
            return Err(EmulatedError::HeadDim(layout.head_dim));
        }
        if layout.dtype == KvDtype::U8 {
            return Err(EmulatedError::Dtype(layout.dtype));
        }
        let (layers, heads) = (layout.layers as usize, layout.kv_heads as usize);
        let blocks = memory.num_blocks() as usize;
        let parts = (0..layers).flat_map(|layer| [(layer, 0), (layer, 1)]);
        let runs = parts.flat_map(|(layer, is_v)| {
            (0..heads).map(move |head| layout.head_run_offset(blocks, 0, layer, is_v, head))
        });
        Ok(Self { model, runs: runs.collect(), memory })
    }

    pub fn memory(&self) -> &KvMemory {
        &self.memory
    }

    /// Where `position` begins in each run of its block: by layer, K and V, and head.
    fn slots<Q: Quad>(&self, table: &[BlockId], position: usize) -> impl Iterator<Item = *mut Q> {
        let layout = self.memory.layout();
        let block_tokens = layout.block_tokens as usize;
        let block = table[position / block_tokens];
        assert!(block.0 < self.memory.num_blocks(), "{block:?} is in the pool");
        let slot = position % block_tokens * self.quads() * size_of::<Q>();
        let offset = block.index() * layout.block_stride() + slot;
        let base = self.memory.region().base();
        // SAFETY: a run lies at one distance in all blocks, so this is the head's run in the block, which has a slot for each
        // token; the block is in the pool. Runs and slots are multiples of an element.
        self.runs.iter().map(move |run| unsafe { base.as_ptr().add(run + offset).cast::<Q>() })
    }

    /// Of a head and a token.
    fn quads(&self) -> usize {
        self.memory.layout().head_dim as usize / 4
    }

    /// The sum of a function of every stored byte of each of these positions.
    fn digest<Q: Quad>(&self, table: &[BlockId], positions: Range<usize>) -> u64 {
        let block_tokens = self.memory.layout().block_tokens as usize;
        let (mut from, mut sum) = (positions.start, 0u64);
        while from < positions.end {
            let block_end = (from / block_tokens + 1) * block_tokens;
            let to = positions.end.min(from + GROUP).min(block_end);
            sum = sum.wrapping_add(self.digest_neighbours::<Q>(table, from..to));
            from = to;
        }
        sum
    }

    /// As [`Self::digest`], of a few positions of one block: they lie side by side in each run, and memory is read in that order.
    fn digest_neighbours<Q: Quad>(&self, table: &[BlockId], positions: Range<usize>) -> u64 {
        let mut digests: [Digest; GROUP] = std::array::from_fn(|i| Digest::new(positions.start + i));
        let digests = &mut digests[..positions.len()];
        for first in self.slots::<Q>(table, positions.start) {
            for (i, digest) in digests.iter_mut().enumerate() {
                for quad in i * self.quads()..(i + 1) * self.quads() {
                    // SAFETY: initialised elements of a block that this sequence may read (I3).
                    digest.add(unsafe { first.wrapping_add(quad).read() }.widen());
                }
            }
        }
        digests.iter().fold(0, |sum, digest| sum.wrapping_add(digest.end()))
    }

    fn write_position<Q: Quad>(&self, table: &[BlockId], position: usize, token: TokenId) {
        let before = match position {
            0 => self.model.weights_seed,
            _ => self.digest::<Q>(table, position - 1..position),
        };
        let mut state = fold(before ^ KEYS[0], (u64::from(token.0) << 32 | position as u64) ^ KEYS[1]);
        for first in self.slots::<Q>(table, position) {
            for quad in 0..self.quads() {
                state = state.wrapping_add(KEYS[2]);
                // SAFETY: the block holds this entry's own tokens, so it is this sequence's to write (I3).
                unsafe { first.wrapping_add(quad).write(Q::narrow(four(mix(state)))) };
            }
        }
    }

    fn sample<Q: Quad>(&self, entry: &BatchEntry, params: &SamplingParams) -> TokenId {
        let (end, every) = (entry.end(), self.model.reads_every as usize);
        let last = end - 1;
        let is_read = |group: &usize| (group + end).is_multiple_of(every);
        let read =
            (0..=last / GROUP).filter(is_read).map(|group| group * GROUP..end.min((group + 1) * GROUP));
        // The last position's bytes follow from all that were computed before it.
        let rest = if is_read(&(last / GROUP)) { end..end } else { last..end };
        let digests = read.chain([rest]).map(|positions| self.digest::<Q>(&entry.table, positions));
        let mut state = digests.fold(0, u64::wrapping_add);
        if !params.is_greedy() {
            state ^= mix(params.seed ^ KEYS[2]);
        }
        let choices = self.model.vocab - self.model.first_token;
        TokenId(self.model.first_token + (mix(state ^ self.model.weights_seed) % u64::from(choices)) as u32)
    }

    /// Writes the KV of an entry's tokens, and gives the token after them if it is wanted.
    fn compute<Q: Quad>(&self, entry: &BatchEntry) -> Option<TokenId> {
        for (position, &token) in (entry.start as usize..).zip(&entry.tokens) {
            self.write_position::<Q>(&entry.table, position, token);
        }
        entry.sample.as_ref().map(|params| self.sample::<Q>(entry, params))
    }
}

impl ModelRunner for EmulatedRunner {
    fn run(&mut self, batch: &Batch) -> Result<StepResult, RunnerError> {
        for entry in &batch.entries {
            self.memory.check_entry(entry)?;
        }
        let mut sampled = Vec::new();
        for entry in &batch.entries {
            let token = match self.memory.layout().dtype {
                KvDtype::F32 => self.compute::<F32Quad>(entry),
                KvDtype::F16 => self.compute::<F16Quad>(entry),
                KvDtype::Bf16 => self.compute::<Bf16Quad>(entry),
                KvDtype::U8 => unreachable!("refused by `new`"),
            };
            sampled.extend(token.map(|token| (entry.seq, token)));
        }
        Ok(StepResult { step: batch.step, sampled })
    }
}

/// By how much a sleep is usually too long: the kernel puts timers together. A step of some milliseconds would be visibly longer.
const OVERSLEEP: Duration = Duration::from_micros(100);

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
        if left > OVERSLEEP {
            std::thread::sleep(left - OVERSLEEP);
        }
        while Instant::now() < end {
            std::hint::spin_loop();
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

#[cfg(test)]
mod tests {
    use super::*;

    const MODEL: EmulatedModel =
        EmulatedModel { vocab: 1_000, first_token: 10, weights_seed: 3, reads_every: 1 };

    fn tokens(n: u32) -> Vec<TokenId> {
        (0..n).map(|i| TokenId(i * 7 % 900)).collect()
    }

    fn layout(block_tokens: u32, ranks: u32, dtype: KvDtype) -> KvLayout {
        KvLayout { ranks, dtype, ..EmulatedModel::default_layout(block_tokens) }
    }

    fn runner(model: EmulatedModel, blocks: usize, layout: KvLayout) -> EmulatedRunner {
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

    /// I7: neither chunks, nor the table, nor neighbours in the batch, nor block size, ranks, type and order change the next token.
    #[test]
    fn the_next_token_is_the_oracle_s_in_any_chunks_and_company() {
        let prompt = tokens(50);
        let want = oracle(MODEL, &EmulatedModel::default_layout(16), &prompt, 1, &SamplingParams::GREEDY);
        let (f32, f16, bf16) = (KvDtype::F32, KvDtype::F16, KvDtype::Bf16);
        let (by_block, by_layer) = (KvOrder::BlockMajor, KvOrder::LayerMajor);
        for (block_tokens, chunk, ranks, dtype, order) in [
            (16, 50, 1, f32, by_block),
            (16, 50, 1, f32, by_layer),
            (16, 1, 4, f32, by_block),
            (8, 7, 2, bf16, by_layer),
            (4, 16, 1, f16, by_block),
            (64, 3, 4, f16, by_layer),
            (32, 3, 2, f32, by_block),
        ] {
            let layout = KvLayout { order, ..layout(block_tokens, ranks, dtype) };
            let mut runner = runner(MODEL, 40, layout);
            let blocks = 50u32.div_ceil(block_tokens);
            let table: Vec<u32> = (0..blocks).map(|i| 39 - i).collect();
            let other: Vec<u32> = (0..blocks).collect();
            let mut last = Vec::new();
            for (i, chunk_tokens) in prompt.chunks(chunk).enumerate() {
                let (start, end) = ((i * chunk) as u32, i * chunk + chunk_tokens.len());
                let company = entry(&tokens(5), 0, &other, false);
                last = run(&mut runner, vec![company, entry(chunk_tokens, start, &table, end == 50)]);
            }
            let case =
                format!("blocks of {block_tokens}, chunks of {chunk}, {ranks} ranks, {dtype:?}, {order:?}");
            assert_eq!(last, want, "{case}");
        }
    }

    #[test]
    fn every_byte_of_every_position_matters() {
        // So many ids that two of some thousand states do not meet in one by chance.
        let model = EmulatedModel { vocab: u32::MAX, ..MODEL };
        for (ranks, dtype) in [(1, KvDtype::F32), (2, KvDtype::F16), (4, KvDtype::Bf16)] {
            let layout = layout(16, ranks, dtype);
            let (run_bytes, slot_bytes) = (layout.head_run_bytes(), layout.head_run_bytes() / 16);
            let mut runner = runner(model, 3, layout);
            run(&mut runner, vec![entry(&tokens(40), 0, &[0, 1, 2], false)]);
            let next =
                |runner: &mut EmulatedRunner| run(runner, vec![entry(&[TokenId(5)], 40, &[0, 1, 2], true)]);
            let want = next(&mut runner);
            for block in 0..3 {
                let held = runner.memory.read_block(BlockId(block));
                // Positions 0..=40 are read; of the last block that is 9 tokens of each run, the ninth rewritten by the step.
                let read = if block < 2 { 16 } else { 8 };
                for byte in (0..held.len()).filter(|b| b % run_bytes / slot_bytes < read).step_by(5) {
                    let mut torn = held.clone();
                    torn[byte] ^= 0x40;
                    runner.memory.write_block(BlockId(block), &torn);
                    assert_ne!(next(&mut runner), want, "byte {byte} of block {block}, {dtype:?}");
                }
                runner.memory.write_block(BlockId(block), &held);
            }
            assert_eq!(next(&mut runner), want);
        }
    }

    /// A model that reads less at a time reads as much in the end.
    #[test]
    fn a_wrong_byte_shows_within_as_many_tokens_as_positions_are_skipped() {
        let model = EmulatedModel { vocab: u32::MAX, reads_every: 4, ..MODEL };
        for order in [KvOrder::BlockMajor, KvOrder::LayerMajor] {
            let layout = KvLayout { order, ..layout(16, 2, KvDtype::F32) };
            let mut runner = runner(model, 3, layout.clone());
            run(&mut runner, vec![entry(&tokens(32), 0, &[0, 1, 2], false)]);
            let four = |runner: &mut EmulatedRunner| -> Vec<TokenId> {
                let next = |at| run(runner, vec![entry(&[TokenId(5)], at, &[0, 1, 2], true)])[0];
                (32..36).map(next).collect()
            };
            let want = four(&mut runner);
            let held = runner.memory.read_block(BlockId(1));
            for position in 0..16 {
                let mut torn = held.clone();
                torn[position * layout.head_dim as usize * 4] ^= 0x40;
                runner.memory.write_block(BlockId(1), &torn);
                let got = four(&mut runner);
                let wrong = got.iter().zip(&want).filter(|(got, want)| got != want).count();
                // The next position is written from the one before it, and so on.
                assert_eq!(wrong, if position == 15 { 4 } else { 1 }, "position {position}, {order:?}");
            }
        }
    }

    #[test]
    fn swapped_blocks_and_another_model_change_the_token() {
        let prompt = tokens(48);
        let mut runner = runner(MODEL, 6, layout(16, 1, KvDtype::F32));
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
    fn a_layout_that_the_model_cannot_keep_is_refused() {
        let refused = |layout: KvLayout| {
            let memory = KvMemory::new(Arc::new(HeapRegion::new(4_096)), layout).unwrap();
            EmulatedRunner::new(MODEL, memory).unwrap_err()
        };
        let default = EmulatedModel::default_layout(4);
        assert_eq!(refused(KvLayout { head_dim: 6, ..default.clone() }), EmulatedError::HeadDim(6));
        let bytes = KvLayout { dtype: KvDtype::U8, ..default.clone() };
        assert_eq!(refused(bytes), EmulatedError::Dtype(KvDtype::U8));
        let blind = EmulatedModel { reads_every: 0, ..MODEL };
        let memory = KvMemory::new(Arc::new(HeapRegion::new(4_096)), default).unwrap();
        assert_eq!(EmulatedRunner::new(blind, memory).unwrap_err(), EmulatedError::ReadsNothing);
    }
}
