//! `baton nixl`.

use clap::{Args, Subcommand};

#[derive(Clone, Debug, Args)]
#[command(subcommand_required = true, arg_required_else_help = true)]
pub struct NixlArgs {
    #[command(subcommand)]
    pub what: NixlCommand,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Subcommand)]
pub enum NixlCommand {
    /// Fetch NIXL with pip (70 MB) into the cache directory, and check it
    Install,
    /// Load NIXL as `--transport=nixl` does, say which backends it has, and move a few bytes with UCX in both directions
    Check,
}
