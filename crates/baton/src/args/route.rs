//! `baton route`.

use std::net::SocketAddr;

use clap::Args;
use clap::builder::BoolishValueParser;

use super::routing::RoutingArgs;
use super::trace::TraceArgs;
use super::units::Span;

const EXAMPLES: &str = "\
Examples:
  One prefill engine, two decode engines:
      baton route --prefill http://10.0.0.1:8000 --decode http://10.0.0.2:8000,http://10.0.0.3:8000

  Two engines that do both, for comparison:
      baton route --strategy none --both http://10.0.0.1:8000,http://10.0.0.2:8000";

#[derive(Clone, Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct RouteArgs {
    /// Address to listen on
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:8000", help_heading = "Network")]
    pub listen: SocketAddr,
    /// A prefill engine; may be given several times
    #[arg(long, value_name = "URL", value_delimiter = ',', help_heading = "Engines")]
    pub prefill: Vec<String>,
    /// A decode engine; may be given several times
    #[arg(long, value_name = "URL", value_delimiter = ',', help_heading = "Engines")]
    pub decode: Vec<String>,
    /// An engine that does both; may be given several times
    #[arg(long, value_name = "URL", value_delimiter = ',', help_heading = "Engines")]
    pub both: Vec<String>,
    /// Time between two looks at an engine's health
    #[arg(long, value_name = "TIME", default_value = "1s", help_heading = "Engines")]
    pub probe_interval: Span,
    /// Looks or connections that must fail in a row for an engine to count as unhealthy
    #[arg(long, value_name = "N", default_value_t = 3, help_heading = "Engines")]
    pub probe_failures: u32,
    /// Tell clients in the header x-baton-served-by which engines answered; not for strangers
    #[arg(long, value_name = "BOOL", help_heading = "Network", action = clap::ArgAction::Set,
          num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false",
          hide_default_value = true, value_parser = BoolishValueParser::new())]
    pub expose_served_by: bool,
    /// Header of a request that names its tenant; only behind a gateway that sets it. KV is never shared between tenants
    #[arg(long, value_name = "NAME", help_heading = "Network")]
    pub tenant_header: Option<String>,
    /// How long running requests may go on after SIGTERM
    #[arg(long, value_name = "TIME", default_value = "10s", help_heading = "Network")]
    pub drain_timeout: Span,

    #[command(flatten)]
    pub routing: RoutingArgs,
    #[command(flatten)]
    pub trace: TraceArgs,
}
