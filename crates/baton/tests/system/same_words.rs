//! I7 with real processes over shared memory and NIXL: alone, pull and push give the same tokens, bit for bit, whatever is in the prefix caches.

use std::thread;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::program::{System, post};

/// Around every edge of a block, of a chunk and of a step, and in between.
const LENGTHS: [usize; 30] = [
    1, 2, 3, 7, 15, 16, 17, 18, 31, 32, 33, 47, 48, 49, 63, 64, 65, 90, 128, 129, 200, 255, 256, 257, 400,
    511, 512, 513, 1000, 2000,
];

/// Token ids that a length and a number determine; every second prompt begins as the longest one does.
pub fn prompts(first: u32, vocab: u32) -> Vec<Vec<u32>> {
    let token = |of: u64, at: usize| {
        let mixed = (of * 1_000_003 + at as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33;
        first + (mixed % u64::from(vocab - first)) as u32
    };
    let shared = LENGTHS.len() as u64 - 1;
    let of = |i: usize| if i % 2 == 1 { shared } else { i as u64 };
    LENGTHS.iter().enumerate().map(|(i, length)| (0..*length).map(|at| token(of(i), at)).collect()).collect()
}

fn answer(url: &str, prompt: &[u32]) -> Vec<u64> {
    let body = json!({"prompt": prompt, "max_tokens": 16, "temperature": 0, "ignore_eos": true, "return_token_ids": true});
    let answer = post(url, "/v1/completions", &body.to_string());
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let json: Value = serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap();
    let ids: Vec<u64> =
        json["choices"][0]["token_ids"].as_array().unwrap().iter().filter_map(Value::as_u64).collect();
    assert_eq!(ids.len(), 16, "{json}");
    ids
}

/// All prompts at once.
pub fn ask_all(system: &System, prompts: &[Vec<u32>]) -> Vec<Vec<u64>> {
    let url = system.url();
    thread::scope(|scope| {
        let asked: Vec<_> = prompts.iter().map(|prompt| scope.spawn(|| answer(&url, prompt))).collect();
        asked.into_iter().map(|asked| asked.join().unwrap()).collect()
    })
}

/// All prompts at once, and all of them again.
fn answers(flags: &[&str], prompts: &[Vec<u32>]) -> [Vec<Vec<u64>>; 2] {
    let system = System::start(flags);
    let both = [ask_all(&system, prompts), ask_all(&system, prompts)];
    system.signal(Signal::TERM);
    assert_eq!(system.wait().0.code(), Some(0));
    both
}

fn assert_same_words(model: &[&str], prompts: &[Vec<u32>]) {
    let with = |strategy| answers(&[model, &["--strategy", strategy]].concat(), prompts);
    let [alone, warm] = with("none");
    assert_eq!(alone, warm, "a warm prefix cache changes nothing");
    for strategy in ["pull", "early-pull", "push"] {
        for (pass, words) in with(strategy).into_iter().enumerate() {
            for (i, (one, two)) in alone.iter().zip(&words).enumerate() {
                assert_eq!(one, two, "{strategy}, pass {pass}, prompt of {} tokens", LENGTHS[i]);
            }
        }
    }
}

#[test]
fn of_the_emulated_model() {
    assert_same_words(&["--kv-memory=64MiB"], &prompts(1, 256));
}

#[test]
#[ignore = "needs NIXL: cargo x nixl"]
fn of_the_emulated_model_over_nixl() {
    assert_same_words(&["--kv-memory=64MiB", "--transport=nixl"], &prompts(1, 256));
}

const BASELINES: [&str; 5] =
    ["--kv-memory=64MiB", "--kv-layout=layer-major", "--inline-post", "--push-at-end", "--hold-first-token"];

/// What is there to be measured beside.
#[test]
fn of_the_baselines_over_tcp() {
    assert_same_words(&[&BASELINES[..], &["--transport=tcp"]].concat(), &prompts(1, 256));
}

#[test]
#[ignore = "needs NIXL: cargo x nixl"]
fn of_the_baselines_over_nixl() {
    let nixl = ["--transport=nixl", "--nixl-reads=native"];
    assert_same_words(&[&BASELINES[..], &nixl].concat(), &prompts(1, 256));
}

#[test]
fn of_smollm2() {
    assert_same_words(&["--model=smollm2", "--kv-memory=1GiB", "--max-model-len=4096"], &prompts(17, 49_000));
}
