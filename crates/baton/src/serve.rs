//! `baton serve`: one engine.

use std::process::ExitCode;

use anyhow::Result;

use crate::args::ServeArgs;

/// # Errors
/// If the engine cannot start or must stop.
pub async fn serve(_args: &ServeArgs) -> Result<ExitCode> {
    Ok(ExitCode::SUCCESS)
}
