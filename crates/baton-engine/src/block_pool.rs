//! Every block's state, and the rule that makes it (I1).
//!
//! A block has three counts and a mark:
//! - *users*: how many block tables hold it;
//! - *leases*: how many transfers out of this engine hold it, so that a peer may read it, or we may still be sending it;
//! - *retained*: how many conversations it is kept for. Nobody reads it for that alone: whoever does has a lease as well;
//! - *inbound*: a peer, or a post of ours, may write it. Such a block has none of the counts and no hash: nobody may look at
//!   bytes that are still being written, and nobody else may want them.
//!
//! and exactly one state, the first that fits:
//!
//! | state | when |
//! |---|---|
//! | Receiving | inbound, and a sequence waits for it |
//! | Quarantined | inbound, and nobody waits any more, but the writer has not let go yet |
//! | Active | users > 0 |
//! | Leased | leases > 0 or retained > 0 |
//! | Free | else |
//!
//! Only Free blocks are handed out for new contents (I3). A Free block keeps its hash until then, so that the prefix cache can
//! bring it back. Blocks without a hash go first, then those that were freed longest ago; which of equals, so that the blocks of a
//! table are neighbours where they can be: see [`FreeBlocks`].

use baton_types::{BlockHash, BlockId};

use crate::free_blocks::FreeBlocks;
use crate::stats::BlockCounts;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockState {
    Free,
    Active,
    Leased,
    Receiving,
    Quarantined,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Inbound {
    Awaited,
    Abandoned,
}

#[derive(Clone, Debug, Default)]
struct Block {
    users: u32,
    leases: u32,
    retained: u32,
    inbound: Option<Inbound>,
    hash: Option<BlockHash>,
}

impl Block {
    fn state(&self) -> BlockState {
        match self.inbound {
            Some(Inbound::Awaited) => BlockState::Receiving,
            Some(Inbound::Abandoned) => BlockState::Quarantined,
            None if self.users > 0 => BlockState::Active,
            None if self.leases > 0 || self.retained > 0 => BlockState::Leased,
            None => BlockState::Free,
        }
    }

    /// Kept for conversations, and for nothing else.
    fn is_only_retained(&self) -> bool {
        self.state() == BlockState::Leased && self.leases == 0
    }
}

/// Blocks that were handed out for new contents.
#[derive(Debug)]
pub struct Allocation {
    /// In the order in which their table holds them best.
    pub blocks: Vec<BlockId>,
    /// What they held.
    pub evicted: Vec<BlockHash>,
}

#[derive(Debug)]
pub struct BlockPool {
    blocks: Vec<Block>,
    free: FreeBlocks,
    counts: BlockCounts,
    /// With retained > 0.
    retained: usize,
}

impl BlockPool {
    pub fn new(num_blocks: u32) -> Self {
        Self {
            blocks: vec![Block::default(); num_blocks as usize],
            free: FreeBlocks::new(num_blocks),
            counts: BlockCounts { free: num_blocks as usize, ..BlockCounts::default() },
            retained: 0,
        }
    }

    pub fn counts(&self) -> BlockCounts {
        self.counts
    }

    pub fn state(&self, id: BlockId) -> BlockState {
        self.blocks[id.index()].state()
    }

    pub fn hash(&self, id: BlockId) -> Option<BlockHash> {
        self.blocks[id.index()].hash
    }

    pub fn users(&self, id: BlockId) -> u32 {
        self.blocks[id.index()].users
    }

    pub fn leases(&self, id: BlockId) -> u32 {
        self.blocks[id.index()].leases
    }

    pub fn retained(&self, id: BlockId) -> u32 {
        self.blocks[id.index()].retained
    }

    /// How many blocks are kept for conversations, in use or not.
    pub fn retained_blocks(&self) -> usize {
        self.retained
    }

    /// Free, or would be if nothing were retained.
    pub fn is_reclaimable(&self, id: BlockId) -> bool {
        let block = &self.blocks[id.index()];
        block.state() == BlockState::Free || block.is_only_retained()
    }

    /// Hands out Free blocks for new contents, with one user each, for a table that ends with `behind` if it has blocks already.
    /// None if there are not so many.
    pub fn allocate(&mut self, count: usize, behind: Option<BlockId>) -> Option<Allocation> {
        if count > self.counts.free {
            return None;
        }
        let blocks = self.free.take(count, behind);
        Some(self.hand_out(blocks))
    }

    /// Hands out one for a table that ends with `behind` and grows block by block.
    pub fn allocate_next(&mut self, behind: BlockId) -> Option<Allocation> {
        let block = self.free.take_next(behind)?;
        Some(self.hand_out(vec![block]))
    }

    fn hand_out(&mut self, blocks: Vec<BlockId>) -> Allocation {
        let mut evicted = Vec::new();
        for id in &blocks {
            let block = &mut self.blocks[id.index()];
            assert_eq!(block.state(), BlockState::Free, "I3: only Free blocks get new contents");
            evicted.extend(block.hash.take());
            block.users = 1;
        }
        self.counts.free -= blocks.len();
        self.counts.active += blocks.len();
        Allocation { blocks, evicted }
    }

    /// One more user of contents that are complete.
    pub fn share(&mut self, id: BlockId) {
        self.change(id, |block| {
            assert!(block.inbound.is_none() && block.hash.is_some(), "I2: only hashed blocks are shared");
            block.users += 1;
        });
    }

    pub fn release(&mut self, id: BlockId) {
        self.change(id, |block| {
            assert!(block.users > 0, "I1: a block is released once for each user");
            block.users -= 1;
        });
    }

    pub fn lease(&mut self, id: BlockId) {
        self.change(id, |block| {
            assert!(
                block.users > 0 || block.retained > 0,
                "I3: a lease starts while somebody holds the block"
            );
            block.leases += 1;
        });
    }

    pub fn end_lease(&mut self, id: BlockId) {
        self.change(id, |block| {
            assert!(block.leases > 0, "I4: a lease ends once");
            block.leases -= 1;
        });
    }

    pub fn retain(&mut self, id: BlockId) {
        self.change(id, |block| {
            assert!(block.users > 0, "I3: a retention starts while a sequence holds the block");
            block.retained += 1;
        });
    }

    pub fn end_retention(&mut self, id: BlockId) {
        self.change(id, |block| {
            assert!(block.retained > 0, "I4: a retention ends once");
            block.retained -= 1;
        });
    }

    /// Active, just allocated -> Receiving.
    pub fn receive(&mut self, id: BlockId) {
        self.change(id, |block| {
            assert!(
                block.users == 1 && block.leases == 0 && block.retained == 0 && block.hash.is_none(),
                "I3: a writer gets it alone"
            );
            block.users = 0;
            block.inbound = Some(Inbound::Awaited);
        });
    }

    /// Receiving -> Active: the bytes are there and nobody writes any more.
    pub fn accept(&mut self, id: BlockId) {
        self.change(id, |block| {
            assert_eq!(block.inbound, Some(Inbound::Awaited), "I4: a transfer ends once");
            block.inbound = None;
            block.users = 1;
        });
    }

    /// Receiving -> Quarantined: nobody waits for the bytes, but they may still come.
    pub fn quarantine(&mut self, id: BlockId) {
        self.change(id, |block| {
            assert_eq!(block.inbound, Some(Inbound::Awaited), "I4: a transfer ends once");
            block.inbound = Some(Inbound::Abandoned);
        });
    }

    /// Quarantined -> Free: the writer has let go.
    pub fn discard(&mut self, id: BlockId) {
        self.change(id, |block| {
            assert_eq!(block.inbound, Some(Inbound::Abandoned), "I3: only what nobody awaits is discarded");
            block.inbound = None;
        });
    }

    /// The block is full and its KV complete (I2). It keeps the hash until it is handed out again.
    pub fn set_hash(&mut self, id: BlockId, hash: BlockHash) {
        let block = &mut self.blocks[id.index()];
        assert!(block.state() == BlockState::Active && block.hash.is_none(), "I2: a block is hashed once");
        block.hash = Some(hash);
    }

    /// Nobody but one sequence sees what is written into it from here on.
    pub fn assert_writable(&self, id: BlockId) {
        let block = &self.blocks[id.index()];
        // I2: a hashed block is never rewritten. I3: nor one that a peer may read or write.
        assert!(
            block.users == 1
                && block.leases == 0
                && block.retained == 0
                && block.inbound.is_none()
                && block.hash.is_none(),
            "I2, I3: {id:?} is written by a step: {block:?}"
        );
    }

    /// The only way in which a block's state changes, but for being handed out: counts and the free set follow it.
    fn change(&mut self, id: BlockId, change: impl FnOnce(&mut Block)) {
        let block = &mut self.blocks[id.index()];
        let before = block.state();
        let (was_kept, was_only_kept) = (block.retained > 0, block.is_only_retained());
        change(block);
        let after = block.state();
        self.retained = self.retained + usize::from(block.retained > 0) - usize::from(was_kept);
        let only_kept = usize::from(block.is_only_retained());
        self.counts.retained = self.counts.retained + only_kept - usize::from(was_only_kept);
        if before == after {
            return;
        }
        if before == BlockState::Free {
            assert!(self.free.remove_hashed(id), "I1, I2: only a hash brings a Free block back");
        }
        if after == BlockState::Free {
            self.free.insert(id, block.hash.is_some());
        }
        *self.count(before) -= 1;
        *self.count(after) += 1;
    }

    fn count(&mut self, state: BlockState) -> &mut usize {
        match state {
            BlockState::Free => &mut self.counts.free,
            BlockState::Active => &mut self.counts.active,
            BlockState::Leased => &mut self.counts.leased,
            BlockState::Receiving => &mut self.counts.receiving,
            BlockState::Quarantined => &mut self.counts.quarantined,
        }
    }

    pub fn ids(&self) -> impl Iterator<Item = BlockId> + use<> {
        (0..self.blocks.len() as u32).map(BlockId)
    }

    /// I1, and that an inbound block is nobody else's.
    pub fn check(&self) {
        let mut counted = BlockCounts::default();
        for (id, block) in self.ids().zip(&self.blocks) {
            let state = block.state();
            counted.retained += usize::from(block.is_only_retained());
            match state {
                BlockState::Free => counted.free += 1,
                BlockState::Active => counted.active += 1,
                BlockState::Leased => counted.leased += 1,
                BlockState::Receiving => counted.receiving += 1,
                BlockState::Quarantined => counted.quarantined += 1,
            }
            let free = self.free.contains(id, block.hash.is_some());
            assert_eq!(free, state == BlockState::Free, "I1: {id:?} {block:?}");
            if block.inbound.is_some() {
                assert!(block.users == 0 && block.leases == 0 && block.retained == 0, "I3: {id:?} {block:?}");
                assert!(block.hash.is_none(), "I2: {id:?} {block:?}");
            }
        }
        let kept = self.blocks.iter().filter(|block| block.retained > 0).count();
        assert_eq!(kept, self.retained, "I1: retained blocks");
        assert_eq!(counted, self.counts, "I1: counts");
        assert_eq!(counted.total(), self.blocks.len(), "I1: conservation");
        assert_eq!(self.free.len(), counted.free, "I1: the free set");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(n: u8) -> BlockHash {
        BlockHash([n; 16])
    }

    /// One block for an empty table.
    fn one(pool: &mut BlockPool) -> Option<BlockId> {
        pool.allocate(1, None).map(|allocation| allocation.blocks[0])
    }

    #[test]
    fn a_block_is_active_before_leased_before_free() {
        let mut pool = BlockPool::new(1);
        let id = one(&mut pool).unwrap();
        pool.set_hash(id, hash(1));
        pool.lease(id);
        pool.share(id);
        assert_eq!(pool.state(id), BlockState::Active);
        pool.release(id);
        pool.release(id);
        assert_eq!(pool.state(id), BlockState::Leased);
        assert!(one(&mut pool).is_none(), "I3");
        pool.share(id);
        pool.end_lease(id);
        assert_eq!(pool.state(id), BlockState::Active);
        pool.release(id);
        assert_eq!(pool.state(id), BlockState::Free);
        pool.check();
    }

    #[test]
    fn a_received_block_is_free_only_after_its_writer_let_go() {
        let mut pool = BlockPool::new(2);
        let a = one(&mut pool).unwrap();
        let b = one(&mut pool).unwrap();
        pool.receive(a);
        pool.receive(b);
        pool.accept(a);
        pool.quarantine(b);
        pool.release(a);
        assert_eq!((pool.state(a), pool.state(b)), (BlockState::Free, BlockState::Quarantined));
        assert_eq!(one(&mut pool), Some(a));
        assert!(one(&mut pool).is_none(), "I3");
        pool.discard(b);
        assert_eq!(one(&mut pool), Some(b));
        pool.check();
    }

    #[test]
    fn what_is_least_worth_keeping_is_handed_out_first() {
        let mut pool = BlockPool::new(3);
        let ids = pool.allocate(3, None).unwrap().blocks;
        pool.set_hash(ids[0], hash(0));
        pool.set_hash(ids[1], hash(1));
        for id in [ids[1], ids[0], ids[2]] {
            pool.release(id);
        }
        let next = |pool: &mut BlockPool| {
            let Allocation { blocks, evicted } = pool.allocate(1, None).unwrap();
            (blocks[0], evicted)
        };
        let order: Vec<_> = (0..3).map(|_| next(&mut pool)).collect();
        assert_eq!(order, [(ids[2], vec![]), (ids[1], vec![hash(1)]), (ids[0], vec![hash(0)])]);
    }

    #[test]
    #[should_panic(expected = "I2")]
    fn an_unhashed_block_is_not_shared() {
        let mut pool = BlockPool::new(1);
        let id = one(&mut pool).unwrap();
        pool.share(id);
    }

    #[test]
    #[should_panic(expected = "I1")]
    fn a_block_is_not_released_twice() {
        let mut pool = BlockPool::new(1);
        let id = one(&mut pool).unwrap();
        pool.release(id);
        pool.release(id);
    }

    #[test]
    #[should_panic(expected = "I2, I3")]
    fn a_leased_block_is_not_written() {
        let mut pool = BlockPool::new(1);
        let id = one(&mut pool).unwrap();
        pool.assert_writable(id);
        pool.lease(id);
        pool.assert_writable(id);
    }
}
