//! `cargo x sim`: the simulator, optimised; with the deliberate bugs compiled in only when they are asked for.

use xshell::{Shell, cmd};

pub fn run(sh: &Shell, args: &[String]) -> anyhow::Result<()> {
    let mutants = args.iter().any(|arg| arg == "--mutants");
    let features: &[&str] = if mutants { &["--features", "mutants"] } else { &[] };
    cmd!(sh, "cargo run --release --quiet --package baton-sim {features...} -- {args...}").quiet().run()?;
    Ok(())
}
