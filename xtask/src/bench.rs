//! `cargo x bench`: how fast, compared with what is there already.

mod conditions;
mod cpu_runner;
mod engine;
mod llama_cpp;
mod speed;
mod strategies;
mod table;
mod transfer;

use clap::Subcommand;
use xshell::{Shell, cmd};

#[derive(Subcommand)]
pub enum What {
    /// All transports by block size and number of descriptors, shared memory beside memcpy of the same blocks, tcp beside a plain
    /// loopback stream
    Transfer(transfer::Args),
    /// How long a hand-off keeps an answer waiting: push, early pull and pull; and how much incoming KV slows a running decode
    Handoff,
    /// How long a second turn keeps its client waiting for the first token, with and without the KV of the first
    Reuse,
    /// The central experiment: pull posted by decode's loop, pull, push at the end and push, under the same load
    ///
    /// One prefill and one decode engine with the step times of Qwen3-32B on eight H200, and as many descriptors a request as
    /// there: up to 18,880. Says for each thing that is required of the figures whether it is so. Takes some twenty minutes, and a
    /// machine with nothing else to do.
    Strategies(strategies::Args),
    /// The CPU runner beside llama.cpp: prefill of 512 tokens, decode of one sequence at 512
    ///
    /// Both run SmolLM2-135M on the same threads, in alternating rounds; llama.cpp in every weight format that it may be
    /// fastest with. The first run builds llama.cpp in the cache directory, which takes some minutes and 2 GB.
    Engine(engine::Args),
}

pub fn run(sh: &Shell, what: What) -> anyhow::Result<()> {
    match what {
        What::Transfer(args) => transfer::run(sh, &args),
        What::Handoff => {
            cmd!(sh, "cargo run --release --quiet --package baton-server --example handoff_bench").run()?;
            Ok(())
        }
        What::Reuse => {
            cmd!(sh, "cargo run --release --quiet --package baton-server --example reuse_bench").run()?;
            Ok(())
        }
        What::Strategies(args) => strategies::run(sh, &args),
        What::Engine(args) => engine::run(sh, &args),
    }
}
