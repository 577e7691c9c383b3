//! `baton route`: the router.

use std::process::ExitCode;

use anyhow::Result;

use crate::args::RouteArgs;

/// # Errors
/// If the router cannot start.
pub async fn route(_args: &RouteArgs) -> Result<ExitCode> {
    Ok(ExitCode::SUCCESS)
}
