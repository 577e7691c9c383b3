//! The block manager against a model that knows only who holds what, and what was last published where.

use std::collections::BTreeMap;

use baton_types::{BlockHash, BlockId, Mutation};
use proptest::prelude::*;

use super::{Admission, BlockManager};
use crate::block_pool::BlockState;
use crate::block_table::BlockTable;

const BLOCKS: u32 = 12;
const BLOCK_TOKENS: usize = 3;

#[derive(Clone, Debug)]
enum Op {
    Admit {
        family: u8,
        tokens: usize,
        reserve: usize,
    },
    /// The rest name a holder by its place among those that there are.
    Publish(usize),
    Grow(usize),
    Release(usize),
    Lease(usize),
    EndLease(usize),
    Receive(usize),
    Accept(usize),
    Abandon(usize),
    Discard(usize),
    Retain(usize),
    EndRetention(usize),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (0..3u8, 1..20usize, 0..3usize)
            .prop_map(|(family, tokens, reserve)| Op::Admit { family, tokens, reserve }),
        3 => (0..8usize).prop_map(Op::Publish),
        2 => (0..8usize).prop_map(Op::Grow),
        3 => (0..8usize).prop_map(Op::Release),
        1 => (0..8usize).prop_map(Op::Lease),
        1 => (0..8usize).prop_map(Op::EndLease),
        1 => (0..8usize).prop_map(Op::Receive),
        1 => (0..8usize).prop_map(Op::Accept),
        1 => (0..8usize).prop_map(Op::Abandon),
        1 => (0..8usize).prop_map(Op::Discard),
        1 => (0..8usize).prop_map(Op::Retain),
        1 => (0..8usize).prop_map(Op::EndRetention),
    ]
}

struct Holder {
    family: u8,
    table: BlockTable,
    hits: usize,
    receiving: bool,
}

struct Game {
    manager: BlockManager,
    holders: Vec<Holder>,
    leases: Vec<Vec<BlockId>>,
    retained: Vec<Vec<BlockId>>,
    quarantined: Vec<Vec<BlockId>>,
    /// What each block was published to hold, until it is handed out again.
    contents: BTreeMap<BlockId, BlockHash>,
}

fn chain(family: u8, blocks: usize) -> Vec<BlockHash> {
    // The first block is everybody's.
    (0..blocks as u8).map(|i| BlockHash([if i == 0 { 0 } else { family * 16 + i }; 16])).collect()
}

fn total_blocks(tokens: usize) -> usize {
    tokens.div_ceil(BLOCK_TOKENS)
}

fn pick<T>(items: &[T], i: usize) -> Option<usize> {
    (!items.is_empty()).then(|| i % items.len())
}

impl Game {
    fn state(&self, id: BlockId) -> BlockState {
        let inbound =
            |holder: &&Holder| holder.receiving && holder.table.blocks()[holder.hits..].contains(&id);
        if self.holders.iter().any(|holder| inbound(&holder)) {
            BlockState::Receiving
        } else if self.quarantined.iter().flatten().any(|held| *held == id) {
            BlockState::Quarantined
        } else if self.holders.iter().any(|holder| holder.table.blocks().contains(&id)) {
            BlockState::Active
        } else if self.leases.iter().chain(&self.retained).flatten().any(|held| *held == id) {
            BlockState::Leased
        } else {
            BlockState::Free
        }
    }

    fn is_only_retained(&self, id: BlockId) -> bool {
        let leased = self.leases.iter().flatten().any(|held| *held == id);
        self.state(id) == BlockState::Leased && !leased
    }

    fn free(&self) -> usize {
        (0..BLOCKS).filter(|id| self.state(BlockId(*id)) == BlockState::Free).count()
    }

    fn admit(&mut self, family: u8, tokens: usize, reserve: usize) {
        let hashes = chain(family, tokens / BLOCK_TOKENS);
        let known = |hash: &&BlockHash| self.contents.values().any(|held| held == *hash);
        let hits = hashes[..(tokens - 1) / BLOCK_TOKENS].iter().take_while(known).count();
        let revived = self
            .contents
            .iter()
            .filter(|(id, hash)| hashes[..hits].contains(hash) && self.state(**id) == BlockState::Free);
        let room = self.free() - revived.count();
        let total = total_blocks(tokens);
        // What would be free if nothing were retained.
        let held = |id: &BlockId| self.is_only_retained(*id);
        let kept = (0..BLOCKS).map(BlockId).filter(held).count();
        let kept_hits = self.contents.iter().filter(|(id, hash)| hashes[..hits].contains(hash) && held(id));
        let would = total_blocks(tokens) - hits + reserve <= room + kept - kept_hits.count();
        assert_eq!(self.manager.would_admit(tokens, &hashes, reserve), would);
        let admission = self.manager.admit(tokens, &hashes, reserve);
        assert_eq!(admission.is_some(), total - hits + reserve <= room, "{total} {hits} {reserve} {room}");
        let Some(Admission { table, hit_blocks }) = admission else { return };
        assert_eq!((hit_blocks, table.len()), (hits, total));
        for (i, id) in table.blocks().iter().enumerate() {
            if i < hits {
                assert_eq!(self.contents[id], hashes[i], "I2: a hit holds what was looked for");
            } else {
                assert_eq!(self.state(*id), BlockState::Free, "I3");
                self.contents.remove(id);
            }
        }
        self.holders.push(Holder { family, table, hits, receiving: false });
    }

    fn publish(&mut self, i: usize) {
        let holder = &mut self.holders[i];
        if holder.receiving {
            return;
        }
        let hashes = chain(holder.family, holder.table.len() - 1);
        for (id, hash) in holder.table.blocks().iter().zip(&hashes).skip(holder.table.published) {
            if !self.contents.values().any(|held| held == hash) {
                self.contents.insert(*id, *hash);
            }
        }
        self.manager.publish(&mut holder.table, &hashes);
    }

    fn grow(&mut self, i: usize) {
        let free = self.free();
        let holder = &mut self.holders[i];
        if holder.receiving {
            return;
        }
        assert_eq!(self.manager.grow(&mut holder.table), free > 0);
        if free > 0 {
            self.contents.remove(holder.table.blocks().last().unwrap());
        }
    }

    fn receive(&mut self, i: usize) {
        let holder = &mut self.holders[i];
        // Only what was just allocated may be written.
        let fresh = holder.table.published <= holder.hits;
        let leased = |id| self.leases.iter().chain(&self.retained).flatten().any(|held| held == id);
        if holder.receiving || !fresh || holder.table.blocks().iter().any(leased) {
            return;
        }
        let blocks = self.manager.receive(&holder.table, holder.hits);
        assert_eq!(blocks, holder.table.blocks()[holder.hits..]);
        holder.receiving = true;
    }

    fn play(&mut self, op: Op) {
        match op {
            Op::Admit { family, tokens, reserve } => self.admit(family, tokens, reserve),
            Op::EndLease(i) => {
                if let Some(i) = pick(&self.leases, i) {
                    let blocks = self.leases.remove(i);
                    self.manager.end_lease(&blocks);
                }
            }
            Op::EndRetention(i) => {
                if let Some(i) = pick(&self.retained, i) {
                    let blocks = self.retained.remove(i);
                    self.manager.end_retention(&blocks);
                }
            }
            Op::Discard(i) => {
                if let Some(i) = pick(&self.quarantined, i) {
                    let blocks = self.quarantined.remove(i);
                    self.manager.discard(&blocks);
                }
            }
            Op::Publish(i)
            | Op::Grow(i)
            | Op::Release(i)
            | Op::Lease(i)
            | Op::Retain(i)
            | Op::Receive(i)
            | Op::Accept(i)
            | Op::Abandon(i) => {
                if let Some(i) = pick(&self.holders, i) {
                    self.play_holder(i, op);
                }
            }
        }
    }

    fn play_holder(&mut self, i: usize, op: Op) {
        let receiving = self.holders[i].receiving;
        match op {
            Op::Publish(_) => self.publish(i),
            Op::Grow(_) => self.grow(i),
            Op::Receive(_) => self.receive(i),
            Op::Release(_) if !receiving => {
                let holder = self.holders.remove(i);
                self.manager.release(holder.table);
            }
            Op::Lease(_) if !receiving => {
                let blocks = self.holders[i].table.blocks().to_vec();
                self.manager.lease(&blocks);
                self.leases.push(blocks);
            }
            Op::Retain(_) if !receiving => {
                let blocks = self.holders[i].table.blocks().to_vec();
                let new = blocks.iter().filter(|id| !self.retained.iter().flatten().any(|held| held == *id));
                let all: std::collections::BTreeSet<_> = self.retained.iter().flatten().collect();
                assert_eq!(self.manager.retained_with(&blocks), all.len() + new.count());
                self.manager.retain(&blocks);
                self.retained.push(blocks);
            }
            Op::Accept(_) if receiving => {
                let holder = &mut self.holders[i];
                self.manager.accept(&holder.table, holder.hits);
                holder.receiving = false;
            }
            Op::Abandon(_) if receiving => {
                let holder = self.holders.remove(i);
                self.quarantined.push(holder.table.blocks()[holder.hits..].to_vec());
                self.manager.abandon(holder.table, holder.hits);
            }
            _ => {}
        }
    }

    fn check(&self) {
        self.manager.check();
        let kept = (0..BLOCKS).map(BlockId).filter(|id| self.is_only_retained(*id)).count();
        assert_eq!(self.manager.counts().retained, kept);
        for id in (0..BLOCKS).map(BlockId) {
            assert_eq!(self.manager.pool().state(id), self.state(id), "{id:?}");
            assert_eq!(self.manager.pool().hash(id).as_ref(), self.contents.get(&id), "I2: {id:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn blocks_are_where_the_model_says(ops in proptest::collection::vec(op(), 1..120)) {
        let mut game = Game {
            manager: BlockManager::new(BLOCKS, BLOCK_TOKENS, true, Mutation::NONE),
            holders: Vec::new(),
            leases: Vec::new(),
            retained: Vec::new(),
            quarantined: Vec::new(),
            contents: BTreeMap::new(),
        };
        for op in ops {
            game.play(op);
            game.check();
        }
    }
}
