//! Speed of the CPU runner: `cpu_speed MODEL [THREADS] [exact|int8] [avx512|avx2|portable]`.
//!
//! Prints prefill of 512 tokens, decode of one sequence and of eight at 512 tokens of context, in tokens per second: the best of
//! several rounds, since whatever else runs on the machine only ever makes a round slower.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use baton_engine::{Batch, BatchEntry, ModelRunner};
use baton_model::kernels::simd::Isa;
use baton_model::{CpuModel, CpuPrecision, CpuRunner, KvMemory};
use baton_types::{BlockId, SamplingParams, SeqId, TokenId};

const BLOCK_TOKENS: u32 = 16;
const CONTEXT: u32 = 512;

fn main() {
    let mut args = std::env::args().skip(1);
    let path = PathBuf::from(args.next().expect("cpu_speed MODEL [THREADS] [exact|int8] [ISA]"));
    let threads = args.next().map_or(2, |n| n.parse().expect("a number of threads"));
    let precision = match args.next().as_deref() {
        None | Some("exact") => CpuPrecision::Exact,
        Some("int8") => CpuPrecision::Int8,
        Some(other) => panic!("{other} is neither exact nor int8"),
    };
    let isa = match args.next().as_deref() {
        None => Isa::best(),
        Some("avx512") => Isa::Avx512,
        Some("avx2") => Isa::Avx2,
        Some("portable") => Isa::Portable,
        Some(other) => panic!("{other} is no instruction set"),
    };
    let started = Instant::now();
    let model = Arc::new(CpuModel::load(&path, precision).expect("the model loads"));
    println!("loaded in {:.2?}, {isa:?}, {threads} threads, {precision:?}", started.elapsed());
    println!("weights read per token: {:.1} MB", model.weight_bytes() as f64 / 1e6);
    let layout = model.kv_layout(BLOCK_TOKENS);
    let blocks = 8 * layout.blocks_for(CONTEXT as usize + 64);
    let memory = KvMemory::allocate(layout, blocks as u32);
    let mut runner = CpuRunner::with_isa(model, memory, threads, isa).expect("the layout fits");
    let per_seq = (blocks / 8) as u32;
    let entry = |seq: u32, start: u32, tokens: u32| BatchEntry {
        seq: SeqId(seq.into()),
        tokens: (start..start + tokens).map(|i| TokenId(100 + i * 17 % 1_000)).collect(),
        start,
        table: (seq * per_seq..(seq + 1) * per_seq).map(BlockId).collect(),
        sample: Some(SamplingParams::GREEDY),
    };
    let mut best = |what: &str, rounds: usize, tokens: f64, entries: &dyn Fn(u32) -> Vec<BatchEntry>| {
        let mut shortest = f64::INFINITY;
        for round in 0..rounds {
            let batch = Batch { step: 0, entries: entries(round as u32 % 32) };
            let start = Instant::now();
            runner.run(&batch).expect("the step runs");
            shortest = shortest.min(start.elapsed().as_secs_f64());
        }
        println!("{what}: {:.1} tok/s ({:.3} ms)", tokens / shortest, shortest * 1e3);
    };
    for seq in 1..8 {
        best("fill", 1, 512.0, &|_| vec![entry(seq, 0, CONTEXT)]);
    }
    best("prefill 512", 5, 512.0, &|_| vec![entry(0, 0, CONTEXT)]);
    best("decode 1 at 512", 64, 1.0, &|i| vec![entry(0, CONTEXT + i, 1)]);
    best("decode 8 at 512", 32, 8.0, &|i| (0..8).map(|seq| entry(seq, CONTEXT + i, 1)).collect());
}
