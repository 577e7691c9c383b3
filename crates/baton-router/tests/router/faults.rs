//! What happens when engines, clients and connections fail.

use std::time::Duration;

use crate::stub::{Behaviour, StreamEnd, Stub, clean_stream};
use crate::world::{World, config, until};
use baton_router::{Limits, RouterConfig, Strategy};
use baton_types::EngineRole::{Both, Decode, Prefill};
use bytes::Bytes;
use http_body_util::BodyExt;

const ASK: &str = r#"{"model":"tiny","prompt":"x"}"#;
const STREAM: &str = r#"{"model":"tiny","prompt":"x","stream":true}"#;
const WORD: &[u8] = b"data: {\"choices\":[{\"text\":\"a\"}]}\n\n";

/// Two engines of which the first to be asked behaves so, and a request that must not notice.
async fn survives(behaviour: Behaviour, limits: Limits) {
    let (a, b) = (Stub::start("a", Both).await, Stub::start("b", Both).await);
    let world = World::with(RouterConfig { limits, ..config(Strategy::None, &[&a, &b]) }).await;
    for ask in [ASK, STREAM] {
        for stub in [&a, &b] {
            stub.inner.seen.lock().unwrap().clear();
        }
        // It is the first engine's turn, both times. One reset may be an old connection's: it is asked twice then.
        let times = if matches!(behaviour, Behaviour::Reset) { 2 } else { 1 };
        for _ in 0..times {
            a.next(behaviour.clone());
        }
        let answer = world.complete(ask).await;
        assert_eq!(answer.status, 200, "{behaviour:?}: {}", answer.text);
        assert!(answer.text.contains("hel"), "{behaviour:?}: {}", answer.text);
        assert!((1..=times).contains(&a.seen().len()) && b.seen().len() == 1, "{behaviour:?}");
        a.inner.next.lock().unwrap().clear();
        let ids = [&a.seen()[0], &b.seen()[0]].map(|seen| seen.header("x-request-id").unwrap().to_owned());
        assert_ne!(ids[0], ids[1], "each attempt has an id of its own");
    }
}

#[tokio::test]
async fn another_engine_takes_over_before_the_first_byte() {
    let overloaded = r#"{"error":{"message":"full","type":"overloaded","param":null,"code":null}}"#;
    let error = b"data: {\"error\":{\"message\":\"Internal server error\"}}\n\n";
    for behaviour in [
        Behaviour::Reset,
        Behaviour::Status(503, overloaded),
        Behaviour::Status(429, "busy"),
        Behaviour::Status(500, ""),
        Behaviour::Status(302, ""),
        Behaviour::Json("{}"),
        Behaviour::Json(r#"{"choices":[{"text":"","finish_reason":"error"}]}"#),
        Behaviour::Stream(vec![Bytes::from_static(error)], StreamEnd::Proper),
        Behaviour::Stream(vec![], StreamEnd::Dies),
        Behaviour::Stream(vec![], StreamEnd::Proper),
    ] {
        survives(behaviour, Limits::default()).await;
    }
}

#[tokio::test]
async fn an_engine_that_hangs_is_left_after_the_limit() {
    let limits = Limits { first_byte_ms: 50, answer_ms: 50, ..Limits::default() };
    survives(Behaviour::Hang, limits).await;
}

#[tokio::test]
async fn an_engine_that_is_not_there_is_passed_over() {
    let (a, b) = (Stub::start("a", Both).await, Stub::start("b", Both).await);
    let mut settings = config(Strategy::None, &[&a, &b]);
    // Nothing listens there.
    settings.engines[0].url = "http://127.0.0.1:9".into();
    let world = World::with_fit(settings, 1).await;
    for _ in 0..4 {
        assert_eq!(world.complete(ASK).await.status, 200);
    }
}

#[tokio::test]
async fn after_the_first_byte_a_failure_is_an_event_and_then_the_end() {
    let (p, d) = (Stub::start("p", Prefill).await, Stub::start("d", Decode).await);
    let world = World::start(Strategy::Pull, &[&p, &d]).await;
    for end in [StreamEnd::Dies, StreamEnd::Proper] {
        d.next(Behaviour::Stream(vec![Bytes::from_static(WORD)], end));
        let answer = world.complete(STREAM).await;
        assert_eq!(answer.status, 200);
        let rest = answer.text.strip_prefix(std::str::from_utf8(WORD).unwrap()).expect("what came stays");
        assert!(rest.starts_with("data: {\"error\":{\"message\":\"An engine failed.\""), "{rest}");
        assert!(rest.ends_with("}\n\ndata: [DONE]\n\n"), "{rest}");
        assert_eq!(rest.matches("data:").count(), 2, "{rest}");
    }
    assert_eq!((p.seen().len(), d.seen().len()), (2, 2), "nothing was retried");
}

#[tokio::test]
async fn a_stream_may_go_on_for_long_but_not_fall_silent() {
    let b = Stub::start("b", Both).await;
    let mut settings = config(Strategy::None, &[&b]);
    settings.limits.idle_ms = 150;
    let world = World::with(settings).await;
    // Four times as long as the limit, and more.
    let mut pieces = vec![Bytes::from_static(WORD); 600];
    pieces.push(Bytes::from_static(b"data: [DONE]\n\n"));
    b.next(Behaviour::Stream(pieces, StreamEnd::Proper));
    let answer = world.complete(STREAM).await;
    assert_eq!(answer.text.len(), 600 * WORD.len() + b"data: [DONE]\n\n".len());
    b.next(Behaviour::Stream(vec![Bytes::from_static(WORD)], StreamEnd::Hangs));
    let answer = world.complete(STREAM).await;
    assert!(answer.text.contains("An engine took too long."), "{}", answer.text);
    assert!(answer.text.ends_with("data: [DONE]\n\n"), "{}", answer.text);
    until("the leg is dropped", || b.aborted() == 1).await;
}

#[tokio::test]
async fn a_push_pair_stands_and_falls_together() {
    let (p, d) = (Stub::start("p", Prefill).await, Stub::start("d", Decode).await);
    let world = World::start(Strategy::Push, &[&p, &d]).await;
    // Prefill fails: decode, which would wait for ever, is dropped, and both start anew.
    p.next(Behaviour::Status(500, ""));
    d.next(Behaviour::Hang);
    assert_eq!(world.complete(ASK).await.status, 200);
    assert_eq!((p.seen().len(), d.seen().len(), d.aborted()), (2, 2, 1));
    let transfers: Vec<_> = d.seen().iter().map(|seen| seen.params()["transfer_id"].clone()).collect();
    assert_ne!(transfers[0], transfers[1]);
    // Decode fails: so is prefill.
    p.next(Behaviour::Hang);
    d.next(Behaviour::Reset);
    assert_eq!(world.complete(ASK).await.status, 200);
    until("prefill's leg is dropped", || p.aborted() == 1 && p.open() == 0).await;
}

#[tokio::test]
async fn prefill_without_a_handle_is_a_failure() {
    let (p, d) = (Stub::start("p", Prefill).await, Stub::start("d", Decode).await);
    let world = World::start(Strategy::Pull, &[&p, &d]).await;
    p.next(Behaviour::Json(r#"{"choices":[{"text":"a","finish_reason":"stop"}],"kv_transfer_params":null}"#));
    assert_eq!(world.complete(ASK).await.status, 200);
    assert_eq!((p.seen().len(), d.seen().len()), (2, 1), "decode is not asked without one");
}

#[tokio::test]
async fn a_client_fault_is_passed_on_and_nothing_is_retried() {
    let (p, d) = (Stub::start("p", Prefill).await, Stub::start("d", Decode).await);
    let world = World::start(Strategy::Push, &[&p, &d]).await;
    let words = r#"{"error":{"message":"too long","type":"invalid_request_error","param":"prompt","code":"context_length_exceeded"},"worker":"10.0.0.1"}"#;
    for _ in 0..5 {
        p.next(Behaviour::Status(400, words));
        d.next(Behaviour::Hang);
        let answer = world.complete(STREAM).await;
        assert_eq!(answer.status, 400);
        assert_eq!(answer.json()["error"]["code"], "context_length_exceeded");
        assert!(!answer.text.contains("10.0.0.1"));
    }
    assert_eq!((p.seen().len(), d.seen().len()), (5, 5));
    let metrics = world.get("/metrics").await.text;
    assert!(
        metrics.contains(r#"baton_router_engine_fit{engine="prefill-0"} 1"#),
        "nobody is blamed\n{metrics}"
    );
}

#[tokio::test]
async fn attempts_run_out_and_no_address_shows() {
    let b = Stub::start("b", Both).await;
    b.always(Behaviour::Status(500, r#"{"error":{"message":"trace at 10.0.0.1:8000"}}"#));
    let mut settings = config(Strategy::None, &[&b]);
    settings.limits.retry_pause_ms = 1;
    let world = World::with(settings).await;
    let answer = world.complete(ASK).await;
    assert_eq!(answer.status, 502);
    assert_eq!(answer.json()["error"]["message"], "An engine failed.");
    assert_eq!(b.seen().len(), 3);
    b.always(Behaviour::Status(503, ""));
    let answer = world.complete(ASK).await;
    assert_eq!((answer.status.as_u16(), answer.header("retry-after")), (503, Some("1")));
}

#[tokio::test]
async fn a_client_that_leaves_takes_both_legs_with_it() {
    let (p, d) = (Stub::start("p", Prefill).await, Stub::start("d", Decode).await);
    let world = World::start(Strategy::Push, &[&p, &d]).await;
    // Before the first byte.
    p.next(Behaviour::Hang);
    d.next(Behaviour::Hang);
    let waiting = async { world.complete(ASK).await };
    assert!(tokio::time::timeout(Duration::from_millis(100), waiting).await.is_err());
    until("both legs are dropped", || p.aborted() == 1 && d.aborted() == 1).await;
    // In the middle of the answer.
    p.next(Behaviour::Hang);
    d.next(Behaviour::Stream(vec![Bytes::from_static(WORD)], StreamEnd::Hangs));
    let mut response = world.open("/v1/completions", STREAM, &[]).await;
    response.frame().await.unwrap().unwrap();
    assert_eq!((p.open(), d.open()), (1, 1));
    drop(response);
    until("both legs are dropped", || p.aborted() == 2 && d.aborted() == 2).await;
    let metrics = world.get("/metrics").await.text;
    assert!(metrics.contains(r#"baton_router_requests_total{outcome="client_gone"} 2"#), "{metrics}");
    assert!(metrics.contains(r#"baton_router_live_legs{engine="decode-0"} 0"#), "{metrics}");
}

#[tokio::test]
async fn a_client_that_takes_nothing_is_left_and_its_engine_not_blamed() {
    let b = Stub::start("b", Both).await;
    let mut settings = config(Strategy::None, &[&b]);
    settings.limits.client_stall_ms = 100;
    let world = World::with(settings).await;
    let chunk = format!("data: {{\"choices\":[{{\"text\":\"{}\"}}]}}\n\n", "a".repeat(1 << 20));
    b.next(Behaviour::Stream(vec![chunk.into(); 200], StreamEnd::Hangs));
    let response = world.open("/v1/completions", STREAM, &[]).await;
    until("the leg is dropped", || b.aborted() == 1).await;
    drop(response);
    let metrics = world.get("/metrics").await.text;
    assert!(metrics.contains(r#"baton_router_engine_fit{engine="both-0"} 1"#), "{metrics}");
}

#[tokio::test]
async fn a_kept_connection_that_the_engine_closed_is_replaced_unseen() {
    let b = Stub::start("b", Both).await;
    let mut settings = config(Strategy::None, &[&b]);
    settings.limits.attempts = 1;
    settings.probe_interval_ms = 60_000;
    let world = World::with(settings).await;
    assert_eq!(world.complete(ASK).await.status, 200);
    b.next(Behaviour::ResetIfReused).next(Behaviour::Good);
    assert_eq!(world.complete(ASK).await.status, 200);
    assert!(b.inner.next.lock().unwrap().is_empty(), "the first connection was used again");
}

#[tokio::test]
async fn a_restart_fails_the_old_legs_and_they_are_tried_again() {
    let (p, d) = (Stub::start("p", Prefill).await, Stub::start("d", Decode).await);
    let world = World::start(Strategy::Push, &[&p, &d]).await;
    p.next(Behaviour::Hang);
    d.next(Behaviour::Hang);
    let restart = async {
        until("the legs are there", || p.open() == 1 && d.open() == 1).await;
        // Let a probe see the old incarnation once more, so that the legs are known to be its.
        tokio::time::sleep(Duration::from_millis(100)).await;
        p.restart(2);
    };
    let (answer, ()) = tokio::join!(world.complete(STREAM), restart);
    assert_eq!(answer.text, clean_stream());
    assert_eq!(d.seen()[1].params()["remote_engine_id"], "p@0000000000000002");
    assert_eq!((p.aborted(), d.aborted()), (1, 1));
}

#[tokio::test]
async fn an_engine_that_drains_gets_no_new_legs() {
    let (a, b) = (Stub::start("a", Both).await, Stub::start("b", Both).await);
    let world = World::start(Strategy::None, &[&a, &b]).await;
    *a.inner.ready.lock().unwrap() = false;
    tokio::time::sleep(Duration::from_millis(100)).await;
    for _ in 0..4 {
        assert_eq!(world.complete(ASK).await.status, 200);
    }
    assert_eq!((a.seen().len(), b.seen().len()), (0, 4));
}

#[tokio::test]
async fn bad_requests_are_refused_in_openais_shape() {
    let (p, d) = (Stub::start("p", Prefill).await, Stub::start("d", Decode).await);
    let world = World::with(RouterConfig { max_body_bytes: 200, ..config(Strategy::Pull, &[&p, &d]) }).await;
    let long = format!(r#"{{"model":"tiny","prompt":"{}"}}"#, "x".repeat(300));
    for (path, body, status) in [
        ("/v1/completions", "{", 400),
        ("/v1/completions", r#"{"model":"tiny","model":"tiny"}"#, 400),
        ("/v1/completions", r#"{"model":"tiny","stream":"yes"}"#, 400),
        ("/v1/completions", r#"{"model":"tiny","prompt":["a","b"]}"#, 400),
        ("/v1/chat/completions", r#"{"model":"tiny","n":2}"#, 400),
        ("/v1/completions", r#"{"model":"huge","prompt":"x"}"#, 404),
        ("/v1/nothing", "{}", 404),
        ("/v1/completions", long.as_str(), 413),
    ] {
        let answer = world.post(path, body, &[]).await;
        assert_eq!(answer.status, status, "{body}: {}", answer.text);
        assert!(answer.json()["error"]["message"].is_string(), "{}", answer.text);
    }
    let wrong = world.get("/v1/completions").await;
    assert_eq!(wrong.status, 405);
    assert!(wrong.json()["error"]["message"].is_string());
    assert!(p.seen().is_empty() && d.seen().is_empty());
}

#[tokio::test]
async fn no_room_and_no_engines_say_when_to_come_back() {
    let b = Stub::start("b", Both).await;
    let mut settings = config(Strategy::None, &[&b]);
    settings.limits.max_requests = 1;
    let world = World::with(settings).await;
    b.next(Behaviour::Hang);
    let first = async { world.complete(ASK).await };
    let second = async {
        until("the first is there", || b.open() == 1).await;
        world.complete(ASK).await
    };
    let answer = tokio::select! { _ = first => unreachable!("it hangs"), answer = second => answer };
    assert_eq!((answer.status.as_u16(), answer.header("retry-after")), (503, Some("1")));
    let mut nobody = config(Strategy::None, &[&b]);
    nobody.engines[0].url = "http://127.0.0.1:9".into();
    let answer = World::unready(nobody).await.complete(ASK).await;
    assert_eq!((answer.status.as_u16(), answer.header("retry-after")), (503, Some("1")));
}
