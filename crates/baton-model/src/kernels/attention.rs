//! Attention over paged K and V.
//!
//! Positions are taken in tiles of 32, aligned to position 0 whatever the block size, the chunk or the batch. For each query
//! and head: scores by one chain over the head's dimensions; then, with the running maximum, `exp`, and one chain over the
//! tile's positions for each dimension of the output. A query stops at its own position, so that later rows of its chunk, and
//! whatever is in the rest of a block, never enter (I7).

use std::ptr::NonNull;

use baton_types::KvDtype;
use half::{bf16, f16};

use super::aligned::Buffer;
use super::kv_element::KvElement;
use super::simd::{LANES, Simd, array, dispatch, exp, max_lanes, sum_lanes};

/// Positions of one tile.
pub const TILE: usize = 32;
/// Queries that share one pass over K and V.
pub const QUERY_CHUNK: usize = 32;
/// Rows (a query and a head) computed at once, at most.
const ROWS: usize = 6;

/// What one call computes: `queries x heads` rows that attend to the same KV head.
#[derive(Clone, Copy, Debug)]
pub struct AttentionTask<'a> {
    /// The K and V runs of this layer and KV head, block by block: `block_tokens x head_dim` elements each.
    pub runs: &'a [(NonNull<u8>, NonNull<u8>)],
    /// F32, F16 or BF16.
    pub dtype: KvDtype,
    pub block_tokens: usize,
    pub head_dim: usize,
    /// The first row's first head; rotated and scaled.
    pub q: *const f32,
    pub out: *mut f32,
    /// Values from one query to the next, in `q` and in `out`.
    pub q_stride: usize,
    pub out_stride: usize,
    /// Position of the first query: it attends to `0..=first_position`, the next to one more.
    pub first_position: usize,
    /// At most [`QUERY_CHUNK`].
    pub queries: usize,
    /// Heads side by side, from `q` and `out` on.
    pub heads: usize,
}

/// One thread's room for a tile of K and V and the state of the rows.
#[derive(Debug)]
pub struct AttentionScratch {
    /// Dimensions of a head rounded up to whole vectors; what is behind the head's own is zero.
    padded_dim: usize,
    /// K as `[position][head_dim]`, where the pool has it in another type than f32.
    widened: Buffer<f32>,
    k: Buffer<f32>,
    v: Buffer<f32>,
    probabilities: Buffer<f32>,
    out: Buffer<f32>,
    max: Buffer<f32>,
    sums: Buffer<f32>,
}

impl AttentionScratch {
    /// For up to `group` heads a KV head.
    pub fn new(head_dim: usize, group: usize) -> Self {
        let rows = QUERY_CHUNK * group;
        let padded_dim = head_dim.next_multiple_of(LANES);
        Self {
            padded_dim,
            widened: Buffer::zeroed(head_dim * TILE),
            k: Buffer::zeroed(head_dim * TILE),
            v: Buffer::zeroed(padded_dim * TILE),
            probabilities: Buffer::zeroed(ROWS * TILE),
            out: Buffer::zeroed(rows * padded_dim),
            max: Buffer::zeroed(rows),
            sums: Buffer::zeroed(rows * LANES),
        }
    }
}

dispatch! {
    /// Computes a task.
    ///
    /// # Safety
    /// The processor must have `isa`. The task's runs must cover its positions and be readable, `q` readable and `out` writable
    /// for its rows, and the scratch made for its head size and used by nobody else meanwhile.
    pub unsafe fn attend(task: &AttentionTask<'_>, scratch: &AttentionScratch) = attend_kernel
}

#[inline(always)]
unsafe fn attend_kernel<S: Simd>(task: &AttentionTask<'_>, scratch: &AttentionScratch) {
    let (rows, dim) = (task.queries * task.heads, scratch.padded_dim);
    assert_eq!(dim, task.head_dim.next_multiple_of(LANES), "the scratch is for such heads");
    let positions = task.first_position + task.queries;
    assert!(
        task.queries <= QUERY_CHUNK && rows * scratch.padded_dim <= scratch.out.len(),
        "the scratch is for such tasks"
    );
    assert!(positions.div_ceil(task.block_tokens) <= task.runs.len(), "the table covers the queries");
    // SAFETY: asserted above, and the caller's.
    unsafe {
        scratch.out.ptr().write_bytes(0, rows * dim);
        scratch.sums.ptr().write_bytes(0, rows * LANES);
        for start in (0..positions).step_by(TILE) {
            let tile = Tile { task, scratch, start };
            let len = TILE.min(positions - start);
            match task.dtype {
                KvDtype::F32 => tile.gather::<S, f32>(len),
                KvDtype::F16 => tile.gather::<S, f16>(len),
                KvDtype::Bf16 => tile.gather::<S, bf16>(len),
                KvDtype::U8 => unreachable!("no runner has a pool of bytes"),
            }
            Tile { start: start + TILE, ..tile }.prefetch::<S>(positions);
            // Queries before the tile see nothing of it.
            let first_query = start.saturating_sub(task.first_position);
            let mut row = first_query * task.heads;
            while row < rows {
                let size = S::ROWS.min(rows - row);
                tile.rows::<S>(row, size);
                row += size;
            }
        }
        for row in 0..rows {
            let (query, head) = (row / task.heads, row % task.heads);
            let sum = sum_lanes::<S>(S::load(scratch.sums.ptr().add(row * LANES)));
            let inverse = S::splat(1.0 / sum);
            let from = scratch.out.ptr().add(row * dim);
            let to = task.out.add(query * task.out_stride + head * task.head_dim);
            for i in (0..dim).step_by(LANES) {
                S::store(from.add(i), S::mul(S::load(from.add(i)), inverse));
            }
            from.copy_to_nonoverlapping(to, task.head_dim);
        }
    }
}

#[derive(Clone, Copy)]
struct Tile<'a> {
    task: &'a AttentionTask<'a>,
    scratch: &'a AttentionScratch,
    start: usize,
}

impl Tile<'_> {
    /// Copies the tile's first `len` positions: K as `[head_dim][TILE]`, V as `[TILE][head_dim]`. What is behind them keeps old
    /// values, which no row uses.
    #[inline(always)]
    unsafe fn gather<S: Simd, E: KvElement>(self, len: usize) {
        let (task, dim, padded) = (self.task, self.task.head_dim, self.scratch.padded_dim);
        let mut at = 0;
        // SAFETY: positions below `start + len` are in the runs, and the scratch holds a tile.
        unsafe {
            while at < len {
                let position = self.start + at;
                let (block, offset) = (position / task.block_tokens, position % task.block_tokens);
                let run = (task.block_tokens - offset).min(len - at);
                let (k, v) = task.runs[block];
                let k = k.as_ptr().cast::<E>().add(offset * dim);
                let v = v.as_ptr().cast::<E>().add(offset * dim);
                for i in 0..run {
                    widen::<S, E>(v.add(i * dim), self.scratch.v.ptr().add((at + i) * padded), dim);
                }
                let k = if E::IS_F32 {
                    k.cast::<f32>()
                } else {
                    widen::<S, E>(k, self.scratch.widened.ptr(), run * dim);
                    self.scratch.widened.ptr()
                };
                let mut i = 0;
                while i < run {
                    let to = self.scratch.k.ptr().add(at + i);
                    if run - i >= LANES && dim == padded {
                        for d in (0..dim).step_by(LANES) {
                            S::transpose(k.add(i * dim + d), dim, to.add(d * TILE), TILE);
                        }
                        i += LANES;
                    } else {
                        for d in 0..dim {
                            *to.add(d * TILE) = *k.add(i * dim + d);
                        }
                        i += 1;
                    }
                }
                at += run;
            }
        }
    }

    /// Asks for the tile's K and V. Runs of one head lie a block apart in memory, where the processor does not expect them.
    #[inline(always)]
    unsafe fn prefetch<S: Simd>(self, positions: usize) {
        let (task, slot_bytes) = (self.task, self.task.head_dim * self.task.dtype.bytes());
        let mut position = self.start;
        while position < positions.min(self.start + TILE) {
            let (block, offset) = (position / task.block_tokens, position % task.block_tokens);
            let run = (task.block_tokens - offset).min(positions.min(self.start + TILE) - position);
            let (k, v) = task.runs[block];
            for byte in (offset * slot_bytes..(offset + run) * slot_bytes).step_by(64) {
                // SAFETY: inside the runs.
                unsafe {
                    S::prefetch(k.as_ptr().add(byte));
                    S::prefetch(v.as_ptr().add(byte));
                }
            }
            position += run;
        }
    }

    /// How many of the tile's positions `row` sees.
    #[inline(always)]
    fn seen(self, row: usize) -> usize {
        let position = self.task.first_position + row / self.task.heads;
        (position + 1 - self.start).min(TILE)
    }

    #[inline(always)]
    fn q(self, row: usize) -> *const f32 {
        let (query, head) = (row / self.task.heads, row % self.task.heads);
        self.task.q.wrapping_add(query * self.task.q_stride + head * self.task.head_dim)
    }

    /// Takes `size` rows from `row` on through the tile, at most [`Simd::ROWS`].
    #[inline(always)]
    unsafe fn rows<S: Simd>(self, row: usize, size: usize) {
        let seen = self.seen(row);
        // SAFETY: passed on.
        unsafe {
            match size {
                1 => self.scores::<S, 1>(row),
                _ if S::ROWS == 1 => unreachable!("a row at a time"),
                2 => self.scores::<S, 2>(row),
                3 => self.scores::<S, 3>(row),
                4 => self.scores::<S, 4>(row),
                5 => self.scores::<S, 5>(row),
                _ => self.scores::<S, ROWS>(row),
            }
            for slot in 0..size {
                self.softmax::<S>(row + slot, slot);
            }
            if self.seen(row + size - 1) != seen {
                // A row stops at its own position: adding zero times a later V is not always adding nothing.
                for slot in 0..size {
                    self.weigh::<S, 1>(row + slot, slot, self.seen(row + slot));
                }
                return;
            }
            match size {
                1 => self.weigh::<S, 1>(row, 0, seen),
                _ if S::ROWS == 1 => unreachable!("a row at a time"),
                2 => self.weigh::<S, 2>(row, 0, seen),
                3 => self.weigh::<S, 3>(row, 0, seen),
                4 => self.weigh::<S, 4>(row, 0, seen),
                5 => self.weigh::<S, 5>(row, 0, seen),
                _ => self.weigh::<S, ROWS>(row, 0, seen),
            }
        }
    }

    /// Scores of R rows with all positions of the tile, into the first probabilities.
    #[inline(always)]
    unsafe fn scores<S: Simd, const R: usize>(self, row: usize) {
        // SAFETY: R rows of q and of probabilities, and a tile of K.
        unsafe {
            let q = array!([self.task.q; R], r => self.q(row + r));
            let mut scores = [[S::splat(0.0); 2]; R];
            for d in 0..self.task.head_dim {
                let k = self.scratch.k.ptr().add(d * TILE);
                let k = [S::load(k), S::load(k.add(LANES))];
                for r in 0..R {
                    let value = S::splat(*q[r].add(d));
                    scores[r] = [S::fma(value, k[0], scores[r][0]), S::fma(value, k[1], scores[r][1])];
                }
            }
            for r in 0..R {
                let to = self.scratch.probabilities.ptr().add(r * TILE);
                S::store(to, scores[r][0]);
                S::store(to.add(LANES), scores[r][1]);
            }
        }
    }

    /// Turns the scores of `row` in `slot` into weights, and rescales what the row has so far to the new maximum.
    #[inline(always)]
    unsafe fn softmax<S: Simd>(self, row: usize, slot: usize) {
        let (scratch, dim, seen) = (self.scratch, self.scratch.padded_dim, self.seen(row));
        // SAFETY: the row's state and the slot's scores.
        unsafe {
            let p = scratch.probabilities.ptr().add(slot * TILE);
            let lowest = S::splat(f32::NEG_INFINITY);
            let scores = [
                S::first(seen, S::load(p), lowest),
                S::first(seen.saturating_sub(LANES), S::load(p.add(LANES)), lowest),
            ];
            let mut max = max_lanes::<S>(S::max(scores[0], scores[1]));
            let sums = scratch.sums.ptr().add(row * LANES);
            let held = scratch.max.ptr().add(row);
            if self.start > 0 {
                max = if *held > max { *held } else { max };
                if max != *held {
                    let scale = exp::<S>(S::splat(*held - max));
                    S::store(sums, S::mul(S::load(sums), scale));
                    let out = scratch.out.ptr().add(row * dim);
                    for i in (0..dim).step_by(LANES) {
                        S::store(out.add(i), S::mul(S::load(out.add(i)), scale));
                    }
                }
            }
            *held = max;
            let (zero, max) = (S::splat(0.0), S::splat(max));
            let weights = [
                S::first(seen, exp::<S>(S::sub(scores[0], max)), zero),
                S::first(seen.saturating_sub(LANES), exp::<S>(S::sub(scores[1], max)), zero),
            ];
            S::store(p, weights[0]);
            S::store(p.add(LANES), weights[1]);
            S::store(sums, S::add(S::load(sums), S::add(weights[0], weights[1])));
        }
    }

    /// Adds the tile's first `len` V, weighed, to the outputs of R rows.
    #[inline(always)]
    unsafe fn weigh<S: Simd, const R: usize>(self, row: usize, slot: usize, len: usize) {
        let dim = self.scratch.padded_dim;
        // SAFETY: R rows of outputs and of weights, and a tile of V.
        unsafe {
            let p = self.scratch.probabilities.ptr().add(slot * TILE);
            for d in (0..dim).step_by(2 * LANES) {
                let out = self.scratch.out.ptr().add(row * dim + d);
                let v = self.scratch.v.ptr().add(d);
                if d + 2 * LANES <= dim {
                    weigh_lanes::<S, R, 2>(p, v, dim, out, len);
                } else {
                    weigh_lanes::<S, R, 1>(p, v, dim, out, len);
                }
            }
        }
    }
}

/// Widens `len` elements.
#[inline(always)]
unsafe fn widen<S: Simd, E: KvElement>(from: *const E, to: *mut f32, len: usize) {
    // SAFETY: the caller's: `len` elements and room for as many values.
    unsafe {
        let whole = len - len % LANES;
        for i in (0..whole).step_by(LANES) {
            S::store(to.add(i), E::load::<S>(from.add(i)));
        }
        for i in whole..len {
            *to.add(i) = (*from.add(i)).widen();
        }
    }
}

#[inline(always)]
unsafe fn weigh_lanes<S: Simd, const R: usize, const N: usize>(
    p: *const f32,
    v: *const f32,
    dim: usize,
    out: *mut f32,
    len: usize,
) {
    // SAFETY: the caller's: `len` rows of V and weights, R rows of outputs.
    unsafe {
        let zero = S::splat(0.0);
        let mut acc =
            array!([[zero; N]; R], r => array!([zero; N], n => S::load(out.add(r * dim + n * LANES))));
        for j in 0..len {
            let value = array!([zero; N], n => S::load(v.add(j * dim + n * LANES)));
            for r in 0..R {
                let weight = S::splat(*p.add(r * TILE + j));
                for n in 0..N {
                    acc[r][n] = S::fma(weight, value[n], acc[r][n]);
                }
            }
        }
        for r in 0..R {
            for n in 0..N {
                S::store(out.add(r * dim + n * LANES), acc[r][n]);
            }
        }
    }
}
