//! Weights as the kernels read them: panels of 32 outputs, cut into blocks of 32 inputs.
//!
//! Inside a block the 32 outputs lie side by side (two vectors of lanes), so that a vector load gives one input's weights for
//! sixteen outputs, and a panel is read front to back. Values keep the precision of the checkpoint:
//!
//! | format | block, in order |
//! |---|---|
//! | F32, F16, Bf16 | `[input][output]` |
//! | Q4_0, Q4_1 | scales f16 `[output]`; Q4_1: minima f16 `[output]`; 4 x `[output]` words of 8 nibbles |
//! | Q8_0 | scales f16 `[output]`; 8 x `[output]` words of 4 bytes |
//!
//! A word of nibbles holds inputs 0, 4, 1, 5, 2, 6, 3, 7 of its eight from low to high: so the low nibbles of its bytes are inputs
//! 0 to 3 and the high ones 4 to 7, which is how integer dot products want them.

use super::arena::{Arena, ArenaSlice};
use super::simd::{LANES, Simd, array};
use crate::weights::Tensor;
use crate::weights::dtype::{Dtype, QUANT_BLOCK};

/// Outputs of one panel.
pub const PANEL: usize = 32;
/// Inputs of one block.
pub const BLOCK: usize = QUANT_BLOCK;

/// A matrix in panels. Outputs beyond the last are zero weights up to a whole panel.
#[derive(Debug)]
pub struct PackedMatrix {
    pub dtype: Dtype,
    pub outputs: usize,
    pub inputs: usize,
    bytes: ArenaSlice,
}

impl PackedMatrix {
    /// Packs the rows of tensors of one element type, one below the other.
    ///
    /// # Panics
    /// If there is none, their element types or columns differ, or columns are not a multiple of 32.
    pub fn pack(tensors: &[Tensor<'_>], arena: &mut Arena) -> Self {
        let (dtype, inputs) = (tensors[0].dtype, tensors[0].columns());
        assert!(tensors.iter().all(|t| t.dtype == dtype && t.columns() == inputs), "one type, one width");
        let rows: Vec<&[u8]> = tensors.iter().flat_map(|t| (0..t.rows()).map(|row| t.row(row))).collect();
        Self::pack_rows(dtype, inputs, &rows, arena)
    }

    /// Like [`PackedMatrix::pack`], with plain formats rounded to Q8_0 for integer products.
    pub fn pack_int8(tensors: &[Tensor<'_>], arena: &mut Arena) -> Self {
        let (dtype, inputs) = (tensors[0].dtype, tensors[0].columns());
        if dtype.block_elements() == BLOCK {
            return Self::pack(tensors, arena);
        }
        let mut rounded = Vec::new();
        for tensor in tensors {
            rounded.extend(tensor.to_f32().chunks_exact(BLOCK).flat_map(round_to_q8_0));
        }
        let row_bytes = Dtype::Q8_0.bytes_for(inputs).expect("inputs come in blocks");
        let rows: Vec<&[u8]> = rounded.chunks_exact(row_bytes).collect();
        Self::pack_rows(Dtype::Q8_0, inputs, &rows, arena)
    }

    /// Packs rows given as stored bytes.
    pub fn pack_rows(dtype: Dtype, inputs: usize, rows: &[&[u8]], arena: &mut Arena) -> Self {
        assert!(inputs.is_multiple_of(BLOCK), "inputs come in blocks of {BLOCK}");
        let panels = rows.len().div_ceil(PANEL);
        let panel_bytes = inputs / BLOCK * block_bytes(dtype);
        let mut bytes = arena.take(panels * panel_bytes);
        let stored = dtype.bytes_for(BLOCK).expect("a block is whole");
        for (panel, out) in bytes.as_mut_slice().chunks_exact_mut(panel_bytes.max(1)).enumerate() {
            for (lane, row) in rows[panel * PANEL..].iter().take(PANEL).enumerate() {
                let blocks = row.chunks_exact(stored).zip(out.chunks_exact_mut(block_bytes(dtype)));
                blocks.for_each(|(from, to)| pack_block(dtype, from, to, lane));
            }
        }
        Self { dtype, outputs: rows.len(), inputs, bytes }
    }

    pub fn panels(&self) -> usize {
        self.outputs.div_ceil(PANEL)
    }

    pub fn blocks(&self) -> usize {
        self.inputs / BLOCK
    }

    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Where block `block` of panel `panel` starts.
    pub fn block_ptr(&self, panel: usize, block: usize) -> *const u8 {
        assert!(panel < self.panels() && block < self.blocks(), "a block of the matrix");
        let offset = (panel * self.blocks() + block) * block_bytes(self.dtype);
        // SAFETY: inside the buffer, as asserted.
        unsafe { self.bytes.ptr().add(offset) }
    }
}

/// Bytes of one block of a panel: 32 x 32 weights.
pub const fn block_bytes(dtype: Dtype) -> usize {
    match dtype {
        Dtype::F32 => F32Block::BYTES,
        Dtype::F16 => F16Block::BYTES,
        Dtype::Bf16 => Bf16Block::BYTES,
        Dtype::Q4_0 => Q4Block::<false>::BYTES,
        Dtype::Q4_1 => Q4Block::<true>::BYTES,
        Dtype::Q8_0 => Q8Block::BYTES,
    }
}

/// Puts one row's block of 32 inputs into lane `lane` of a packed block.
fn pack_block(dtype: Dtype, from: &[u8], to: &mut [u8], lane: usize) {
    match dtype {
        Dtype::F32 | Dtype::F16 | Dtype::Bf16 => {
            let size = dtype.block_bytes();
            for (input, value) in from.chunks_exact(size).enumerate() {
                to[(input * PANEL + lane) * size..][..size].copy_from_slice(value);
            }
        }
        Dtype::Q4_0 | Dtype::Q4_1 => {
            let header = dtype.block_bytes() - BLOCK / 2;
            for (i, half) in from[..header].chunks_exact(2).enumerate() {
                to[(i * PANEL + lane) * 2..][..2].copy_from_slice(half);
            }
            let nibble = |input: usize| match input < BLOCK / 2 {
                true => from[header + input] & 15,
                false => from[header + input - BLOCK / 2] >> 4,
            };
            for group in 0..BLOCK / 8 {
                for i in 0..4 {
                    let byte = nibble(group * 8 + i) | nibble(group * 8 + 4 + i) << 4;
                    to[header * PANEL + (group * PANEL + lane) * 4 + i] = byte;
                }
            }
        }
        Dtype::Q8_0 => {
            to[lane * 2..][..2].copy_from_slice(&from[..2]);
            for group in 0..BLOCK / 4 {
                let at = 2 * PANEL + (group * PANEL + lane) * 4;
                to[at..][..4].copy_from_slice(&from[2 + group * 4..][..4]);
            }
        }
    }
}

/// One block of 32 values as Q8_0 stores it.
fn round_to_q8_0(values: &[f32]) -> [u8; 34] {
    let largest = values.iter().fold(0.0f32, |most, x| most.max(x.abs()));
    let scale = half::f16::from_f32(largest / 127.0);
    let inverse = if scale.to_f32() > 0.0 { 1.0 / scale.to_f32() } else { 0.0 };
    let mut out = [0; 34];
    out[..2].copy_from_slice(&scale.to_le_bytes());
    for (out, x) in out[2..].iter_mut().zip(values) {
        // The cast saturates: a scale that f16 rounded down may lift the largest value just above 127.
        *out = (x * inverse).round_ties_even() as i8 as u8;
    }
    out
}

/// Takes the values of one input, or of four. A method that is always inlined, where a closure might not be (see
/// [`array!`]).
#[allow(clippy::missing_safety_doc)]
pub trait Visit<V> {
    /// # Safety
    /// As for [`Simd`].
    unsafe fn visit(&mut self, index: usize, values: V);
}

/// A packed format, as exact f32 arithmetic reads it.
///
/// # Safety
/// Pointers are to a packed block of this format; `v` is 0 or 1, the half of the panel's lanes. See also [`Simd`].
#[allow(clippy::missing_safety_doc)]
pub trait PanelBlock {
    /// Bytes of a block.
    const BYTES: usize;
    /// Whether the block is read from memory, not from a widened stretch in the cache.
    const PACKED: bool = true;
    /// Whether sums of stored values are to be scaled.
    const SCALED: bool;
    /// Whether there are minima.
    const HAS_MIN: bool;

    unsafe fn scale<S: Simd>(block: *const u8, v: usize) -> S::F;
    /// Means nothing without [`PanelBlock::HAS_MIN`].
    unsafe fn min<S: Simd>(block: *const u8, v: usize) -> S::F;
    /// Shows `visitor` each of the 32 inputs, in order: its stored values in `N` vectors of lanes from `v` on.
    unsafe fn for_each_input<S: Simd, const N: usize>(
        block: *const u8,
        v: usize,
        visitor: &mut impl Visit<[S::F; N]>,
    );
}

/// `N` vectors of words from the `at`-th on.
#[inline(always)]
unsafe fn load_words<S: Simd, const N: usize>(words: *const u8, at: usize) -> [S::I; N] {
    // SAFETY: the caller's: the words are there.
    unsafe { array!([S::splat_i(0); N], n => S::load_i(words.cast::<i32>().add(at + n * LANES))) }
}

macro_rules! plain_block {
    ($(#[$doc:meta])* $name:ident, $size:literal, $load:ident) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $name;

        // SAFETY (of all functions): the trait's contract.
        #[allow(clippy::undocumented_unsafe_blocks)]
        impl PanelBlock for $name {
            const BYTES: usize = BLOCK * PANEL * $size;
            const SCALED: bool = false;
            const HAS_MIN: bool = false;

            #[inline(always)]
            unsafe fn scale<S: Simd>(_: *const u8, _: usize) -> S::F {
                unsafe { S::splat(1.0) }
            }
            #[inline(always)]
            unsafe fn min<S: Simd>(_: *const u8, _: usize) -> S::F {
                unsafe { S::splat(0.0) }
            }
            #[inline(always)]
            unsafe fn for_each_input<S: Simd, const N: usize>(
                block: *const u8,
                v: usize,
                visitor: &mut impl Visit<[S::F; N]>,
            ) {
                for input in 0..BLOCK {
                    let at = (input * PANEL + v * LANES) * $size;
                    unsafe {
                        let values =
                            array!([S::splat(0.0); N], n => S::$load(block.add(at + n * LANES * $size).cast()));
                        visitor.visit(input, values);
                    }
                }
            }
        }
    };
}

plain_block!(
    /// f32 values.
    F32Block, 4, load
);
plain_block!(
    /// f16 values, widened exactly.
    F16Block, 2, load_f16
);
plain_block!(
    /// bf16 values, widened exactly.
    Bf16Block, 2, load_bf16
);

/// Nibbles: with minima Q4_1 (`0..16`), without Q4_0 (`-8..8`).
#[derive(Debug)]
pub struct Q4Block<const MIN: bool>;

impl<const MIN: bool> Q4Block<MIN> {
    const HEADER: usize = if MIN { 4 * PANEL } else { 2 * PANEL };
    const ZERO: i32 = if MIN { 0 } else { 8 };
}

// SAFETY (of all functions): the trait's contract.
#[allow(clippy::undocumented_unsafe_blocks)]
impl<const MIN: bool> PanelBlock for Q4Block<MIN> {
    const BYTES: usize = Self::HEADER + BLOCK * PANEL / 2;
    const SCALED: bool = true;
    const HAS_MIN: bool = MIN;

    #[inline(always)]
    unsafe fn scale<S: Simd>(block: *const u8, v: usize) -> S::F {
        unsafe { S::load_f16(block.add(v * LANES * 2).cast()) }
    }
    #[inline(always)]
    unsafe fn min<S: Simd>(block: *const u8, v: usize) -> S::F {
        unsafe { S::load_f16(block.add((PANEL + v * LANES) * 2).cast()) }
    }
    #[inline(always)]
    unsafe fn for_each_input<S: Simd, const N: usize>(
        block: *const u8,
        v: usize,
        visitor: &mut impl Visit<[S::F; N]>,
    ) {
        for group in 0..BLOCK / 8 {
            let words = unsafe { load_words::<S, N>(block.add(Self::HEADER), group * PANEL + v * LANES) };
            for i in 0..8 {
                let shift = if i < 4 { 8 * i } else { 8 * (i - 4) + 4 };
                unsafe {
                    let nibbles = array!([S::splat(0.0); N], n => {
                        S::nibble(S::shr(words[n], shift as u32), Self::ZERO)
                    });
                    visitor.visit(group * 8 + i, nibbles);
                }
            }
        }
    }
}

/// Signed bytes.
#[derive(Debug)]
pub struct Q8Block;

// SAFETY (of all functions): the trait's contract.
#[allow(clippy::undocumented_unsafe_blocks)]
impl PanelBlock for Q8Block {
    const BYTES: usize = 2 * PANEL + BLOCK * PANEL;
    const SCALED: bool = true;
    const HAS_MIN: bool = false;

    #[inline(always)]
    unsafe fn scale<S: Simd>(block: *const u8, v: usize) -> S::F {
        unsafe { S::load_f16(block.add(v * LANES * 2).cast()) }
    }
    #[inline(always)]
    unsafe fn min<S: Simd>(_: *const u8, _: usize) -> S::F {
        unsafe { S::splat(0.0) }
    }
    #[inline(always)]
    unsafe fn for_each_input<S: Simd, const N: usize>(
        block: *const u8,
        v: usize,
        visitor: &mut impl Visit<[S::F; N]>,
    ) {
        for group in 0..BLOCK / 4 {
            let words = unsafe { load_words::<S, N>(block.add(2 * PANEL), group * PANEL + v * LANES) };
            for i in 0..4 {
                unsafe {
                    let values = array!([S::splat(0.0); N], n => {
                        S::to_f32(S::sar(S::shl(words[n], 24 - 8 * i as u32), 24))
                    });
                    visitor.visit(group * 4 + i, values);
                }
            }
        }
    }
}

/// A packed format, as integer products read it.
///
/// # Safety
/// As for [`PanelBlock`].
#[allow(clippy::missing_safety_doc)]
pub trait IntBlock: PanelBlock {
    /// What an unsigned byte of `for_each_four` is more than the stored value.
    const ZERO: i32;

    /// Shows `visitor` each four inputs, in order: four unsigned bytes a lane.
    unsafe fn for_each_four<S: Simd, const N: usize>(
        block: *const u8,
        v: usize,
        visitor: &mut impl Visit<[S::I; N]>,
    );
}

// SAFETY (of all functions): the trait's contract.
#[allow(clippy::undocumented_unsafe_blocks)]
impl<const MIN: bool> IntBlock for Q4Block<MIN> {
    const ZERO: i32 = Q4Block::<MIN>::ZERO;

    #[inline(always)]
    unsafe fn for_each_four<S: Simd, const N: usize>(
        block: *const u8,
        v: usize,
        visitor: &mut impl Visit<[S::I; N]>,
    ) {
        let mask = unsafe { S::splat_i(0x0f0f_0f0f) };
        for group in 0..BLOCK / 8 {
            let words = unsafe { load_words::<S, N>(block.add(Self::HEADER), group * PANEL + v * LANES) };
            for half in 0..2 {
                unsafe {
                    let fours = array!([mask; N], n => S::and(S::shr(words[n], 4 * half as u32), mask));
                    visitor.visit(group * 2 + half, fours);
                }
            }
        }
    }
}

// SAFETY (of all functions): the trait's contract.
#[allow(clippy::undocumented_unsafe_blocks)]
impl IntBlock for Q8Block {
    const ZERO: i32 = 128;

    #[inline(always)]
    unsafe fn for_each_four<S: Simd, const N: usize>(
        block: *const u8,
        v: usize,
        visitor: &mut impl Visit<[S::I; N]>,
    ) {
        // Flipping the sign bit adds 128.
        let flip = unsafe { S::splat_i(0x8080_8080_u32 as i32) };
        for group in 0..BLOCK / 4 {
            unsafe {
                let words = load_words::<S, N>(block.add(2 * PANEL), group * PANEL + v * LANES);
                visitor.visit(group, array!([flip; N], n => S::xor(words[n], flip)));
            }
        }
    }
}

/// Any quantised format after [`super::matmul`] unpacked it for integer products: scales f32 `[output]`, minima f32 `[output]`,
/// 8 x `[output]` words of four unsigned bytes.
#[derive(Debug)]
pub struct WideIntBlock<const ZERO_POINT: i32, const MIN: bool>;

// SAFETY (of all functions): the trait's contract.
#[allow(clippy::undocumented_unsafe_blocks)]
impl<const ZERO_POINT: i32, const MIN: bool> PanelBlock for WideIntBlock<ZERO_POINT, MIN> {
    const BYTES: usize = 2 * PANEL * 4 + BLOCK * PANEL;
    const PACKED: bool = false;
    const SCALED: bool = true;
    const HAS_MIN: bool = MIN;

    #[inline(always)]
    unsafe fn scale<S: Simd>(block: *const u8, v: usize) -> S::F {
        unsafe { S::load(block.cast::<f32>().add(v * LANES)) }
    }
    #[inline(always)]
    unsafe fn min<S: Simd>(block: *const u8, v: usize) -> S::F {
        unsafe { S::load(block.cast::<f32>().add(PANEL + v * LANES)) }
    }
    #[inline(always)]
    unsafe fn for_each_input<S: Simd, const N: usize>(_: *const u8, _: usize, _: &mut impl Visit<[S::F; N]>) {
        unreachable!("unpacked for integer products only")
    }
}

// SAFETY (of all functions): the trait's contract.
#[allow(clippy::undocumented_unsafe_blocks)]
impl<const ZERO_POINT: i32, const MIN: bool> IntBlock for WideIntBlock<ZERO_POINT, MIN> {
    const ZERO: i32 = ZERO_POINT;

    #[inline(always)]
    unsafe fn for_each_four<S: Simd, const N: usize>(
        block: *const u8,
        v: usize,
        visitor: &mut impl Visit<[S::I; N]>,
    ) {
        for group in 0..BLOCK / 4 {
            unsafe { visitor.visit(group, load_words::<S, N>(block, (2 + group) * PANEL + v * LANES)) };
        }
    }
}

/// Any format after [`super::matmul`] widened it: scales f32 `[output]`, minima f32 `[output]`, stored values f32
/// `[input][output]`. With plain formats scale 1 and minimum 0 are never read.
#[derive(Debug)]
pub struct WideBlock<const SCALED: bool, const MIN: bool>;

// SAFETY (of all functions): the trait's contract.
#[allow(clippy::undocumented_unsafe_blocks)]
impl<const IS_SCALED: bool, const MIN: bool> PanelBlock for WideBlock<IS_SCALED, MIN> {
    const BYTES: usize = (2 * PANEL + BLOCK * PANEL) * 4;
    const PACKED: bool = false;
    const SCALED: bool = IS_SCALED;
    const HAS_MIN: bool = MIN;

    #[inline(always)]
    unsafe fn scale<S: Simd>(block: *const u8, v: usize) -> S::F {
        unsafe { S::load(block.cast::<f32>().add(v * LANES)) }
    }
    #[inline(always)]
    unsafe fn min<S: Simd>(block: *const u8, v: usize) -> S::F {
        unsafe { S::load(block.cast::<f32>().add(PANEL + v * LANES)) }
    }
    #[inline(always)]
    unsafe fn for_each_input<S: Simd, const N: usize>(
        block: *const u8,
        v: usize,
        visitor: &mut impl Visit<[S::F; N]>,
    ) {
        for input in 0..BLOCK {
            unsafe {
                let from = block.cast::<f32>().add((2 + input) * PANEL + v * LANES);
                visitor.visit(input, array!([S::splat(0.0); N], n => S::load(from.add(n * LANES))));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::simd::Portable;
    use super::*;

    struct Put<'a> {
        out: &'a mut [f32],
        stride: usize,
        scale: [f32; LANES],
        min: [f32; LANES],
    }

    impl Visit<[[f32; LANES]; 1]> for Put<'_> {
        unsafe fn visit(&mut self, input: usize, [w]: [[f32; LANES]; 1]) {
            for lane in 0..LANES {
                self.out[lane * self.stride + input] = self.scale[lane] * w[lane] + self.min[lane];
            }
        }
    }

    /// Reads a packed matrix back through the same accessors as the kernels: `scale * stored + min`.
    fn unpack<P: PanelBlock>(matrix: &PackedMatrix) -> Vec<f32> {
        let mut out = vec![0.0; matrix.panels() * PANEL * matrix.inputs];
        for panel in 0..matrix.panels() {
            for block in 0..matrix.blocks() {
                let ptr = matrix.block_ptr(panel, block);
                for v in 0..2 {
                    // SAFETY: a block of this format; the portable set runs everywhere.
                    let (scale, min) = unsafe { (P::scale::<Portable>(ptr, v), P::min::<Portable>(ptr, v)) };
                    let min = if P::HAS_MIN { min } else { [0.0; LANES] };
                    let row = panel * PANEL + v * LANES;
                    let at = row * matrix.inputs + block * BLOCK;
                    let mut put = Put { out: &mut out[at..], stride: matrix.inputs, scale, min };
                    // SAFETY: as above.
                    unsafe { P::for_each_input::<Portable, 1>(ptr, v, &mut put) };
                }
            }
        }
        out.truncate(matrix.outputs * matrix.inputs);
        out
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        /// Packing loses nothing: what kernels read is what the scalar definition of the format says.
        #[test]
        fn packed_weights_are_the_stored_ones(outputs in 1usize..70, blocks in 1usize..4, seed in any::<u64>()) {
            for dtype in [Dtype::F32, Dtype::F16, Dtype::Bf16, Dtype::Q4_0, Dtype::Q4_1, Dtype::Q8_0] {
                let inputs = blocks * BLOCK;
                let row_bytes = dtype.bytes_for(inputs).unwrap();
                let mut state = seed;
                let stored: Vec<u8> = (0..outputs * row_bytes)
                    .map(|i| {
                        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                        // Floats and scales must stay finite: keep the byte with the exponent small.
                        let size = if dtype == Dtype::F32 { 4 } else { 2 };
                        if i % size == size - 1 { (state >> 58) as u8 & 0x3b } else { (state >> 40) as u8 }
                    })
                    .collect();
                let rows: Vec<&[u8]> = stored.chunks_exact(row_bytes).collect();
                let mut want = vec![0.0; outputs * inputs];
                dtype.widen(&stored, &mut want);
                let matrix = PackedMatrix::pack_rows(dtype, inputs, &rows, &mut Arena::default());
                let got = match dtype {
                    Dtype::F32 => unpack::<F32Block>(&matrix),
                    Dtype::F16 => unpack::<F16Block>(&matrix),
                    Dtype::Bf16 => unpack::<Bf16Block>(&matrix),
                    Dtype::Q4_0 => unpack::<Q4Block<false>>(&matrix),
                    Dtype::Q4_1 => unpack::<Q4Block<true>>(&matrix),
                    Dtype::Q8_0 => unpack::<Q8Block>(&matrix),
                };
                prop_assert_eq!(got, want, "{:?}", dtype);
            }
        }
    }
}
