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

    /// Whether a notification to a peer that is gone fails. Of libfabric it was seen to be tried for ever, in the call.
    pub(super) fn can_probe(self) -> bool {
        self == Self::Ucx
    }

    /// How long a thread of NIXL's own sleeps between two looks at the network; none if it shall have no thread.
    pub(super) fn progress_delay(self) -> Option<Duration> {
        match self {
            // It would take a core from whoever copies, and we call it often enough.
            Self::Ucx => None,
            // To load a peer's metadata is to wait for the peer's answer: two that do so at once would wait for each other.
            Self::Libfabric => Some(Duration::from_micros(100)),
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

/// How what we read comes to us.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NixlReads {
    /// Native where this host has an RDMA device or the backend is libfabric, else asked for.
    #[default]
    Auto,
    /// By NIXL's READ. Over UCX's TCP it is an emulation whose *source* aborts if the reader dies in it, and slower than
    /// a WRITE.
    Native,
    /// The peer is asked on the link, and writes.
    Asked,
}

impl NixlReads {
    pub(super) fn are_asked(self, backend: NixlBackend) -> bool {
        match self {
            Self::Native => false,
            Self::Asked => true,
            Self::Auto => backend == NixlBackend::Ucx && !has_rdma_device(),
        }
    }
}

pub(super) fn has_rdma_device() -> bool {
    std::fs::read_dir("/sys/class/infiniband").is_ok_and(|mut devices| devices.next().is_some())
}

impl FromStr for NixlReads {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "auto" => Ok(Self::Auto),
            "native" => Ok(Self::Native),
            "asked" => Ok(Self::Asked),
            other => Err(format!("{other:?} is not auto, native or asked")),
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
    pub reads: NixlReads,
    /// Handed to the backend as they are.
    pub params: Vec<(String, String)>,
    /// Take libfabric's TCP where there is no RDMA device: only to try things out. Its writes are complete before they have arrived, so
    /// that no word of a peer's is a fence (I3).
    pub takes_early_completions: bool,
}

impl Default for NixlConfig {
    fn default() -> Self {
        Self {
            host: "127.0.0.1".to_owned(),
            port: 0,
            advertised_host: None,
            backend: NixlBackend::default(),
            reads: NixlReads::default(),
            params: Vec::new(),
            takes_early_completions: false,
        }
    }
}

/// A link is kept through any silence, for its end must mean the peer's: it ends by itself after 24 days without a
/// word from the other host.
pub(super) const PATIENCE: Duration = Duration::from_millis(i32::MAX as u64);
