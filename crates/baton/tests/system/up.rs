//! `baton up`: starts, answers, ends, and survives none of its children.

use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::program::{System, assert_gone, baton, free_port, post, runs, send, stderr, wait};

/// The kernel kills at once; the rest is for a machine with something else to do.
const SECONDS: Duration = Duration::from_secs(5);

/// The text of a greedy completion, and the header that says who made it.
fn complete(system: &System) -> (String, String) {
    let prompt = "a prompt of several blocks ".repeat(8);
    let body = json!({"model": "emulated", "prompt": prompt, "max_tokens": 24, "temperature": 0, "ignore_eos": true});
    let answer = post(&system.url(), "/v1/completions", &body.to_string());
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let json: Value = serde_json::from_str(body).unwrap_or_else(|e| panic!("{e}: {answer}"));
    assert_eq!(json["usage"]["completion_tokens"], 24, "{json}");
    let header = head.lines().find_map(|line| line.strip_prefix("x-baton-served-by: ")).unwrap();
    (json["choices"][0]["text"].as_str().unwrap().to_owned(), header.to_owned())
}

#[test]
fn every_strategy_answers_and_with_the_same_words() {
    let answers = ["push", "pull", "none"].map(|strategy| {
        let system = System::start(&["--strategy", strategy]);
        let answer = complete(&system);
        system.signal(Signal::TERM);
        assert_eq!(system.wait().0.code(), Some(0));
        answer
    });
    let [push, pull, none] = answers;
    assert_eq!(push.1, "prefill=prefill-0; decode=decode-0; strategy=push");
    assert_eq!(pull.1, "prefill=prefill-0; decode=decode-0; strategy=pull");
    assert_eq!(none.1, "engine=both-0; strategy=none");
    // I7: a hand-off does not change the text.
    assert!(!push.0.is_empty());
    assert_eq!(push.0, none.0);
    assert_eq!(pull.0, none.0);
}

#[test]
fn ctrl_c_ends_everything_with_status_0() {
    let logs = tempfile::tempdir().unwrap();
    let dir = logs.path().to_str().unwrap();
    let system = System::start(&["--prefill=2", "--decode=2", "--log-dir", dir]);
    let places = system.places();
    let names: Vec<&str> = places.iter().map(|place| place.name.as_str()).collect();
    assert_eq!(names, ["prefill-0", "prefill-1", "decode-0", "decode-1", "router"]);
    assert!(places.iter().all(|place| runs(place.pid)));
    complete(&system);
    system.signal(Signal::INT);
    let (status, said) = system.wait();
    assert_eq!(status.code(), Some(0), "{said}");
    assert_gone(&places, Duration::ZERO);
    for name in names {
        let log = std::fs::read_to_string(logs.path().join(format!("{name}.log"))).unwrap();
        assert!(!log.is_empty(), "{name}");
    }
    assert!(!said.contains("killed"), "all ended by themselves: {said}");
    assert_eq!(said.matches("waiting for router").count(), 1, "said once, not at every look: {said}");
}

#[test]
fn ctrl_c_ends_a_start() {
    let (mut up, mut said) = System::starting(&[]);
    send(up.id(), Signal::INT);
    assert_eq!(wait(&mut up).code(), Some(0));
    let mut rest = String::new();
    // Its end is that of the last process that could have written to it.
    said.read_to_string(&mut rest).unwrap();
    assert!(rest.ends_with("Stopped.\n"), "{rest}");
}

/// The router starts last, and until then the system gives free ports to whoever connects somewhere.
#[test]
fn its_port_is_nobody_else_s_while_the_engines_start() {
    let port = free_port();
    let argv = ["up", "--model=emulated", "--kv-memory=16MiB", &format!("--port={port}")];
    let mut up = baton(&argv).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(up.stderr.take().unwrap()).lines().map(Result::unwrap);
    assert!(said.next().unwrap().starts_with("waiting for prefill-0"));
    while !said.next().unwrap().starts_with("waiting for router") {
        assert!(TcpListener::bind(("127.0.0.1", port)).is_err());
    }
    send(up.id(), Signal::INT);
    assert_eq!(said.last().unwrap(), "Stopped.");
    assert_eq!(wait(&mut up).code(), Some(0));
}

#[test]
fn a_child_that_dies_takes_the_rest_along() {
    let system = System::start(&[]);
    let places = system.places();
    let victim = system.place("decode-0");
    send(victim.pid, Signal::KILL);
    let (status, said) = system.wait();
    assert_eq!(status.code(), Some(1));
    let obituary = format!("baton: decode-0 (pid {}) was killed by signal 9 (SIGKILL", victim.pid);
    assert!(said.contains(&obituary), "{said}");
    assert!(said.contains("    decode-0 | "), "its last lines: {said}");
    assert_gone(&places, Duration::ZERO);
}

#[test]
fn children_do_not_outlive_a_killed_parent() {
    let system = System::start(&[]);
    let places = system.places();
    system.signal(Signal::KILL);
    assert_gone(&places, SECONDS);
    assert_eq!(system.wait().0.code(), None);
}

#[test]
fn a_port_in_use_is_told_before_anything_is_started() {
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = other.local_addr().unwrap().port().to_string();
    let output = baton(&["up", "--model=emulated", "--port", &port]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = stderr(&output);
    assert!(said.contains(&format!("127.0.0.1:{port} is in use; choose another port with --port")), "{said}");
    assert_eq!(said.lines().count(), 1, "nothing was started: {said}");
}

#[test]
fn what_a_real_model_has_not_is_told_before_it_is_fetched() {
    for flag in ["--inline-post", "--kv-layout=layer-major", "--emulated-layers=80"] {
        let output = baton(&["up", "--model=no-such-org/no-such-model", flag, "--port=0"]).output().unwrap();
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(1));
        assert!(said.contains("prefill-0: ") && said.contains("emulated"), "{said}");
        assert_eq!(said.lines().count(), 1, "nothing was fetched or started: {said}");
    }
}

#[test]
fn an_engine_that_cannot_start_says_why() {
    let output = baton(&["up", "--model=emulated", "--kv-memory=100B", "--port=0"]).output().unwrap();
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(1));
    assert!(said.contains("baton: prefill-0 (pid ") || said.contains("baton: decode-0 (pid "), "{said}");
    assert!(said.contains("exited with status 1") && said.contains("less than one KV block"), "{said}");
}

#[test]
fn a_stranger_s_child_does_not_start() {
    // What the kernel would be asked to watch is not this process's parent.
    let output = baton(&["--version"]).env("BATON_PARENT_PID", "1").output().unwrap();
    assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0));
}
