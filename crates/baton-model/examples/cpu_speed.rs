//! Speed of the CPU runner: `cpu_speed MODEL THREADS exact|int8 [avx512|avx2|portable]`.
//!
//! One measurement of each kind after a warm-up, on one line of JSON: what `llama-bench -r 1 -o json` is for llama.cpp.
//! `cargo x bench engine` alternates the two.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use baton_engine::{Batch, BatchEntry, ModelRunner};
use baton_model::kernels::simd::Isa;
use baton_model::{CpuModel, CpuPrecision, CpuRunner, KvMemory, ModelFiles, ModelSource};
use baton_types::{BlockId, SamplingParams, SeqId, TokenId};

const USAGE: &str = "cpu_speed MODEL THREADS exact|int8 [avx512|avx2|portable]";
const BLOCK_TOKENS: u32 = 16;
const PROMPT_TOKENS: u32 = 512;
const DECODE_TOKENS: u32 = 32;

fn main() {
    let mut args = std::env::args().skip(1);
    let path = fetch(&args.next().expect(USAGE));
    let threads = args.next().and_then(|n| n.parse().ok()).expect(USAGE);
    let precision = match args.next().as_deref() {
        Some("exact") => CpuPrecision::Exact,
        Some("int8") => CpuPrecision::Int8,
        _ => panic!("{USAGE}"),
    };
    let isa = match args.next().as_deref() {
        None => Isa::best(),
        Some("avx512") => Isa::Avx512,
        Some("avx2") => Isa::Avx2,
        Some("portable") => Isa::Portable,
        Some(_) => panic!("{USAGE}"),
    };
    let model = Arc::new(CpuModel::load(&path, precision).expect("the model loads"));
    let layout = model.kv_layout(BLOCK_TOKENS);
    // One token more than is timed: the first step of decode is the warm-up.
    let blocks = layout.blocks_for((PROMPT_TOKENS + 1 + DECODE_TOKENS) as usize) as u32;
    let memory = KvMemory::allocate(layout, blocks);
    let mut runner = CpuRunner::with_isa(model, memory, threads, isa).expect("the layout fits");

    let mut run = |start: u32, tokens: u32| {
        let entry = BatchEntry {
            seq: SeqId(0),
            tokens: (start..start + tokens).map(|i| TokenId(100 + i * 17 % 1_000)).collect(),
            start,
            table: (0..blocks).map(BlockId).collect(),
            sample: Some(SamplingParams::GREEDY),
        };
        runner.run(&Batch { step: 0, entries: vec![entry] }).expect("the step runs");
    };
    run(0, PROMPT_TOKENS);
    let started = Instant::now();
    run(0, PROMPT_TOKENS);
    let prefill = started.elapsed().as_secs_f64();
    run(PROMPT_TOKENS, 1);
    let started = Instant::now();
    for position in PROMPT_TOKENS + 1..=PROMPT_TOKENS + DECODE_TOKENS {
        run(position, 1);
    }
    let decode = started.elapsed().as_secs_f64();

    let line = serde_json::json!({
        "model": path,
        "isa": format!("{isa:?}"),
        "prefill_tok_s": f64::from(PROMPT_TOKENS) / prefill,
        "decode_tok_s": f64::from(DECODE_TOKENS) / decode,
    });
    println!("{line}");
}

fn fetch(model: &str) -> PathBuf {
    let mut told = false;
    let files = ModelSource::parse(model).and_then(|source| {
        source.fetch(&mut |_| {
            if !std::mem::replace(&mut told, true) {
                eprintln!("fetching {model}");
            }
        })
    });
    match files {
        Ok(ModelFiles::Gguf(path) | ModelFiles::Directory(path)) => path,
        Err(error) => panic!("{error}"),
    }
}
