//! The Free blocks of a pool: which go first, and where they lie.
//!
//! Blocks without a hash go first. Nothing is lost with any of them, so where they lie decides: a table goes on behind its last block
//! if it can, and else gets the fewest runs of neighbours that make up what it asks for. Of those with a hash the one that was freed
//! longest ago goes first, and with it neighbours that were freed not long after: no block is taken while more than a
//! [`SLACK_PART`]th of all with a hash were freed before it.

use std::collections::BTreeSet;
use std::ops::Range;

use baton_types::BlockId;

use crate::runs::Runs;

/// Chosen by trial (`block_manager/placement.rs`): it was seen to cost at most 0.5 points of hits. Twice that part halves the pieces
/// that tables are in where half of the pool is in use, and cost a point there.
const SLACK_PART: u64 = 8;

#[derive(Debug)]
pub(crate) struct FreeBlocks {
    /// Without a hash.
    blank: Runs,
    /// With one, by when they were freed, on a count of their own.
    hashed: BTreeSet<(u64, u32)>,
    /// When each of those was freed.
    freed: Vec<Option<u64>>,
    frees: u64,
}

impl FreeBlocks {
    /// All of them, without a hash.
    pub fn new(num_blocks: u32) -> Self {
        Self {
            blank: Runs::all(num_blocks),
            hashed: BTreeSet::new(),
            freed: vec![None; num_blocks as usize],
            frees: 0,
        }
    }

    pub fn insert(&mut self, id: BlockId, has_hash: bool) {
        if !has_hash {
            return self.blank.insert(id.0);
        }
        self.frees += 1;
        self.freed[id.index()] = Some(self.frees);
        self.hashed.insert((self.frees, id.0));
    }

    /// Takes a block with a hash; false if it is not among them.
    pub fn remove_hashed(&mut self, id: BlockId) -> bool {
        self.freed[id.index()].take().is_some_and(|freed| self.hashed.remove(&(freed, id.0)))
    }

    /// Takes `count` blocks, or all if there are fewer, in the order in which a table should hold them that ends with `behind`.
    pub fn take(&mut self, count: usize, behind: Option<BlockId>) -> Vec<BlockId> {
        let next = behind.map(|id| id.0 + 1);
        let slack = self.slack();
        let mut ids = self.blank.take(count, next);
        while ids.len() < count
            && let Some(first) = self.least_worth(next, slack)
        {
            ids.extend(self.take_around(first, count - ids.len(), slack));
        }
        // Pieces that were taken for different reasons may be neighbours.
        ids.sort_unstable();
        let later = ids.partition_point(|id| Some(*id) < next);
        ids.rotate_left(later);
        ids.into_iter().map(BlockId).collect()
    }

    /// Takes one block for a table that ends with `behind` and is to grow further.
    pub fn take_next(&mut self, behind: BlockId) -> Option<BlockId> {
        let next = behind.0 + 1;
        if let Some(id) = self.blank.take_next(next) {
            return Some(BlockId(id));
        }
        let id = BlockId(self.least_worth(Some(next), self.slack())?);
        self.remove_hashed(id);
        Some(id)
    }

    /// How many blocks with a hash may remain that were freed before one that is taken.
    fn slack(&self) -> u64 {
        self.hashed.len() as u64 / SLACK_PART
    }

    /// Of the blocks with a hash `wanted`, if its turn is near, or else the one whose turn it is.
    fn least_worth(&self, wanted: Option<u32>, slack: u64) -> Option<u32> {
        let &(oldest, id) = self.hashed.first()?;
        let is_near = |id: &u32| self.freed_by(oldest + slack, *id).is_some();
        Some(wanted.filter(is_near).unwrap_or(id))
    }

    /// When a block with a hash was freed, if that is not later than `limit`.
    fn freed_by(&self, limit: u64, id: u32) -> Option<u64> {
        self.freed.get(id as usize).copied().flatten().filter(|freed| *freed <= limit)
    }

    /// Takes a block with a hash, and neighbours whose turn is near, those freed longer ago first; at most `most`.
    fn take_around(&mut self, id: u32, most: usize, slack: u64) -> Range<u32> {
        let limit = self.hashed.first().map_or(0, |(oldest, _)| oldest + slack);
        let mut run = id..id;
        let mut next = Some(id);
        while run.len() < most
            && let Some(id) = next
        {
            self.remove_hashed(BlockId(id));
            run = run.start.min(id)..run.end.max(id + 1);
            let sides = run.start.checked_sub(1).into_iter().chain([run.end]);
            next = sides.filter_map(|id| Some((self.freed_by(limit, id)?, id))).min().map(|(_, id)| id);
        }
        run
    }

    /// Whether the block is among them, with a hash or without as is said.
    pub fn contains(&self, id: BlockId, has_hash: bool) -> bool {
        let hashed = self.freed[id.index()].is_some_and(|freed| self.hashed.contains(&(freed, id.0)));
        match (self.blank.contains(id.0), hashed) {
            (true, true) => panic!("I1: {id:?} is there twice"),
            (blank, hashed) => {
                if has_hash {
                    hashed
                } else {
                    blank
                }
            }
        }
    }

    pub fn len(&self) -> usize {
        self.blank.len() + self.hashed.len()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    const BLOCKS: u32 = 40;

    #[derive(Clone, Debug)]
    enum Op {
        Take {
            count: usize,
            behind: Option<u32>,
        },
        TakeNext {
            behind: u32,
        },
        /// The others name a block by its place among those that there are.
        Insert {
            place: usize,
            has_hash: bool,
        },
        RemoveHashed {
            place: usize,
        },
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            2 => (0..12usize, proptest::option::of(0..BLOCKS))
                .prop_map(|(count, behind)| Op::Take { count, behind }),
            1 => (0..BLOCKS).prop_map(|behind| Op::TakeNext { behind }),
            9 => (0..40usize, any::<bool>()).prop_map(|(place, has_hash)| Op::Insert { place, has_hash }),
            1 => (0..40usize).prop_map(|place| Op::RemoveHashed { place }),
        ]
    }

    /// Every Free block, and if it has a hash, when it was freed.
    type Model = BTreeMap<u32, Option<u64>>;

    fn hashed(model: &Model) -> impl Iterator<Item = (u64, u32)> {
        model.iter().filter_map(|(id, freed)| Some(((*freed)?, *id)))
    }

    /// What may never happen, whatever the neighbours are.
    fn judge(model: &mut Model, count: usize, taken: &[BlockId]) {
        let before = hashed(model).count() as u64;
        assert_eq!(taken.len(), count.min(model.len()));
        let taken: Vec<_> = taken
            .iter()
            .map(|id| model.remove(&id.0).unwrap_or_else(|| panic!("I3: {id:?} is not Free, or twice")))
            .collect();
        let took_hashed = taken.iter().any(Option::is_some);
        assert!(!took_hashed || model.values().all(Option::is_some), "blocks without a hash go first");
        for freed in taken.into_iter().flatten() {
            let older = hashed(model).filter(|(other, _)| *other < freed).count() as u64;
            assert!(older <= before / SLACK_PART, "{older} of {before} are older");
        }
    }

    /// The pieces in which blocks follow one another.
    fn pieces(ids: impl IntoIterator<Item = u32>) -> Vec<usize> {
        let mut last = None;
        let mut pieces = Vec::new();
        for id in ids {
            match pieces.last_mut() {
                Some(len) if last == Some(id.wrapping_sub(1)) => *len += 1,
                _ => pieces.push(1),
            }
            last = Some(id);
        }
        pieces
    }

    /// In how few pieces `count` blocks can be had, one that goes on behind the table not counted.
    fn fewest(model: &Model, count: usize, behind: Option<u32>) -> usize {
        let follows = behind.map_or(0, |id| (id + 1..BLOCKS).take_while(|id| model.contains_key(id)).count());
        let mut left = count.saturating_sub(follows);
        let begun = behind.map_or(0..0, |id| id + 1..id + 1 + follows as u32);
        let mut lens = pieces(model.keys().copied().filter(|id| !begun.contains(id)));
        lens.sort_unstable();
        let mut number = 0;
        while left > 0 {
            left = left.saturating_sub(lens.pop().expect("there are so many"));
            number += 1;
        }
        number
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

        #[test]
        fn placement_costs_nothing_of_value(ops in proptest::collection::vec(op(), 1..200)) {
            let mut free = FreeBlocks::new(BLOCKS);
            let mut model: Model = (0..BLOCKS).map(|id| (id, None)).collect();
            let mut frees = 0;
            for op in ops {
                match op {
                    Op::Take { count, behind } => {
                        let (all, blank) = (model.clone(), model.values().filter(|freed| freed.is_none()).count());
                        let taken = free.take(count, behind.map(BlockId));
                        judge(&mut model, count, &taken);
                        if count <= blank {
                            let blank: Model = all.into_iter().filter(|(_, freed)| freed.is_none()).collect();
                            let ids = behind.into_iter().chain(taken.iter().map(|id| id.0));
                            let own = usize::from(behind.is_some());
                            prop_assert_eq!(pieces(ids).len() - own, fewest(&blank, count, behind));
                        }
                    }
                    Op::TakeNext { behind } => {
                        let next = model.get(&(behind + 1)).copied();
                        let is_blank = next == Some(None);
                        let taken = free.take_next(BlockId(behind));
                        judge(&mut model, 1, taken.as_slice());
                        prop_assert!(!is_blank || taken == Some(BlockId(behind + 1)));
                    }
                    Op::Insert { place, has_hash } => {
                        let used: Vec<_> = (0..BLOCKS).filter(|id| !model.contains_key(id)).collect();
                        let Some(id) = used.get(place % used.len().max(1)) else { continue };
                        free.insert(BlockId(*id), has_hash);
                        frees += 1;
                        model.insert(*id, has_hash.then_some(frees));
                    }
                    Op::RemoveHashed { place } => {
                        let all: Vec<_> = hashed(&model).collect();
                        let Some((_, id)) = all.get(place % all.len().max(1)) else { continue };
                        prop_assert!(free.remove_hashed(BlockId(*id)));
                        prop_assert!(!free.remove_hashed(BlockId(*id)));
                        model.remove(id);
                    }
                }
                prop_assert_eq!(free.len(), model.len());
                for id in 0..BLOCKS {
                    let is = |has_hash| free.contains(BlockId(id), has_hash);
                    let freed = model.get(&id);
                    prop_assert_eq!((is(false), is(true)), (freed == Some(&None), matches!(freed, Some(Some(_)))));
                }
            }
        }
    }

    fn blocks(ids: impl IntoIterator<Item = u32>) -> Vec<BlockId> {
        ids.into_iter().map(BlockId).collect()
    }

    #[test]
    fn a_table_goes_on_behind_its_last_block_and_then_in_the_run_that_fits_best() {
        let mut free = FreeBlocks::new(20);
        free.take(20, None);
        for id in [2, 3, 4, 6, 7, 10, 11, 12, 13] {
            free.insert(BlockId(id), false);
        }
        assert_eq!(free.take(2, None), blocks([6, 7]));
        assert_eq!(free.take(4, Some(BlockId(9))), blocks(10..14));
        assert_eq!(free.take(3, Some(BlockId(3))), blocks([4, 2, 3]));
    }

    #[test]
    fn what_grows_starts_where_there_is_room() {
        let mut free = FreeBlocks::new(16);
        free.take(4, None);
        assert_eq!(free.take_next(BlockId(0)), Some(BlockId(10)));
        assert_eq!(free.take_next(BlockId(10)), Some(BlockId(11)));
        assert_eq!(free.take_next(BlockId(1)), Some(BlockId(7)), "the longest run is 4..10 by now");
    }

    #[test]
    fn neighbours_that_were_freed_soon_after_one_another_go_together() {
        let mut free = FreeBlocks::new(32);
        free.take(32, None);
        // Twice sixteen, each from its end; the second of two neighbours is freed later than any of the first.
        (0..32).rev().for_each(|id| free.insert(BlockId(id), true));
        assert_eq!(free.take(3, None), blocks([29, 30, 31]));
        // Its turn comes after three others, of 29 three may be passed over.
        assert_eq!(free.take_next(BlockId(24)), Some(BlockId(25)));
        assert_eq!(free.take_next(BlockId(20)), Some(BlockId(28)), "21 was freed long after 28");
    }
}
