//! `baton nixl`: the library that the transport of the same name needs.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use baton_model::fetch::cache_directory;
use baton_server::nixl::{NixlInstall, NixlLibrary, trial};

use crate::args::NixlCommand;

/// Where `baton nixl install` puts NIXL; none where there is no place for downloads.
pub fn directory() -> Option<PathBuf> {
    Some(NixlInstall::below(&cache_directory().ok()?).directory)
}

/// # Errors
/// If NIXL cannot be fetched, or does not work.
pub fn nixl(command: NixlCommand) -> Result<ExitCode> {
    if command == NixlCommand::Install {
        let install = NixlInstall::below(&cache_directory()?);
        if !install.is_there() {
            eprintln!("fetching NIXL into {}", install.directory.display());
        }
        install.fetch()?;
    }
    let library = NixlLibrary::load(directory().as_deref())?;
    println!("{}", library.path.display());
    println!("backends: {}", trial::backends(library)?.join(", "));
    let moved = trial::move_bytes(library).context("NIXL moves no bytes with UCX")?;
    println!("ucx: wrote and read {} KiB, {} ms with the making of two agents", moved.bytes >> 10, moved.ms);
    Ok(ExitCode::SUCCESS)
}
