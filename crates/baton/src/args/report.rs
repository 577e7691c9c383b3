//! `baton report`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

const EXAMPLES: &str = "\
Examples:
  baton report results/sweep
  baton report results/monday results/tuesday -o week.html
  baton report results/sweep --format md
  baton report results/sweep --format csv --table ttft -o ttft.csv

A result is the directory that `baton bench` wrote, or the result.json in it. The page is one file that needs no network.";

#[derive(Clone, Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct ReportArgs {
    /// Results to show together
    #[arg(required = true, value_name = "RESULT")]
    pub results: Vec<PathBuf>,

    /// Spans of requests in the Chrome trace format: what their bars show of queue, prefill, transfer and first step
    #[arg(long, value_name = "FILE")]
    pub trace: Vec<PathBuf>,
    /// Where to write, - for standard output [default: report.html, other formats to standard output]
    #[arg(long, short, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// A page to look at, or text to paste
    #[arg(long, value_enum, default_value_t = ReportFormat::Html, value_name = "FORMAT")]
    pub format: ReportFormat,
    /// The table that CSV holds; a wrong name tells the right ones
    #[arg(long, default_value = "all", value_name = "NAME")]
    pub table: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ReportFormat {
    /// One page with charts, which stands alone
    Html,
    /// Markdown: warnings and tables
    Md,
    /// One table
    Csv,
}
