//! What an operator may choose about the transport `nixl`.

use std::path::PathBuf;

use baton_transport::nixl::{NixlBackend, NixlConfig, NixlError, NixlLibrary, NixlReads, NixlTransport};
use baton_transport::{TransportError, TransportLimits};
use baton_types::EngineId;
use serde::{Deserialize, Serialize};

use crate::config::SideChannelConfig;

/// How the transport `nixl` works. Its links are taken on the side channel's host, and peers dial the side channel's
/// advertised host; which network KV takes is NIXL's choice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NixlChoice {
    /// Of the links; 0 lets the system choose.
    pub port: u16,
    /// `ucx` or `libfabric`; the same on every engine of a system.
    pub backend: String,
    /// `auto`, `native` or `asked`: see [`NixlReads`].
    pub reads: String,
    /// Handed to the backend.
    pub params: Vec<(String, String)>,
    /// Where NIXL may have been installed, besides `NIXL_PREFIX` and the system's library directories.
    pub directory: Option<PathBuf>,
}

impl Default for NixlChoice {
    fn default() -> Self {
        Self {
            port: 0,
            backend: NixlBackend::Ucx.to_string(),
            reads: "auto".to_owned(),
            params: Vec::new(),
            directory: None,
        }
    }
}

impl NixlChoice {
    fn backend(&self) -> Result<NixlBackend, String> {
        self.backend.parse().map_err(|error| format!("nixl.backend: {error}"))
    }

    fn reads(&self) -> Result<NixlReads, String> {
        self.reads.parse().map_err(|error| format!("nixl.reads: {error}"))
    }

    /// # Errors
    /// If there is no such backend, or no such reads.
    pub(crate) fn validate(&self) -> Result<(), String> {
        self.backend()?;
        self.reads()?;
        Ok(())
    }

    /// NIXL itself, which is not a part of this program.
    pub(crate) fn library(&self) -> Result<&'static NixlLibrary, NixlError> {
        NixlLibrary::load(self.directory.as_deref())
    }

    pub(crate) fn open(
        &self,
        side: &SideChannelConfig,
        engine: EngineId,
        limits: TransportLimits,
    ) -> Result<NixlTransport, TransportError> {
        let config = NixlConfig {
            host: side.host.clone(),
            port: self.port,
            advertised_host: side.advertised_host.clone(),
            backend: self.backend().map_err(TransportError::Io)?,
            reads: self.reads().map_err(TransportError::Io)?,
            params: self.params.clone(),
            ..NixlConfig::default()
        };
        let opened = self.library().and_then(|library| NixlTransport::new(engine, limits, config, library));
        opened.map_err(|error| TransportError::Io(error.to_string()))
    }
}
