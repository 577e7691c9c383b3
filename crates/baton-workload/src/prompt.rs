//! Prompts as keys of blocks: two prompts begin with the same tokens exactly as far as they have the same keys.
//!
//! A trace holds no words, only which blocks were equal. So a block's tokens follow from its key, and a prompt is written out
//! when it is sent: the prompts of an hour would not fit into memory.

use std::sync::Arc;

use baton_types::TokenId;
use rand::seq::IndexedRandom;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;

/// Blocks with the keys `first`, `first + 1`, … Traces number new blocks in a row, which keeps long prompts small.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    pub first: u64,
    pub blocks: u32,
}

/// A prompt of `tokens` tokens, cut into blocks. What the keys do not cover is told from other prompts by `tail_key`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prompt {
    pub tokens: u32,
    pub block_tokens: u32,
    pub runs: Vec<Run>,
    /// Nobody else's.
    pub tail_key: u64,
}

/// Tails have seeds of another kind than blocks, so that no tail is the beginning of a block.
pub(crate) const BLOCK: u64 = 0;
pub(crate) const TAIL: u64 = 1;

impl Prompt {
    /// Keys in order, as a trace has them.
    pub fn from_keys(
        tokens: u32,
        block_tokens: u32,
        keys: impl IntoIterator<Item = u64>,
        tail_key: u64,
    ) -> Self {
        let mut runs: Vec<Run> = Vec::new();
        for key in keys {
            match runs.last_mut() {
                Some(run) if run.first.checked_add(u64::from(run.blocks)) == Some(key) => run.blocks += 1,
                _ => runs.push(Run { first: key, blocks: 1 }),
            }
        }
        Self { tokens, block_tokens, runs, tail_key }
    }

    pub fn keys(&self) -> impl Iterator<Item = u64> + '_ {
        self.runs.iter().flat_map(|run| (0..u64::from(run.blocks)).map(|i| run.first.wrapping_add(i)))
    }

    /// The first blocks of this prompt, as runs.
    pub fn prefix(&self, mut blocks: u32) -> Vec<Run> {
        let mut prefix = Vec::new();
        for run in &self.runs {
            let taken = run.blocks.min(blocks);
            if taken == 0 {
                break;
            }
            prefix.push(Run { first: run.first, blocks: taken });
            blocks -= taken;
        }
        prefix
    }

    /// Writes the prompt out. The same seed and vocabulary give a key the same tokens in every prompt.
    pub fn write_out(&self, vocabulary: &Vocabulary, seed: u64) -> Vec<TokenId> {
        let wanted = self.tokens as usize;
        let mut tokens = Vec::with_capacity(wanted);
        for key in self.keys() {
            if tokens.len() == wanted {
                break;
            }
            let count = (wanted - tokens.len()).min(self.block_tokens as usize);
            vocabulary.write(block_random(seed, BLOCK, key), count, &mut tokens);
        }
        vocabulary.write(block_random(seed, TAIL, self.tail_key), wanted - tokens.len(), &mut tokens);
        tokens
    }
}

pub(crate) fn block_random(seed: u64, kind: u64, key: u64) -> ChaCha8Rng {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    bytes[8..16].copy_from_slice(&kind.to_le_bytes());
    bytes[16..24].copy_from_slice(&key.to_le_bytes());
    ChaCha8Rng::from_seed(bytes)
}

/// The tokens that prompts are made of: ordinary ones, since a special token may end a prompt or be refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vocabulary(Arc<[TokenId]>);

impl Vocabulary {
    /// None unless there are two different tokens at least: prompts must be able to differ.
    pub fn new(mut tokens: Vec<TokenId>) -> Option<Self> {
        tokens.sort_unstable();
        tokens.dedup();
        (tokens.len() >= 2).then(|| Self(tokens.into()))
    }

    /// Tokens that every vocabulary in use has as ordinary ones: of a byte each, or near.
    pub fn bytes() -> Self {
        Self((100..=220).map(TokenId).collect())
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn write(&self, mut random: ChaCha8Rng, count: usize, out: &mut Vec<TokenId>) {
        out.extend((0..count).map(|_| self.0.choose(&mut random).copied().unwrap_or_default()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(prompt: &Prompt) -> Vec<TokenId> {
        prompt.write_out(&Vocabulary::bytes(), 3)
    }

    fn common(a: &Prompt, b: &Prompt) -> usize {
        written(a).iter().zip(written(b)).take_while(|(a, b)| **a == *b).count()
    }

    #[test]
    fn prompts_share_exactly_the_blocks_whose_keys_are_equal() {
        let a = Prompt::from_keys(100, 16, [1, 2, 3, 4, 5, 6, 7], 1);
        let b = Prompt::from_keys(70, 16, [1, 2, 3, 40, 41], 2);
        assert_eq!(a.runs.len(), 1);
        assert_eq!((written(&a).len(), written(&b).len()), (100, 70));
        // One token in 121 is equal by chance, two in a row hardly.
        assert!((48..=50).contains(&common(&a, &b)), "{}", common(&a, &b));
        // The last block of either is cut: equal as far as both go.
        let c = Prompt::from_keys(90, 16, [1, 2, 3, 4, 5, 6], 3);
        assert_eq!(common(&a, &c), 90);
        // The same blocks further behind are the same words, and another prompt.
        let d = Prompt::from_keys(32, 16, [9, 1], 4);
        assert_eq!(written(&d)[16..], written(&a)[..16]);
        assert!(common(&a, &d) <= 2);
    }

    #[test]
    fn what_no_key_covers_is_nobody_elses() {
        let [a, b] = [1, 2].map(|tail| Prompt::from_keys(40, 16, [5, 6], tail));
        assert_eq!(written(&a).len(), 40);
        assert!((32..=34).contains(&common(&a, &b)));
        // A tail is not the block that has its number.
        let block = Prompt::from_keys(8, 8, [1], 9);
        assert_ne!(written(&a)[32..], written(&block)[..]);
    }

    #[test]
    fn other_seeds_are_other_words() {
        let prompt = Prompt::from_keys(64, 16, 0..4, 0);
        let [a, b] = [1, 2].map(|seed| prompt.write_out(&Vocabulary::bytes(), seed));
        assert_ne!(a, b);
        assert_eq!(a, prompt.write_out(&Vocabulary::bytes(), 1));
    }

    #[test]
    fn prefixes_are_cut_between_blocks() {
        let prompt = Prompt::from_keys(160, 16, [1, 2, 3, 10, 11, 12], 0);
        assert_eq!(prompt.prefix(4), [Run { first: 1, blocks: 3 }, Run { first: 10, blocks: 1 }]);
        assert_eq!(prompt.prefix(0), []);
        assert_eq!(prompt.prefix(99), prompt.runs);
    }

    #[test]
    fn a_vocabulary_can_tell_prompts_apart() {
        assert_eq!(Vocabulary::new(vec![TokenId(5), TokenId(5)]), None);
        assert_eq!(Vocabulary::new(vec![TokenId(5), TokenId(6)]).unwrap().len(), 2);
    }
}
