//! What a trace has recorded of its requests, and how much memory conversations take while it is replayed.

use std::collections::BTreeMap;

use baton_types::{Time, TokenId};
use baton_workload::Prompt;

/// One simulated token stands for so many blocks of the trace: one, the least that it tells apart, or more where that is to be faster.
#[derive(Debug)]
pub(crate) struct Recording {
    /// Of each client.
    prompts: Vec<Prompt>,
    grain: usize,
    retained: Retained,
}

/// Blocks that are kept for conversations alone, over all engines.
#[derive(Clone, Debug, Default)]
struct Retained {
    by_node: BTreeMap<usize, usize>,
    blocks: usize,
    most: usize,
    /// Blocks times nanoseconds, for as long as sessions begin: at the end few go on, for long.
    sum: u128,
    begin_until: Time,
    since: Time,
}

impl Recording {
    /// The last session begins at `begin_until`.
    pub fn new(prompts: Vec<Prompt>, grain: usize, begin_until: Time) -> Self {
        Self { prompts, grain, retained: Retained { begin_until, ..Retained::default() } }
    }

    /// Equal blocks are equal tokens. What is behind the last whole token is nobody else's.
    pub fn prompt(&self, client: usize) -> Vec<TokenId> {
        let prompt = &self.prompts[client];
        let keys: Vec<u64> = prompt.keys().collect();
        let whole = keys.chunks_exact(self.grain);
        let mut tokens: Vec<TokenId> = whole.map(|keys| token(keys.iter().copied().fold(0, mix))).collect();
        let covered = tokens.len() * self.grain * prompt.block_tokens as usize;
        if tokens.is_empty() || prompt.tokens as usize > covered {
            tokens.push(token(mix(1, prompt.tail_key)));
        }
        tokens
    }

    pub fn note_retained(&mut self, now: Time, node: usize, blocks: usize) {
        let retained = &mut self.retained;
        let before = retained.by_node.insert(node, blocks).unwrap_or_default();
        if before == blocks {
            return;
        }
        let weighed = now.min(retained.begin_until).max(retained.since);
        retained.sum += retained.blocks as u128 * u128::from(weighed.0 - retained.since.0);
        retained.since = weighed;
        retained.blocks = retained.blocks + blocks - before;
        retained.most = retained.most.max(retained.blocks);
    }

    /// The mean, and the most.
    pub fn retained_blocks(&self) -> (f64, usize) {
        let time = self.retained.since.0.max(1);
        (self.retained.sum as f64 / time as f64, self.retained.most)
    }
}

/// All bits of all keys count.
fn mix(state: u64, key: u64) -> u64 {
    let mixed = (state.rotate_left(23) ^ key).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed ^ mixed >> 31
}

fn token(mixed: u64) -> TokenId {
    TokenId((mixed >> 16) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_weighed_by_time() {
        let mut recording = Recording::new(Vec::new(), 1, Time(30));
        for (at, node, blocks) in [(0, 0, 10), (10, 1, 10), (20, 0, 0), (40, 1, 0)] {
            recording.note_retained(Time(at), node, blocks);
        }
        assert_eq!(recording.retained_blocks(), (f64::from(10 * 10 + 20 * 10 + 10 * 10) / 30.0, 20));
    }

    #[test]
    fn prompts_begin_alike_as_far_as_their_blocks_are_the_same() {
        let prompt = |tokens, keys: &[u64], tail| Prompt::from_keys(tokens, 64, keys.iter().copied(), tail);
        let prompts = vec![prompt(200, &[1, 2, 3], 7), prompt(192, &[1, 2, 4], 8), prompt(9, &[], 9)];
        let recording = Recording::new(prompts.clone(), 1, Time::ZERO);
        let [a, b, c] = [0, 1, 2].map(|client| recording.prompt(client));
        assert_eq!((a.len(), b.len(), c.len()), (4, 3, 1));
        assert!(a[..2] == b[..2] && a[2] != b[2]);
        let recording = Recording::new(prompts, 2, Time::ZERO);
        let [a, b] = [0, 1].map(|client| recording.prompt(client));
        assert_eq!((a.len(), b.len()), (2, 2));
        assert!(a[0] == b[0] && a[1] != b[1]);
    }
}
