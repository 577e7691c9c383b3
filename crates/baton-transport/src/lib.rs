//! Bytes between registered memories: within a process ([`memory`]), between processes of a host ([`shm`]), between
//! any two hosts ([`tcp`], and [`nixl`] for networks that NIXL knows).
//!
//! A [`Transport`] is owned by one thread; [`TransferThread`] is that thread for whoever moves KV blocks.

pub mod convert;
mod copy;
pub mod kv_pool;
mod lists;
pub mod memory;
pub mod nixl;
pub mod peer_tls;
pub mod permits;
mod poller;
mod posts;
mod reader;
mod resolve;
pub mod shm;
pub mod tcp;
mod token;
pub mod transfer_thread;
pub mod transport;
pub mod trial;

pub use convert::Conversion;
pub use kv_pool::{KvPool, KvPost};
pub use memory::{MemoryHub, MemoryTransport};
pub use nixl::{NixlBackend, NixlConfig, NixlInstall, NixlLibrary, NixlReads, NixlTransport};
pub use peer_tls::{PeerTls, PeerTlsError, PeerTlsFiles};
pub use permits::{Access, PermitId, Permits};
pub use shm::{ShmRegion, ShmTransport};
pub use tcp::{TcpConfig, TcpTransport};
pub use transfer_thread::{TransferHandle, TransferThread};
pub use transport::{
    Descriptor, Direction, Event, ListId, MAX_NOTIFICATION, MAX_PAIRS, Post, PostId, Transport,
    TransportError, TransportLimits, Waker,
};
