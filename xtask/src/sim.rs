//! `cargo x sim`: the simulator, optimised; with the deliberate bugs compiled in only when they are asked for.

use xshell::{Shell, cmd};

/// How the simulator is compiled: CI has the dev profile at hand already.
#[derive(Clone, Copy)]
pub enum Profile {
    Dev,
    Release,
}

pub fn run(sh: &Shell, profile: Profile, args: &[String]) -> anyhow::Result<()> {
    // CI runs both kinds: one build serves them. A bug that is compiled in does nothing unless it is chosen.
    let mutants = args.iter().any(|arg| arg == "--mutants") || matches!(profile, Profile::Dev);
    let features: &[&str] = if mutants { &["--features", "mutants"] } else { &[] };
    let profile = match profile {
        Profile::Dev => "dev",
        Profile::Release => "release",
    };
    cmd!(sh, "cargo run --profile {profile} --quiet --package baton-sim {features...} -- {args...}")
        .quiet()
        .run()?;
    Ok(())
}
