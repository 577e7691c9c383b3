//! I7: a row's KV and logits are the same bits in every chunking, batch, thread count and instruction set.

mod support;

use std::sync::Arc;

use baton_engine::BatchEntry;
use baton_model::kernels::simd::Isa;
use baton_model::{CpuModel, CpuPrecision, CpuRunner};
use baton_types::BlockId;
use support::{TINY, entry, load, logits, runner};

const PROMPT: usize = 75;
const BLOCK_TOKENS: u32 = 16;

fn prompt(seed: u32) -> Vec<u32> {
    (0..PROMPT as u32).map(|i| (i * i * 31 + i * 7 + seed * 101) % 320).collect()
}

fn table(first: u32) -> Vec<BlockId> {
    // Neither in order nor at the start of the pool.
    let blocks = PROMPT.div_ceil(BLOCK_TOKENS as usize) as u32;
    (0..blocks).rev().map(|i| BlockId(first + i)).collect()
}

/// The KV bytes of `PROMPT` positions of every layer and head, in order of position, and the logits after the last, as bits.
fn state(runner: &CpuRunner, table: &[BlockId], last: &[f32]) -> (Vec<Vec<u8>>, Vec<u32>) {
    let layout = runner.memory().layout();
    let slot = layout.head_dim as usize * 4;
    let mut kv = Vec::new();
    for (i, block) in table.iter().enumerate() {
        let bytes = runner.memory().read_block(*block);
        let block_tokens = layout.block_tokens as usize;
        let used = block_tokens.min(PROMPT - i * block_tokens);
        kv.extend(bytes.chunks_exact(layout.head_run_bytes()).map(|run| run[..used * slot].to_vec()));
    }
    (kv, last.iter().map(|x| x.to_bits()).collect())
}

/// Feeds the prompt in chunks of `chunk`, with `company` more sequences in each step.
fn run(
    model: &Arc<CpuModel>,
    chunk: usize,
    company: u32,
    threads: usize,
    isa: Isa,
) -> (Vec<Vec<u8>>, Vec<u32>) {
    let blocks = table(0).len() as u32;
    let mut runner = runner(model, BLOCK_TOKENS, ((company + 1) * blocks) as usize, threads, isa);
    // Old bytes in unwritten slots, NaN among them, must not matter.
    for block in 0..runner.memory().num_blocks() {
        runner.memory().write_block(BlockId(block), &vec![0xff; runner.memory().layout().block_bytes()]);
    }
    let own = table(company * blocks);
    let mut last = Vec::new();
    for start in (0..PROMPT).step_by(chunk) {
        let end = PROMPT.min(start + chunk);
        let others = |seq: u32| -> BatchEntry {
            let end = PROMPT.min(start + 1 + seq as usize);
            entry(seq.into(), &prompt(seq)[start..end], start, &table((seq - 1) * blocks))
        };
        let mut entries: Vec<BatchEntry> = (1..=company).map(others).collect();
        entries.push(entry(0, &prompt(0)[start..end], start, &own));
        last = logits(&mut runner, entries).pop().unwrap();
    }
    assert!(last.iter().all(|x| x.is_finite()));
    state(&runner, &own, &last)
}

#[test]
fn bits_do_not_depend_on_chunks_batches_threads_or_instruction_sets() {
    for (name, precision) in TINY.iter().flat_map(|n| [(n, CpuPrecision::Exact), (n, CpuPrecision::Int8)]) {
        let model = load(name, precision);
        let want = run(&model, PROMPT, 0, 1, Isa::Portable);
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
            for (chunk, company, threads) in
                [(PROMPT, 0, 2), (1, 0, 1), (1, 5, 2), (7, 1, 3), (16, 13, 2), (33, 2, 1)]
            {
                let got = run(&model, chunk, company, threads, isa);
                let case = format!(
                    "{name} {precision:?} {isa:?}: chunks of {chunk}, {company} others, {threads} threads"
                );
                assert!(got.0 == want.0, "KV differs: {case}");
                assert!(got.1 == want.1, "logits differ: {case}");
            }
        }
    }
}
