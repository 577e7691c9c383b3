//! Turns of conversations with real processes: each reads what the one before it left, and says the same words.

use std::io::Write;
use std::net::TcpStream;
use std::process::{Child, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::program::{System, baton, free_port, get, post_with, stderr};

const ENGINES: [&str; 3] = ["--prefill=2", "--decode=2", "--no-prefix-cache"];
const HAND_OFFS: [&str; 3] = ["push", "pull", "early-pull"];

struct Turn {
    ids: Vec<u32>,
    cached: u64,
    served_by: String,
}

fn ask(url: &str, conversation: &str, prompt: &[u32]) -> Turn {
    ask_as(url, "", conversation, prompt)
}

fn ask_as(url: &str, tenant: &str, conversation: &str, prompt: &[u32]) -> Turn {
    let body = json!({
        "prompt": prompt, "max_tokens": 40, "temperature": 0, "ignore_eos": true, "return_token_ids": true,
        "conversation_id": conversation,
    });
    let answer = post_with(url, "/v1/completions", ("x-team", tenant), &body.to_string());
    assert!(answer.starts_with("HTTP/1.1 200") && !answer.contains("xfer-"), "{answer}");
    let (head, json) = answer.split_once("\r\n\r\n").unwrap();
    let json: Value = serde_json::from_str(json).unwrap();
    let ids = json["choices"][0]["token_ids"].as_array().unwrap();
    let served_by = head.lines().find_map(|line| line.strip_prefix("x-baton-served-by: ")).unwrap();
    Turn {
        ids: ids.iter().map(|id| id.as_u64().unwrap() as u32).collect(),
        cached: json["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap(),
        served_by: served_by.to_owned(),
    }
}

/// What a user says in a turn.
fn words(turn: u32) -> Vec<u32> {
    (0..90).map(|i| 1 + (turn * 37 + i * 11) % 200).collect()
}

/// Four turns, the third of them twice, a branch off the first, and a history that was edited in the middle.
fn converse(url: &str) -> Vec<Turn> {
    let mut turns = Vec::new();
    let mut history = Vec::new();
    let mut first = Vec::new();
    for turn in 0..4 {
        history.extend(words(turn));
        turns.push(ask(url, "a", &history));
        if turn == 2 {
            turns.push(ask(url, "a", &history));
        }
        history.extend(turns.last().unwrap().ids.clone());
        if turn == 0 {
            first = history.clone();
        }
    }
    turns.push(ask(url, "a", &[first, words(9)].concat()));
    history[150] = 201;
    turns.push(ask(url, "a", &history));
    turns
}

fn with(flags: &[&str]) -> (Vec<Turn>, u64) {
    let system = System::start(flags);
    let turns = converse(&system.url());
    let read = |name: &str| -> u64 {
        let metrics = get(&system.place(name).url, "/metrics");
        let line =
            metrics.lines().find_map(|line| line.strip_prefix("baton_readback_tokens_total ")).unwrap();
        line.trim().parse::<f64>().unwrap() as u64
    };
    let places = system.places();
    let prefill = places.iter().filter(|place| place.name.starts_with("prefill"));
    let read = prefill.map(|place| read(&place.name)).sum();
    system.signal(Signal::TERM);
    assert_eq!(system.wait().0.code(), Some(0));
    (turns, read)
}

#[test]
fn turns_read_what_is_kept_and_say_the_same() {
    let (alone, _) = with(&["--strategy=none", "--no-prefix-cache"]);
    for hand_off in HAND_OFFS {
        let hand_off_flag = format!("--hand-off={hand_off}");
        let (turns, read) = with(&[&ENGINES[..], &["--strategy=bidirectional", &hand_off_flag]].concat());
        for (i, (turn, alone)) in turns.iter().zip(&alone).enumerate() {
            // I7
            assert_eq!(turn.ids, alone.ids, "{hand_off}, request {i}");
            let reused = turn.served_by.contains("; reuse=");
            assert_eq!(reused, i > 0, "{hand_off}, request {i}: {}", turn.served_by);
        }
        let cached: Vec<u64> = turns.iter().map(|turn| turn.cached).collect();
        // Whole blocks of the turn before; as far as it is the same.
        assert_eq!(cached[0], 0, "{hand_off}: {cached:?}");
        assert!(cached[1] >= 112 && cached[2] >= 240 && cached[4] >= 368, "{hand_off}: {cached:?}");
        assert!((64..=144).contains(&cached[6]), "edited: {hand_off}: {cached:?}");
        assert_eq!(read, cached.iter().sum::<u64>(), "nothing else is cached: {hand_off}: {cached:?}");
    }
}

/// Another router in front of the same engines, one that knows tenants; ends with its value.
struct TenantRouter {
    process: Child,
    url: String,
}

impl TenantRouter {
    fn start(system: &System) -> Self {
        let port = free_port();
        let mut argv = vec![format!("--listen=127.0.0.1:{port}")];
        for place in system.places().iter().filter(|place| place.name != "router") {
            argv.push(format!("--{}={}", place.name.split('-').next().unwrap(), place.url));
        }
        let fixed = ["route", "--strategy=bidirectional", "--expose-served-by", "--tenant-header=x-team"];
        let process = baton(&fixed).args(argv).stderr(Stdio::null()).spawn().unwrap();
        let router = Self { process, url: format!("http://127.0.0.1:{port}") };
        let deadline = Instant::now() + Duration::from_secs(20);
        while TcpStream::connect(("127.0.0.1", port)).is_err()
            || !get(&router.url, "/health").starts_with("HTTP/1.1 200")
        {
            assert!(Instant::now() < deadline, "the router does not get ready");
            sleep(Duration::from_millis(10));
        }
        router
    }
}

impl Drop for TenantRouter {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// I13
#[test]
fn a_tenant_gains_nothing_by_the_name_and_the_words_of_another_s_conversation() {
    let system = System::start(&["--strategy=bidirectional", "--no-prefix-cache"]);
    let router = TenantRouter::start(&system);
    let mut history = words(0);
    let first = ask_as(&router.url, "blue", "c", &history);
    history.extend([first.ids, words(1)].concat());
    for (tenant, conversation) in [("red", "c"), ("", "c"), ("blue", "d")] {
        let turn = ask_as(&router.url, tenant, conversation, &history);
        assert_eq!(turn.cached, 0, "{tenant}, {conversation}");
        assert!(!turn.served_by.contains("reuse"), "{tenant}, {conversation}: {}", turn.served_by);
    }
    assert!(ask_as(&router.url, "blue", "c", &history).cached >= 112);
    // Red has a conversation of this name by now, and of these words: its own.
    assert!(ask_as(&router.url, "red", "c", &history).cached > 0);
    drop(router);
    system.signal(Signal::INT);
    system.wait();
}

#[test]
fn a_chat_shows_what_was_reused() {
    let system = System::start(&["--strategy=bidirectional", "--no-prefix-cache"]);
    let mut chat = baton(&["chat", "--url", &system.url(), "--max-tokens=64", "--temperature=0"]);
    let mut chat = chat.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let question = "a question of some length ".repeat(5);
    chat.stdin.take().unwrap().write_all(format!("{question}\n{question}\n").as_bytes()).unwrap();
    let output = chat.wait_with_output().unwrap();
    let said = stderr(&output);
    let lines: Vec<&str> = said.lines().filter(|line| line.contains("prompt tokens cached")).collect();
    let [first, second] = lines[..] else { panic!("{said}") };
    assert!(first.contains(" 0 of ") && !first.contains("offered"), "{said}");
    assert!(!second.contains(" 0 of ") && second.contains(" tokens of earlier turns offered"), "{said}");
    system.signal(Signal::INT);
    system.wait();
}
