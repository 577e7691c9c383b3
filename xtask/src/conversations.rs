//! `cargo x conversations`: the same words over many turns, at the lengths that people use; too long for CI.

use xshell::{Shell, cmd};

pub fn run(sh: &Shell) -> anyhow::Result<()> {
    let filter = "conversations::of_smollm2_at_length";
    cmd!(sh, "cargo test --release --workspace --test server {filter} -- --ignored --nocapture").run()?;
    Ok(())
}
