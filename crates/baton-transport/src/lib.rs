//! Bytes between registered memories: within a process, between processes of a host.

pub mod transport;

pub use transport::{
    Descriptor, Direction, Event, ListId, MAX_NOTIFICATION, Post, PostId, Transport, TransportError, Waker,
};
