//! What engines and clients see of requests that go well.

use std::time::Duration;

use crate::stub::{Behaviour, HANDLE, StreamEnd, Stub, clean_stream, good_stream};
use crate::world::{World, config, until};
use baton_router::{EngineConfig, RouterConfig, Strategy};
use baton_types::EngineRole::{Both, Decode, Prefill};
use bytes::Bytes;
use http_body_util::BodyExt;
use serde_json::json;

const ASK: &str =
    r#"{"model":"tiny", "prompt" : "h\u00e9", "max_tokens":7, "temperature":1.0,"unknown":[1e3,null]}"#;
const STREAM: &str = r#"{"model":"tiny","prompt":"x","stream":true,"stream_options":{"include_usage":true}}"#;

async fn pair() -> (Stub, Stub) {
    (Stub::start("p", Prefill).await, Stub::start("d", Decode).await)
}

#[tokio::test]
async fn pull_hands_the_handle_over_as_it_came_and_hides_it_from_the_client() {
    let (p, d) = pair().await;
    let world = World::start(Strategy::Pull, &[&p, &d]).await;
    let answer = world.complete(ASK).await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.text, r#"{"id":"x","choices":[{"text":"hello","finish_reason":"length"}]}"#);
    assert_eq!(answer.header("x-baton-served-by"), Some("prefill=p; decode=d; strategy=pull"));
    assert_eq!(answer.header("server"), None);
    let (prefill, decode) = (&p.seen()[0], &d.seen()[0]);
    let asked = prefill.json();
    assert_eq!((&asked["max_tokens"], &asked["stream"], &asked["n"]), (&json!(1), &json!(false), &json!(1)));
    let params = prefill.params();
    assert_eq!(params["do_remote_decode"], true);
    assert_eq!(params["do_remote_prefill"], false);
    assert_eq!(params["transfer_mode"], "pull");
    assert!(params["transfer_id"].as_str().unwrap().starts_with("xfer-"));
    // Every byte is the client's but for the handle, and that is the engine's.
    let expected = ASK.strip_suffix('}').unwrap().to_owned() + ",\"kv_transfer_params\":" + HANDLE + "}";
    assert_eq!(decode.text, expected);
    assert_eq!(prefill.header("x-request-id"), decode.header("x-request-id"));
}

#[tokio::test]
async fn push_sends_both_legs_at_once_and_tells_decode_where_prefill_is() {
    let (p, d) = pair().await;
    // Decode answers although prefill never does: nobody waits for it.
    p.always(Behaviour::Hang);
    let world = World::start(Strategy::Push, &[&p, &d]).await;
    let answer = world.post("/v1/chat/completions", STREAM, &[]).await;
    assert_eq!(answer.text, clean_stream());
    assert_eq!(answer.header("content-type"), Some("text/event-stream; charset=utf-8"));
    assert_eq!(answer.header("x-baton-served-by"), Some("prefill=p; decode=d; strategy=push"));
    let (prefill, decode) = (&p.seen()[0], &d.seen()[0]);
    assert_eq!(decode.path, "/v1/chat/completions");
    assert_eq!(prefill.json().get("stream_options"), None);
    let (give, take) = (prefill.params(), decode.params());
    assert_eq!(give["transfer_id"], take["transfer_id"]);
    assert_eq!((&give["transfer_mode"], &take["transfer_mode"]), (&json!("push"), &json!("push")));
    assert_eq!(take["remote_engine_id"], "p@0000000000000001");
    // The engine said 0.0.0.0.
    assert_eq!((&take["remote_host"], &take["remote_port"]), (&json!("127.0.0.1"), &json!(5600)));
    assert_eq!((&take["tp_size"], &take["pp_size"]), (&json!(1), &json!(1)));
    assert_eq!(take["remote_request_id"], prefill.header("x-request-id").unwrap());
    // Prefill has nothing to give any more.
    until("prefill's leg is dropped", || p.aborted() == 1 && p.open() == 0).await;
}

#[tokio::test]
async fn one_engine_gets_the_clients_bytes_unchanged() {
    let b = Stub::start("b", Both).await;
    let world = World::start(Strategy::None, &[&b]).await;
    let answer = world.complete(ASK).await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.header("x-baton-served-by"), Some("engine=b; strategy=none"));
    assert_eq!(b.seen()[0].text, ASK);
    assert_eq!(world.post("/v1/chat/completions", STREAM, &[]).await.text, clean_stream());
}

#[tokio::test]
async fn a_stream_may_be_cut_anywhere() {
    let b = Stub::start("b", Both).await;
    let world = World::start(Strategy::None, &[&b]).await;
    for size in [1, 5, 63] {
        let pieces = good_stream().into_bytes().chunks(size).map(Bytes::copy_from_slice).collect();
        b.next(Behaviour::Stream(pieces, StreamEnd::Proper));
        assert_eq!(world.post("/v1/chat/completions", STREAM, &[]).await.text, clean_stream());
    }
}

#[tokio::test]
async fn words_reach_the_client_as_they_come() {
    let b = Stub::start("b", Both).await;
    let world = World::start(Strategy::None, &[&b]).await;
    let word = Bytes::from_static(b"data: {\"choices\":[{\"text\":\"a\"}]}\n\n");
    b.next(Behaviour::Stream(vec![word.clone()], StreamEnd::Hangs));
    let mut response = world.open("/v1/completions", STREAM, &[]).await;
    let frame = tokio::time::timeout(Duration::from_secs(5), response.frame()).await;
    assert_eq!(frame.expect("it is held back").unwrap().unwrap().into_data().unwrap(), word);
}

#[tokio::test]
async fn what_clients_must_not_say_reaches_no_engine() {
    let (p, d) = pair().await;
    let mut settings = config(Strategy::Pull, &[&p, &d]);
    settings.tenant_header = Some("X-Team".into());
    settings.expose_served_by = false;
    let world = World::with(settings).await;
    let body = r#"{"model":"tiny","prompt":"x","kv_transfer_params":{"remote_host":"evil"},
        "vllm_xargs":{"kv_transfer_params":1,"a":2},"ec_transfer_params":{}}"#;
    let headers = [
        ("x-request-id", "mine"),
        ("x-baton-tenant", "root"),
        ("x-baton-other", "1"),
        ("x-data-parallel-rank", "9"),
        ("x-team", "blue"),
        ("authorization", "Bearer key"),
        ("te", "trailers"),
    ];
    let answer = world.post("/v1/completions", body, &headers).await;
    assert_eq!(answer.header("x-request-id"), Some("mine"));
    assert_eq!(answer.header("x-baton-served-by"), None);
    for seen in [&p.seen()[0], &d.seen()[0]] {
        assert!(!seen.text.contains("evil") && !seen.text.contains("ec_transfer"), "{}", seen.text);
        assert_eq!(seen.json()["vllm_xargs"], json!({"a": 2}));
        assert_ne!(seen.header("x-request-id"), Some("mine"));
        assert_eq!(seen.header("x-baton-tenant"), Some("blue"));
        assert_eq!(seen.header("authorization"), Some("Bearer key"));
        for name in ["x-baton-other", "x-data-parallel-rank", "te", "x-team"] {
            assert_eq!(seen.header(name), None, "{name}");
        }
    }
}

#[tokio::test]
async fn engines_on_ipv6() {
    let (p, d) =
        (Stub::start_at("p", Prefill, "[::1]:0").await, Stub::start_at("d", Decode, "[::1]:0").await);
    assert!(p.url().starts_with("http://[::1]:"));
    let world = World::start(Strategy::Push, &[&p, &d]).await;
    assert_eq!(world.complete(ASK).await.status, 200);
    assert_eq!(d.seen()[0].params()["remote_host"], "::1");
    assert_eq!(d.seen()[0].header("host"), Some(d.address.to_string().as_str()));
}

#[tokio::test]
async fn models_health_and_metrics() {
    let (p, d) = pair().await;
    let engine = |stub: &Stub| EngineConfig { role: stub.inner.role, url: stub.url() };
    let only_prefill = RouterConfig { engines: vec![engine(&p)], ..config(Strategy::Pull, &[]) };
    let world = World::unready(only_prefill).await;
    assert_eq!(world.get("/health").await.status, 503);
    let world = World::start(Strategy::Pull, &[&p, &d]).await;
    let models = world.get("/v1/models").await.json();
    assert_eq!(models["data"][0]["id"], "tiny");
    assert_eq!(models["data"][0]["max_model_len"], 8192);
    world.complete(ASK).await;
    let metrics = world.get("/metrics").await.text;
    for line in [
        r#"baton_router_requests_total{outcome="answered"} 1"#,
        r#"baton_router_legs_total{engine="prefill-0",kind="prefill",outcome="ended"} 1"#,
        r#"baton_router_legs_total{engine="decode-0",kind="decode",outcome="ended"} 1"#,
        r#"baton_router_live_legs{engine="decode-0"} 0"#,
        "baton_router_live_requests 0",
        "baton_router_ttft_seconds_count 1",
        r#"baton_router_engine_fit{engine="prefill-0"} 1"#,
    ] {
        assert!(metrics.contains(line), "{line} is not in\n{metrics}");
    }
}
