//! How KV lies in memory.

use serde::{Deserialize, Serialize};

/// The type of one KV element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KvDtype {
    F32,
    F16,
    Bf16,
    U8,
}

impl KvDtype {
    pub const fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::U8 => 1,
        }
    }
}

/// In which order the parts of the KV pool follow one another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum KvOrder {
    /// `[rank][block][layer][k, v][kv_head of the rank][token][head_dim]`: a block is one contiguous run of
    /// [`KvLayout::rank_block_bytes`] in the memory of each rank.
    #[default]
    BlockMajor,
    /// `[rank][layer][k, v][block][kv_head of the rank][token][head_dim]`: a block is `2 x layers` runs of
    /// [`KvLayout::part_bytes`] in the memory of each rank. As others lay KV out; kept to be measured beside.
    LayerMajor,
}

/// The geometry of a KV pool. Two engines may exchange KV if their layouts differ in nothing but block size, ranks and, where
/// conversion is allowed, type.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct KvLayout {
    pub layers: u32,
    /// Of all ranks together.
    pub kv_heads: u32,
    /// Elements per head and token.
    pub head_dim: u32,
    pub dtype: KvDtype,
    /// Tokens per block.
    pub block_tokens: u32,
    /// KV heads are split evenly over so many ranks, each with memory of its own; it divides `kv_heads`.
    pub ranks: u32,
    pub order: KvOrder,
}

impl KvLayout {
    /// Bytes of K, or of V, of one head of one layer in one block: `block_tokens x head_dim` elements.
    pub fn head_run_bytes(&self) -> usize {
        self.block_tokens as usize * self.head_dim as usize * self.dtype.bytes()
    }

    /// Bytes of K and V of one token over all layers.
    pub fn token_bytes(&self) -> usize {
        2 * self.layers as usize * self.kv_heads as usize * self.head_dim as usize * self.dtype.bytes()
    }

    /// Bytes of one block over all ranks: all layers, K and V.
    pub fn block_bytes(&self) -> usize {
        self.token_bytes() * self.block_tokens as usize
    }

    /// Bytes of one block in the memory of one rank.
    pub fn rank_block_bytes(&self) -> usize {
        self.block_bytes() / self.ranks as usize
    }

    /// Bytes of K, or of V, of one layer of one block in the memory of one rank; contiguous in every order.
    pub fn part_bytes(&self) -> usize {
        self.rank_heads() * self.head_run_bytes()
    }

    /// From any byte of a block to the same byte of the next one.
    pub fn block_stride(&self) -> usize {
        match self.order {
            KvOrder::BlockMajor => self.rank_block_bytes(),
            KvOrder::LayerMajor => self.part_bytes(),
        }
    }

    /// KV heads of one rank.
    pub fn rank_heads(&self) -> usize {
        (self.kv_heads / self.ranks) as usize
    }

    /// How many blocks hold `tokens` tokens.
    pub fn blocks_for(&self, tokens: usize) -> usize {
        tokens.div_ceil(self.block_tokens as usize)
    }

    /// Where the run of one head of one block starts in a pool of `num_blocks` blocks, in bytes; `is_v` is 0 for K and 1 for V.
    pub fn head_run_offset(
        &self,
        num_blocks: usize,
        block: usize,
        layer: usize,
        is_v: usize,
        kv_head: usize,
    ) -> usize {
        let heads = self.rank_heads();
        let (rank, head) = (kv_head / heads, kv_head % heads);
        let part = layer * 2 + is_v;
        let part_start = match self.order {
            KvOrder::BlockMajor => part * self.part_bytes(),
            KvOrder::LayerMajor => part * num_blocks * self.part_bytes(),
        };
        rank * num_blocks * self.rank_block_bytes()
            + part_start
            + block * self.block_stride()
            + head * self.head_run_bytes()
    }
}

/// What a peer must know of a pool to find a *unit* in it; everything else of the layout is equal on both sides.
///
/// A unit is the run of tokens that one hash of a chain covers, and what the protocol counts in. Block sizes may differ between
/// two engines; their unit may not. Unit `i` is the `i % block_units`th part of block `i / block_units`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PoolShape {
    /// Units in the pool.
    pub units: u32,
    /// Units of a block.
    pub block_units: u32,
    /// See [`KvLayout::ranks`].
    pub ranks: u32,
    pub dtype: KvDtype,
}

impl PoolShape {
    /// One rank, and units as large as blocks.
    pub const fn whole_blocks(num_blocks: u32, dtype: KvDtype) -> Self {
        Self { units: num_blocks, block_units: 1, ranks: 1, dtype }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(ranks: u32) -> KvLayout {
        let (dtype, order) = (KvDtype::F32, KvOrder::BlockMajor);
        KvLayout { layers: 3, kv_heads: 4, head_dim: 8, dtype, block_tokens: 16, ranks, order }
    }

    #[test]
    fn the_runs_of_a_pool_tile_it() {
        for ranks in [1, 2, 4] {
            let layout = layout(ranks);
            let mut next = 0;
            for rank in 0..ranks as usize {
                for block in 0..5 {
                    for (layer, is_v) in (0..3).flat_map(|layer| [(layer, 0), (layer, 1)]) {
                        for head in 0..layout.rank_heads() {
                            let head = rank * layout.rank_heads() + head;
                            assert_eq!(layout.head_run_offset(5, block, layer, is_v, head), next);
                            next += layout.head_run_bytes();
                        }
                    }
                }
            }
            assert_eq!(next, 5 * layout.block_bytes());
        }
    }

    #[test]
    fn layer_by_layer_the_runs_tile_the_pool_as_well() {
        for ranks in [1, 2, 4] {
            let layout = KvLayout { order: KvOrder::LayerMajor, ..layout(ranks) };
            let mut next = 0;
            for rank in 0..ranks as usize {
                for (layer, is_v) in (0..3).flat_map(|layer| [(layer, 0), (layer, 1)]) {
                    for block in 0..5 {
                        for head in 0..layout.rank_heads() {
                            let head = rank * layout.rank_heads() + head;
                            assert_eq!(layout.head_run_offset(5, block, layer, is_v, head), next);
                            next += layout.head_run_bytes();
                        }
                    }
                }
            }
            assert_eq!(next, 5 * layout.block_bytes());
        }
    }

    #[test]
    fn a_begun_block_is_a_block() {
        assert_eq!(layout(1).blocks_for(0), 0);
        assert_eq!(layout(1).blocks_for(17), 2);
    }
}
