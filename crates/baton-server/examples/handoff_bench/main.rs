//! How long a hand-off keeps an answer waiting, and how much incoming KV slows a running decode: two engines over shared memory in
//! one process.
//!
//!     cargo run --release -p baton-server --example handoff_bench

#[path = "../engine/engine.rs"]
mod engine;
mod engines;
mod trace;

use engines::{Engines, KV_BYTES_PER_TOKEN, STEP_TOKENS};
use trace::Trace;

const ROUNDS: usize = 15;
const MODES: [&str; 3] = ["push", "early-pull", "pull"];
const PROMPTS: [u32; 2] = [1000, 4000];
/// A unit of 16 tokens is 30 layers x K and V x 3 heads, so many descriptors where block sizes differ.
const UNIT_DESCRIPTORS: u32 = 30 * 2 * 3;
/// 16,380 descriptors.
const LONG_PROMPT: u32 = 91 * 16;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let trace = Trace::install();
    println!(
        "shm, {KV_BYTES_PER_TOKEN} bytes of KV a token (SmolLM2-135M in f32), emulated times, steps of {STEP_TOKENS} tokens, {ROUNDS} rounds\n"
    );
    first_steps(&trace).await;
    gaps(&trace).await;
}

/// From the end of prefill's last chunk to the start of decode's first step.
async fn first_steps(trace: &Trace) {
    let engines = Engines::start(16, 16).await;
    println!("{:>7} {:>11} {:>10} {:>14} {:>10}", "tokens", "", "wait (ms)", "min - max", "left (MB)");
    let mut seed = 0;
    for tokens in PROMPTS {
        let mut waits: [Vec<f64>; 3] = Default::default();
        let mut left: [Vec<f64>; 3] = Default::default();
        // One round that does not count: handshakes, and pages that nobody has touched.
        for round in 0..=ROUNDS {
            for (i, mode) in MODES.iter().enumerate() {
                seed += 1;
                trace.clear();
                engines.hand_off(mode, seed, tokens).await;
                if round > 0 {
                    let hand_off = trace.hand_off("prefill", "decode");
                    waits[i].push(hand_off.wait.as_secs_f64() * 1e3);
                    left[i].push(hand_off.units_left as f64 * 16.0 * KV_BYTES_PER_TOKEN as f64 / 1e6);
                }
            }
        }
        for (i, mode) in MODES.iter().enumerate() {
            let (wait, range, left) = (median(&waits[i]), range(&waits[i]), median(&left[i]));
            println!("{tokens:>7} {mode:>11} {wait:>10.2} {range:>14} {left:>10.1}");
        }
        let ratio = median(&waits[0]) / median(&waits[2]);
        println!("{tokens:>7} push / pull = {ratio:.2} (asked: push below 2 ms, and below 0.5 of pull)\n");
    }
}

/// The longest gap between two steps of a running decode, while another sequence's KV comes in and while none does.
async fn gaps(trace: &Trace) {
    let engines = Engines::start(16, 32).await;
    let (mut with, mut without) = (Vec::new(), Vec::new());
    for round in 0..=3 * ROUNDS {
        let (handle, body) = engines.prefill_for_pull(1_000_000 + round as u32, LONG_PROMPT).await;
        let running = engines.start_long_answer().await;
        trace.clear();
        engines.decode(&body, handle).await;
        let incoming = trace.incoming("decode");
        trace.clear();
        tokio::time::sleep(incoming.lasted).await;
        let quiet = trace.longest_gap("decode");
        drop(running);
        engines.idle().await;
        // A window too short for two steps tells nothing.
        if round > 0 && !incoming.longest_gap.is_zero() && !quiet.is_zero() {
            with.push(incoming.longest_gap.as_secs_f64() * 1e3);
            without.push(quiet.as_secs_f64() * 1e3);
        }
    }
    let descriptors = LONG_PROMPT / 16 * UNIT_DESCRIPTORS;
    println!("longest gap between two steps of a decode while {descriptors} scattered descriptors come in");
    println!("  rounds   {} with two steps or more while it lasted", with.len());
    println!("  with     {:.2} ms ({})", median(&with), range(&with));
    println!("  without  {:.2} ms ({})", median(&without), range(&without));
    println!("  with / without = {:.2} (asked: at most 1.2)", median(&with) / median(&without));
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

fn range(values: &[f64]) -> String {
    let (low, high) = values.iter().fold((f64::INFINITY, 0.0f64), |(l, h), v| (l.min(*v), h.max(*v)));
    format!("{low:.2} - {high:.2}")
}
