//! What a router tells of its requests, and what engines are given to continue.

use std::path::Path;
use std::time::Duration;

use baton_router::{RouterConfig, Strategy, TraceConfig};
use baton_types::EngineRole::{Decode, Prefill};
use serde_json::Value;

use crate::stub::{Behaviour, Seen, Stub};
use crate::world::{World, config};

const ASK: &str = r#"{"model":"tiny","prompt":"x","max_tokens":7}"#;
const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const SPAN: &str = "b7ad6b7169203331";

/// The spans of a file that is still being written, once the request's own is among them.
async fn spans(path: &Path) -> Vec<Value> {
    for _ in 0..1000 {
        let text = std::fs::read_to_string(path).unwrap();
        let events =
            text.lines().filter_map(|line| serde_json::from_str::<Value>(line.strip_suffix(',')?).ok());
        let spans: Vec<Value> =
            events.filter(|event| ["X", "i"].contains(&event["ph"].as_str().unwrap())).collect();
        if spans.iter().any(|span| span["name"] == "request") {
            return spans;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("the request's span never came");
}

fn named<'a>(spans: &'a [Value], name: &str) -> Vec<&'a Value> {
    spans.iter().filter(|span| span["name"] == name).collect()
}

fn parent(seen: &Seen) -> Vec<&str> {
    seen.header("traceparent").unwrap().split('-').collect()
}

#[tokio::test]
async fn each_attempt_and_leg_is_a_span_that_its_engine_continues() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("trace.json");
    let (p, d) = (Stub::start("p", Prefill).await, Stub::start("d", Decode).await);
    p.next(Behaviour::Status(500, "{}"));
    let trace = TraceConfig { file: Some(path.clone()), ..TraceConfig::default() };
    let world = World::with(RouterConfig { trace, ..config(Strategy::Pull, &[&p, &d]) }).await;
    let traceparent = format!("00-{TRACE}-{SPAN}-01");
    let headers = [("traceparent", traceparent.as_str()), ("x-request-id", "mine")];
    let answer = world.post("/v1/completions", ASK, &headers).await;
    assert_eq!(answer.status, 200, "{}", answer.text);

    let spans = spans(&path).await;
    let [request] = named(&spans, "request")[..] else { panic!("{spans:?}") };
    assert_eq!((&request["args"]["trace"], &request["args"]["parent"]), (&TRACE.into(), &SPAN.into()));
    assert_eq!((&request["args"]["request"], &request["args"]["attempts"]), (&"mine".into(), &2.into()));
    let prefills = named(&spans, "prefill leg");
    let told: Vec<(&Value, &Value)> =
        prefills.iter().map(|leg| (&leg["args"]["attempt"], &leg["args"]["outcome"])).collect();
    assert_eq!(told, [(&1.into(), &"ServerError".into()), (&2.into(), &"ended".into())]);
    assert_eq!(prefills[0]["args"]["failed"], true);
    let [decode] = named(&spans, "decode leg")[..] else { panic!("{spans:?}") };
    assert_eq!(decode["args"]["transfer"], prefills[1]["args"]["transfer"]);
    // Once before, and a pause between the attempts.
    assert_eq!(named(&spans, "queue").len(), 2);
    assert_eq!(named(&spans, "first byte").len(), 2, "of the leg, and of the request");
    // Every leg's engine is told of that leg's span.
    let seen: Vec<Seen> = p.seen().into_iter().chain(d.seen()).collect();
    for (seen, leg) in seen.iter().zip([prefills[0], prefills[1], decode]) {
        assert_eq!(parent(seen)[1..3], [TRACE, leg["args"]["span"].as_str().unwrap()]);
        assert_eq!(leg["args"]["parent"], request["args"]["span"]);
    }
}

#[tokio::test]
async fn a_client_without_a_trace_gets_one_and_a_router_without_a_timeline_passes_it_on() {
    let dir = tempfile::tempdir().unwrap();
    let (p, d) = (Stub::start("p", Prefill).await, Stub::start("d", Decode).await);
    let trace = TraceConfig { file: Some(dir.path().join("trace.json")), ..TraceConfig::default() };
    let world = World::with(RouterConfig { trace, ..config(Strategy::Push, &[&p, &d]) }).await;
    assert_eq!(world.complete(ASK).await.status, 200);
    let (prefill, decode) = (p.seen()[0].clone(), d.seen()[0].clone());
    assert_eq!(parent(&prefill)[1], parent(&decode)[1], "one trace");
    assert_ne!(parent(&prefill)[2], parent(&decode)[2], "a span for each leg");

    let (p, d) = (Stub::start("p", Prefill).await, Stub::start("d", Decode).await);
    let world = World::start(Strategy::Push, &[&p, &d]).await;
    let traceparent = format!("00-{TRACE}-{SPAN}-01");
    assert_eq!(world.post("/v1/completions", ASK, &[("traceparent", &traceparent)]).await.status, 200);
    assert_eq!(d.seen()[0].header("traceparent"), Some(traceparent.as_str()));
}
