//! The activations of one pass, and what one item of each phase computes on them.
#![allow(unsafe_code)]

use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use baton_types::{BlockId, KvDtype, TokenId};
use half::{bf16, f16};

use super::linear::Linear;
use super::pass::MAX_ROWS;
use super::weights::{CpuModel, LayerWeights};
use crate::kernels::activations::Activations;
use crate::kernels::aligned::Buffer;
use crate::kernels::attention::{AttentionScratch, AttentionTask, attend};
use crate::kernels::kv_element::KvElement;
use crate::kernels::matmul::{SCRATCH_BYTES, panel_product};
use crate::kernels::packed::PANEL;
use crate::kernels::rowwise;
use crate::kernels::simd::Isa;
use crate::kv_memory::KvMemory;

/// Buffers for [`MAX_ROWS`] rows. The items of a phase run on several threads and write disjoint parts.
#[derive(Debug)]
pub(super) struct Workspace {
    pub model: Arc<CpuModel>,
    pub memory: KvMemory,
    pub isa: Isa,
    threads: Vec<Mutex<ThreadState>>,
    /// The residual stream, `[row][hidden]`.
    pub x: Buffer<f32>,
    pub normed: Activations,
    /// `[row][q, k, v]`.
    pub qkv: Buffer<f32>,
    pub attended: Activations,
    pub gated: Activations,
    /// `[sampled row][vocabulary]`.
    pub logits: Buffer<f32>,
}

/// What each thread has for itself.
#[derive(Debug)]
struct ThreadState {
    acc: [Buffer<f32>; 2],
    widened: Buffer<u8>,
    attention: AttentionScratch,
    runs: Vec<Run>,
}

/// Where K and V of one block, layer and head start.
type Run = (NonNull<u8>, NonNull<u8>);

// SAFETY: `runs` keeps addresses into the KV region, and is refilled before each use; the rest is owned.
unsafe impl Send for ThreadState {}

/// Queries of one entry that attend in one layer: rows of `qkv`, and the rows of `attended` their results go to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Queries {
    pub entry: usize,
    pub row: usize,
    pub out_row: usize,
    pub count: usize,
    pub position: usize,
}

/// One item of attention: some queries, and some heads of one KV head.
#[derive(Clone, Copy, Debug)]
pub(super) struct AttentionItem {
    pub queries: Queries,
    pub kv_head: usize,
    /// Among the heads of the KV head.
    pub first_head: usize,
    pub heads: usize,
}

/// What becomes of a product: stored (with the bias if there is one), or added to what is there. `[row][stride]`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sink {
    pub to: *mut f32,
    pub stride: usize,
    pub adds: bool,
}

// SAFETY: the pointer is into a buffer of the workspace; items of a phase write disjoint columns.
unsafe impl Sync for Sink {}
// SAFETY: as for `Sync`.
unsafe impl Send for Sink {}

impl Workspace {
    /// # Panics
    /// If the processor lacks `isa`: its kernels must never be called then.
    pub fn new(model: Arc<CpuModel>, memory: KvMemory, isa: Isa, threads: usize) -> Self {
        assert!(isa.is_available(), "the processor has {isa:?}");
        let config = model.config();
        let (hidden, heads) = (config.hidden, config.heads * config.head_dim);
        let group = config.heads / config.kv_heads;
        let state = || ThreadState {
            acc: std::array::from_fn(|_| Buffer::zeroed(MAX_ROWS * PANEL)),
            widened: Buffer::zeroed(SCRATCH_BYTES),
            attention: AttentionScratch::new(config.head_dim, group),
            runs: Vec::new(),
        };
        Self {
            threads: (0..threads).map(|_| Mutex::new(state())).collect(),
            x: Buffer::zeroed(MAX_ROWS * hidden),
            normed: Activations::new(model.precision, MAX_ROWS, hidden),
            qkv: Buffer::zeroed(MAX_ROWS * (heads + 2 * config.kv_heads * config.head_dim)),
            attended: Activations::new(model.precision, MAX_ROWS, heads),
            gated: Activations::new(model.precision, MAX_ROWS, config.intermediate),
            logits: Buffer::zeroed(0),
            isa,
            memory,
            model,
        }
    }

    /// The thread's own state: never contended, since no two items run at once with the same thread.
    fn thread(&self, thread: usize) -> MutexGuard<'_, ThreadState> {
        self.threads[thread].lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn embed(&self, row: usize, token: TokenId) {
        let hidden = self.model.config().hidden;
        assert!((row + 1) * hidden <= self.x.len(), "a row of the pass");
        // SAFETY: the row is inside the buffer, and this item's alone.
        let out = unsafe { std::slice::from_raw_parts_mut(self.x.ptr().add(row * hidden), hidden) };
        self.model.embed(token, out);
    }

    /// `normed = norm(x) * weight`.
    pub fn normalise(&self, row: usize, weight: &[f32]) {
        let config = self.model.config();
        assert!(
            weight.len() == config.hidden && (row + 1) * config.hidden <= self.x.len(),
            "a row of the pass"
        );
        // SAFETY: the row is inside both buffers, and this item's alone; `hidden` is a multiple of 32 (`ModelConfig`).
        unsafe {
            let x = self.x.ptr().add(row * config.hidden);
            let out = self.normed.row_ptr(row);
            rowwise::rms_norm(self.isa, x, weight.as_ptr(), out, config.hidden, config.norm_eps);
            self.normed.prepare_row(self.isa, row);
        }
    }

    /// Normalises and rotates the queries and keys of a row, and writes its K and V into the block of its position.
    pub fn rotate_and_keep(
        &self,
        index: usize,
        layer: &LayerWeights,
        row: usize,
        position: usize,
        table: &[BlockId],
    ) {
        let config = self.model.config();
        let (dim, half, heads, kv_heads) =
            (config.head_dim, config.head_dim / 2, config.heads, config.kv_heads);
        let stride = (heads + 2 * kv_heads) * dim;
        assert!((row + 1) * stride <= self.qkv.len(), "a row of the pass");
        let angles = position * half..(position + 1) * half;
        let (cos, sin) = (self.model.cos[angles.clone()].as_ptr(), self.model.sin[angles].as_ptr());
        let block_tokens = self.memory.layout().block_tokens as usize;
        let (block, offset) = (table[position / block_tokens], position % block_tokens);
        let q_scale = 1.0 / (dim as f32).sqrt();
        // SAFETY: heads are inside the row (asserted), tables inside theirs, and the position's slot inside its block's run,
        // which holds this entry's own token and so is this sequence's to write (I3).
        unsafe {
            let qkv = self.qkv.ptr().add(row * stride);
            for head in 0..heads + kv_heads {
                let at = qkv.add(head * dim);
                let (norm, scale) =
                    if head < heads { (&layer.q_norm, q_scale) } else { (&layer.k_norm, 1.0) };
                if !norm.is_empty() {
                    rowwise::rms_norm(self.isa, at, norm.as_ptr(), at, dim, config.norm_eps);
                }
                rowwise::rotate(self.isa, at, cos, sin, half, scale);
            }
            for is_v in 0..2 {
                for head in 0..kv_heads {
                    let from = qkv.add((heads + is_v * kv_heads + head) * dim);
                    let values = std::slice::from_raw_parts(from, dim);
                    self.keep(values, self.memory.head_run(block, index, is_v, head), offset);
                }
            }
        }
    }

    /// Rounds one head's K or V of one token into slot `slot` of its run.
    ///
    /// # Safety
    /// The slot must be inside the run and this item's alone.
    unsafe fn keep(&self, values: &[f32], run: NonNull<u8>, slot: usize) {
        // SAFETY: passed on from the caller.
        unsafe {
            match self.memory.layout().dtype {
                KvDtype::F32 => keep_as::<f32>(values, run, slot),
                KvDtype::F16 => keep_as::<f16>(values, run, slot),
                KvDtype::Bf16 => keep_as::<bf16>(values, run, slot),
                KvDtype::U8 => unreachable!("no runner has a pool of bytes"),
            }
        }
    }

    pub fn attend(&self, thread: usize, layer: usize, item: &AttentionItem, table: &[BlockId]) {
        let config = self.model.config();
        let (dim, heads) = (config.head_dim, config.heads);
        let queries = item.queries;
        let blocks = self.memory.layout().blocks_for(queries.position + queries.count);
        let head = item.kv_head * (heads / config.kv_heads) + item.first_head;
        let stride = (heads + 2 * config.kv_heads) * dim;
        assert!((queries.row + queries.count) * stride <= self.qkv.len(), "rows of the pass");
        assert!(queries.out_row + queries.count <= MAX_ROWS, "rows of the pass");
        let mut state = self.thread(thread);
        let ThreadState { attention, runs, .. } = &mut *state;
        let [k, v] = [0, 1].map(|is_v| self.memory.head_runs(&table[..blocks], layer, is_v, item.kv_head));
        runs.clear();
        runs.extend(k.zip(v));
        // SAFETY: rows and heads are inside their buffers (asserted); the runs cover the positions, all of which are written
        // (earlier steps, or this layer's last phase) and this sequence's to read (I3); items write disjoint heads or rows.
        unsafe {
            let task = AttentionTask {
                runs,
                dtype: self.memory.layout().dtype,
                block_tokens: self.memory.layout().block_tokens as usize,
                head_dim: dim,
                q: self.qkv.ptr().add(queries.row * stride + head * dim),
                out: self.attended.row_ptr(queries.out_row).add(head * dim),
                q_stride: stride,
                out_stride: heads * dim,
                first_position: queries.position,
                queries: queries.count,
                heads: item.heads,
            };
            attend(self.isa, &task, attention);
        }
    }

    /// Products of all rows with one panel of a matrix.
    pub fn product(
        &self,
        thread: usize,
        linear: &Linear,
        panel: usize,
        x: &Activations,
        rows: usize,
        sink: Sink,
    ) {
        assert!(rows <= MAX_ROWS, "rows of the pass");
        let (matrix, local, outputs) = linear.panel(panel);
        let mut state = self.thread(thread);
        let ThreadState { acc, widened, .. } = &mut *state;
        let acc = acc[0].as_mut_slice();
        // SAFETY: the rows are prepared and no item of this phase writes them; both buffers are this thread's and large enough.
        unsafe { panel_product(self.isa, matrix, local, x, 0, rows, acc.as_mut_ptr(), widened.ptr()) };
        for (row, acc) in acc.chunks_exact(PANEL).take(rows).enumerate() {
            // SAFETY: the sink has `rows` rows and the outputs of the matrix; these columns are this item's alone.
            let to = unsafe {
                std::slice::from_raw_parts_mut(sink.to.add(row * sink.stride + outputs.start), outputs.len())
            };
            if sink.adds {
                to.iter_mut().zip(acc).for_each(|(to, acc)| *to += acc);
            } else {
                to.copy_from_slice(&acc[..to.len()]);
            }
            if let Some(bias) = linear.bias().get(outputs.clone()) {
                to.iter_mut().zip(bias).for_each(|(to, bias)| *to += bias);
            }
        }
    }

    /// `gated = silu(gate x) * (up x)` for one panel of both matrices and all rows.
    pub fn gate(&self, thread: usize, layer: &LayerWeights, panel: usize, rows: usize) {
        assert!(rows <= MAX_ROWS, "rows of the pass");
        let mut state = self.thread(thread);
        let ThreadState { acc: [gate, up], widened, .. } = &mut *state;
        for (linear, acc) in [(&layer.gate, &mut *gate), (&layer.up, &mut *up)] {
            let (matrix, local, _) = linear.panel(panel);
            // SAFETY: as in `product`.
            unsafe {
                panel_product(self.isa, matrix, local, &self.normed, 0, rows, acc.ptr(), widened.ptr())
            };
        }
        for row in 0..rows {
            // SAFETY: `intermediate` is a multiple of 32, so that every panel is whole and inside its row; these columns are
            // this item's alone.
            unsafe {
                let to = self.gated.row_ptr(row).add(panel * PANEL);
                rowwise::swiglu(self.isa, gate.ptr().add(row * PANEL), up.ptr().add(row * PANEL), to, PANEL);
            }
        }
    }

    /// Prepares a row that a phase has filled, for the next product.
    pub fn prepare(&self, activations: &Activations, row: usize) {
        // SAFETY: the row is this item's alone, and its values were written in an earlier phase.
        unsafe { activations.prepare_row(self.isa, row) };
    }
}

/// # Safety
/// As for [`Workspace::keep`]; elements of the run are of type `E`.
unsafe fn keep_as<E: KvElement>(values: &[f32], run: NonNull<u8>, slot: usize) {
    let len = values.len();
    // SAFETY: a slot of `len` elements, aligned as runs are; nobody else has a reference to it.
    let to = unsafe { std::slice::from_raw_parts_mut(run.as_ptr().cast::<E>().add(slot * len), len) };
    E::store(values, to);
}
