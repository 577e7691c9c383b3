//! The command line: what each command can be told, its defaults and its help.

mod bench;
mod chat;
mod doctor;
mod engine;
mod nixl;
mod report;
mod route;
mod routing;
mod serve;
mod trace;
mod units;
mod up;

use std::path::PathBuf;

use clap::builder::Styles;
use clap::builder::styling::AnsiColor;
use clap::{Args, Parser, Subcommand, ValueEnum};

pub use bench::{ApiName, ArrivalsName, BenchArgs, BenchCommand, CompareArgs, MeasuringArgs};
pub use chat::ChatArgs;
pub use doctor::DoctorArgs;
pub use engine::{EngineArgs, KvOrderName, KvType, LostKv, Precision, TransportKind};
pub use nixl::{NixlArgs, NixlCommand, NixlTrialArgs};
pub use report::{ReportArgs, ReportFormat};
pub use route::RouteArgs;
pub use routing::{HandOff, Policy, RoutingArgs, Strategy};
pub use serve::ServeArgs;
pub use units::{ByteSize, Span};
pub use up::UpArgs;

const STYLES: Styles = Styles::styled()
    .header(AnsiColor::Green.on_default().bold())
    .usage(AnsiColor::Green.on_default().bold())
    .literal(AnsiColor::Cyan.on_default().bold())
    .placeholder(AnsiColor::Cyan.on_default());

const SETTINGS_HELP: &str = "\
Settings:
  A flag counts more than its environment variable, that more than the file, that more than the default.
  `--kv-memory 2GiB` of `baton serve` is also BATON_SERVE_KV_MEMORY=2GiB, and in a file that --config or
  BATON_CONFIG names:

      [serve]
      kv-memory = \"2GiB\"

  Each command reads its own table; flags of all commands stand above the tables.
  BATON_LOG takes filters such as `info,baton_server=debug`.

Start here:
  baton up         a whole system on this machine, with a small model that is fetched once
  baton chat       talk to it";

/// Serves large language models with prefill and decode on separate engines and hands the KV cache over.
#[derive(Debug, Parser)]
#[command(name = "baton", version, styles = STYLES, max_term_width = 110, after_help = SETTINGS_HELP)]
#[command(subcommand_required = true, arg_required_else_help = true, disable_help_subcommand = true)]
pub struct Cli {
    #[command(flatten)]
    pub common: CommonArgs,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Start a whole system on this machine: prefill engines, decode engines and the router
    Up(Box<UpArgs>),
    /// Run one engine
    Serve(Box<ServeArgs>),
    /// Run the router in front of engines
    Route(Box<RouteArgs>),
    /// Talk to a running system in the terminal
    Chat(ChatArgs),
    /// Measure a running system, or systems side by side
    Bench(Box<BenchArgs>),
    /// Make a page of results of `baton bench`
    Report(ReportArgs),
    /// Tell whether this machine can hand KV over, and what to do if not
    Doctor(DoctorArgs),
    /// Fetch and check NIXL, which --transport=nixl needs
    Nixl(NixlArgs),
}

/// What every command can be told.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "All commands")]
pub struct CommonArgs {
    /// TOML file with the tables [up], [serve], [route], [chat], [bench], [report] and [doctor]
    #[arg(long, global = true, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Log what is at least this important
    #[arg(long, global = true, value_enum, default_value_t = LogLevel::Info, value_name = "LEVEL")]
    pub log_level: LogLevel,
    /// How a line of the log is written
    #[arg(long, global = true, value_enum, default_value_t = LogFormat::Text, value_name = "FORMAT")]
    pub log_format: LogFormat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogLevel {
    Off,
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    Text,
    Json,
}

/// The name of a value as the command line writes it.
pub fn value_name(value: impl ValueEnum) -> String {
    value.to_possible_value().map(|v| v.get_name().to_owned()).unwrap_or_default()
}
