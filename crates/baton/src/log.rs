//! What the process says about itself, on standard error: lines for people, or JSON for collectors.

use std::io::{IsTerminal, stderr};

use anyhow::{Context, Result};
use tracing_subscriber::EnvFilter;

use crate::args::{CommonArgs, LogFormat, LogLevel, value_name};

/// Filters in the style of `RUST_LOG`; it counts more than `--log-level`.
pub const FILTER: &str = "BATON_LOG";

/// # Errors
/// If `BATON_LOG` is no filter.
pub fn start(args: &CommonArgs) -> Result<()> {
    let filter = match std::env::var(FILTER) {
        Ok(text) => text.parse::<EnvFilter>().with_context(|| format!("{FILTER}={text} is no filter"))?,
        Err(_) => EnvFilter::new(filter(args.log_level)),
    };
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(stderr).with_target(false);
    match args.log_format {
        LogFormat::Text => log.with_ansi(stderr().is_terminal()).init(),
        LogFormat::Json => log.json().init(),
    }
    Ok(())
}

/// The level is for this project's crates; of others, only what is wrong is of interest.
fn filter(level: LogLevel) -> String {
    match level {
        LogLevel::Off | LogLevel::Error => value_name(level),
        level => format!("warn,baton={}", value_name(level)),
    }
}
