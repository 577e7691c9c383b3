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
    /// `[block][layer][k, v][kv_head][token][head_dim]`: a block is one contiguous run of [`KvLayout::block_bytes`].
    #[default]
    BlockMajor,
}

/// The geometry of a KV pool. Two engines may exchange blocks only if their layouts are equal.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct KvLayout {
    pub layers: u32,
    pub kv_heads: u32,
    /// Elements per head and token.
    pub head_dim: u32,
    pub dtype: KvDtype,
    /// Tokens per block.
    pub block_tokens: u32,
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

    /// Bytes of one block: all layers, K and V.
    pub fn block_bytes(&self) -> usize {
        self.token_bytes() * self.block_tokens as usize
    }

    /// How many blocks hold `tokens` tokens.
    pub fn blocks_for(&self, tokens: usize) -> usize {
        tokens.div_ceil(self.block_tokens as usize)
    }

    /// Where the run of one head starts inside its block, in bytes; `is_v` is 0 for K and 1 for V.
    pub fn head_run_offset(&self, layer: usize, is_v: usize, kv_head: usize) -> usize {
        ((layer * 2 + is_v) * self.kv_heads as usize + kv_head) * self.head_run_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_runs_of_a_block_tile_it() {
        let layout = KvLayout {
            layers: 3,
            kv_heads: 2,
            head_dim: 8,
            dtype: KvDtype::F32,
            block_tokens: 16,
            order: KvOrder::BlockMajor,
        };
        let mut next = 0;
        for layer in 0..3 {
            for is_v in 0..2 {
                for head in 0..2 {
                    assert_eq!(layout.head_run_offset(layer, is_v, head), next);
                    next += layout.head_run_bytes();
                }
            }
        }
        assert_eq!(next, layout.block_bytes());
        assert_eq!(layout.blocks_for(0), 0);
        assert_eq!(layout.blocks_for(17), 2);
    }
}
