//! `baton up --trace`: one file, and in it every process's part of a request.

use std::collections::BTreeSet;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::program::{System, baton, post, stderr};

#[test]
fn a_request_is_one_trace_through_router_prefill_and_decode() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("trace.json");
    std::fs::write(&path, "of an earlier run").unwrap();
    let system = System::start(&["--trace", path.to_str().unwrap(), "--step-tokens=64"]);
    let prompt = "a prompt of several blocks ".repeat(8);
    let body =
        json!({"model": "emulated", "prompt": prompt, "max_tokens": 8, "temperature": 0, "ignore_eos": true});
    let answer = post(&system.url(), "/v1/completions", &body.to_string());
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    system.signal(Signal::TERM);
    assert_eq!(system.wait().0.code(), Some(0));

    // Complete: JSON to the letter.
    let events: Vec<Value> = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    let spans: Vec<&Value> =
        events.iter().filter(|event| event["ph"] == "X" && event["name"] != "step").collect();
    let of = |key: &str| -> BTreeSet<String> { spans.iter().map(|span| span[key].to_string()).collect() };
    assert_eq!(of("pid").len(), 3, "router, prefill and decode");
    let traces: BTreeSet<String> = spans.iter().map(|span| span["args"]["trace"].to_string()).collect();
    assert_eq!(traces.len(), 1);
    for name in [
        "request",
        "queue",
        "prefill leg",
        "decode leg",
        "prefill",
        "decode",
        "prefill chunk",
        "registration",
        "claim",
        "slice",
        "receiving",
        "first step",
        "decoding",
    ] {
        assert!(of("name").contains(&format!("{name:?}")), "{name} in {:?}", of("name"));
    }
    // Every span but the first is a part of another, of this process or of the one before.
    let ids: BTreeSet<String> = spans.iter().map(|span| span["args"]["span"].to_string()).collect();
    let roots: Vec<&&Value> =
        spans.iter().filter(|span| !ids.contains(&span["args"]["parent"].to_string())).collect();
    assert_eq!((roots.len(), &roots[0]["name"]), (1, &"request".into()));
}

#[test]
fn a_trace_that_cannot_be_written_is_said_before_anything_starts() {
    let output = baton(&["up", "--model=emulated", "--port=0", "--trace=/none/trace.json"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("cannot write the trace /none/trace.json"), "{}", stderr(&output));
}
