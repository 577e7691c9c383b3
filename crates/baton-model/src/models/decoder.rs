//! One pass through a decoder: embedding, layers, logits. Each phase is shared out among the threads.

use std::sync::Arc;

use baton_engine::Batch;

use super::linear::Linear;
use super::pass::{Pass, Span};
use super::weights::{CpuModel, LayerWeights};
use super::workspace::{AttentionItem, Queries, Sink, Workspace};
use crate::kernels::activations::Activations;
use crate::kernels::attention::QUERY_CHUNK;
use crate::kernels::pool::ThreadPool;
use crate::kernels::simd::Isa;
use crate::kv_memory::KvMemory;

/// Rows that one item of a row-wise phase takes.
const ROWS_PER_ITEM: usize = 16;
/// Items of a matrix product for each thread: so many that a thread that lost its core holds up the others for a part only.
const ITEMS_PER_THREAD: usize = 4;

/// A model, its KV, its threads, and the activations of one pass.
#[derive(Debug)]
pub struct Decoder {
    pool: ThreadPool,
    space: Workspace,
}

impl Decoder {
    /// # Panics
    /// If the processor lacks `isa`.
    pub fn new(model: Arc<CpuModel>, memory: KvMemory, isa: Isa, threads: usize) -> Self {
        let pool = ThreadPool::new(threads);
        Self { space: Workspace::new(model, memory, isa, pool.threads()), pool }
    }

    pub fn model(&self) -> &CpuModel {
        &self.space.model
    }

    pub fn memory(&self) -> &KvMemory {
        &self.space.memory
    }

    /// Computes a pass: writes the KV of its rows, and gives the logits of [`Pass::sampled`], in that order.
    pub fn forward(&mut self, pass: &Pass, batch: &Batch) -> Vec<&[f32]> {
        let model = self.space.model.clone();
        let (hidden, vocab) = (model.config().hidden, model.config().vocab);
        let sampled = pass.sampled();
        let mut rows = pass.tokens.len();
        let mut queries: Vec<Queries> = pass.spans.iter().map(all_queries).collect();
        self.each_row(rows, |space, row| space.embed(row, pass.tokens[row]));
        for (index, layer) in model.layers.iter().enumerate() {
            self.each_row(rows, |space, row| space.normalise(row, &layer.input_norm));
            let qkv = Sink { to: self.space.qkv.ptr(), stride: layer.qkv.outputs(), adds: false };
            self.product(&layer.qkv, |space| &space.normed, rows, qkv);
            self.rotate_and_keep(index, layer, pass, batch);
            if index + 1 == model.layers.len() {
                // Behind the last layer's KV nobody needs rows that are not sampled.
                queries = self.keep_sampled(pass);
                rows = sampled.len();
            }
            self.attention(index, &queries, batch);
            self.each_row(rows, |space, row| space.prepare(&space.attended, row));
            let residual = Sink { to: self.space.x.ptr(), stride: hidden, adds: true };
            self.product(&layer.output, |space| &space.attended, rows, residual);
            self.each_row(rows, |space, row| space.normalise(row, &layer.post_norm));
            self.gate(layer, rows);
            self.each_row(rows, |space, row| space.prepare(&space.gated, row));
            self.product(&layer.down, |space| &space.gated, rows, residual);
        }
        self.space.logits.reserve_zeroed(rows * vocab);
        self.each_row(rows, |space, row| space.normalise(row, &model.final_norm));
        let logits = Sink { to: self.space.logits.ptr(), stride: vocab, adds: false };
        self.product(&model.lm_head, |space| &space.normed, rows, logits);
        self.space.logits.as_slice().chunks_exact(vocab).take(rows).collect()
    }

    /// Moves the sampled rows of the residual stream to the front, and returns what they attend to.
    fn keep_sampled(&mut self, pass: &Pass) -> Vec<Queries> {
        let hidden = self.space.model.config().hidden;
        let mut queries = Vec::new();
        for span in pass.spans.iter().filter(|span| span.samples) {
            let row = span.first_row + span.rows - 1;
            let out_row = queries.len();
            self.space.x.as_mut_slice().copy_within(row * hidden..(row + 1) * hidden, out_row * hidden);
            let position = span.position + span.rows - 1;
            queries.push(Queries { entry: span.entry, row, out_row, count: 1, position });
        }
        queries
    }

    /// Calls `f` for each row.
    fn each_row(&mut self, rows: usize, f: impl Fn(&Workspace, usize) + Sync) {
        let space = &self.space;
        self.pool.run(rows.div_ceil(ROWS_PER_ITEM), &|_, item| {
            let first = item * ROWS_PER_ITEM;
            (first..rows.min(first + ROWS_PER_ITEM)).for_each(|row| f(space, row));
        });
    }

    /// Calls `f(thread, panel)` for each panel, some neighbours an item.
    fn each_panel(&mut self, panels: usize, f: impl Fn(&Workspace, usize, usize) + Sync) {
        let space = &self.space;
        let per_item = panels.div_ceil(self.pool.threads() * ITEMS_PER_THREAD);
        self.pool.run(panels.div_ceil(per_item), &|thread, item| {
            let first = item * per_item;
            (first..panels.min(first + per_item)).for_each(|panel| f(space, thread, panel));
        });
    }

    fn product(&mut self, linear: &Linear, x: fn(&Workspace) -> &Activations, rows: usize, sink: Sink) {
        if rows > 0 {
            let f =
                |space: &Workspace, thread, panel| space.product(thread, linear, panel, x(space), rows, sink);
            self.each_panel(linear.panels(), f);
        }
    }

    fn gate(&mut self, layer: &LayerWeights, rows: usize) {
        if rows > 0 {
            self.each_panel(layer.gate.panels(), |space, thread, panel| {
                space.gate(thread, layer, panel, rows)
            });
        }
    }

    fn rotate_and_keep(&mut self, index: usize, layer: &LayerWeights, pass: &Pass, batch: &Batch) {
        let span_of = |row: usize| {
            let after = pass.spans.partition_point(|span| span.first_row <= row);
            &pass.spans[after - 1]
        };
        self.each_row(pass.tokens.len(), |space, row| {
            let span = span_of(row);
            let position = span.position + row - span.first_row;
            space.rotate_and_keep(index, layer, row, position, &batch.entries[span.entry].table);
        });
    }

    fn attention(&mut self, layer: usize, queries: &[Queries], batch: &Batch) {
        let items = attention_items(queries, self.model(), self.pool.threads());
        let space = &self.space;
        self.pool.run(items.len(), &|thread, index| {
            let item = &items[index];
            space.attend(thread, layer, item, &batch.entries[item.queries.entry].table);
        });
    }
}

fn all_queries(span: &Span) -> Queries {
    let (row, out_row, count) = (span.first_row, span.first_row, span.rows);
    Queries { entry: span.entry, row, out_row, count, position: span.position }
}

/// Cuts attention into items: chunks of queries by KV heads; and, where that gives the threads too little to share, by heads.
fn attention_items(queries: &[Queries], model: &CpuModel, threads: usize) -> Vec<AttentionItem> {
    let config = model.config();
    let group = config.heads / config.kv_heads;
    let mut items = Vec::new();
    // The last queries attend to most: first, so that a long item does not come last.
    for all in queries.iter().rev() {
        for chunk in (0..all.count.div_ceil(QUERY_CHUNK)).rev() {
            let done = chunk * QUERY_CHUNK;
            let queries = Queries {
                row: all.row + done,
                out_row: all.out_row + done,
                count: QUERY_CHUNK.min(all.count - done),
                position: all.position + done,
                ..*all
            };
            let item = |kv_head| AttentionItem { queries, kv_head, first_head: 0, heads: group };
            items.extend((0..config.kv_heads).map(item));
        }
    }
    // Each item gathers K and V for itself: heads go apart only if threads would have nothing to do.
    if items.len() < threads {
        let heads = |item: AttentionItem| {
            (0..group).map(move |first_head| AttentionItem { first_head, heads: 1, ..item })
        };
        items = items.into_iter().flat_map(heads).collect();
    }
    items
}
