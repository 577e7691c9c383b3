//! How units of two KV pools lie in memory, and which runs of bytes move between them.
//!
//! Two engines may cut their pools into blocks of different sizes, and the heads over different numbers of ranks. What
//! both have whole is moved whole: a block of a rank if both are equal; where ranks differ, or layers lie apart, a group of
//! heads of a block; where the blocks differ, or units of one are left out, one head of one unit.

use std::collections::VecDeque;

use baton_types::{EngineId, KvLayout, KvOrder, PoolShape, UnitId};

use crate::convert::Conversion;
use crate::transport::{Descriptor, Direction, ListId, MAX_PAIRS, PostId, TransportError};

/// Descriptors of a list, over our pool or a peer's.
const MAX_ENTRIES: u64 = 1 << 23;

/// A pool of blocks in one region; see [`KvOrder`](baton_types::KvOrder).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvPool {
    layout: KvLayout,
    blocks: u32,
    block_units: u32,
}

/// A [`Post`](crate::Post) of units: moves the heads that both ranks hold of `(our unit, the peer's unit)` for each pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvPost {
    pub id: PostId,
    pub direction: Direction,
    pub peer: EngineId,
    /// Ours and the peer's.
    pub ranks: (u32, u32),
    pub pairs: Vec<(UnitId, UnitId)>,
    pub notify: Option<Vec<u8>>,
}

/// What one entry of a list covers, and in which order they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Grain {
    /// A block of a rank, where that is one run: `[rank][block]`.
    Block,
    /// So many heads of a block's K or V in one layer: `[rank][block][layer][k, v][group]`.
    Heads(u32),
    /// One head of a unit's K or V in one layer: `[unit][layer][k, v][kv_head]`.
    Unit,
}

impl KvPool {
    /// `blocks` blocks of `block_units` units each.
    ///
    /// # Errors
    /// If blocks cannot be cut into so many units or heads not be split over so many ranks, or there are too many.
    pub fn new(layout: KvLayout, blocks: u32, block_units: u32) -> Result<Self, TransportError> {
        let KvLayout { kv_heads, ranks, block_tokens, .. } = layout;
        let even = |whole: u32, parts: u32| parts > 0 && whole.is_multiple_of(parts);
        if !even(kv_heads, ranks) || !even(block_tokens, block_units) {
            return Err(TransportError::BadPool("its heads or tokens cannot be split evenly"));
        }
        if blocks.checked_mul(block_units).is_none() {
            return Err(TransportError::Limit("units of a pool"));
        }
        if u32::try_from(layout.rank_block_bytes()).is_err() {
            return Err(TransportError::Limit("bytes of a block"));
        }
        Ok(Self { layout, blocks, block_units })
    }

    pub fn shape(&self) -> PoolShape {
        let Self { layout: KvLayout { ranks, dtype, .. }, blocks, block_units } = *self;
        PoolShape { units: blocks * block_units, block_units, ranks, dtype }
    }

    /// A peer's pool: as ours where `shape`, which is the peer's word, says nothing else.
    ///
    /// # Errors
    /// If there can be no such pool, or its ranks and ours share heads in another way than one's being a part of the other's.
    pub(crate) fn of_peer(&self, shape: PoolShape) -> Result<Self, TransportError> {
        let PoolShape { units, block_units, ranks, dtype } = shape;
        if block_units == 0 || !units.is_multiple_of(block_units) {
            return Err(TransportError::BadPool("its units do not make whole blocks"));
        }
        let (more, less) = (ranks.max(self.layout.ranks), ranks.min(self.layout.ranks));
        if less == 0 || !more.is_multiple_of(less) {
            return Err(TransportError::BadPool("its ranks and ours do not divide one another"));
        }
        let unit_tokens = self.layout.block_tokens / self.block_units;
        let block_tokens =
            unit_tokens.checked_mul(block_units).ok_or(TransportError::Limit("tokens of a block"))?;
        let layout = KvLayout { block_tokens, ranks, dtype, ..self.layout.clone() };
        Self::new(layout, units / block_units, block_units)
    }

    /// K and V of all layers.
    fn parts(&self) -> u32 {
        2 * self.layout.layers
    }

    fn rank_heads(&self) -> u32 {
        self.layout.kv_heads / self.layout.ranks
    }

    /// Where the run of one head begins in a block.
    fn head_run(&self, block: u32, part: u32, kv_head: u32) -> u64 {
        let (layer, is_v) = (part as usize / 2, part as usize % 2);
        self.layout.head_run_offset(self.blocks as usize, block as usize, layer, is_v, kv_head as usize)
            as u64
    }

    /// A whole block of a rank, in a pool that is block-major.
    fn block(&self, rank: u32, block: u32) -> Descriptor {
        let offset = self.head_run(block, 0, rank * self.rank_heads());
        Descriptor { offset, len: self.layout.rank_block_bytes() as u32 }
    }

    /// How whole blocks of a rank are cut.
    pub(crate) fn whole_grain(&self) -> Grain {
        match self.layout.order {
            KvOrder::BlockMajor => Grain::Block,
            KvOrder::LayerMajor => Grain::Heads(self.rank_heads()),
        }
    }

    fn unit_run(&self, unit: u32, part: u32, kv_head: u32) -> Descriptor {
        let len = (self.layout.head_run_bytes() / self.block_units as usize) as u32;
        let within = u64::from(unit % self.block_units) * u64::from(len);
        Descriptor { offset: self.head_run(unit / self.block_units, part, kv_head) + within, len }
    }

    /// Entries of one block of a rank, or of one unit.
    fn runs(&self, grain: Grain) -> u32 {
        match grain {
            Grain::Block => 1,
            Grain::Heads(group) => self.parts() * (self.rank_heads() / group),
            Grain::Unit => self.parts() * self.layout.kv_heads,
        }
    }

    /// The first entry of a block of a rank, or of a unit.
    fn first_entry(&self, grain: Grain, rank: u32, block_or_unit: u32) -> u32 {
        let before = match grain {
            Grain::Block | Grain::Heads(_) => rank * self.blocks,
            Grain::Unit => 0,
        };
        (before + block_or_unit) * self.runs(grain)
    }

    /// The entry of a head behind the first one.
    fn run_entry(&self, grain: Grain, rank: u32, part: u32, kv_head: u32) -> u32 {
        let heads = self.rank_heads();
        match grain {
            Grain::Block => 0,
            Grain::Heads(group) => part * (heads / group) + (kv_head - rank * heads) / group,
            Grain::Unit => part * self.layout.kv_heads + kv_head,
        }
    }

    /// The list of the whole pool.
    ///
    /// # Errors
    /// If it would be too long.
    pub(crate) fn descriptors(&self, grain: Grain) -> Result<Vec<Descriptor>, TransportError> {
        let (blocks, ranks, parts) = (self.blocks, self.layout.ranks, self.parts());
        let units = blocks * self.block_units;
        let of_all = match grain {
            Grain::Block | Grain::Heads(_) => u64::from(blocks) * u64::from(ranks),
            Grain::Unit => units.into(),
        };
        if of_all * u64::from(self.runs(grain)) > MAX_ENTRIES {
            return Err(TransportError::Limit("descriptors of a pool"));
        }
        let blocks = (0..ranks).flat_map(|rank| (0..blocks).map(move |block| (rank, block)));
        Ok(match grain {
            Grain::Block => blocks.map(|(rank, block)| self.block(rank, block)).collect(),
            Grain::Heads(group) => {
                let len = self.layout.head_run_bytes() as u32 * group;
                let of_part = |rank: u32, block, part| {
                    let heads = rank * self.rank_heads()..(rank + 1) * self.rank_heads();
                    let offset = move |head| self.head_run(block, part, head);
                    heads.step_by(group as usize).map(move |head| Descriptor { offset: offset(head), len })
                };
                blocks
                    .flat_map(|(rank, block)| (0..parts).flat_map(move |part| of_part(rank, block, part)))
                    .collect()
            }
            Grain::Unit => (0..units).flat_map(|unit| self.unit_runs(unit)).collect(),
        })
    }

    fn unit_runs(&self, unit: u32) -> impl Iterator<Item = Descriptor> {
        let heads = self.layout.kv_heads;
        let parts = (0..self.parts()).flat_map(move |part| (0..heads).map(move |head| (part, head)));
        parts.map(move |(part, head)| self.unit_run(unit, part, head))
    }

    /// The memory of some units: of whole blocks where all units of a block are there, one after another.
    pub(crate) fn ranges(&self, units: &[UnitId]) -> Result<Vec<Descriptor>, TransportError> {
        let pairs: Vec<_> = units.iter().map(|&unit| (unit, unit)).collect();
        let [mut blocks, rest] = whole_blocks(self, self, &pairs)?;
        // In the order of memory, so that neighbours make one range, whatever the order of the sequence.
        blocks.sort_unstable();
        let ranks = 0..self.layout.ranks;
        let of_units = rest.iter().flat_map(|&(unit, _)| self.unit_runs(unit));
        let len = self.layout.part_bytes() as u32;
        let of_blocks: Vec<Descriptor> = match self.layout.order {
            KvOrder::BlockMajor => {
                let of_block = |&(block, _)| ranks.clone().map(move |rank| self.block(rank, block));
                blocks.iter().flat_map(of_block).collect()
            }
            // Part by part: neighbours among the blocks are neighbours in memory.
            KvOrder::LayerMajor => {
                let parts = ranks.flat_map(|rank| (0..self.parts()).map(move |part| (rank, part)));
                let of_part = |(rank, part)| {
                    let offset = move |block| self.head_run(block, part, rank * self.rank_heads());
                    blocks.iter().map(move |&(block, _)| Descriptor { offset: offset(block), len })
                };
                parts.flat_map(of_part).collect()
            }
        };
        Ok(of_blocks.into_iter().chain(of_units).collect())
    }
}

/// Pairs of whole blocks, where the units of one of ours are, in order, those of one of theirs; and the pairs of units that are
/// left.
fn whole_blocks(
    ours: &KvPool,
    theirs: &KvPool,
    pairs: &[(UnitId, UnitId)],
) -> Result<[Vec<(u32, u32)>; 2], TransportError> {
    let (our_units, their_units) = (ours.shape().units, theirs.shape().units);
    if pairs.iter().any(|(our, their)| our.0 >= our_units || their.0 >= their_units) {
        return Err(TransportError::OutOfBounds);
    }
    let size = ours.block_units;
    let (mut blocks, mut rest) = (Vec::new(), Vec::new());
    let mut at = 0;
    while let Some(&(our, their)) = pairs.get(at) {
        let next = pairs.get(at..at + size as usize).unwrap_or_default();
        let in_order =
            |(i, pair): (u32, &(UnitId, UnitId))| *pair == (UnitId(our.0 + i), UnitId(their.0 + i));
        let begins = size == theirs.block_units && our.0.is_multiple_of(size) && their.0.is_multiple_of(size);
        if begins && !next.is_empty() && (0..size).zip(next).all(in_order) {
            blocks.push((our.0 / size, their.0 / size));
            at += size as usize;
        } else {
            rest.push((our.0, their.0));
            at += 1;
        }
    }
    Ok([blocks, rest])
}

/// Two lists of one grain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lists {
    pub local: ListId,
    pub remote: ListId,
}

/// A peer's pool, and the lists over both that posts to it take.
#[derive(Debug)]
pub(crate) struct Route {
    pool: KvPool,
    lists: Vec<(Grain, Lists)>,
}

impl Route {
    pub fn new(pool: KvPool) -> Self {
        Self { pool, lists: Vec::new() }
    }

    /// How posts between two pools are cut: whole blocks if there are any of one size; and units, where they may be less.
    pub fn grains(&self, ours: &KvPool) -> Vec<Grain> {
        let (our_ranks, their_ranks) = (ours.layout.ranks, self.pool.layout.ranks);
        let shared_heads = ours.layout.kv_heads / our_ranks.max(their_ranks);
        let blocks = match our_ranks == their_ranks {
            true => ours.whole_grain(),
            false => Grain::Heads(shared_heads),
        };
        match (ours.block_units == self.pool.block_units, ours.block_units) {
            (true, 1) => vec![blocks],
            (true, _) => vec![blocks, Grain::Unit],
            (false, _) => vec![Grain::Unit],
        }
    }

    pub fn descriptors(&self, grain: Grain) -> Result<Vec<Descriptor>, TransportError> {
        self.pool.descriptors(grain)
    }

    pub fn add(&mut self, grain: Grain, lists: Lists) {
        self.lists.push((grain, lists));
    }

    pub fn any_lists(&self) -> Lists {
        self.lists[0].1
    }

    pub fn conversion(&self, ours: &KvPool) -> Result<Option<Conversion>, TransportError> {
        Conversion::between(ours.layout.dtype, self.pool.layout.dtype)
    }

    /// Which entries of which lists a post moves.
    ///
    /// # Errors
    /// If it names a unit or rank that is not there, or ranks without a head in common.
    pub fn moves(
        &self,
        ours: &KvPool,
        ranks: (u32, u32),
        pairs: &[(UnitId, UnitId)],
    ) -> Result<Moves, TransportError> {
        let theirs = &self.pool;
        let heads = |pool: &KvPool, rank: u32| match rank < pool.layout.ranks {
            true => Ok(rank * pool.rank_heads()..(rank + 1) * pool.rank_heads()),
            false => Err(TransportError::OutOfBounds),
        };
        let (our_heads, their_heads) = (heads(ours, ranks.0)?, heads(theirs, ranks.1)?);
        // Of two ranks that share a head, the smaller is a part of the larger (`of_peer`).
        let shared = our_heads.start.max(their_heads.start)..our_heads.end.min(their_heads.end);
        if shared.is_empty() {
            return Err(TransportError::OutOfBounds);
        }
        // In the order of our memory and not of the sequence, which means nothing here: then neighbours on both sides come one
        // after the other, and become one run, wherever they are in the sequence.
        let [mut blocks, mut units] = whole_blocks(ours, theirs, pairs)?;
        blocks.sort_unstable();
        units.sort_unstable();
        let segment = |&(grain, lists): &(Grain, Lists)| {
            let (pairs, parts, heads) = match grain {
                Grain::Block => (&blocks, 0..1, shared.start..shared.start + 1),
                Grain::Heads(_) => (&blocks, 0..ours.parts(), shared.start..shared.start + 1),
                Grain::Unit => (&units, 0..ours.parts(), shared.clone()),
            };
            let first = |&(our, their): &(u32, u32)| {
                (ours.first_entry(grain, ranks.0, our), theirs.first_entry(grain, ranks.1, their))
            };
            let run = |part, head| {
                (ours.run_entry(grain, ranks.0, part, head), theirs.run_entry(grain, ranks.1, part, head))
            };
            let runs = parts.flat_map(|part| heads.clone().map(move |head| run(part, head))).collect();
            // Units of one block: of each head they are neighbours.
            let size = if grain == Grain::Unit { ours.block_units } else { 1 };
            let stripes = pairs.chunk_by(|a, b| a.0 / size == b.0 / size);
            let stripes = stripes.map(|pairs| pairs.iter().map(first).collect()).collect();
            Segment { lists, stripes, runs, taken: 0 }
        };
        let segments = self.lists.iter().map(segment).filter(|segment| !segment.stripes.is_empty());
        Ok(Moves { segments: segments.collect() })
    }
}

/// Entries of two lists, stripe by stripe: each of a stripe's runs of every first entry, before the next run.
#[derive(Debug)]
struct Segment {
    lists: Lists,
    stripes: VecDeque<Vec<(u32, u32)>>,
    runs: Vec<(u32, u32)>,
    /// Entries of the first stripe that were taken.
    taken: usize,
}

impl Segment {
    fn next_pair(&mut self) -> Option<(u32, u32)> {
        let firsts = self.stripes.front()?;
        let (first, run) = (firsts[self.taken % firsts.len()], self.runs[self.taken / firsts.len()]);
        self.taken += 1;
        if self.taken == firsts.len() * self.runs.len() {
            self.stripes.pop_front();
            self.taken = 0;
        }
        Some((first.0 + run.0, first.1 + run.1))
    }
}

/// What is left to move of a post.
#[derive(Debug)]
pub(crate) struct Moves {
    segments: Vec<Segment>,
}

impl Moves {
    /// The next pairs, as many as one post of the transport takes. None if there are none left.
    pub fn take(&mut self) -> Option<(Lists, Vec<(u32, u32)>)> {
        let segment = self.segments.last_mut()?;
        let (lists, mut pairs) = (segment.lists, Vec::new());
        while pairs.len() < MAX_PAIRS
            && let Some(pair) = segment.next_pair()
        {
            pairs.push(pair);
        }
        if segment.stripes.is_empty() {
            self.segments.pop();
        }
        Some((lists, pairs))
    }

    pub fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use baton_types::KvDtype;
    use proptest::prelude::*;

    const LAYERS: u32 = 3;
    const KV_HEADS: u32 = 4;

    fn pool(block_units: u32) -> KvPool {
        let (dtype, order) = (KvDtype::F32, KvOrder::BlockMajor);
        let block_tokens = 8 * block_units;
        let layout = KvLayout {
            layers: LAYERS,
            kv_heads: KV_HEADS,
            head_dim: 2,
            dtype,
            block_tokens,
            ranks: 1,
            order,
        };
        KvPool::new(layout, 24 / block_units, block_units).unwrap()
    }

    /// How many runs are left of ranges on both sides when neighbours are merged as they come.
    fn merged(ranges: &[(Descriptor, Descriptor)]) -> usize {
        let follows = |a: Descriptor, b: Descriptor| a.offset + u64::from(a.len) == b.offset;
        1 + ranges.windows(2).filter(|w| !(follows(w[0].0, w[1].0) && follows(w[0].1, w[1].1))).count()
    }

    /// What a post moves of each pair of lists, in the order in which the transport gets it.
    fn ranges(
        ours: &KvPool,
        theirs: &KvPool,
        pairs: &[(u32, u32)],
    ) -> BTreeMap<ListId, Vec<(Descriptor, Descriptor)>> {
        let mut route = Route::new(theirs.clone());
        let mut lists = Vec::new();
        for grain in route.grains(ours) {
            let id = ListId(lists.len() as u32);
            route.add(grain, Lists { local: id, remote: id });
            lists.push((ours.descriptors(grain).unwrap(), theirs.descriptors(grain).unwrap()));
        }
        let pairs: Vec<_> = pairs.iter().map(|(our, their)| (UnitId(*our), UnitId(*their))).collect();
        let mut moves = route.moves(ours, (0, 0), &pairs).unwrap();
        let mut ranges: BTreeMap<_, Vec<_>> = BTreeMap::new();
        while let Some((Lists { local, .. }, entries)) = moves.take() {
            let (ours, theirs) = &lists[local.0 as usize];
            let range = |(our, their): (u32, u32)| (ours[our as usize], theirs[their as usize]);
            ranges.entry(local).or_default().extend(entries.into_iter().map(range));
        }
        ranges
    }

    proptest! {
        #[test]
        fn no_order_of_a_post_s_entries_leaves_fewer_descriptors(
            sizes in (1..5u32, 1..5u32),
            starts in proptest::collection::vec((0..24u32, 0..24u32, 1..9u32), 1..6),
            turned in any::<bool>(),
        ) {
            let mut pairs: Vec<(u32, u32)> = Vec::new();
            for (our, their, len) in starts {
                for (our, their) in (our..24).zip(their..24).take(len as usize) {
                    if !pairs.iter().any(|pair| pair.0 == our || pair.1 == their) {
                        pairs.push((our, their));
                    }
                }
            }
            if turned {
                pairs.reverse();
            }
            for ranges in ranges(&pool(sizes.0), &pool(sizes.1), &pairs).into_values() {
                // Whatever is a neighbour on both sides comes one after the other, if one side is in order.
                let mut sorted = ranges.clone();
                sorted.sort_unstable_by_key(|(our, _)| our.offset);
                prop_assert_eq!(merged(&ranges), merged(&sorted));
            }
        }
    }

    #[test]
    fn a_table_that_lies_backwards_on_both_sides_is_one_run() {
        let pool = pool(1);
        let pairs: Vec<_> = (0..9).map(|i| (20 - i, 12 - i)).collect();
        let ranges = ranges(&pool, &pool, &pairs);
        assert_eq!(ranges.into_values().map(|ranges| merged(&ranges)).collect::<Vec<_>>(), [1]);
    }
}
