//! Prefill on one server, decode on another.

use baton_server::{ServerConfig, TransportKind};
use baton_types::{EngineInfo, TransferId};
use serde_json::{Value, json};

use crate::harness::{TestServer, config, expected, greedy, ids, prompt, with};

pub async fn pair(change: impl Fn(&mut ServerConfig), kind: TransportKind) -> (TestServer, TestServer) {
    let make = || {
        let mut config = config(kind);
        change(&mut config);
        config
    };
    (TestServer::start(make()).await, TestServer::start(make()).await)
}

pub fn transfer(n: u128) -> Value {
    json!(TransferId(n).to_string())
}

pub fn ask_prefill(transfer_id: Option<u128>, mode: &str) -> Value {
    let mut params = json!({"do_remote_decode": true, "do_remote_prefill": false, "transfer_mode": mode});
    if let Some(n) = transfer_id {
        params["transfer_id"] = transfer(n);
    }
    params
}

/// What a decode leg must bring if it cannot wait for the handle.
pub fn ask_decode(transfer_id: u128, mode: &str, prefill: &EngineInfo) -> Value {
    json!({
        "do_remote_prefill": true, "do_remote_decode": false, "transfer_mode": mode,
        "transfer_id": transfer(transfer_id), "remote_engine_id": prefill.engine_id.to_string(),
        "remote_host": prefill.side_channel.host, "remote_port": prefill.side_channel.port, "tp_size": 1,
    })
}

pub async fn pull(prefill: &TestServer, decode: &TestServer, body: &Value) -> Value {
    let leg =
        with(with(body.clone(), "max_tokens", 1.into()), "kv_transfer_params", ask_prefill(None, "pull"));
    let handle = prefill.complete(&leg).await["kv_transfer_params"].clone();
    assert_eq!(handle["do_remote_prefill"], true, "{handle}");
    decode.complete(&with(body.clone(), "kv_transfer_params", handle)).await
}

pub async fn push(
    prefill: &TestServer,
    decode: &TestServer,
    body: &Value,
    transfer_id: u128,
) -> (Value, Value) {
    let info = prefill.info().await;
    let leg = with(body.clone(), "max_tokens", 1.into());
    let leg = with(leg, "kv_transfer_params", ask_prefill(Some(transfer_id), "push"));
    let body = with(body.clone(), "kv_transfer_params", ask_decode(transfer_id, "push", &info));
    tokio::join!(prefill.complete(&leg), decode.complete(&body))
}

const PROMPTS: [(u32, u32, u32); 5] = [(1, 100, 10), (2, 1, 3), (3, 16, 1), (4, 17, 5), (5, 1500, 20)];

#[tokio::test(flavor = "multi_thread")]
async fn pulled_kv_gives_the_answer_of_one_engine() {
    for kind in [TransportKind::Memory, TransportKind::Shm, TransportKind::Tcp] {
        let (prefill, decode) = pair(|_| {}, kind).await;
        for (seed, len, n) in PROMPTS {
            let prompt = prompt(seed, len);
            let answer = pull(&prefill, &decode, &greedy(&prompt, n)).await;
            assert_eq!(ids(&answer), expected(&prompt, n), "{kind:?} {len}");
            assert_eq!(answer["usage"]["completion_tokens"], n);
            assert_eq!(answer["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
        }
        // It must show that KV was moved and nothing computed twice.
        let prompts: u32 = PROMPTS.iter().map(|(_, len, _)| len).sum();
        assert_eq!(decode.metric("baton_received_tokens_total").await, f64::from(prompts));
        assert_eq!(decode.metric("baton_recomputed_total").await, 0.0);
        prefill.idle().await;
        decode.idle().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pushed_kv_gives_the_answer_of_one_engine() {
    for kind in [TransportKind::Memory, TransportKind::Shm, TransportKind::Tcp] {
        let (prefill, decode) = pair(|c| c.step_tokens = 64, kind).await;
        for (seed, len, n) in PROMPTS {
            let prompt = prompt(seed, len);
            let (first, answer) = push(&prefill, &decode, &greedy(&prompt, n), u128::from(seed) + 100).await;
            assert_eq!(ids(&answer), expected(&prompt, n), "{kind:?} {len}");
            assert_eq!(ids(&first), expected(&prompt, 1));
            assert_eq!(first["kv_transfer_params"]["transfer_mode"], "push");
        }
        let prompts: u32 = PROMPTS.iter().map(|(_, len, _)| len).sum();
        assert_eq!(decode.metric("baton_received_tokens_total").await, f64::from(prompts));
        assert_eq!(decode.metric("baton_recomputed_total").await, 0.0);
        prefill.idle().await;
        decode.idle().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_hand_offs_at_once_do_not_mix() {
    let (prefill, decode) = pair(|c| c.step_tokens = 128, TransportKind::Shm).await;
    let all = (0..40u32).map(|i| {
        let (prefill, decode) = (&prefill, &decode);
        async move {
            let prompt = prompt(i, 20 + i * 7);
            let body = greedy(&prompt, 12);
            let answer = match i % 3 {
                0 => pull(prefill, decode, &body).await,
                1 => push(prefill, decode, &body, 500 + u128::from(i)).await.1,
                _ => decode.complete(&body).await,
            };
            assert_eq!(ids(&answer), expected(&prompt, 12), "{i}");
        }
    });
    futures_util::future::join_all(all).await;
    assert_eq!(decode.metric("baton_recomputed_total").await, 0.0);
    prefill.idle().await;
    decode.idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cached_prefixes_on_either_side_are_used_and_told() {
    let (prefill, decode) = pair(|_| {}, TransportKind::Memory).await;
    let prompt = prompt(9, 200);
    let body = greedy(&prompt, 6);
    let want = expected(&prompt, 6);
    // Decode has seen the beginning of the prompt, prefill nothing.
    decode.complete(&greedy(&prompt[..100], 1)).await;
    assert_eq!(ids(&pull(&prefill, &decode, &body).await), want);
    let received = decode.metric("baton_received_tokens_total").await;
    assert!((100.0..=104.0).contains(&received), "{received}");
    // Now both have all of it; only what prefill did not compute counts as cached.
    let answer = pull(&prefill, &decode, &body).await;
    assert_eq!(ids(&answer), want);
    assert_eq!(answer["usage"]["prompt_tokens_details"]["cached_tokens"], 192);
    let (_, answer) = push(&prefill, &decode, &body, 900).await;
    assert_eq!(ids(&answer), want);
    prefill.idle().await;
    decode.idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_streamed_prefill_leg_has_its_handle_on_the_finish_chunk() {
    let (prefill, decode) = pair(|_| {}, TransportKind::Memory).await;
    let prompt = prompt(11, 50);
    let leg = with(greedy(&prompt, 1), "kv_transfer_params", ask_prefill(None, "pull"));
    let chunks = prefill.stream("/v1/completions", &with(leg, "stream", true.into())).await;
    let finish = chunks.iter().find(|c| !c["choices"][0]["finish_reason"].is_null()).unwrap();
    let handle = finish["kv_transfer_params"].clone();
    assert_eq!(handle["remote_num_tokens"], 50);
    let body = with(with(greedy(&prompt, 7), "kv_transfer_params", handle), "stream", true.into());
    let chunks = decode.stream("/v1/completions", &body).await;
    let streamed: Vec<u32> = chunks
        .iter()
        .filter_map(|c| c["choices"][0]["token_ids"].as_array())
        .flatten()
        .map(|id| id.as_u64().unwrap() as u32)
        .collect();
    assert_eq!(streamed, expected(&prompt, 7));
    prefill.idle().await;
    decode.idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_tenant_or_another_prompt_gets_no_kv_with_a_stolen_handle() {
    let (prefill, decode) = pair(|_| {}, TransportKind::Memory).await;
    let leg = |seed| with(greedy(&prompt(seed, 64), 1), "kv_transfer_params", ask_prefill(None, "pull"));
    let handle = prefill.complete(&leg(20)).await["kv_transfer_params"].clone();
    let other = prompt(21, 64);
    let answer = decode.complete(&with(greedy(&other, 5), "kv_transfer_params", handle)).await;
    assert_eq!(ids(&answer), expected(&other, 5), "the answer to its own prompt, computed here");

    let handle = prefill.complete(&leg(22)).await["kv_transfer_params"].clone();
    let body = with(greedy(&prompt(22, 64), 5), "kv_transfer_params", handle);
    let (_, answer) = decode.post_as("mallory", "/v1/completions", &body).await;
    assert_eq!(ids(&answer), expected(&prompt(22, 64), 5));
    assert_eq!(decode.metric("baton_received_tokens_total").await, 0.0);
    decode.idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn side_channels_speak_ipv6() {
    let (prefill, decode) = pair(|c| c.side_channel.host = "::1".to_owned(), TransportKind::Memory).await;
    assert_eq!(prefill.info().await.side_channel.host, "::1");
    let prompt = prompt(1, 40);
    assert_eq!(ids(&pull(&prefill, &decode, &greedy(&prompt, 5)).await), expected(&prompt, 5));
    assert_eq!(decode.metric("baton_received_tokens_total").await, 40.0);
}
