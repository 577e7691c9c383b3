//! A place where an engine process lives, dies and lives again, and the process itself.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use baton_engine::{Config, EngineCore, OnLostKv, StepResult};
use baton_model::{EmulatedRunner, KvMemory};
use baton_proto::{Compat, PeerAddress};
use baton_types::{
    BlockHash, EngineId, EngineInfo, EngineLoad, EngineName, EngineRole, HeapRegion, Mutation, PoolShape,
    SeqId, SideChannel, Time, TokenId,
};

use crate::client::{MODEL, MODEL_NAME};
use crate::depth::{Depth, Runner};
use crate::front::Line;
use crate::scenario::{EngineSpec, ProtoTiming};
use crate::stranger::COMPAT;

const PORT: u16 = 5600;

/// One life of the process at a node: what was meant for another life never reaches it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Life {
    pub node: usize,
    pub number: u64,
}

#[derive(Debug)]
pub(crate) struct Node {
    pub name: String,
    pub spec: EngineSpec,
    /// Lives so far, the present one included.
    pub lives: u64,
    pub process: Option<Process>,
    /// Until then it does and hears nothing.
    pub paused_until: Time,
}

/// One engine process.
#[derive(Debug)]
pub(crate) struct Process {
    pub life: Life,
    pub id: EngineId,
    pub core: EngineCore,
    pub runner: Runner,
    /// Its HTTP edge.
    pub served: BTreeMap<SeqId, ServedLeg>,
    pub next_seq: u64,
    /// The step that the runner computes.
    pub computing: Option<baton_engine::Batch>,
    /// When its core wants to be woken, in true time.
    pub timer: Option<Time>,
    pub draining: bool,
    /// What each hash was submitted by: a prefix hit must come from somebody who may share.
    pub contents: BTreeMap<BlockHash, BTreeSet<SeqId>>,
}

/// The engine's half of a leg.
#[derive(Debug)]
pub(crate) struct ServedLeg {
    pub line: Line,
    pub client: usize,
    /// Whether tokens are sent as they come.
    pub streaming: bool,
    /// A prefill leg's tokens are nobody's to see.
    pub answers: bool,
    pub tokens: Vec<TokenId>,
    /// Nothing that is sent to the router may arrive before this.
    pub arrived: Time,
    /// The router has closed its half.
    pub dropped: bool,
}

impl Node {
    pub fn life(&self) -> Option<Life> {
        self.process.as_ref().map(|process| process.life)
    }

    /// Where peers find it, whatever lives there.
    pub fn side_channel(&self) -> SideChannel {
        SideChannel { host: self.name.clone(), port: PORT }
    }

    /// Starts the next life: another incarnation with an empty memory.
    pub fn start(
        &mut self,
        node: usize,
        incarnation: u64,
        proto: &ProtoTiming,
        depth: Depth,
        mutation: Mutation,
    ) {
        assert!(self.process.is_none(), "one process at a time");
        self.lives += 1;
        let life = Life { node, number: self.lives };
        let name = EngineName::new(self.name.clone()).expect("made by the simulator");
        let id = EngineId::new(name, incarnation);
        let core = EngineCore::new(engine_config(&self.spec, id.clone(), life, proto, mutation));
        let runner = match depth {
            Depth::Bytes => Runner::Emulated(emulated(&self.spec)),
            Depth::Blocks => Runner::Counting,
        };
        self.process = Some(Process {
            life,
            id,
            core,
            runner,
            served: BTreeMap::new(),
            next_seq: 1,
            computing: None,
            timer: None,
            draining: false,
            contents: BTreeMap::new(),
        });
    }

    /// What a probe hears from the process that is asked to be of this role.
    pub fn info(&self, role: EngineRole) -> Option<EngineInfo> {
        let process = self.process.as_ref().filter(|process| !process.draining)?;
        let stats = process.core.stats();
        Some(EngineInfo {
            engine_id: process.id.clone(),
            role,
            model: MODEL_NAME.into(),
            side_channel: self.side_channel(),
            transports: vec!["simulated".into()],
            max_model_len: self.spec.max_model_len as u32,
            block_tokens: self.spec.layout.block_tokens,
            unit_tokens: self.spec.layout.block_tokens / self.spec.block_units,
            // Types are converted.
            kv_dtype: None,
            prefix_cache: None,
            load: EngineLoad {
                running: stats.running as u32,
                waiting: stats.waiting as u32,
                kv_blocks_total: self.spec.num_blocks,
                kv_blocks_free: stats.blocks.free as u32,
            },
        })
    }
}

impl Process {
    pub fn address(&self) -> PeerAddress {
        PeerAddress { engine: self.id.clone(), host: self.id.name.as_str().into(), port: PORT }
    }

    /// The sequence whose answer somebody reads at the other end of this leg.
    pub fn seq_of(&self, line: Line) -> Option<SeqId> {
        let reads = |served: &ServedLeg| served.line == line && !served.dropped;
        self.served.iter().find(|(_, served)| reads(served)).map(|(seq, _)| *seq)
    }

    /// The step's bytes are written, and its tokens read from what the memory holds now.
    ///
    /// # Panics
    /// If the core asked for a step that cannot be computed.
    pub fn compute(&mut self) -> StepResult {
        let batch = self.computing.take().expect("a step was asked for");
        self.runner.run(&batch)
    }
}

/// Where the transport finds a life's memory: opaque to everybody else.
pub(crate) fn metadata(life: Life) -> Vec<u8> {
    [(life.node as u64).to_le_bytes(), life.number.to_le_bytes()].concat()
}

pub(crate) fn read_metadata(bytes: &[u8]) -> Life {
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
    Life { node: word(0) as usize, number: word(8) }
}

fn emulated(spec: &EngineSpec) -> EmulatedRunner {
    let bytes = spec.num_blocks as usize * spec.layout.block_bytes();
    let region = Arc::new(HeapRegion::new(bytes));
    let memory = KvMemory::new(region, spec.layout.clone()).expect("a pool of at least one block");
    EmulatedRunner::new(MODEL, memory).expect("the model fits the layout")
}

fn engine_config(
    spec: &EngineSpec,
    id: EngineId,
    life: Life,
    timing: &ProtoTiming,
    mutation: Mutation,
) -> Config {
    let compat = if spec.compatible { COMPAT } else { Compat([2; 16]) };
    let (layout, block_units) = (&spec.layout, spec.block_units);
    let units = spec.num_blocks * block_units;
    let shape = PoolShape { units, block_units, ranks: layout.ranks, dtype: layout.dtype };
    let mut proto = baton_proto::Config::new(id, compat, metadata(life), shape);
    proto.lease = Duration::from_millis(timing.lease_ms);
    proto.heartbeat = Duration::from_millis(timing.heartbeat_ms);
    proto.retry = Duration::from_millis(timing.retry_ms);
    proto.register_timeout = Duration::from_millis(timing.register_timeout_ms);
    proto.peer_grace = Duration::from_millis(timing.peer_grace_ms);
    proto.dial_attempts = timing.dial_attempts;
    if let Some(retain) = spec.retain {
        proto.retain_ttl = Duration::from_millis(retain.ttl_ms);
        proto.retain_renewable = retain.renewable;
    }
    proto.mutation = mutation;
    if let Some(tables) = timing.tables {
        proto.limits.transfers = tables;
        proto.limits.registrations = tables;
        proto.limits.memories = tables;
        proto.limits.retentions = tables;
    }
    Config {
        max_running: spec.max_running,
        step_tokens: spec.step_tokens,
        max_waiting: spec.max_waiting,
        max_receiving: spec.max_receiving,
        max_inbound_blocks: spec.max_inbound_blocks,
        watermark_blocks: spec.watermark_blocks,
        prefix_cache: spec.prefix_cache,
        max_retained_blocks: spec.retain.map_or(0, |retain| retain.blocks),
        reuse_threshold: spec.reuse_threshold,
        reuse_timeout: Duration::from_millis(spec.reuse_timeout_ms),
        on_lost_kv: if spec.recompute { OnLostKv::Recompute } else { OnLostKv::Fail },
        kv_timeout: Duration::from_millis(spec.kv_timeout_ms),
        model: MODEL.fingerprint(),
        mutation,
        ..Config::new(spec.num_blocks, layout.block_tokens, spec.max_model_len, proto)
    }
}

/// The letter that a node's name begins with.
pub(crate) fn letter(role: EngineRole) -> &'static str {
    match role {
        EngineRole::Prefill => "p",
        EngineRole::Decode => "d",
        EngineRole::Both => "b",
    }
}
