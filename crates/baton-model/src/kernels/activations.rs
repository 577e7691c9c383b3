//! The inputs of a matrix product: rows of f32, and what the weights' formats need besides.

use super::aligned::Buffer;
use super::packed::BLOCK;
use super::simd::{LANES, Simd, array, dispatch, max_lanes, sum_lanes};

/// How activations enter matrix products.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CpuPrecision {
    /// As f32: the reference's words.
    #[default]
    Exact,
    /// Rounded to 8-bit blocks of 32, multiplied as integers: faster, and still the same bits in every batch, but now and then
    /// other words than the reference where two tokens are nearly as likely.
    Int8,
}

/// Rows of inputs, prepared once and read by every panel.
#[derive(Debug)]
pub struct Activations {
    pub precision: CpuPrecision,
    pub width: usize,
    pub values: Buffer<f32>,
    /// Per row and block: the sum of the inputs, for formats with minima. With `Int8` it is the sum of the rounded inputs.
    pub sums: Buffer<f32>,
    /// `Int8` only: rounded inputs, and per block their scale and their sum.
    pub rounded: Buffer<i8>,
    pub scales: Buffer<f32>,
    pub int_sums: Buffer<i32>,
}

impl Activations {
    /// Room for `rows` rows of `width` inputs.
    pub fn new(precision: CpuPrecision, rows: usize, width: usize) -> Self {
        assert!(width.is_multiple_of(BLOCK), "inputs come in blocks of {BLOCK}");
        let blocks = rows * width / BLOCK;
        let int8 = precision == CpuPrecision::Int8;
        Self {
            precision,
            width,
            values: Buffer::zeroed(rows * width),
            sums: Buffer::zeroed(blocks),
            rounded: Buffer::zeroed(if int8 { rows * width } else { 0 }),
            scales: Buffer::zeroed(if int8 { blocks } else { 0 }),
            int_sums: Buffer::zeroed(if int8 { blocks } else { 0 }),
        }
    }

    pub fn blocks(&self) -> usize {
        self.width / BLOCK
    }

    /// Where row `row`'s values are.
    pub fn row_ptr(&self, row: usize) -> *mut f32 {
        assert!((row + 1) * self.width <= self.values.len(), "a row of the buffer");
        // SAFETY: inside the buffer, as asserted.
        unsafe { self.values.ptr().add(row * self.width) }
    }

    /// Computes what follows from row `row`'s values. Each row is prepared by one thread, after its values are written.
    ///
    /// # Safety
    /// The processor must have `isa`, and no other thread may use the row meanwhile.
    pub unsafe fn prepare_row(&self, isa: super::simd::Isa, row: usize) {
        let (values, blocks) = (self.row_ptr(row).cast_const(), self.blocks());
        let at = row * blocks;
        // SAFETY: the row's own parts of each buffer, all of `blocks` blocks.
        unsafe {
            match self.precision {
                CpuPrecision::Exact => block_sums(isa, values, self.sums.ptr().add(at), blocks),
                CpuPrecision::Int8 => round_blocks(
                    isa,
                    values,
                    self.rounded.ptr().add(row * self.width),
                    self.scales.ptr().add(at),
                    self.sums.ptr().add(at),
                    self.int_sums.ptr().add(at),
                    blocks,
                ),
            }
        }
    }
}

#[inline(always)]
unsafe fn block_sums_kernel<S: Simd>(values: *const f32, sums: *mut f32, blocks: usize) {
    for block in 0..blocks {
        // SAFETY: the caller's: `blocks` blocks of values and as many sums.
        unsafe {
            let p = values.add(block * BLOCK);
            *sums.add(block) = sum_lanes::<S>(S::add(S::load(p), S::load(p.add(LANES))));
        }
    }
}

dispatch! {
    /// The sum of each block.
    ///
    /// # Safety
    /// The processor must have `isa`; `blocks` blocks of values, and as many sums.
    pub unsafe fn block_sums(values: *const f32, sums: *mut f32, blocks: usize) = block_sums_kernel
}

#[inline(always)]
unsafe fn round_blocks_kernel<S: Simd>(
    values: *const f32,
    rounded: *mut i8,
    scales: *mut f32,
    sums: *mut f32,
    int_sums: *mut i32,
    blocks: usize,
) {
    // Adding this to a number below 2^22 leaves its nearest integer (ties to even) in the low bits.
    const ROUND: f32 = 12_582_912.0;
    for block in 0..blocks {
        // SAFETY: the caller's: `blocks` blocks of values, and as much room for the rest.
        unsafe {
            let p = values.add(block * BLOCK);
            let x = [S::load(p), S::load(p.add(LANES))];
            let sizes = array!([x[0]; 2], v => S::max(x[v], S::sub(S::splat(0.0), x[v])));
            let largest = max_lanes::<S>(S::max(sizes[0], sizes[1]));
            let inverse = if largest > 0.0 { 127.0 / largest } else { 0.0 };
            let mut integers = [0i32; BLOCK];
            for (v, x) in x.into_iter().enumerate() {
                let shifted = S::fma(x, S::splat(inverse), S::splat(ROUND));
                S::store_i(integers.as_mut_ptr().add(v * LANES), S::bits(shifted));
            }
            let mut sum = 0i32;
            for (i, integer) in integers.into_iter().enumerate() {
                let byte = integer as i8;
                *rounded.add(block * BLOCK + i) = byte;
                sum += i32::from(byte);
            }
            let scale = largest / 127.0;
            *scales.add(block) = scale;
            *sums.add(block) = scale * sum as f32;
            *int_sums.add(block) = sum;
        }
    }
}

dispatch! {
    /// Rounds each block to signed bytes in `-127..=127`.
    ///
    /// # Safety
    /// The processor must have `isa`; `blocks` blocks of values and of rounded ones, and as many of the rest.
    pub unsafe fn round_blocks(
        values: *const f32,
        rounded: *mut i8,
        scales: *mut f32,
        sums: *mut f32,
        int_sums: *mut i32,
        blocks: usize,
    ) = round_blocks_kernel
}
