//! The KV pool as runners see it: one registered region, cut into blocks of a given layout.
#![allow(unsafe_code)]

use std::ptr::NonNull;
use std::sync::Arc;

use baton_engine::{BatchEntry, RunnerError};
use baton_types::{BlockId, KvLayout, MemoryRegion};

#[cfg(feature = "checkpoints")]
use crate::kernels::aligned::Buffer;

/// Why a region cannot be a KV pool.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KvMemoryError {
    #[error("the KV layout has no bytes in a block")]
    EmptyLayout,
    #[error("a region of {region_bytes} bytes holds no block of {block_bytes}")]
    TooSmall { region_bytes: usize, block_bytes: usize },
}

/// A region and how KV lies in it: `[block][layer][k, v][kv_head][token][head_dim]`.
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
        assert!(block.0 < self.num_blocks, "block {block:?} is in the pool of {}", self.num_blocks);
        assert!(layer < self.layout.layers as usize && kv_head < self.layout.kv_heads as usize && is_v < 2);
        let offset =
            block.index() * self.layout.block_bytes() + self.layout.head_run_offset(layer, is_v, kv_head);
        // SAFETY: block, layer and head are within the pool (asserted), so the offset is inside the region.
        unsafe { self.region.base().add(offset) }
    }

    /// Copies a block out: `layout().block_bytes()` bytes. For tests and checks; the caller must own the block.
    pub fn read_block(&self, block: BlockId) -> Vec<u8> {
        let len = self.layout.block_bytes();
        let mut out = vec![0; len];
        // SAFETY: the block is inside the region (asserted by `head_run`) and `out` is as long as it.
        unsafe { self.head_run(block, 0, 0, 0).as_ptr().copy_to_nonoverlapping(out.as_mut_ptr(), len) };
        out
    }

    /// Overwrites a block. For tests and checks; the caller must own the block.
    ///
    /// # Panics
    /// If `bytes` is not one block long.
    pub fn write_block(&self, block: BlockId, bytes: &[u8]) {
        assert_eq!(bytes.len(), self.layout.block_bytes(), "one whole block");
        // SAFETY: the block is inside the region (asserted by `head_run`) and as long as `bytes` (asserted).
        unsafe {
            self.head_run(block, 0, 0, 0).as_ptr().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len())
        };
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
    use baton_types::{HeapRegion, KvDtype, KvOrder, SeqId, TokenId};

    use super::*;

    fn layout() -> KvLayout {
        KvLayout {
            layers: 2,
            kv_heads: 3,
            head_dim: 8,
            dtype: KvDtype::F32,
            block_tokens: 4,
            order: KvOrder::BlockMajor,
        }
    }

    #[test]
    fn blocks_are_disjoint_and_read_back() {
        let layout = layout();
        let memory = KvMemory::new(Arc::new(HeapRegion::new(3 * layout.block_bytes() + 5)), layout).unwrap();
        assert_eq!(memory.num_blocks(), 3);
        for i in 0..3u8 {
            memory.write_block(BlockId(i.into()), &vec![i + 1; memory.layout().block_bytes()]);
        }
        for i in 0..3u8 {
            assert!(memory.read_block(BlockId(i.into())).iter().all(|&b| b == i + 1));
        }
    }

    #[test]
    fn a_region_without_room_and_entries_outside_the_pool_are_refused() {
        let layout = layout();
        let small = KvMemory::new(Arc::new(HeapRegion::new(8)), layout.clone());
        assert!(matches!(small, Err(KvMemoryError::TooSmall { .. })));
        let memory = KvMemory::new(Arc::new(HeapRegion::new(2 * layout.block_bytes())), layout).unwrap();
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
