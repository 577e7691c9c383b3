//! Programs of the workspace, and where they are.

use std::path::PathBuf;

use xshell::{Shell, cmd};

/// How it is compiled.
#[derive(Clone, Copy)]
pub enum Profile {
    /// As the tests are, which CI has at hand already. With `--package` what they stand on would have other features, and much would be
    /// compiled twice.
    Dev,
    /// As users do it.
    Release,
}

/// Builds the binary of the package of that name.
pub fn binary(sh: &Shell, profile: Profile, name: &str, flags: &[&str]) -> anyhow::Result<PathBuf> {
    let (place, whose) = match profile {
        Profile::Dev => ("debug", &["--workspace"][..]),
        Profile::Release => ("release", &["--release", "--package", name][..]),
    };
    cmd!(sh, "cargo build --quiet {whose...} --bin {name} {flags...}").quiet().run()?;
    Ok(target_directory(sh)?.join(place).join(name))
}

/// Builds an example, in the dev profile.
pub fn example(sh: &Shell, name: &str) -> anyhow::Result<PathBuf> {
    cmd!(sh, "cargo build --quiet --workspace --example {name}").quiet().run()?;
    Ok(target_directory(sh)?.join("debug/examples").join(name))
}

/// Where Cargo puts what it builds.
pub fn target_directory(sh: &Shell) -> anyhow::Result<PathBuf> {
    let metadata = cmd!(sh, "cargo metadata --format-version 1 --no-deps --locked").quiet().read()?;
    let metadata: serde_json::Value = serde_json::from_str(&metadata)?;
    Ok(metadata["target_directory"].as_str().unwrap_or("target").into())
}
