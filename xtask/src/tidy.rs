//! `cargo x tidy`: what a machine can see of a change's quality.

mod arrows;
mod licences;
mod sources;

use anyhow::ensure;
use xshell::{Shell, cmd};

pub fn run(sh: &Shell) -> anyhow::Result<()> {
    let metadata = cmd!(sh, "cargo metadata --format-version 1 --locked").quiet().read()?;
    let metadata: serde_json::Value = serde_json::from_str(&metadata)?;
    let mut faults = Vec::new();
    faults.extend(arrows::check(&metadata));
    faults.extend(licences::check(&metadata, &sh.read_file("deny.toml")?)?);
    faults.extend(sources::check(sh)?);
    for fault in &faults {
        eprintln!("tidy: {fault}");
    }
    ensure!(faults.is_empty(), "{} faults", faults.len());
    cmd!(sh, "cargo fmt --all --check").run()?;
    cmd!(sh, "cargo clippy --workspace --all-targets --locked -- -D warnings").run()?;
    cmd!(sh, "cargo clippy --package baton-sim --features mutants --all-targets --locked -- -D warnings")
        .run()?;
    Ok(())
}
