//! What a trace has recorded of its requests, and how much memory conversations take while it is replayed.

use std::collections::BTreeMap;

use baton_types::{Time, TokenId};
use baton_workload::Prompt;

/// One simulated token stands for one block of the trace, which is the least that it tells apart.
#[derive(Debug)]
pub(crate) struct Recording {
    /// Of each client.
    pub prompts: Vec<Prompt>,
    retained: Retained,
}

/// Blocks that are kept for conversations alone, over all engines.
#[derive(Clone, Debug, Default)]
struct Retained {
    by_node: BTreeMap<usize, usize>,
    blocks: usize,
    most: usize,
    /// Blocks times nanoseconds.
    sum: u128,
    since: Time,
}

impl Recording {
    pub fn new(prompts: Vec<Prompt>) -> Self {
        Self { prompts, retained: Retained::default() }
    }

    /// Equal blocks are equal tokens. What is behind the last whole block is nobody else's.
    pub fn prompt(&self, client: usize) -> Vec<TokenId> {
        let prompt = &self.prompts[client];
        let mut tokens: Vec<TokenId> = prompt.keys().map(token).collect();
        if tokens.is_empty() || prompt.tokens as usize > tokens.len() * prompt.block_tokens as usize {
            tokens.push(token(!prompt.tail_key));
        }
        tokens
    }

    pub fn note_retained(&mut self, now: Time, node: usize, blocks: usize) {
        let retained = &mut self.retained;
        let before = retained.by_node.insert(node, blocks).unwrap_or_default();
        if before == blocks {
            return;
        }
        retained.sum += retained.blocks as u128 * u128::from(now.0 - retained.since.0);
        retained.since = now;
        retained.blocks = retained.blocks + blocks - before;
        retained.most = retained.most.max(retained.blocks);
    }

    /// The mean until the last change, and the most.
    pub fn retained_blocks(&self) -> (f64, usize) {
        let time = self.retained.since.0.max(1);
        (self.retained.sum as f64 / time as f64, self.retained.most)
    }
}

/// All bits of a key count.
fn token(key: u64) -> TokenId {
    let mixed = (key ^ key >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    TokenId((mixed >> 32) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_weighed_by_time() {
        let mut recording = Recording::new(Vec::new());
        for (at, node, blocks) in [(0, 0, 10), (10, 1, 10), (20, 0, 0), (40, 1, 0)] {
            recording.note_retained(Time(at), node, blocks);
        }
        assert_eq!(recording.retained_blocks(), (f64::from(10 * 10 + 20 * 10 + 10 * 20) / 40.0, 20));
    }

    #[test]
    fn prompts_begin_alike_as_far_as_their_blocks_are_the_same() {
        let prompt = |tokens, keys: &[u64], tail| Prompt::from_keys(tokens, 64, keys.iter().copied(), tail);
        let prompts = vec![prompt(200, &[1, 2, 3], 7), prompt(192, &[1, 2, 4], 7), prompt(9, &[], 7)];
        let recording = Recording::new(prompts);
        let [a, b, c] = [0, 1, 2].map(|client| recording.prompt(client));
        assert_eq!((a.len(), b.len(), c.len()), (4, 3, 1));
        assert!(a[..2] == b[..2] && a[2] != b[2]);
    }
}
