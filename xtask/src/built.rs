//! Programs of the workspace, built as its tests are: with `--package` they would have other features, and half of what they
//! stand on would be compiled twice.

use std::path::PathBuf;

use xshell::{Shell, cmd};

/// How it is compiled: CI has the dev profile at hand already.
#[derive(Clone, Copy)]
pub enum Profile {
    Dev,
    Release,
}

/// Builds `--bin NAME` or `--example NAME` and says where it is.
pub fn program(
    sh: &Shell,
    profile: Profile,
    kind: &str,
    name: &str,
    flags: &[&str],
) -> anyhow::Result<PathBuf> {
    let (profile, place) = match profile {
        Profile::Dev => ("dev", "debug"),
        Profile::Release => ("release", "release"),
    };
    cmd!(sh, "cargo build --profile {profile} --quiet --workspace --{kind} {name} {flags...}")
        .quiet()
        .run()?;
    let place = target_directory(sh)?.join(place);
    Ok(if kind == "example" { place.join("examples").join(name) } else { place.join(name) })
}

/// Where Cargo puts what it builds.
pub fn target_directory(sh: &Shell) -> anyhow::Result<PathBuf> {
    let metadata = cmd!(sh, "cargo metadata --format-version 1 --no-deps --locked").quiet().read()?;
    let metadata: serde_json::Value = serde_json::from_str(&metadata)?;
    Ok(metadata["target_directory"].as_str().unwrap_or("target").into())
}
