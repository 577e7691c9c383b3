//! `baton nixl`.

use clap::builder::BoolishValueParser;
use clap::{Args, Subcommand};

use super::engine::{NixlBackend, nixl_param};

#[derive(Clone, Debug, Args)]
#[command(subcommand_required = true, arg_required_else_help = true)]
pub struct NixlArgs {
    #[command(subcommand)]
    pub what: NixlCommand,
}

#[derive(Clone, Debug, PartialEq, Eq, Subcommand)]
pub enum NixlCommand {
    /// Fetch NIXL with pip (70 MB) into the cache directory, and check it
    Install,
    /// Load NIXL as `--transport=nixl` does, say what it has, and move a few bytes in both directions
    Check(NixlTrialArgs),
}

/// What NIXL is tried with.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
pub struct NixlTrialArgs {
    /// What NIXL moves blocks with
    #[arg(long, value_enum, default_value_t = NixlBackend::Ucx)]
    pub nixl_backend: NixlBackend,
    /// Parameter of the backend, KEY=VALUE; several, or several flags
    #[arg(long, value_name = "KEY=VALUE", value_delimiter = ',', value_parser = nixl_param)]
    pub nixl_param: Vec<(String, String)>,
    /// Say it as one JSON object
    #[arg(long, value_name = "BOOL", action = clap::ArgAction::Set, num_args = 0..=1, require_equals = true,
          default_missing_value = "true", default_value = "false", hide_default_value = true,
          value_parser = BoolishValueParser::new())]
    pub json: bool,
}
