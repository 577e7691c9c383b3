//! `baton serve`.

use std::net::IpAddr;

use baton_types::{EngineName, EngineRole};
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};

use super::engine::EngineArgs;
use super::trace::TraceArgs;
use super::units::Span;

const EXAMPLES: &str = "\
Examples:
  One engine alone:
      baton serve --role both --model Qwen/Qwen3-0.6B --port 8100

  A pair on one machine, and the router in front of it:
      baton serve --role prefill --name prefill-0 --port 8100
      baton serve --role decode  --name decode-0  --port 8200
      baton route --prefill http://127.0.0.1:8100 --decode http://127.0.0.1:8200";

#[derive(Clone, Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct ServeArgs {
    /// What this engine does: compute prompts, generate answers, or both
    #[arg(long, default_value = "both", help_heading = "Engine",
          value_parser = PossibleValuesParser::new(["prefill", "decode", "both"]).try_map(|role| role.parse::<EngineRole>()))]
    pub role: EngineRole,
    /// Name of this engine, unique in the system [default: the role]
    #[arg(long, value_parser = |name: &str| EngineName::new(name), help_heading = "Engine")]
    pub name: Option<EngineName>,

    /// Address to listen on
    #[arg(long, value_name = "IP", default_value = "127.0.0.1", help_heading = "Network")]
    pub host: IpAddr,
    /// Port of the HTTP API
    #[arg(long, default_value_t = 8000, help_heading = "Network")]
    pub port: u16,
    /// Port on which other engines ask for KV blocks; 0 takes a free one
    #[arg(long, value_name = "PORT", default_value_t = 0, help_heading = "Network")]
    pub side_channel_port: u16,
    /// Port on which other engines move KV blocks, with --transport=tcp; 0 takes a free one
    #[arg(long, value_name = "PORT", default_value_t = 0, help_heading = "Network")]
    pub tcp_port: u16,
    /// Port on which other engines speak of KV blocks, with --transport=nixl; 0 takes a free one
    #[arg(long, value_name = "PORT", default_value_t = 0, help_heading = "Network")]
    pub nixl_port: u16,
    /// Host at which other engines reach this one [default: the host it listens on]
    #[arg(long, value_name = "HOST", help_heading = "Network")]
    pub advertise_host: Option<String>,
    /// How long running requests may go on after SIGTERM
    #[arg(long, value_name = "TIME", default_value = "10s", help_heading = "Network")]
    pub drain_timeout: Span,

    #[command(flatten)]
    pub engine: EngineArgs,
    #[command(flatten)]
    pub trace: TraceArgs,
}

impl ServeArgs {
    pub fn name(&self) -> String {
        self.name.as_ref().map_or_else(|| self.role.to_string(), EngineName::to_string)
    }
}
