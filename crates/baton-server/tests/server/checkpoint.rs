//! A real model of random weights on the CPU runner: the whole path with nothing emulated.

use std::path::Path;

use baton_server::{CheckpointChoice, ModelChoice, Precision, ServerConfig, TransportKind};
use serde_json::{Value, json};

use crate::hand_off::{pull, push};
use crate::harness::{TestServer, config, ids};
use crate::text::write_tokenizer;

#[tokio::test(flavor = "multi_thread")]
async fn a_checkpoint_s_answers_do_not_depend_on_who_computes_them() {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../baton-model/tests/data/tiny-llama3");
    let directory = tempfile::tempdir().unwrap();
    for file in ["config.json", "generation_config.json", "model.safetensors"] {
        std::fs::copy(data.join(file), directory.path().join(file)).unwrap();
    }
    write_tokenizer(directory.path());
    let source = directory.path().to_str().unwrap().to_owned();
    let make = |step_tokens| ServerConfig {
        model: ModelChoice::Checkpoint(CheckpointChoice {
            source: source.clone(),
            precision: Precision::Exact,
        }),
        threads: Some(1),
        step_tokens,
        max_num_seqs: 8,
        ..config(TransportKind::Shm)
    };
    let alone = TestServer::start(make(512)).await;
    let (prefill, decode) = (TestServer::start(make(16)).await, TestServer::start(make(64)).await);
    for (id, text) in
        [(1, "The quick brown fox jumps over the lazy dog, twice."), (2, "x"), (3, "Zwölf Boxkämpfer")]
    {
        let body = json!({"prompt": text, "max_tokens": 12, "temperature": 0, "ignore_eos": true,
                          "return_token_ids": true});
        let want = ids(&alone.complete(&body).await);
        assert_eq!(want.len(), 12);
        assert_eq!(ids(&pull(&prefill, &decode, &body).await), want, "pull {text}");
        let (_, answer): (Value, Value) = push(&prefill, &decode, &body, id).await;
        assert_eq!(ids(&answer), want, "push {text}");
    }
    assert_eq!(decode.metric("baton_recomputed_total").await, 0.0);
    assert!(decode.metric("baton_received_tokens_total").await > 0.0);
    let name = decode.info().await.model;
    assert!(!name.contains('/'), "{name}");
    prefill.idle().await;
    decode.idle().await;
}
