//! `cargo x soak`: the program as its users run it, and the soak that torments it.

use xshell::{Shell, cmd};

use crate::built::{self, Profile};

pub fn run(sh: &Shell, args: &[String]) -> anyhow::Result<()> {
    let baton = built::binary(sh, Profile::Release, "baton", &[])?;
    let soak = built::binary(sh, Profile::Release, "baton-soak", &[])?;
    let logs = built::target_directory(sh)?.join("soak");
    cmd!(sh, "{soak} --baton {baton} --logs {logs} {args...}").quiet().run()?;
    Ok(())
}
