//! What an operator chooses about `nixl`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// What NIXL moves bytes with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NixlBackend {
    /// UCX: InfiniBand, RoCE, TCP, and shared memory within a host.
    #[default]
    Ucx,
    /// libfabric: EFA of AWS, among others.
    Libfabric,
}

impl NixlBackend {
    /// The name of NIXL's plugin.
    pub(super) fn plugin(self) -> &'static str {
        match self {
            Self::Ucx => "UCX",
            Self::Libfabric => "LIBFABRIC",
        }
    }
}

impl fmt::Display for NixlBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ucx => "ucx",
            Self::Libfabric => "libfabric",
        })
    }
}

impl FromStr for NixlBackend {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "ucx" => Ok(Self::Ucx),
            "libfabric" => Ok(Self::Libfabric),
            other => Err(format!("{other:?} is no backend: ucx or libfabric")),
        }
    }
}

#[derive(Clone, Debug)]
pub struct NixlConfig {
    /// Where links are taken, on which no KV moves: a name or an address of this host, `0.0.0.0` for every IPv4
    /// address, `::` for every address. Which network KV takes is the backend's choice.
    pub host: String,
    /// 0 lets the system choose.
    pub port: u16,
    /// What peers dial, where that is not `host`: behind an unspecified address, or an address translation.
    pub advertised_host: Option<String>,
    /// Peers must have the same.
    pub backend: NixlBackend,
    /// Handed to the backend as they are.
    pub params: Vec<(String, String)>,
}

impl Default for NixlConfig {
    fn default() -> Self {
        Self {
            host: "127.0.0.1".to_owned(),
            port: 0,
            advertised_host: None,
            backend: NixlBackend::default(),
            params: Vec::new(),
        }
    }
}

/// A link is kept through any silence, for its end must mean the peer's: it ends by itself after 24 days without a
/// word from the other host.
pub(super) const PATIENCE: Duration = Duration::from_millis(i32::MAX as u64);
