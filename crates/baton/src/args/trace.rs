//! Where spans go.

use std::path::PathBuf;

use clap::Args;

/// Every command that has something to trace. Collectors are named by OpenTelemetry's variables.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
#[command(next_help_heading = "Timeline")]
pub struct TraceArgs {
    /// Write what happens to each request, and when, to this file: a trace that Perfetto and chrome://tracing show. Spans also go to the
    /// collector that OTEL_EXPORTER_OTLP_ENDPOINT names, if it is set
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
}
