//! `cargo x bench`: how fast, compared with what is there already.

use clap::Subcommand;
use xshell::{Shell, cmd};

#[derive(Clone, Copy, Subcommand)]
pub enum What {
    /// The shared-memory transport beside memcpy of the same blocks
    Transfer,
}

pub fn run(sh: &Shell, what: What) -> anyhow::Result<()> {
    match what {
        What::Transfer => {
            cmd!(sh, "cargo run --release --quiet --package baton-transport --example transfer_bench")
                .run()?;
        }
    }
    Ok(())
}
