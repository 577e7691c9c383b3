//! `cargo x sim`: the simulator; with the deliberate bugs compiled in only when they are asked for.

use xshell::{Shell, cmd};

use crate::built::{self, Profile};

pub fn run(sh: &Shell, profile: Profile, args: &[String]) -> anyhow::Result<()> {
    // CI runs both kinds: one build serves them. A bug that is compiled in does nothing unless it is chosen.
    let mutants = args.iter().any(|arg| arg == "--mutants") || matches!(profile, Profile::Dev);
    let features: &[&str] = if mutants { &["--features", "baton-sim/mutants"] } else { &[] };
    let simulator = built::binary(sh, profile, "baton-sim", features)?;
    cmd!(sh, "{simulator} {args...}").quiet().run()?;
    Ok(())
}
