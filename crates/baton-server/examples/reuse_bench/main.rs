//! How long the second turn of a conversation keeps its client waiting for the first token, with and without the KV of the first:
//! SmolLM2 on two engines over shared memory in one process, pushed.
//!
//!     cargo run --release -p baton-server --example reuse_bench [off|on|tenants [ROUNDS]]

#[path = "../engine/engine.rs"]
mod engine;

use std::time::{Duration, Instant};

use baton_server::{CheckpointChoice, ModelChoice, Precision, ServerConfig, TransportKind};
use baton_types::TransferId;
use engine::{Engine, decode_params, prefill_leg};
use http_body_util::BodyExt;
use serde_json::{Value, json};

const ROUNDS: usize = 5;
const HISTORIES: [u32; 4] = [1000, 2000, 4000, 6000];
/// Of the first turn, without prefill's prefix cache. With it the answer is all that is left to read, and this one less than is
/// worth reading.
const ANSWER: u32 = 64;
const LONG_ANSWER: u32 = 256;
/// Of the second turn.
const NEXT_ANSWER: u32 = 16;
const NEW: u32 = 64;
const FOREIGN: u32 = 256;
const FOREIGN_ROUNDS: usize = 25;
/// 30 layers, 3 KV heads of 64 elements, K and V, 4 bytes each.
const KV_BYTES_PER_TOKEN: f64 = (30 * 3 * 64 * 2 * 4) as f64;

struct Engines {
    prefill: Engine,
    decode: Engine,
    /// Of the prefill engine.
    info: Value,
    requests: u128,
    /// Tokens of the first turn's answer.
    answer: u32,
}

/// One second turn.
struct Turn {
    ttft_ms: f64,
    /// Tokens and time of the readback, as the prefill engine counts them.
    read_tokens: f64,
    read_ms: f64,
    tokens: Vec<u64>,
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let rounds = std::env::args().nth(2).map_or(ROUNDS, |rounds| rounds.parse().expect("a number of rounds"));
    println!(
        "SmolLM2-135M exact, {KV_BYTES_PER_TOKEN} bytes of KV a token, shm, push; second turn of {NEW} new tokens; medians of {rounds} alternating rounds\n"
    );
    let caches: &[bool] = match std::env::args().nth(1).as_deref() {
        None => &[false, true],
        Some("off") => &[false],
        Some("on") => &[true],
        Some("tenants") => &[],
        Some(other) => {
            panic!("off or on, of prefill's prefix cache, or tenants; not {other}; all by default")
        }
    };
    for &prefix_cache in caches {
        let mut engines = Engines::start(prefix_cache).await;
        let state = if prefix_cache { "on" } else { "off" };
        println!("prefill's prefix cache {state}, an answer of {} in the first turn", engines.answer);
        println!(
            "{:>8} {:>11} {:>10} {:>8} {:>14} {:>10} {:>10} {:>8}",
            "history", "computed ms", "reused ms", "ratio", "min - max", "read (MB)", "read (ms)", "share"
        );
        let mut seed = 0;
        for history in HISTORIES {
            let (mut off, mut on, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
            // One round that does not count: handshakes, and pages that nobody has touched.
            for round in 0..=rounds {
                seed += 1;
                let computed = engines.second_turn(seed, history, false).await;
                // With a prefix cache the same words would be found there: other ones.
                seed += u32::from(prefix_cache);
                let reused = engines.second_turn(seed, history, true).await;
                assert!(prefix_cache || computed.tokens == reused.tokens, "I7: the same words");
                if round > 0 {
                    ratios.push(reused.ttft_ms / computed.ttft_ms);
                    off.push(computed);
                    on.push(reused);
                }
            }
            let of = |turns: &[Turn], what: fn(&Turn) -> f64| median(turns.iter().map(what).collect());
            let (reused, read_ms) = (of(&on, |turn| turn.ttft_ms), of(&on, |turn| turn.read_ms));
            let megabytes = of(&on, |turn| turn.read_tokens) * KV_BYTES_PER_TOKEN / 1e6;
            let (low, high) = ratios.iter().fold((f64::INFINITY, 0.0f64), |(l, h), v| (l.min(*v), h.max(*v)));
            println!(
                "{history:>8} {:>11.1} {reused:>10.1} {:>8.3} {:>14} {megabytes:>10.1} {read_ms:>10.2} {:>7.0}%",
                of(&off, |turn| turn.ttft_ms),
                median(ratios),
                format!("{low:.3} - {high:.3}"),
                read_ms / reused * 100.0,
            );
        }
        println!();
    }
    if caches.len() != 1 {
        Engines::start(false).await.isolation().await;
    }
}

impl Engines {
    async fn start(prefix_cache: bool) -> Self {
        let config = |name: &str, retain_ttl_ms| ServerConfig {
            name: name.to_owned(),
            port: 0,
            model: ModelChoice::Checkpoint(CheckpointChoice {
                source: "smollm2".to_owned(),
                precision: Precision::Exact,
            }),
            kv_memory_bytes: Some(2 << 30),
            transport: TransportKind::Shm,
            prefix_cache,
            retain_ttl_ms,
            ..ServerConfig::default()
        };
        let prefill = Engine::start(config("prefill", 0)).await;
        // Decode's cache stays as it is in use: what it kept is also what it need not receive.
        let decode = Engine::start(ServerConfig { prefix_cache: true, ..config("decode", 480_000) }).await;
        let info = prefill.get("/baton/info").await;
        let answer = if prefix_cache { LONG_ANSWER } else { ANSWER };
        Self { prefill, decode, info, requests: 0, answer }
    }

    async fn second_turn(&mut self, seed: u32, history: u32, reuse: bool) -> Turn {
        let mut prompt: Vec<u64> = prompt(seed, history);
        let first = self.ask(&prompt, self.answer, None).await;
        let kept = first.kept.expect("decode keeps what it has said");
        prompt.extend(first.tokens);
        prompt.extend(self::prompt(seed + 1_000_000, NEW));
        self.prefill.idle().await;
        let before = self.readback().await;
        let second = self.ask(&prompt, NEXT_ANSWER, reuse.then_some(kept)).await;
        let after = self.readback().await;
        Turn {
            ttft_ms: second.ttft.as_secs_f64() * 1e3,
            read_tokens: after.0 - before.0,
            read_ms: (after.1 - before.1) * 1e3,
            tokens: second.tokens,
        }
    }

    /// Whether the time to the first token tells that another tenant's KV of the same words exists.
    async fn isolation(&mut self) {
        let words = prompt(9_999_999, FOREIGN);
        let kept =
            self.ask_as("one", &words, ANSWER, None).await.kept.expect("decode keeps what it has said");
        let mut forged = kept.clone();
        forged["transfer_id"] = TransferId(u128::MAX).to_string().into();
        let (mut foreign, mut unknown, mut again) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..FOREIGN_ROUNDS {
            for (times, handle) in [(&mut foreign, &kept), (&mut unknown, &forged), (&mut again, &forged)] {
                let answer = self.ask_as("another", &words, ANSWER, Some(handle.clone())).await;
                times.push(answer.ttft.as_secs_f64() * 1e3);
            }
        }
        let (foreign, unknown, again) = (median(foreign), median(unknown), median(again));
        println!(
            "first token of {FOREIGN} tokens, by another tenant, medians of {FOREIGN_ROUNDS} alternating rounds"
        );
        println!("  with the first tenant's reference  {foreign:.2} ms");
        println!("  with a reference that never was    {unknown:.2} ms, and measured twice {again:.2} ms");
        println!("  foreign / unknown = {:.3}, noise {:.3}\n", foreign / unknown, again / unknown);
    }

    /// Tokens and seconds of all readbacks so far.
    async fn readback(&self) -> (f64, f64) {
        let page = self.prefill.text("/metrics").await;
        let value = |name: &str| {
            let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            line.and_then(|value| value.parse().ok()).expect("the engine counts it")
        };
        (value("baton_readback_tokens_total"), value("baton_readback_seconds_total"))
    }

    async fn ask(&mut self, prompt: &[u64], answer: u32, kept: Option<Value>) -> Answer {
        self.ask_as("", prompt, answer, kept).await
    }

    async fn ask_as(&mut self, tenant: &str, prompt: &[u64], answer: u32, kept: Option<Value>) -> Answer {
        self.requests += 1;
        let id = TransferId(self.requests).to_string();
        let body = json!({"prompt": prompt, "max_tokens": answer, "temperature": 0, "ignore_eos": true,
                          "return_token_ids": true, "user": tenant});
        let mut leg = prefill_leg(&body, "push", Some(&id));
        if let Some(kept) = kept {
            leg["kv_transfer_params"]["reuse"] = kept;
        }
        let mut body = body;
        body["stream"] = true.into();
        body["kv_transfer_params"] = decode_params("push", &id, &self.info);
        let (_, said) = tokio::join!(self.prefill.complete(&leg), stream(&self.decode, &body));
        assert_eq!(said.tokens.len(), answer as usize);
        said
    }
}

struct Answer {
    ttft: Duration,
    tokens: Vec<u64>,
    kept: Option<Value>,
}

async fn stream(engine: &Engine, body: &Value) -> Answer {
    let begun = Instant::now();
    let mut response = engine.send(body).await;
    let (mut ttft, mut text) = (None, Vec::new());
    while let Some(frame) = response.frame().await {
        if let Ok(data) = frame.expect("a whole answer").into_data() {
            ttft.get_or_insert_with(|| begun.elapsed());
            text.extend_from_slice(&data);
        }
    }
    let text = String::from_utf8(text).expect("text");
    let chunks =
        text.lines().filter_map(|line| serde_json::from_str::<Value>(line.strip_prefix("data: ")?).ok());
    let (mut tokens, mut kept) = (Vec::new(), None);
    for chunk in chunks {
        let ids = chunk["choices"][0]["token_ids"].as_array().into_iter().flatten();
        tokens.extend(ids.filter_map(Value::as_u64));
        kept = chunk.get("kv_transfer_params").cloned().filter(|params| !params.is_null()).or(kept);
    }
    Answer { ttft: ttft.expect("a token"), tokens, kept }
}

fn prompt(seed: u32, tokens: u32) -> Vec<u64> {
    (0..tokens).map(|i| u64::from(seed.wrapping_mul(7919).wrapping_add(i * 31) % 20_000)).collect()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
