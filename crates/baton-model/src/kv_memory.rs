//! The KV pool as runners see it: one registered region, cut into blocks of a given layout.
#![allow(unsafe_code)]

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

use baton_engine::{BatchEntry, RunnerError};
use baton_types::{BlockId, KvDtype, KvLayout, MemoryRegion, UnitId};
use half::{bf16, f16};

#[cfg(feature = "checkpoints")]
use crate::kernels::aligned::Buffer;

/// Why a region cannot be a KV pool.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KvMemoryError {
    #[error("the KV layout has no bytes in a block")]
    EmptyLayout,
    #[error("{kv_heads} KV heads cannot be split evenly over {ranks} ranks")]
    Ranks { kv_heads: u32, ranks: u32 },
    #[error("a region of {region_bytes} bytes holds no block of {block_bytes}")]
    TooSmall { region_bytes: usize, block_bytes: usize },
}

/// A region and how KV lies in it: see [`KvOrder`](baton_types::KvOrder). The ranks' memories are consecutive parts of it.
///
/// Cheap to clone; all clones are the same memory. There is never a Rust reference into it: bytes are reached through raw
/// pointers into blocks that the engine says are the caller's (see [`MemoryRegion`]).
#[derive(Clone, Debug)]
pub struct KvMemory {
    region: Arc<dyn MemoryRegion>,
    layout: KvLayout,
    num_blocks: u32,
}

impl KvMemory {
    /// As many blocks of `layout` as fit into `region`.
    pub fn new(region: Arc<dyn MemoryRegion>, layout: KvLayout) -> Result<Self, KvMemoryError> {
        let KvLayout { kv_heads, ranks, .. } = layout;
        if ranks == 0 || !kv_heads.is_multiple_of(ranks) {
            return Err(KvMemoryError::Ranks { kv_heads, ranks });
        }
        let block_bytes = layout.block_bytes();
        if block_bytes == 0 {
            return Err(KvMemoryError::EmptyLayout);
        }
        let region_bytes = region.len();
        match u32::try_from(region_bytes / block_bytes).unwrap_or(u32::MAX) {
            0 => Err(KvMemoryError::TooSmall { region_bytes, block_bytes }),
            num_blocks => Ok(Self { region, layout, num_blocks }),
        }
    }

    /// A pool of `num_blocks` blocks in memory of its own, in huge pages where the system has them: the runs that attention reads
    /// lie far apart, and each would cost an address translation.
    ///
    /// # Panics
    /// If the pool has no bytes, or more than the address space.
    #[cfg(feature = "checkpoints")]
    pub fn allocate(layout: KvLayout, num_blocks: u32) -> Self {
        let bytes =
            layout.block_bytes().checked_mul(num_blocks as usize).expect("the pool fits the address space");
        Self::new(Arc::new(Buffer::<u8>::zeroed(bytes)), layout).expect("the region is made for the layout")
    }

    pub fn layout(&self) -> &KvLayout {
        &self.layout
    }

    /// Blocks in the pool: ids are `0..num_blocks`.
    pub fn num_blocks(&self) -> u32 {
        self.num_blocks
    }

    pub fn region(&self) -> &Arc<dyn MemoryRegion> {
        &self.region
    }

    /// Where the K (`is_v` 0) or V (1) run of one head of one layer starts in `block`: `block_tokens x head_dim` elements.
    ///
    /// Whoever reads or writes through the pointer must hold the block's right to it (I1, I3).
    ///
    /// # Panics
    /// If the block, layer or head is outside the pool.
    pub fn head_run(&self, block: BlockId, layer: usize, is_v: usize, kv_head: usize) -> NonNull<u8> {
        assert!(layer < self.layout.layers as usize && kv_head < self.layout.kv_heads as usize && is_v < 2);
        assert!(block.0 < self.num_blocks, "block {block:?} is in the pool of {}", self.num_blocks);
        let (blocks, block) = (self.num_blocks as usize, block.index());
        let offset = self.layout.head_run_offset(blocks, block, layer, is_v, kv_head);
        // SAFETY: block, layer and head are within the pool (asserted), so the offset is inside the region.
        unsafe { self.region.base().add(offset) }
    }

    /// [`KvMemory::head_run`] of each block of a table.
    pub fn head_runs(
        &self,
        table: &[BlockId],
        layer: usize,
        is_v: usize,
        kv_head: usize,
    ) -> impl Iterator<Item = NonNull<u8>> {
        let first = self.head_run(BlockId(0), layer, is_v, kv_head);
        let (stride, blocks) = (self.layout.block_stride(), self.num_blocks);
        table.iter().map(move |block| {
            assert!(block.0 < blocks, "block {block:?} is in the pool of {blocks}");
            // SAFETY: this run lies at one distance in all blocks of the pool, of which this is one (asserted).
            unsafe { first.add(block.index() * stride) }
        })
    }

    /// Copies a block out, whatever the ranks, as `[layer][k, v][kv_head][token][head_dim]`: `layout().block_bytes()` bytes. For
    /// tests and checks; the caller must own the block.
    pub fn read_block(&self, block: BlockId) -> Vec<u8> {
        let run_bytes = self.layout.head_run_bytes();
        let mut out = vec![0; self.layout.block_bytes()];
        for (out, run) in out.chunks_exact_mut(run_bytes).zip(self.runs(block)) {
            // SAFETY: both are one run long.
            unsafe { run.as_ptr().copy_to_nonoverlapping(out.as_mut_ptr(), run_bytes) };
        }
        out
    }

    /// Overwrites a block with what [`KvMemory::read_block`] gives. For tests and checks; the caller must own the block.
    ///
    /// # Panics
    /// If `bytes` is not one block long.
    pub fn write_block(&self, block: BlockId, bytes: &[u8]) {
        assert_eq!(bytes.len(), self.layout.block_bytes(), "one whole block");
        let run_bytes = self.layout.head_run_bytes();
        for (bytes, run) in bytes.chunks_exact(run_bytes).zip(self.runs(block)) {
            // SAFETY: both are one run long.
            unsafe { run.as_ptr().copy_from_nonoverlapping(bytes.as_ptr(), run_bytes) };
        }
    }

    /// Every run of a block, by layer, K and V, and head.
    fn runs(&self, block: BlockId) -> impl Iterator<Item = NonNull<u8>> {
        let (layers, heads) = (self.layout.layers as usize, self.layout.kv_heads as usize);
        let parts = (0..layers).flat_map(|layer| [(layer, 0), (layer, 1)]);
        parts.flat_map(move |(layer, is_v)| {
            (0..heads).map(move |head| self.head_run(block, layer, is_v, head))
        })
    }

    /// Some heads of a unit, whatever the ranks and the type, as `[layer][k, v][kv_head][token][head_dim]`. For the simulator;
    /// the caller must own the block.
    ///
    /// # Panics
    /// If the unit or a head is outside the pool, or elements are no floats.
    pub fn read_unit(&self, unit: UnitId, block_units: u32, heads: Range<usize>) -> Vec<f32> {
        let mut out = Vec::new();
        self.each_of_unit(unit, block_units, heads, |element| {
            // SAFETY: an element of the pool, aligned as the type wants it.
            out.push(unsafe {
                match self.layout.dtype {
                    KvDtype::F32 => element.cast::<f32>().read(),
                    KvDtype::F16 => element.cast::<f16>().read().to_f32(),
                    KvDtype::Bf16 => element.cast::<bf16>().read().to_f32(),
                    KvDtype::U8 => panic!("bytes are no floats"),
                }
            });
        });
        out
    }

    /// Overwrites what [`KvMemory::read_unit`] gives.
    ///
    /// # Panics
    /// As there, or if there are not so many values.
    pub fn write_unit(&self, unit: UnitId, block_units: u32, heads: Range<usize>, values: &[f32]) {
        let mut values = values.iter();
        self.each_of_unit(unit, block_units, heads, |element| {
            let value = *values.next().expect("a value for each element");
            // SAFETY: as in `read_unit`.
            unsafe {
                match self.layout.dtype {
                    KvDtype::F32 => element.cast::<f32>().write(value),
                    KvDtype::F16 => element.cast::<f16>().write(f16::from_f32(value)),
                    KvDtype::Bf16 => element.cast::<bf16>().write(bf16::from_f32(value)),
                    KvDtype::U8 => panic!("bytes are no floats"),
                }
            }
        });
        assert!(values.next().is_none(), "a value for each element");
    }

    fn each_of_unit(
        &self,
        unit: UnitId,
        block_units: u32,
        heads: Range<usize>,
        mut f: impl FnMut(NonNull<u8>),
    ) {
        let (block, part) = (BlockId(unit.0 / block_units), (unit.0 % block_units) as usize);
        let (bytes, run_bytes) =
            (self.layout.dtype.bytes(), self.layout.head_run_bytes() / block_units as usize);
        for (layer, is_v) in (0..self.layout.layers as usize).flat_map(|layer| [(layer, 0), (layer, 1)]) {
            for head in heads.clone() {
                let run = self.head_run(block, layer, is_v, head);
                // SAFETY: a block's run has `block_units` times `run_bytes`.
                let elements =
                    (0..run_bytes).step_by(bytes).map(|at| unsafe { run.add(part * run_bytes + at) });
                elements.for_each(&mut f);
            }
        }
    }

    /// Refuses an entry that does not fit the pool: no tokens, a table that is too short, or a block that is not there.
    pub fn check_entry(&self, entry: &BatchEntry) -> Result<(), RunnerError> {
        let needed = self.layout.blocks_for(entry.end());
        if entry.tokens.is_empty() {
            return Err(RunnerError(format!("{:?} has no tokens to compute", entry.seq)));
        }
        if entry.table.len() < needed {
            let (seq, has) = (entry.seq, entry.table.len());
            return Err(RunnerError(format!("{seq:?} needs {needed} blocks and its table has {has}")));
        }
        match entry.table.iter().find(|block| block.0 >= self.num_blocks) {
            Some(block) => Err(RunnerError(format!("{:?} names {block:?}, outside the pool", entry.seq))),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use baton_types::{HeapRegion, KvOrder, SeqId, TokenId};

    use super::*;

    fn layout(ranks: u32) -> KvLayout {
        let (dtype, order) = (KvDtype::F32, KvOrder::BlockMajor);
        KvLayout { layers: 2, kv_heads: 3, head_dim: 8, dtype, block_tokens: 4, ranks, order }
    }

    fn memory(layout: KvLayout, blocks: usize) -> Result<KvMemory, KvMemoryError> {
        KvMemory::new(Arc::new(HeapRegion::new(blocks * layout.block_bytes() + 5)), layout)
    }

    #[test]
    fn blocks_are_disjoint_and_read_back() {
        let orders = [KvOrder::BlockMajor, KvOrder::LayerMajor];
        for (ranks, order) in [1, 3].into_iter().flat_map(|ranks| orders.map(|order| (ranks, order))) {
            let memory = memory(KvLayout { order, ..layout(ranks) }, 3).unwrap();
            assert_eq!(memory.num_blocks(), 3);
            let held = |i: u8| (0..memory.layout().block_bytes()).map(|at| at as u8 ^ i).collect::<Vec<_>>();
            (0..3).for_each(|i| memory.write_block(BlockId(i), &held(i as u8)));
            for i in 0..3u8 {
                assert_eq!(memory.read_block(BlockId(i.into())), held(i), "{ranks} ranks, {order:?}");
            }
        }
    }

    #[test]
    fn the_runs_of_a_table_are_those_of_its_blocks() {
        for order in [KvOrder::BlockMajor, KvOrder::LayerMajor] {
            let memory = memory(KvLayout { order, ..layout(3) }, 5).unwrap();
            let table = [4, 0, 2].map(BlockId);
            let want = table.map(|block| memory.head_run(block, 1, 1, 2));
            assert_eq!(memory.head_runs(&table, 1, 1, 2).collect::<Vec<_>>(), want);
        }
    }

    #[test]
    fn a_unit_is_its_part_of_every_run_of_its_block() {
        for (ranks, dtype) in [(1, KvDtype::F32), (3, KvDtype::F16), (3, KvDtype::Bf16)] {
            let memory = memory(KvLayout { dtype, ..layout(ranks) }, 3).unwrap();
            let (units, len) = (6u32, 2 * 2 * 3 * 2 * 8);
            let values = |unit: u32, heads: usize| {
                // Small whole numbers are exact in every type.
                (0..len / 3 * heads).map(move |i| (i % 40) as f32 + 40.0 * unit as f32).collect::<Vec<_>>()
            };
            (0..units).for_each(|unit| memory.write_unit(UnitId(unit), 2, 0..3, &values(unit, 3)));
            for unit in 0..units {
                assert_eq!(memory.read_unit(UnitId(unit), 2, 0..3), values(unit, 3));
            }
            memory.write_unit(UnitId(3), 2, 1..2, &values(5, 1));
            let heads = [0..1, 1..2, 2..3].map(|heads| memory.read_unit(UnitId(3), 2, heads));
            assert_eq!(heads[1], values(5, 1));
            let old: Vec<f32> = values(3, 3).chunks_exact(16).step_by(3).flatten().copied().collect();
            assert_eq!(heads[0], old, "other heads stay");
            assert_eq!(memory.read_unit(UnitId(2), 2, 0..3), values(2, 3), "and so do other units");
        }
    }

    #[test]
    fn a_region_without_room_and_entries_outside_the_pool_are_refused() {
        let small = KvMemory::new(Arc::new(HeapRegion::new(8)), layout(1));
        assert!(matches!(small, Err(KvMemoryError::TooSmall { .. })));
        let uneven = KvMemory::new(Arc::new(HeapRegion::new(1 << 16)), layout(2));
        assert_eq!(uneven.unwrap_err(), KvMemoryError::Ranks { kv_heads: 3, ranks: 2 });
        let memory = memory(layout(1), 2).unwrap();
        let entry = |tokens: usize, table: &[u32]| BatchEntry {
            seq: SeqId(1),
            tokens: vec![TokenId(0); tokens],
            start: 0,
            table: table.iter().copied().map(BlockId).collect(),
            sample: None,
        };
        assert!(memory.check_entry(&entry(8, &[1, 0])).is_ok());
        for bad in [entry(0, &[0]), entry(5, &[0]), entry(4, &[2])] {
            assert!(memory.check_entry(&bad).is_err());
        }
    }
}
