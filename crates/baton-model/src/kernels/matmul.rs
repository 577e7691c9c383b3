//! Matrix products: one panel of outputs for some rows of inputs.
//!
//! One generic kernel, [`tile`], computes up to six rows at once from packed weights in any format. Few rows read the packed
//! weights as they are (decode reads few bytes); many rows first have a stretch of the panel widened into the first-level cache
//! (prefill converts once). Both take the same steps in the same order, so that a row's bits are the same (I7).

use std::marker::PhantomData;

use super::activations::{Activations, CpuPrecision};
use super::packed::{
    BLOCK, Bf16Block, F16Block, F32Block, IntBlock, PANEL, PackedMatrix, PanelBlock, Q4Block, Q8Block, Visit,
    WideBlock, WideIntBlock,
};
use super::simd::{LANES, Simd, array, dispatch};
use crate::weights::dtype::Dtype;

/// Up to so many rows the packed weights are read once a tile; above, widening pays.
const DIRECT_ROWS: usize = 12;
/// Blocks widened at a time: 17 KiB of f32, which stays in a first-level cache.
const STRETCH_BLOCKS: usize = 4;

/// Bytes of scratch that [`panel_product`] needs, aligned to 64.
pub const SCRATCH_BYTES: usize = STRETCH_BLOCKS * WideBlock::<true, true>::BYTES;

/// Rows of a matrix product's inputs, and where its results go.
#[derive(Clone, Copy, Debug)]
struct Rows {
    values: *const f32,
    sums: *const f32,
    rounded: *const i8,
    scales: *const f32,
    int_sums: *const i32,
    width: usize,
    /// `[row][PANEL]`.
    acc: *mut f32,
}

impl Rows {
    /// From row `rows` and block `blocks` further on.
    ///
    /// # Safety
    /// They must be there.
    #[inline(always)]
    unsafe fn at(self, rows: usize, blocks: usize) -> Self {
        let per_row = self.width / BLOCK;
        let (value, block) = (rows * self.width + blocks * BLOCK, rows * per_row + blocks);
        // `wrapping_add`: without Int8 some of the buffers are empty, and never read.
        Self {
            values: self.values.wrapping_add(value),
            sums: self.sums.wrapping_add(block),
            rounded: self.rounded.wrapping_add(value),
            scales: self.scales.wrapping_add(block),
            int_sums: self.int_sums.wrapping_add(block),
            width: self.width,
            acc: self.acc.wrapping_add(rows * PANEL),
        }
    }
}

dispatch! {
    /// Products of `rows` rows of `x` from `first_row` on with the 32 outputs of `panel`, into `acc` `[row][PANEL]`.
    ///
    /// # Safety
    /// The processor must have `isa`. The rows must be prepared ([`Activations::prepare_row`]) and unchanged meanwhile, `acc`
    /// writable for `rows x PANEL` values and `scratch` for [`SCRATCH_BYTES`], aligned to 64; nobody else uses them meanwhile.
    pub unsafe fn panel_product(
        matrix: &PackedMatrix,
        panel: usize,
        x: &Activations,
        first_row: usize,
        rows: usize,
        acc: *mut f32,
        scratch: *mut u8,
    ) = panel_product_kernel
}

#[inline(always)]
unsafe fn panel_product_kernel<S: Simd>(
    matrix: &PackedMatrix,
    panel: usize,
    x: &Activations,
    first_row: usize,
    rows: usize,
    acc: *mut f32,
    scratch: *mut u8,
) {
    assert_eq!(matrix.inputs, x.width, "the matrix takes rows of this width");
    assert!((first_row + rows) * x.width <= x.values.len(), "the rows are there");
    // SAFETY: `rows x PANEL` zeros are a start value, by the caller's contract writable; the rest is passed on.
    unsafe {
        acc.write_bytes(0, rows * PANEL);
        let base = Rows {
            values: x.values.ptr(),
            sums: x.sums.ptr(),
            rounded: x.rounded.ptr(),
            scales: x.scales.ptr(),
            int_sums: x.int_sums.ptr(),
            width: x.width,
            acc: acc.wrapping_sub(first_row * PANEL),
        }
        .at(first_row, 0);
        let weights = Panel { first: matrix.block_ptr(panel, 0), blocks: matrix.blocks(), scratch };
        match (x.precision, matrix.dtype) {
            (CpuPrecision::Exact, Dtype::F32) => {
                weights.exact::<S, F32Block, WideBlock<false, false>>(base, rows)
            }
            (CpuPrecision::Exact, Dtype::F16) => {
                weights.exact::<S, F16Block, WideBlock<false, false>>(base, rows)
            }
            (CpuPrecision::Exact, Dtype::Bf16) => {
                weights.exact::<S, Bf16Block, WideBlock<false, false>>(base, rows)
            }
            (CpuPrecision::Exact, Dtype::Q4_0) => {
                weights.exact::<S, Q4Block<false>, WideBlock<true, false>>(base, rows)
            }
            (CpuPrecision::Exact, Dtype::Q4_1) => {
                weights.exact::<S, Q4Block<true>, WideBlock<true, true>>(base, rows)
            }
            (CpuPrecision::Exact, Dtype::Q8_0) => {
                weights.exact::<S, Q8Block, WideBlock<true, false>>(base, rows)
            }
            (CpuPrecision::Int8, Dtype::Q4_0) => {
                weights.int8::<S, Q4Block<false>, WideIntBlock<8, false>>(base, rows)
            }
            (CpuPrecision::Int8, Dtype::Q4_1) => {
                weights.int8::<S, Q4Block<true>, WideIntBlock<0, true>>(base, rows)
            }
            (CpuPrecision::Int8, Dtype::Q8_0) => {
                weights.int8::<S, Q8Block, WideIntBlock<128, false>>(base, rows)
            }
            (CpuPrecision::Int8, dtype) => unreachable!("{dtype:?} is packed as Q8_0 for integer products"),
        }
    }
}

/// One panel's weights, and room to widen them.
#[derive(Clone, Copy)]
struct Panel {
    first: *const u8,
    blocks: usize,
    scratch: *mut u8,
}

impl Panel {
    /// Weights of format `P`, which widens to `W`.
    #[inline(always)]
    unsafe fn exact<S: Simd, P: PanelBlock, W: PanelBlock>(self, x: Rows, rows: usize) {
        // SAFETY: blocks `0..self.blocks` of the panel and of each row are there, and the scratch holds a stretch.
        unsafe {
            if rows <= DIRECT_ROWS {
                return each_tile::<S, P>(self.first, self.blocks, x, rows);
            }
            for start in (0..self.blocks).step_by(STRETCH_BLOCKS) {
                let blocks = STRETCH_BLOCKS.min(self.blocks - start);
                for block in 0..blocks {
                    widen::<S, P>(
                        self.first.add((start + block) * P::BYTES),
                        self.scratch.add(block * W::BYTES),
                    );
                }
                each_tile::<S, W>(self.scratch, blocks, x.at(0, start), rows);
            }
        }
    }

    /// The same in integers.
    #[inline(always)]
    unsafe fn int8<S: Simd, P: IntBlock, W: IntBlock>(self, x: Rows, rows: usize) {
        // SAFETY: as for `exact`.
        unsafe {
            if rows <= DIRECT_ROWS {
                return each_int_tile::<S, P>(self.first, self.blocks, x, rows);
            }
            for start in (0..self.blocks).step_by(STRETCH_BLOCKS) {
                let blocks = STRETCH_BLOCKS.min(self.blocks - start);
                for block in 0..blocks {
                    widen_int::<S, P>(
                        self.first.add((start + block) * P::BYTES),
                        self.scratch.add(block * W::BYTES),
                    );
                }
                each_int_tile::<S, W>(self.scratch, blocks, x.at(0, start), rows);
            }
        }
    }
}

/// All rows, a tile at a time.
#[inline(always)]
unsafe fn each_tile<S: Simd, P: PanelBlock>(weights: *const u8, blocks: usize, x: Rows, rows: usize) {
    for row in (0..rows).step_by(S::ROWS) {
        // SAFETY: passed on from the caller.
        unsafe { tile::<S, P>(weights, blocks, x.at(row, 0), S::ROWS.min(rows - row)) };
    }
}

#[inline(always)]
unsafe fn each_int_tile<S: Simd, P: IntBlock>(weights: *const u8, blocks: usize, x: Rows, rows: usize) {
    for row in (0..rows).step_by(S::ROWS) {
        // SAFETY: passed on from the caller.
        unsafe { int_tile::<S, P>(weights, blocks, x.at(row, 0), S::ROWS.min(rows - row)) };
    }
}

/// Stores what it sees, 32 lanes an index.
struct Spread<S> {
    to: *mut f32,
    simd: PhantomData<S>,
}

impl<S: Simd> Visit<[S::F; 2]> for Spread<S> {
    #[inline(always)]
    unsafe fn visit(&mut self, index: usize, values: [S::F; 2]) {
        // SAFETY: the wide block has 32 lanes for each index.
        unsafe {
            S::store(self.to.add(index * PANEL), values[0]);
            S::store(self.to.add(index * PANEL + LANES), values[1]);
        }
    }
}

/// The same for words.
struct SpreadWords<S> {
    to: *mut i32,
    simd: PhantomData<S>,
}

impl<S: Simd> Visit<[S::I; 2]> for SpreadWords<S> {
    #[inline(always)]
    unsafe fn visit(&mut self, index: usize, words: [S::I; 2]) {
        // SAFETY: the wide block has 32 lanes for each index.
        unsafe {
            S::store_i(self.to.add(index * PANEL), words[0]);
            S::store_i(self.to.add(index * PANEL + LANES), words[1]);
        }
    }
}

/// Unpacks one block to [`WideBlock`].
#[inline(always)]
unsafe fn widen<S: Simd, P: PanelBlock>(block: *const u8, to: *mut u8) {
    // SAFETY: the caller's: a block of `P`, and room for a wide one.
    unsafe {
        widen_header::<S, P>(block, to);
        let values = to.cast::<f32>().add(2 * PANEL);
        P::for_each_input::<S, 2>(block, 0, &mut Spread::<S> { to: values, simd: PhantomData });
    }
}

/// Unpacks one block to [`WideIntBlock`].
#[inline(always)]
unsafe fn widen_int<S: Simd, P: IntBlock>(block: *const u8, to: *mut u8) {
    // SAFETY: the caller's: a block of `P`, and room for a wide one.
    unsafe {
        widen_header::<S, P>(block, to);
        let words = to.cast::<i32>().add(2 * PANEL);
        P::for_each_four::<S, 2>(block, 0, &mut SpreadWords::<S> { to: words, simd: PhantomData });
    }
}

#[inline(always)]
unsafe fn widen_header<S: Simd, P: PanelBlock>(block: *const u8, to: *mut u8) {
    // SAFETY: the caller's.
    unsafe {
        let (scales, minima) = (to.cast::<f32>(), to.cast::<f32>().add(PANEL));
        for v in 0..2 {
            if P::SCALED {
                S::store(scales.add(v * LANES), P::scale::<S>(block, v));
            }
            if P::HAS_MIN {
                S::store(minima.add(v * LANES), P::min::<S>(block, v));
            }
        }
    }
}

/// Calls `$kernel::<S, P, rows, vectors>` with constants: one pass over both vectors of a panel where registers allow, else two.
macro_rules! with_constants {
    ($kernel:ident, $S:ident, $P:ident, $size:expr, ($($arg:expr),*)) => {{
        macro_rules! sized {
            ($rows:literal) => {
                if $S::PANEL_VECTORS == 2 {
                    $kernel::<$S, $P, $rows, 2>(0, $($arg),*)
                } else {
                    $kernel::<$S, $P, $rows, 1>(0, $($arg),*);
                    $kernel::<$S, $P, $rows, 1>(1, $($arg),*)
                }
            };
        }
        match $size {
            1 => sized!(1),
            _ if $S::ROWS == 1 => unreachable!("a row at a time"),
            2 => sized!(2),
            3 => sized!(3),
            4 => sized!(4),
            5 => sized!(5),
            _ => sized!(6),
        }
    }};
}

/// Adds the products of `size` rows with `blocks` blocks of weights to the rows' accumulators.
#[inline(always)]
unsafe fn tile<S: Simd, P: PanelBlock>(weights: *const u8, blocks: usize, x: Rows, size: usize) {
    // SAFETY: passed on from the caller.
    unsafe { with_constants!(exact_tile, S, P, size, (weights, blocks, x)) }
}

#[inline(always)]
unsafe fn int_tile<S: Simd, P: IntBlock>(weights: *const u8, blocks: usize, x: Rows, size: usize) {
    // SAFETY: passed on from the caller.
    unsafe { with_constants!(rounded_tile, S, P, size, (weights, blocks, x)) }
}

/// Bytes between the block that is computed and the one that is fetched.
const AHEAD_BYTES: usize = 4096;

/// Fetches one block's bytes some way on: panels follow one another, but the processor's own prefetching starts anew in each page.
#[inline(always)]
unsafe fn prefetch_ahead<S: Simd, P: PanelBlock>(block: *const u8) {
    if P::PACKED {
        for line in (0..P::BYTES).step_by(64) {
            // SAFETY: an address that is not valid is not fetched.
            unsafe { S::prefetch(block.wrapping_add(AHEAD_BYTES + line)) };
        }
    }
}

#[inline(always)]
unsafe fn load_acc<S: Simd, const R: usize, const N: usize>(v: usize, x: Rows) -> [[S::F; N]; R] {
    // SAFETY: R rows of accumulators are there.
    unsafe {
        let zero = S::splat(0.0);
        array!([[zero; N]; R], r => array!([zero; N], n => S::load(x.acc.add(r * PANEL + (v + n) * LANES))))
    }
}

#[inline(always)]
unsafe fn store_acc<S: Simd, const R: usize, const N: usize>(v: usize, x: Rows, acc: [[S::F; N]; R]) {
    for r in 0..R {
        for n in 0..N {
            // SAFETY: R rows of accumulators are there.
            unsafe { S::store(x.acc.add(r * PANEL + (v + n) * LANES), acc[r][n]) };
        }
    }
}

/// Sums of R rows over the inputs of one block.
struct Chain<S: Simd, const R: usize, const N: usize> {
    values: *const f32,
    stride: usize,
    sum: [[S::F; N]; R],
}

impl<S: Simd, const R: usize, const N: usize> Visit<[S::F; N]> for Chain<S, R, N> {
    #[inline(always)]
    unsafe fn visit(&mut self, input: usize, w: [S::F; N]) {
        for r in 0..R {
            // SAFETY: R rows of a block of inputs are there.
            let value = unsafe { S::splat(*self.values.add(r * self.stride + input)) };
            for n in 0..N {
                // SAFETY: the caller runs on S's processor.
                self.sum[r][n] = unsafe { S::fma(value, w[n], self.sum[r][n]) };
            }
        }
    }
}

/// The same over rounded inputs.
struct IntChain<S: Simd, const R: usize, const N: usize> {
    rounded: *const i8,
    stride: usize,
    sum: [[S::I; N]; R],
}

impl<S: Simd, const R: usize, const N: usize> Visit<[S::I; N]> for IntChain<S, R, N> {
    #[inline(always)]
    unsafe fn visit(&mut self, group: usize, w: [S::I; N]) {
        for r in 0..R {
            // SAFETY: R rows of a block of inputs are there.
            let four = unsafe {
                S::splat_i(self.rounded.add(r * self.stride + group * 4).cast::<i32>().read_unaligned())
            };
            for n in 0..N {
                // SAFETY: the caller runs on S's processor.
                self.sum[r][n] = unsafe { S::dot4(self.sum[r][n], w[n], four) };
            }
        }
    }
}

/// The definition of an exact product (see [`super`]): a chain over a block's stored values, then scale and minimum.
#[inline(always)]
unsafe fn exact_tile<S: Simd, P: PanelBlock, const R: usize, const N: usize>(
    v: usize,
    weights: *const u8,
    blocks: usize,
    x: Rows,
) {
    // SAFETY: the caller's: R rows and `blocks` blocks of each and of the weights.
    unsafe {
        let per_row = x.width / BLOCK;
        let mut acc = load_acc::<S, R, N>(v, x);
        for block in 0..blocks {
            let (weights, values) = (weights.add(block * P::BYTES), x.values.add(block * BLOCK));
            prefetch_ahead::<S, P>(weights);
            let mut chain = Chain::<S, R, N> { values, stride: x.width, sum: [[S::splat(0.0); N]; R] };
            P::for_each_input::<S, N>(weights, v, &mut chain);
            let sum = chain.sum;
            for n in 0..N {
                for r in 0..R {
                    acc[r][n] = match P::SCALED {
                        true => S::fma(P::scale::<S>(weights, v + n), sum[r][n], acc[r][n]),
                        false => S::add(sum[r][n], acc[r][n]),
                    };
                    if P::HAS_MIN {
                        let inputs = S::splat(*x.sums.add(r * per_row + block));
                        acc[r][n] = S::fma(P::min::<S>(weights, v + n), inputs, acc[r][n]);
                    }
                }
            }
        }
        store_acc::<S, R, N>(v, x, acc);
    }
}

/// The definition of a product with rounded inputs: an exact integer sum over a block, then both scales, and the minimum.
#[inline(always)]
unsafe fn rounded_tile<S: Simd, P: IntBlock, const R: usize, const N: usize>(
    v: usize,
    weights: *const u8,
    blocks: usize,
    x: Rows,
) {
    // SAFETY: the caller's: R rows and `blocks` blocks of each and of the weights.
    unsafe {
        let per_row = x.width / BLOCK;
        let mut acc = load_acc::<S, R, N>(v, x);
        for block in 0..blocks {
            let (weights, rounded) = (weights.add(block * P::BYTES), x.rounded.add(block * BLOCK));
            let mut sum = [[S::splat_i(0); N]; R];
            for r in 0..R {
                // The bytes of weights are ZERO too large each.
                sum[r] = [S::splat_i(-P::ZERO * *x.int_sums.add(r * per_row + block)); N];
            }
            prefetch_ahead::<S, P>(weights);
            let mut chain = IntChain::<S, R, N> { rounded, stride: x.width, sum };
            P::for_each_four::<S, N>(weights, v, &mut chain);
            let sum = chain.sum;
            for r in 0..R {
                let scale = S::splat(*x.scales.add(r * per_row + block));
                for n in 0..N {
                    let scaled = S::mul(S::to_f32(sum[r][n]), scale);
                    acc[r][n] = S::fma(scaled, P::scale::<S>(weights, v + n), acc[r][n]);
                    if P::HAS_MIN {
                        let inputs = S::splat(*x.sums.add(r * per_row + block));
                        acc[r][n] = S::fma(P::min::<S>(weights, v + n), inputs, acc[r][n]);
                    }
                }
            }
        }
        store_acc::<S, R, N>(v, x, acc);
    }
}
