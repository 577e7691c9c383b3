//! I7: a row's KV and logits are the same bits in every chunking, batch, thread count, instruction set, block size and number
//! of ranks.

mod support;

use std::sync::Arc;

use baton_engine::BatchEntry;
use baton_model::kernels::simd::Isa;
use baton_model::{CpuModel, CpuPrecision, CpuRunner};
use baton_types::{BlockId, KvDtype, KvLayout};
use support::{TINY, entry, load, logits, runner_of};

const PROMPT: usize = 75;

fn prompt(seed: u32) -> Vec<u32> {
    (0..PROMPT as u32).map(|i| (i * i * 31 + i * 7 + seed * 101) % 320).collect()
}

/// How a prompt is computed: none of it may matter.
#[derive(Clone, Copy, Debug)]
struct How {
    chunk: usize,
    /// More sequences in each step.
    company: u32,
    threads: usize,
    block_tokens: u32,
    /// Whether each KV head has a rank of its own; otherwise there is one rank.
    split: bool,
}

impl How {
    const ALONE: Self = Self { chunk: PROMPT, company: 0, threads: 1, block_tokens: 16, split: false };

    fn blocks(self) -> u32 {
        PROMPT.div_ceil(self.block_tokens as usize) as u32
    }

    /// The blocks of the `seq`th sequence, not in order.
    fn table(self, seq: u32) -> Vec<BlockId> {
        (0..self.blocks()).rev().map(|i| BlockId(seq * self.blocks() + i)).collect()
    }
}

/// The KV bytes of `PROMPT` positions of every layer and head, in order of position, and the logits after the last, as bits.
fn state(runner: &CpuRunner, table: &[BlockId], last: &[f32]) -> (Vec<Vec<u8>>, Vec<u32>) {
    let layout = runner.memory().layout();
    let slot = layout.head_dim as usize * layout.dtype.bytes();
    let mut kv = vec![Vec::new(); layout.block_bytes() / layout.head_run_bytes()];
    for block in table {
        let bytes = runner.memory().read_block(*block);
        for (kv, run) in kv.iter_mut().zip(bytes.chunks_exact(layout.head_run_bytes())) {
            kv.extend_from_slice(run);
        }
    }
    kv.iter_mut().for_each(|run| run.truncate(PROMPT * slot));
    (kv, last.iter().map(|x| x.to_bits()).collect())
}

fn run(model: &Arc<CpuModel>, dtype: KvDtype, isa: Isa, how: How) -> (Vec<Vec<u8>>, Vec<u32>) {
    let layout = model.kv_layout(how.block_tokens);
    let ranks = if how.split { layout.kv_heads } else { 1 };
    let blocks = ((how.company + 1) * how.blocks()) as usize;
    let mut runner = runner_of(model, KvLayout { ranks, dtype, ..layout }, blocks, how.threads, isa);
    // Old bytes in unwritten slots, NaN among them, must not matter.
    for block in 0..runner.memory().num_blocks() {
        runner.memory().write_block(BlockId(block), &vec![0xff; runner.memory().layout().block_bytes()]);
    }
    let own = how.table(how.company);
    let mut last = Vec::new();
    for start in (0..PROMPT).step_by(how.chunk) {
        let end = PROMPT.min(start + how.chunk);
        let others = |seq: u32| -> BatchEntry {
            let end = PROMPT.min(start + 1 + seq as usize);
            entry(seq.into(), &prompt(seq)[start..end], start, &how.table(seq - 1))
        };
        let mut entries: Vec<BatchEntry> = (1..=how.company).map(others).collect();
        entries.push(entry(0, &prompt(0)[start..end], start, &own));
        last = logits(&mut runner, entries).pop().unwrap();
    }
    assert!(last.iter().all(|x| x.is_finite()));
    state(&runner, &own, &last)
}

#[test]
fn bits_do_not_depend_on_how_and_with_whom_a_row_is_computed() {
    let how =
        |chunk, company, threads, block_tokens, split| How { chunk, company, threads, block_tokens, split };
    let ways = [
        how(PROMPT, 0, 2, 32, true),
        how(1, 0, 1, 8, false),
        how(1, 5, 2, 64, false),
        how(7, 1, 3, 16, true),
        how(16, 13, 2, 8, true),
        how(33, 2, 1, 64, true),
    ];
    let arithmetics = [
        (CpuPrecision::Exact, KvDtype::F32),
        (CpuPrecision::Int8, KvDtype::F32),
        (CpuPrecision::Exact, KvDtype::F16),
        (CpuPrecision::Exact, KvDtype::Bf16),
    ];
    for (name, (precision, dtype)) in TINY.iter().flat_map(|name| arithmetics.map(|a| (name, a))) {
        let model = load(name, precision);
        let want = run(&model, dtype, Isa::Portable, How::ALONE);
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
            for how in ways {
                let got = run(&model, dtype, isa, how);
                let case = format!("{name} {precision:?} {dtype:?} {isa:?} {how:?}");
                assert!(got.0 == want.0, "KV differs: {case}");
                assert!(got.1 == want.1, "logits differ: {case}");
            }
        }
    }
}
