//! Prefill and decode with other block sizes, ranks and KV types, in real processes: the words stay the same (I7),
//! and no prompt is computed twice.

use rustix::process::Signal;

use crate::program::{System, get};
use crate::same_words::{ask_all, prompts};

fn alone(flags: &[&str], prompts: &[Vec<u32>]) -> Vec<Vec<u64>> {
    let system = System::start(&[flags, &["--strategy=none"]].concat());
    ask_all(&system, prompts)
}

/// The value of a metric of one engine.
fn metric(system: &System, engine: &str, name: &str) -> f64 {
    let text = get(&system.place(engine).url, "/metrics");
    let line = text.lines().find(|line| line.starts_with(&format!("{name} ")));
    line.unwrap_or_else(|| panic!("no {name} in {text}")).rsplit(' ').next().unwrap().parse().unwrap()
}

/// Twice, so that the second pass meets warm prefix caches.
fn assert_same_words(flags: &[&str], prefill: &str, decode: &str, prompts: &[Vec<u32>], want: &[Vec<u64>]) {
    let sides = [format!("--prefill-args={prefill}"), format!("--decode-args={decode}")];
    for strategy in ["--strategy=pull", "--strategy=push"] {
        let system = System::start(&[flags, &[strategy, &sides[0], &sides[1]]].concat());
        for pass in 0..2 {
            let words = ask_all(&system, prompts);
            for (i, (got, want)) in words.iter().zip(want).enumerate() {
                let tokens = prompts[i].len();
                assert_eq!(
                    got, want,
                    "{prefill} | {decode}, {strategy}, pass {pass}, prompt of {tokens} tokens"
                );
            }
        }
        assert_eq!(
            metric(&system, "decode-0", "baton_recomputed_total"),
            0.0,
            "{prefill} | {decode}, {strategy}"
        );
        system.signal(Signal::TERM);
        assert_eq!(system.wait().0.code(), Some(0));
    }
}

fn assert_same_words_of_the_emulated_model(sides: &[(&str, &str)]) {
    let (flags, prompts) = (["--kv-memory=64MiB"], prompts(1, 256));
    let want = alone(&flags, &prompts);
    for (prefill, decode) in sides {
        assert_same_words(&flags, prefill, decode, &prompts, &want);
    }
}

#[test]
fn block_sizes() {
    assert_same_words_of_the_emulated_model(&[
        ("--block-tokens=64", "--block-tokens=16"),
        ("--block-tokens=16", "--block-tokens=64"),
        ("--block-tokens=24", "--block-tokens=16 --unit-tokens=8"),
    ]);
}

#[test]
fn ranks() {
    let ranks = ["--kv-ranks=1", "--kv-ranks=2", "--kv-ranks=4"];
    assert_same_words_of_the_emulated_model(&[
        (ranks[2], ranks[0]),
        (ranks[2], ranks[1]),
        (ranks[2], ranks[2]),
        (ranks[0], ranks[2]),
        (ranks[1], ranks[2]),
        ("--kv-ranks=4 --block-tokens=64", "--kv-ranks=2 --block-tokens=64"),
        ("--kv-ranks=4 --block-tokens=64", "--kv-ranks=2"),
    ]);
}

/// Heads of one rank go to several, and of several to one, each in a post of its own.
#[test]
#[ignore = "needs NIXL: cargo x nixl"]
fn ranks_and_block_sizes_over_nixl() {
    let (flags, prompts) = (["--kv-memory=64MiB", "--transport=nixl"], prompts(1, 256));
    let want = alone(&flags, &prompts);
    for (prefill, decode) in [
        ("--kv-ranks=4", "--kv-ranks=1"),
        ("--kv-ranks=1", "--kv-ranks=4"),
        ("--kv-ranks=4 --block-tokens=64", "--kv-ranks=2"),
        ("--block-tokens=24", "--block-tokens=16 --unit-tokens=8"),
    ] {
        assert_same_words(&flags, prefill, decode, &prompts, &want);
    }
}

/// What the emulated model stores is exact in every type.
#[test]
fn kv_types() {
    assert_same_words_of_the_emulated_model(&[
        ("--kv-dtype=bf16", "--kv-dtype=bf16"),
        ("--kv-convert --kv-dtype=f32", "--kv-convert --kv-dtype=bf16"),
        ("--kv-convert --kv-dtype=f16", "--kv-convert --kv-dtype=f32"),
        (
            "--kv-convert --kv-dtype=bf16 --kv-ranks=4 --block-tokens=64",
            "--kv-convert --kv-dtype=f16 --kv-ranks=2 --block-tokens=32",
        ),
    ]);
}

/// Whoever reads or writes converts, and what is on the wire is of the other's type.
#[test]
fn kv_types_over_tcp() {
    let (flags, prompts) = (["--kv-memory=64MiB", "--transport=tcp"], prompts(1, 256));
    let want = alone(&flags, &prompts);
    for (prefill, decode) in [
        ("--kv-convert --kv-dtype=f32", "--kv-convert --kv-dtype=bf16"),
        ("--kv-convert --kv-dtype=bf16 --block-tokens=64", "--kv-convert --kv-dtype=f32 --tcp-crc"),
    ] {
        assert_same_words(&flags, prefill, decode, &prompts, &want);
    }
}

/// Three KV heads.
#[test]
fn of_smollm2() {
    let flags = ["--model=smollm2", "--kv-memory=1GiB", "--max-model-len=4096", "--kv-dtype=f16"];
    let prompts: Vec<_> =
        prompts(17, 49_000).into_iter().step_by(3).filter(|prompt| prompt.len() < 600).collect();
    let want = alone(&flags, &prompts);
    for (prefill, decode) in [
        ("--kv-ranks=3 --block-tokens=64", "--kv-ranks=1"),
        ("--kv-ranks=1", "--kv-ranks=3 --block-tokens=32"),
    ] {
        assert_same_words(&flags, prefill, decode, &prompts, &want);
    }
}
