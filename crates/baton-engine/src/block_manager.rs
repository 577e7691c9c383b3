//! Gives sequences their blocks: shared ones from the prefix cache, new ones from the pool.

use baton_types::{BlockHash, BlockId, Mutant, Mutation};

use crate::block_pool::{Allocation, BlockPool, BlockState};
use crate::block_table::BlockTable;
use crate::prefix_cache::PrefixCache;
use crate::stats::BlockCounts;

#[derive(Debug)]
pub struct BlockManager {
    pool: BlockPool,
    cache: Option<PrefixCache>,
    block_tokens: usize,
    mutation: Mutation,
}

/// What a sequence gets when it is admitted.
#[derive(Debug)]
pub struct Admission {
    pub table: BlockTable,
    /// So many blocks at the front of the table hold their KV already.
    pub hit_blocks: usize,
}

impl BlockManager {
    pub fn new(num_blocks: u32, block_tokens: usize, prefix_cache: bool, mutation: Mutation) -> Self {
        assert!(block_tokens > 0, "a block holds at least one token");
        let cache = prefix_cache.then(PrefixCache::default);
        Self { pool: BlockPool::new(num_blocks), cache, block_tokens, mutation }
    }

    pub fn pool(&self) -> &BlockPool {
        &self.pool
    }

    pub fn counts(&self) -> BlockCounts {
        self.pool.counts()
    }

    pub fn block_tokens(&self) -> usize {
        self.block_tokens
    }

    pub fn blocks_for(&self, tokens: usize) -> usize {
        tokens.div_ceil(self.block_tokens)
    }

    /// Blocks for all of `tokens` tokens, or none at all if fewer than `reserve` Free ones would be left.
    ///
    /// `full_hashes` are those of all full blocks. At least one token is left to compute, or one block to receive, because the
    /// token that follows comes out of that.
    pub fn admit(&mut self, tokens: usize, full_hashes: &[BlockHash], reserve: usize) -> Option<Admission> {
        assert!(tokens > 0, "an empty sequence needs no blocks");
        let total = self.blocks_for(tokens);
        let most_hits = (tokens - 1) / self.block_tokens;
        // At least one block is new: nothing needs to be looked up if there is none.
        if self.pool.counts().free <= reserve {
            return None;
        }
        let shared: Vec<BlockId> = match &self.cache {
            Some(cache) => cache.lookup(&full_hashes[..most_hits]).collect(),
            None => Vec::new(),
        };
        let mut hit_blocks = shared.len();
        let revived = shared.iter().filter(|id| self.pool.state(**id) == BlockState::Free).count();
        if total - hit_blocks + reserve > self.pool.counts().free - revived {
            return None;
        }
        let mut blocks = Vec::with_capacity(total);
        // Before anything is allocated, so that no hit is evicted by its own admission.
        for id in shared {
            self.pool.share(id);
            blocks.push(id);
        }
        let new = self.pool.allocate(total - hit_blocks, blocks.last().copied()).expect("I1: counted above");
        blocks.extend(self.forget(new));
        if self.mutation.is(Mutant::PrefixHitOffByOne) && hit_blocks > 0 && hit_blocks < most_hits {
            hit_blocks += 1;
        }
        Some(Admission { table: BlockTable { blocks, published: hit_blocks }, hit_blocks })
    }

    /// Whether [`admit`](Self::admit) would find enough blocks if nothing were retained.
    pub fn would_admit(&self, tokens: usize, full_hashes: &[BlockHash], reserve: usize) -> bool {
        let most_hits = (tokens - 1) / self.block_tokens;
        let hits = self.cache.iter().flat_map(|cache| cache.lookup(&full_hashes[..most_hits]));
        let in_use = hits.filter(|id| !self.pool.is_reclaimable(*id)).count();
        let BlockCounts { free, retained, .. } = self.pool.counts();
        self.blocks_for(tokens) - in_use + reserve <= free + retained
    }

    /// One more block at the end of a table that has some; false if none is Free.
    pub fn grow(&mut self, table: &mut BlockTable) -> bool {
        let last = *table.blocks.last().expect("an admitted sequence has blocks");
        let block = self.pool.allocate_next(last).map(|new| self.forget(new));
        let is_grown = block.is_some();
        table.blocks.extend(block.into_iter().flatten());
        is_grown
    }

    /// What blocks held that are handed out is no hit any more.
    fn forget(&mut self, Allocation { blocks, evicted }: Allocation) -> Vec<BlockId> {
        for hash in evicted {
            if let Some(cache) = &mut self.cache {
                cache.evict(hash);
            }
        }
        blocks
    }

    /// The first `full_hashes.len()` blocks of the table are full and complete: others may share them from now on (I2).
    pub fn publish(&mut self, table: &mut BlockTable, full_hashes: &[BlockHash]) {
        let Some(cache) = &mut self.cache else { return };
        for (i, hash) in full_hashes.iter().enumerate().skip(table.published) {
            if cache.insert(*hash, table.blocks[i]) {
                self.pool.set_hash(table.blocks[i], *hash);
            }
        }
        table.published = table.published.max(full_hashes.len());
    }

    /// Gives a table back. The end of a sequence is freed, and so forgotten, before its beginning, which more may share.
    pub fn release(&mut self, table: BlockTable) {
        for id in table.blocks.into_iter().rev() {
            self.pool.release(id);
        }
    }

    /// A transfer out of this engine holds these blocks, whatever becomes of the sequence.
    pub fn lease(&mut self, blocks: &[BlockId]) {
        for id in blocks {
            self.pool.lease(*id);
        }
    }

    pub fn end_lease(&mut self, blocks: &[BlockId]) {
        for id in blocks.iter().rev() {
            self.pool.end_lease(*id);
        }
    }

    /// A retention holds these blocks, whatever becomes of the sequence.
    pub fn retain(&mut self, blocks: &[BlockId]) {
        for id in blocks {
            self.pool.retain(*id);
        }
    }

    pub fn end_retention(&mut self, blocks: &[BlockId]) {
        for id in blocks.iter().rev() {
            self.pool.end_retention(*id);
        }
    }

    /// How many blocks would be retained if these were as well.
    pub fn retained_with(&self, blocks: &[BlockId]) -> usize {
        let new = blocks.iter().filter(|id| self.pool.retained(**id) == 0).count();
        self.pool.retained_blocks() + new
    }

    /// A peer's KV may be written into the blocks from `first` on; which they are.
    pub fn receive(&mut self, table: &BlockTable, first: usize) -> Vec<BlockId> {
        for id in &table.blocks[first..] {
            self.pool.receive(*id);
        }
        table.blocks[first..].to_vec()
    }

    /// Every writer is done with the blocks from `first` on: the sequence may use them.
    pub fn accept(&mut self, table: &BlockTable, first: usize) {
        for id in &table.blocks[first..] {
            self.pool.accept(*id);
        }
    }

    /// Gives a table back whose blocks from `first` on may still be written. Those stay quarantined until they are discarded.
    pub fn abandon(&mut self, mut table: BlockTable, first: usize) {
        for id in table.blocks.drain(first..) {
            self.pool.quarantine(id);
        }
        self.release(table);
    }

    /// The writer of these quarantined blocks has let go.
    pub fn discard(&mut self, blocks: &[BlockId]) {
        for id in blocks.iter().rev() {
            self.pool.discard(*id);
        }
    }

    /// I1, I2: pool and prefix cache say the same.
    pub fn check(&self) {
        self.pool.check();
        let mut hashed = 0;
        for id in self.pool.ids() {
            if let Some(hash) = self.pool.hash(id) {
                hashed += 1;
                let known = self.cache.as_ref().and_then(|cache| cache.get(hash));
                assert_eq!(known, Some(id), "I2: {id:?} holds {hash:?}");
            }
        }
        assert_eq!(
            hashed,
            self.cache.as_ref().map_or(0, PrefixCache::count),
            "I2: the cache names hashed blocks only"
        );
    }
}

#[cfg(test)]
mod model;
#[cfg(test)]
mod placement;

#[cfg(test)]
mod tests {
    use super::*;

    fn hashes(n: u8) -> Vec<BlockHash> {
        (0..n).map(|i| BlockHash([i; 16])).collect()
    }

    fn manager(num_blocks: u32) -> BlockManager {
        BlockManager::new(num_blocks, 4, true, Mutation::NONE)
    }

    #[test]
    fn the_last_token_is_never_a_hit() {
        let mut manager = manager(8);
        let Admission { mut table, hit_blocks } = manager.admit(8, &hashes(2), 0).unwrap();
        assert_eq!(hit_blocks, 0);
        manager.publish(&mut table, &hashes(2));
        let again = manager.admit(8, &hashes(2), 0).unwrap();
        assert_eq!(again.hit_blocks, 1);
        assert_eq!(again.table.blocks()[0], table.blocks()[0]);
        assert_ne!(again.table.blocks()[1], table.blocks()[1]);
        let longer = manager.admit(9, &hashes(2), 0).unwrap();
        assert_eq!(longer.table.blocks()[..2], *table.blocks());
        for table in [table, again.table, longer.table] {
            manager.release(table);
        }
        manager.check();
        assert_eq!(manager.counts().free, 8);
    }

    #[test]
    fn hits_on_free_blocks_do_not_count_as_room() {
        let mut manager = manager(3);
        let mut first = manager.admit(8, &hashes(2), 0).unwrap();
        manager.publish(&mut first.table, &hashes(2));
        manager.release(first.table);
        assert!(manager.admit(16, &hashes(4), 0).is_none());
        assert!(manager.admit(12, &hashes(3), 1).is_none(), "one must be left");
        let second = manager.admit(12, &hashes(3), 0).unwrap();
        assert_eq!((second.hit_blocks, manager.counts().free), (2, 0));
        manager.check();
        manager.release(second.table);
    }

    #[test]
    fn handing_a_block_out_forgets_what_it_held() {
        let mut manager = manager(2);
        let mut first = manager.admit(8, &hashes(2), 0).unwrap();
        manager.publish(&mut first.table, &hashes(2));
        manager.release(first.table);
        // The end of the sequence goes first; its beginning is still a hit.
        let other = manager.admit(4, &[BlockHash([9; 16])], 0).unwrap();
        manager.check();
        let again = manager.admit(5, &hashes(1), 0);
        assert!(again.is_none(), "one hit, but no block for the rest");
        manager.release(other.table);
        assert_eq!(manager.admit(5, &hashes(1), 0).map(|a| a.hit_blocks), Some(1));
    }

    #[test]
    fn an_abandoned_table_keeps_its_written_blocks_back() {
        let mut manager = manager(4);
        let admission = manager.admit(16, &hashes(4), 0).unwrap();
        let receiving = manager.receive(&admission.table, 1);
        assert_eq!(manager.counts().receiving, 3);
        manager.abandon(admission.table, 1);
        assert_eq!((manager.counts().quarantined, manager.counts().free), (3, 1));
        manager.discard(&receiving);
        manager.check();
        assert_eq!(manager.counts().free, 4);
    }
}
