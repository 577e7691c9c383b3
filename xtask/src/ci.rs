//! `cargo x ci`: what a change must pass, from the quickest to the slowest.

use std::time::Instant;

use xshell::{Shell, cmd};

use crate::built::Profile;
use crate::nixl;
use crate::sim;
use crate::tidy;

/// Few enough for every change.
const SEEDS: &str = "5000";

/// Each deliberate bug must be found within so many.
const MUTANT_SEEDS: &str = "2000";

pub fn run(sh: &Shell) -> anyhow::Result<()> {
    let started = Instant::now();
    let step = |what: &str| eprintln!("\n== {what} ({} s)", started.elapsed().as_secs());
    step("tidy");
    tidy::run(sh)?;
    step("tests");
    // The examples are compiled by the lints before, and nobody's documentation has code that runs.
    cmd!(sh, "cargo test --workspace --lib --bins --tests").run()?;
    step("simulator");
    sim::run(sh, Profile::Dev, &["--seeds".into(), SEEDS.into()])?;
    step("deliberate bugs");
    sim::run(sh, Profile::Dev, &["--mutants".into(), "--seeds".into(), MUTANT_SEEDS.into()])?;
    step("nixl");
    nixl::run_if_possible(sh)?;
    step("done");
    Ok(())
}
