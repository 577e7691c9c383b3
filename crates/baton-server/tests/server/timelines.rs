//! What a hand-off looks like in a trace.

use std::path::Path;

use baton_server::{TraceConfig, TransportKind};
use baton_types::TransferMode;
use serde_json::Value;

use crate::hand_off::{pair, pull, push};
use crate::harness::{TestServer, expected, greedy, ids, prompt};

/// Events of a trace, complete or not.
fn events(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap();
    let lines = text.strip_prefix("[\n").unwrap().lines();
    lines.map(|line| serde_json::from_str(line.strip_suffix(',').unwrap()).unwrap()).collect()
}

fn range(span: &Value) -> (u64, u64) {
    let start = span["ts"].as_u64().unwrap();
    (start, start + span["dur"].as_u64().unwrap())
}

fn inside(inner: &Value, outer: &Value) -> bool {
    let (inner, outer) = (range(inner), range(outer));
    outer.0 <= inner.0 && inner.1 <= outer.1
}

fn named<'a>(spans: &'a [Value], name: &str) -> Vec<&'a Value> {
    spans.iter().filter(|span| span["name"] == name).collect()
}

fn one<'a>(spans: &'a [Value], name: &str) -> &'a Value {
    let found = named(spans, name);
    assert_eq!(found.len(), 1, "{name}: {found:?}");
    found[0]
}

async fn stop(mut server: TestServer) {
    server.begin_shutdown();
    server.ended().await.unwrap();
}

/// One hand-off of 200 tokens, in chunks of 64, and the spans of it.
async fn hand_off(mode: TransferMode, kind: TransportKind) -> Vec<Value> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("trace.json");
    let trace = TraceConfig { file: Some(path.clone()), ..TraceConfig::default() };
    let (prefill, decode) = pair(
        |config| {
            config.step_tokens = 64;
            config.trace = trace.clone();
        },
        kind,
    )
    .await;
    let prompt = prompt(1, 200);
    let body = greedy(&prompt, 6);
    let answer = match mode {
        TransferMode::Push => push(&prefill, &decode, &body, 7).await.1,
        _ => pull(&prefill, &decode, &body).await,
    };
    assert_eq!(ids(&answer), expected(&prompt, 6));
    decode.idle().await;
    prefill.idle().await;
    stop(prefill).await;
    stop(decode).await;
    let events = events(&path);
    let end = |ph| {
        let found = events.iter().find(|event| event["name"] == "hand-over" && event["ph"] == ph);
        found.unwrap_or_else(|| panic!("no {ph} in {events:?}"))
    };
    let (from, to) = (end("s"), end("f"));
    assert_eq!(from["id"], to["id"]);
    assert_ne!(from["pid"], to["pid"], "from one engine to the other");
    assert!(from["ts"].as_u64() <= to["ts"].as_u64());
    let spans: Vec<Value> = events.into_iter().filter(|event| event["ph"] == "X").collect();
    check_rows(&spans);
    let moved: u64 = named(&spans, "slice").iter().map(|s| s["args"]["units"].as_u64().unwrap()).sum();
    assert_eq!(moved, 200_u64.div_ceil(16));
    check_legs(&spans);
    spans
}

/// What is in one row does not overlap unless one lies in the other: else no viewer can show it.
fn check_rows(spans: &[Value]) {
    for (i, a) in spans.iter().enumerate() {
        for b in &spans[i + 1..] {
            let apart = range(a).1 <= range(b).0 || range(b).1 <= range(a).0;
            let same_row = (&a["pid"], &a["tid"]) == (&b["pid"], &b["tid"]);
            assert!(!same_row || apart || inside(a, b) || inside(b, a), "{a}\n{b}");
        }
    }
}

fn check_legs(spans: &[Value]) {
    let (prefill, decode) = (one(spans, "prefill"), one(spans, "decode"));
    assert_eq!(prefill["args"]["transfer"], decode["args"]["transfer"], "found together");
    assert_eq!(decode["args"]["received_tokens"], 200);
    for span in spans.iter().filter(|span| span["name"] != "step") {
        let legs = [prefill, decode];
        let Some(leg) = legs.into_iter().find(|leg| leg["args"]["span"] == span["args"]["parent"]) else {
            assert!(legs.contains(&span), "{span}");
            continue;
        };
        assert_eq!(span["args"]["trace"], leg["args"]["trace"]);
        assert_eq!(span["pid"], leg["pid"]);
        // A source may have answered before its destination has registered, and before its last slices have landed.
        let after = ["claim", "slice"].contains(&span["name"].as_str().unwrap());
        let lingers = after && range(leg).0 <= range(span).0;
        assert!(lingers || inside(span, leg), "{span}\n{leg}");
    }
    let chunks = named(spans, "prefill chunk");
    let tokens: Vec<u64> = chunks.iter().map(|chunk| chunk["args"]["tokens"].as_u64().unwrap()).collect();
    assert_eq!(tokens, [64, 64, 64, 8]);
    assert!(chunks.iter().all(|chunk| chunk["pid"] == prefill["pid"]));
    let receiving = one(spans, "receiving");
    let (first_step, decoding) = (one(spans, "first step"), one(spans, "decoding"));
    assert!(range(receiving).1 <= range(first_step).0 && inside(first_step, decoding));
    assert_eq!(decoding["args"]["tokens"], 6);
    assert_eq!(named(spans, "queue").len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_push_is_told_from_queue_to_first_step() {
    let spans = hand_off(TransferMode::Push, TransportKind::Shm).await;
    let (registration, claim) = (one(&spans, "registration"), one(&spans, "claim"));
    assert_eq!(registration["pid"], one(&spans, "decode")["pid"]);
    assert_eq!(claim["pid"], one(&spans, "prefill")["pid"]);
    let slices = named(&spans, "slice");
    assert!(slices.iter().all(|slice| slice["pid"] == claim["pid"] && slice["args"]["direction"] == "write"));
    // All bytes of 13 units of 16 tokens.
    let bytes: u64 = slices.iter().map(|slice| slice["args"]["bytes"].as_u64().unwrap()).sum();
    assert_eq!(bytes % 13, 0);
    assert!(range(claim).1 <= range(slices[0]).0, "nothing moves before it is granted");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pull_is_told_by_the_side_that_reads() {
    let spans = hand_off(TransferMode::Pull, TransportKind::Memory).await;
    let receiving = one(&spans, "receiving");
    assert!(inside(one(&spans, "claim"), receiving));
    let slices = named(&spans, "slice");
    assert!(slices.iter().all(|slice| inside(slice, receiving) && slice["args"]["direction"] == "read"));
    assert!(named(&spans, "registration").is_empty());
}
