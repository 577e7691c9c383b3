//! How a tensor's elements are stored.

use half::{bf16, f16};

/// Element types that weights may have. The quantised ones are ggml's: blocks of 32 consecutive elements of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Dtype {
    F32,
    F16,
    Bf16,
    /// `w = d (q - 8)`: f16 `d`, then 16 bytes; byte `i` holds `q[i]` low and `q[i + 16]` high.
    Q4_0,
    /// `w = d q + m`: f16 `d`, f16 `m`, then 16 bytes as in Q4_0.
    Q4_1,
    /// `w = d q`: f16 `d`, then 32 signed bytes.
    Q8_0,
}

/// Elements in one quantised block.
pub const QUANT_BLOCK: usize = 32;

impl Dtype {
    /// Elements per storage unit.
    pub const fn block_elements(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::Bf16 => 1,
            Self::Q4_0 | Self::Q4_1 | Self::Q8_0 => QUANT_BLOCK,
        }
    }

    /// Bytes per storage unit of [`Dtype::block_elements`] elements.
    pub const fn block_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::Q4_0 => 18,
            Self::Q4_1 => 20,
            Self::Q8_0 => 34,
        }
    }

    /// Bytes of `elements` elements, or nothing if they do not fill whole blocks or the product overflows.
    pub fn bytes_for(self, elements: usize) -> Option<usize> {
        if !elements.is_multiple_of(self.block_elements()) {
            return None;
        }
        (elements / self.block_elements()).checked_mul(self.block_bytes())
    }

    /// Widens stored elements exactly to f32 (quantised ones as ggml defines them, each in one rounding).
    ///
    /// # Panics
    /// If `bytes` is not exactly the storage of `out.len()` elements.
    pub fn widen(self, bytes: &[u8], out: &mut [f32]) {
        assert_eq!(self.bytes_for(out.len()), Some(bytes.len()), "bytes and elements agree");
        let blocks = bytes.chunks_exact(self.block_bytes());
        let outs = out.chunks_exact_mut(self.block_elements());
        for (block, out) in blocks.zip(outs) {
            match self {
                Self::F32 => out[0] = f32::from_le_bytes([block[0], block[1], block[2], block[3]]),
                Self::F16 => out[0] = half_at(block, 0),
                Self::Bf16 => out[0] = bf16::from_le_bytes([block[0], block[1]]).to_f32(),
                Self::Q4_0 => {
                    let d = half_at(block, 0);
                    for i in 0..16 {
                        out[i] = d * (f32::from(block[2 + i] & 15) - 8.0);
                        out[i + 16] = d * (f32::from(block[2 + i] >> 4) - 8.0);
                    }
                }
                Self::Q4_1 => {
                    let (d, m) = (half_at(block, 0), half_at(block, 2));
                    for i in 0..16 {
                        // d x q is exact in f32 (11 + 4 bits), so that this rounds once, fused or not.
                        out[i] = d * f32::from(block[4 + i] & 15) + m;
                        out[i + 16] = d * f32::from(block[4 + i] >> 4) + m;
                    }
                }
                Self::Q8_0 => {
                    let d = half_at(block, 0);
                    for i in 0..32 {
                        out[i] = d * f32::from(block[2 + i] as i8);
                    }
                }
            }
        }
    }
}

fn half_at(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}
