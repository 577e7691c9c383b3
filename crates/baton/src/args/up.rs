//! `baton up`.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::Args;

use super::engine::EngineArgs;
use super::routing::RoutingArgs;
use super::trace::TraceArgs;
use super::units::Span;

const EXAMPLES: &str = "\
Examples:
  Prefill and decode on one engine each, the KV cache written ahead:
      baton up

  Two prefill engines, three decode engines that read the KV cache themselves:
      baton up --model Qwen/Qwen3-0.6B --strategy pull --prefill 2 --decode 3

  The baseline to compare with, one engine without a hand-off:
      baton up --strategy none

Ctrl-C stops everything; a second one at once. If one process dies, the others are stopped as well.";

#[derive(Clone, Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct UpArgs {
    /// Number of prefill engines [not with --strategy none]
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64), help_heading = "System")]
    pub prefill: u32,
    /// Number of decode engines [not with --strategy none]
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64), help_heading = "System")]
    pub decode: u32,
    /// Flags for prefill engines only, separated by blanks, such as "--block-tokens=64 --kv-ranks=4"
    #[arg(long, value_name = "FLAGS", allow_hyphen_values = true, help_heading = "System")]
    pub prefill_args: Option<String>,
    /// Flags for decode engines only
    #[arg(long, value_name = "FLAGS", allow_hyphen_values = true, help_heading = "System")]
    pub decode_args: Option<String>,
    /// Write each process's log to a file in this directory, not to the terminal
    #[arg(long, value_name = "DIR", help_heading = "System")]
    pub log_dir: Option<PathBuf>,
    /// How long the processes may take to become healthy
    #[arg(long, value_name = "TIME", default_value = "5m", help_heading = "System")]
    pub start_timeout: Span,
    /// How long the processes may take to stop, before they are killed
    #[arg(long, value_name = "TIME", default_value = "15s", help_heading = "System")]
    pub stop_timeout: Span,

    /// Address that the router listens on; the engines stay on loopback
    #[arg(long, value_name = "IP", default_value = "127.0.0.1", help_heading = "Network")]
    pub host: IpAddr,
    /// Port of the router; 0 takes a free one
    #[arg(long, default_value_t = 8000, help_heading = "Network")]
    pub port: u16,
    /// First port of the engines, two for each [default: whatever is free]
    #[arg(long, value_name = "PORT", help_heading = "Network")]
    pub base_port: Option<u16>,

    #[command(flatten)]
    pub routing: RoutingArgs,
    #[command(flatten)]
    pub engine: EngineArgs,
    #[command(flatten)]
    pub trace: TraceArgs,
}
