//! Fetches NIXL into the directory given, as `baton nixl install` does, checks it, and prints where it is.
//!
//!     cargo run -p baton-transport --example nixl_install -- CACHE
//!
//! Ends with status 3 if NIXL cannot be fetched, with 1 if what was fetched does not work.

use std::path::PathBuf;
use std::process::ExitCode;

use baton_transport::nixl::{NixlInstall, NixlLibrary};
use baton_transport::{NixlConfig, NixlTransport, TransportError, TransportLimits, trial};

fn main() -> ExitCode {
    let Some(cache) = std::env::args_os().nth(1).map(PathBuf::from) else {
        eprintln!("which directory?");
        return ExitCode::FAILURE;
    };
    let install = NixlInstall::below(&cache);
    if let Err(error) = install.fetch() {
        eprintln!("{error}");
        return ExitCode::from(3);
    }
    let moved =
        NixlLibrary::load(Some(&install.directory)).map_err(TransportError::from).and_then(|library| {
            trial::move_bytes(|id| {
                let (limits, config) = (TransportLimits::default(), NixlConfig::default());
                Ok(Box::new(NixlTransport::new(id, limits, config, library)?))
            })
        });
    match moved {
        Ok(_) => println!("{}", install.directory.display()),
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}
