//! What an endpoint is told when it is made. Every table is bounded here (I11).

use std::time::Duration;

use baton_types::{EngineId, Mutation, PoolShape};

use crate::message::Compat;

#[derive(Clone, Debug)]
pub struct Config {
    pub engine: EngineId,
    pub compat: Compat,
    /// How peers reach this engine's pool; opaque, from the transport.
    pub metadata: Vec<u8>,
    /// How units lie in this engine's pool.
    pub shape: PoolShape,
    /// How long a peer's right lasts without a sign of life.
    pub lease: Duration,
    /// How often the active side gives one. Well below a third of the lease.
    pub heartbeat: Duration,
    /// How long to wait for an answer before asking again.
    pub retry: Duration,
    /// How long a destination waits, in all, for a source that does not know of the transfer yet.
    pub register_timeout: Duration,
    /// How long what an engine retains can be claimed. Never longer, whoever reads meanwhile, unless `retain_renewable`: then each claim
    /// starts the time anew.
    pub retain_ttl: Duration,
    pub retain_renewable: bool,
    /// How long a dropped connection may take to come back before the peer counts as lost.
    pub peer_grace: Duration,
    /// Dials of one address before the peer counts as lost.
    pub dial_attempts: u32,
    pub limits: Limits,
    pub mutation: Mutation,
}

/// Sizes of tables; at the limit new entries are refused, and what exists goes on.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub transfers: usize,
    pub peers: usize,
    pub connections: usize,
    /// Registrations and early claims for which no prefill leg has come yet.
    pub registrations: usize,
    /// Ended transfers that are remembered, so that late words about them are understood.
    pub memories: usize,
    /// Conversations that are retained; beyond it the one that ends first gives way.
    pub retentions: usize,
    /// Units of one transfer.
    pub units: usize,
}

impl Config {
    /// Defaults of a production engine: a lease of 30 s and a retention of 480 s as vLLM's, heartbeats every 5 s.
    pub fn new(engine: EngineId, compat: Compat, metadata: Vec<u8>, shape: PoolShape) -> Self {
        Self {
            engine,
            compat,
            metadata,
            shape,
            lease: Duration::from_secs(30),
            heartbeat: Duration::from_secs(5),
            retry: Duration::from_secs(1),
            register_timeout: Duration::from_secs(120),
            retain_ttl: Duration::from_secs(480),
            retain_renewable: false,
            peer_grace: Duration::from_secs(5),
            dial_attempts: 3,
            limits: Limits::default(),
            mutation: Mutation::NONE,
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            transfers: 4096,
            peers: 4096,
            connections: 8192,
            registrations: 4096,
            memories: 16384,
            retentions: 4096,
            units: 65536,
        }
    }
}
