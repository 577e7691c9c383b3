//! Which block holds what: from a block's hash to the block. Holds nothing alive; the pool's Free blocks are its memory.

use std::collections::HashMap;

use baton_types::{BlockHash, BlockId};

/// At most one block a hash: a second block with the same contents stays without one.
#[derive(Debug, Default)]
pub struct PrefixCache {
    /// Only ever looked up, never iterated (I10).
    blocks: HashMap<BlockHash, BlockId>,
}

impl PrefixCache {
    /// The blocks that hold the longest known beginning of a chain.
    pub fn lookup<'a>(&'a self, chain: &'a [BlockHash]) -> impl Iterator<Item = BlockId> + 'a {
        chain.iter().map_while(|hash| self.get(*hash))
    }

    pub fn get(&self, hash: BlockHash) -> Option<BlockId> {
        self.blocks.get(&hash).copied()
    }

    /// False if another block holds the same already.
    pub fn insert(&mut self, hash: BlockHash, block: BlockId) -> bool {
        match self.blocks.entry(hash) {
            std::collections::hash_map::Entry::Occupied(_) => false,
            std::collections::hash_map::Entry::Vacant(entry) => {
                entry.insert(block);
                true
            }
        }
    }

    /// The block is handed out for other contents.
    pub fn evict(&mut self, hash: BlockHash) {
        let known = self.blocks.remove(&hash);
        assert!(known.is_some(), "I2: a block with a hash is in the cache");
    }

    /// How many hashes are known.
    pub fn count(&self) -> usize {
        self.blocks.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(n: u8) -> BlockHash {
        BlockHash([n; 16])
    }

    #[test]
    fn a_lookup_ends_at_the_first_gap() {
        let mut cache = PrefixCache::default();
        for n in [0, 1, 3] {
            assert!(cache.insert(hash(n), BlockId(n.into())));
        }
        let chain: Vec<_> = (0..4).map(hash).collect();
        assert_eq!(cache.lookup(&chain).collect::<Vec<_>>(), [BlockId(0), BlockId(1)]);
        assert_eq!(cache.lookup(&chain[1..]).collect::<Vec<_>>(), [BlockId(1)]);
    }

    #[test]
    fn the_first_block_with_a_hash_keeps_it() {
        let mut cache = PrefixCache::default();
        assert!(cache.insert(hash(1), BlockId(1)));
        assert!(!cache.insert(hash(1), BlockId(2)));
        assert_eq!(cache.get(hash(1)), Some(BlockId(1)));
        cache.evict(hash(1));
        assert_eq!(cache.count(), 0);
    }
}
