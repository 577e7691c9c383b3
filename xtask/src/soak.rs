//! `cargo x soak`: the program as its users run it, and the soak that torments it.

use xshell::{Shell, cmd};

pub fn run(sh: &Shell, args: &[String]) -> anyhow::Result<()> {
    cmd!(sh, "cargo build --release --quiet --package baton --package baton-soak").run()?;
    let target = cmd!(sh, "cargo metadata --format-version 1 --no-deps --locked").quiet().read()?;
    let target: serde_json::Value = serde_json::from_str(&target)?;
    let target = target["target_directory"].as_str().unwrap_or("target");
    let (soak, baton, logs) =
        (format!("{target}/release/baton-soak"), format!("{target}/release/baton"), format!("{target}/soak"));
    cmd!(sh, "{soak} --baton {baton} --logs {logs} {args...}").quiet().run()?;
    Ok(())
}
