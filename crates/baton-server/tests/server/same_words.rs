//! I7 in one process: alone, pull and push give the same tokens, bit for bit, whatever is in the prefix caches.

use baton_server::{CheckpointChoice, ModelChoice, Precision, ServerConfig, TransportKind};
use baton_types::KvOrder;
use futures_util::future::join_all;
use serde_json::{Value, json};

use crate::hand_off::{pull, push};
use crate::harness::{TestServer, config, emulated, greedy, ids, prompt, with};

/// Around every edge of a block, of a chunk and of a step, and in between.
const LENGTHS: [u32; 30] = [
    1, 2, 3, 7, 15, 16, 17, 18, 31, 32, 33, 47, 48, 49, 63, 64, 65, 90, 128, 129, 200, 255, 256, 257, 400,
    511, 512, 513, 1000, 2000,
];

async fn assert_same_words(base: impl Fn() -> ServerConfig) {
    let make =
        |step_tokens| ServerConfig { threads: Some(1), max_model_len: Some(4096), step_tokens, ..base() };
    let alone = TestServer::start(make(512)).await;
    // Other chunks on each side: they may not matter.
    let (prefill, decode) = (TestServer::start(make(256)).await, TestServer::start(make(128)).await);
    // Every third prompt begins as the others of its kind do.
    let body = |(i, n): (usize, &u32)| {
        let seed = if i % 3 == 0 { 7 } else { i as u32 + 100 };
        with(greedy(&prompt(seed, *n), 16), "ignore_eos", json!(true))
    };
    let bodies: Vec<Value> = LENGTHS.iter().enumerate().map(body).collect();
    let want = join_all(bodies.iter().map(|body| alone.complete(body))).await;
    for pass in 0..2 {
        let pulled = join_all(bodies.iter().map(|body| pull(&prefill, &decode, body))).await;
        let pushes = bodies
            .iter()
            .enumerate()
            .map(|(i, body)| push(&prefill, &decode, body, 1000 + pass * 100 + i as u128));
        let pushed = join_all(pushes).await;
        for (i, want) in want.iter().enumerate() {
            assert_eq!(ids(want).len(), 16);
            assert_eq!(ids(&pulled[i]), ids(want), "pull, pass {pass}, prompt of {} tokens", LENGTHS[i]);
            assert_eq!(ids(&pushed[i].1), ids(want), "push, pass {pass}, prompt of {} tokens", LENGTHS[i]);
        }
    }
    assert_eq!(decode.metric("baton_recomputed_total").await, 0.0, "every hand-off moved KV");
    prefill.idle().await;
    decode.idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_the_emulated_model() {
    assert_same_words(|| ServerConfig {
        model: emulated("instant"),
        kv_memory_bytes: Some(64 << 20),
        ..config(TransportKind::Memory)
    })
    .await;
}

/// What is there to be measured beside moves the same KV: layer by layer, posted by decode's loop, written at the end.
#[tokio::test(flavor = "multi_thread")]
async fn of_the_baselines_over_every_transport() {
    for transport in [TransportKind::Memory, TransportKind::Shm, TransportKind::Tcp] {
        assert_same_words(|| ServerConfig {
            model: emulated("instant"),
            kv_memory_bytes: Some(64 << 20),
            kv_layout: KvOrder::LayerMajor,
            inline_post: true,
            push_at_end: true,
            hold_first_token: true,
            ..config(transport)
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_smollm2() {
    let choice = CheckpointChoice { source: "smollm2".to_owned(), precision: Precision::Exact };
    let model = ModelChoice::Checkpoint(choice);
    assert_same_words(|| ServerConfig {
        model: model.clone(),
        kv_memory_bytes: Some(2 << 30),
        ..config(TransportKind::Memory)
    })
    .await;
}
