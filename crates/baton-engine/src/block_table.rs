//! Where a sequence's KV lies: its blocks in the order of its tokens (I2).

use baton_types::BlockId;

/// Block `i` holds the positions `i * block_tokens ..`. Each block is held once by each table that names it; so a table is given
/// back to the block manager, never just dropped.
#[derive(Debug, Default)]
#[must_use = "its blocks leak unless it is given back to the block manager"]
pub struct BlockTable {
    pub(crate) blocks: Vec<BlockId>,
    /// So many blocks at the front have been offered to the prefix cache.
    pub(crate) published: usize,
}

impl BlockTable {
    pub fn blocks(&self) -> &[BlockId] {
        &self.blocks
    }

    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// The blocks that hold the positions `0..end`.
    pub fn covering(&self, end: usize, block_tokens: usize) -> &[BlockId] {
        &self.blocks[..end.div_ceil(block_tokens)]
    }

    /// The blocks into which the positions `start..end` are written.
    pub fn written(&self, start: usize, end: usize, block_tokens: usize) -> &[BlockId] {
        &self.blocks[start / block_tokens..end.div_ceil(block_tokens)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_map_to_blocks_in_order() {
        let table = BlockTable { blocks: (10..14).map(BlockId).collect(), published: 0 };
        assert_eq!(table.covering(17, 16), &[BlockId(10), BlockId(11)]);
        assert_eq!(table.covering(16, 16), &[BlockId(10)]);
        assert_eq!(table.written(16, 17, 16), &[BlockId(11)]);
        assert_eq!(table.written(15, 33, 16), &[BlockId(10), BlockId(11), BlockId(12)]);
    }
}
