//! What an operator chooses about `tcp`.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use super::frame::MAX_LANES;
use crate::peer_tls::PeerTls;
use crate::resolve::{host_to_dial, listening_address};

#[derive(Clone, Debug)]
pub struct TcpConfig {
    /// Where connections for data are taken: a name or an address of this host, `0.0.0.0` for every IPv4
    /// address, `::` for every address.
    pub host: String,
    /// 0 lets the system choose.
    pub port: u16,
    /// What peers dial, where that is not `host`: behind an unspecified address, or an address translation.
    pub advertised_host: Option<String>,
    /// Connections that we make to a peer, for what we post: 1 to 16. The peer makes as many as it likes for what
    /// it posts.
    pub lanes: u8,
    /// Whether the bytes that we post carry a CRC32C, both ways. TCP's own check misses one damaged segment in
    /// some ten thousand.
    pub crc: bool,
    /// TLS on every connection; peers must have it as well. Without it whoever can read the network can read KV,
    /// and whoever can change what is on it can change KV.
    pub tls: Option<PeerTls>,
    /// How long a peer may take no byte, send none of what it owes, or not answer a keepalive, until its path is
    /// cut.
    pub stall: Duration,
}

impl Default for TcpConfig {
    fn default() -> Self {
        Self {
            host: "127.0.0.1".to_owned(),
            port: 0,
            advertised_host: None,
            lanes: 2,
            crc: false,
            tls: None,
            stall: Duration::from_secs(30),
        }
    }
}

impl TcpConfig {
    /// The address to listen at. Asks the system's resolver, which may take a while.
    pub(super) fn address(&self) -> io::Result<SocketAddr> {
        if self.lanes == 0 || self.lanes > MAX_LANES {
            let why = format!("a path has 1 to {MAX_LANES} connections, not {}", self.lanes);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        listening_address(&self.host, self.port)
    }

    /// What peers are told to dial.
    pub(super) fn advertised_host(&self, bound: SocketAddr) -> io::Result<String> {
        host_to_dial(&self.host, self.advertised_host.as_deref(), bound)
    }
}
