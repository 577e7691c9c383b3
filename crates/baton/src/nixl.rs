//! `baton nixl`: the library that the transport of the same name needs.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use baton_model::fetch::cache_directory;
use baton_server::nixl::{Inventory, NixlBackend, NixlInstall, NixlLibrary};
use baton_server::{NixlChoice, ServerConfig, TransportKind, try_transport};
use serde::{Deserialize, Serialize};

use crate::args::{NixlCommand, NixlTrialArgs, value_name};

/// Where `baton nixl install` puts NIXL; none where there is no place for downloads.
pub fn directory() -> Option<PathBuf> {
    Some(NixlInstall::below(&cache_directory().ok()?).directory)
}

/// What `baton nixl check` has found, as it says it with `--json`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checked {
    pub library: Option<PathBuf>,
    pub version: Option<String>,
    /// Those that Baton can use, and why NIXL does not have them.
    pub backends: Vec<(String, Option<String>)>,
    pub other_backends: Vec<String>,
    pub ucx_devices: Vec<String>,
    /// Why UCX tells none.
    pub ucx_fault: Option<String>,
    pub trial: Option<Trial>,
    /// Why nothing more is said, or nothing was moved.
    pub fault: Option<String>,
}

/// A WRITE and a READ.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trial {
    pub bytes: u64,
    pub setup_ms: u64,
    pub write_us: u64,
    pub read_us: u64,
}

/// # Errors
/// If NIXL cannot be fetched.
pub fn nixl(command: &NixlCommand) -> Result<ExitCode> {
    let install = NixlInstall::below(&cache_directory()?);
    let trial = match command {
        NixlCommand::Install => {
            if !install.is_there() {
                eprintln!("fetching NIXL into {}", install.directory.display());
            }
            install.fetch()?;
            NixlTrialArgs::default()
        }
        NixlCommand::Check(trial) => trial.clone(),
    };
    let checked = check(&trial);
    match trial.json {
        true => println!("{}", serde_json::to_string(&checked)?),
        false => checked.print(&trial),
    }
    Ok(if checked.fault.is_none() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn check(args: &NixlTrialArgs) -> Checked {
    let inventory = NixlLibrary::load(directory().as_deref()).and_then(Inventory::of);
    let inventory = match inventory {
        Ok(inventory) => inventory,
        Err(error) => return Checked { fault: Some(error.to_string()), ..Checked::default() },
    };
    let (ucx_devices, ucx_fault) = match inventory.ucx_devices {
        Ok(devices) => (devices, None),
        Err(why) => (Vec::new(), Some(why)),
    };
    let config = ServerConfig {
        transport: TransportKind::Nixl,
        nixl: NixlChoice {
            backend: value_name(args.nixl_backend),
            // NIXL's own, whatever engines do here.
            reads: "native".to_owned(),
            params: args.nixl_param.clone(),
            directory: directory(),
            ..NixlChoice::default()
        },
        ..ServerConfig::default()
    };
    let (trial, fault) = match try_transport(&config) {
        Ok(moved) => (Some(moved.into()), None),
        Err(error) => (None, Some(error.to_string())),
    };
    let of_use = |(backend, fault): (NixlBackend, Option<String>)| (backend.to_string(), fault);
    Checked {
        library: Some(inventory.library),
        version: inventory.version,
        backends: inventory.plugins.into_iter().map(|p| of_use((p.backend, p.fault))).collect(),
        other_backends: inventory.others,
        ucx_devices,
        ucx_fault,
        trial,
        fault,
    }
}

impl From<baton_server::Moved> for Trial {
    fn from(moved: baton_server::Moved) -> Self {
        let baton_server::Moved { bytes, setup_ms, write_us, read_us } = moved;
        Self { bytes, setup_ms, write_us, read_us }
    }
}

impl std::fmt::Display for Trial {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { bytes, setup_ms, write_us, read_us } = self;
        let kib = bytes >> 10;
        write!(f, "wrote {kib} KiB in {write_us} us, read them in {read_us} us, set up in {setup_ms} ms")
    }
}

impl Checked {
    fn print(&self, args: &NixlTrialArgs) {
        if let Some(library) = &self.library {
            let version = self.version.as_deref().unwrap_or("of an unknown version");
            println!("NIXL {version}, {}", library.display());
        }
        for (backend, fault) in &self.backends {
            println!("{backend}: {}", fault.as_deref().unwrap_or("there"));
        }
        if !self.ucx_devices.is_empty() {
            println!("ucx would use {}", self.ucx_devices.join(", "));
        }
        if let Some(trial) = &self.trial {
            println!("{}: {trial}", value_name(args.nixl_backend));
        }
        if let Some(fault) = &self.fault {
            eprintln!("baton: {fault}");
        }
    }
}
