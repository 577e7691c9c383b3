//! What the protocol says to the transport, and what the transport says back.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use baton_proto::{Input, Output};
use baton_transport::trial::{self, Moved};
use baton_transport::{
    Access, Direction, Event, KvPool, KvPost, MemoryHub, MemoryTransport, PeerTls, PermitId, PostId,
    ShmTransport, TcpConfig, TcpTransport, TransferHandle, TransferThread, Transport, TransportError,
    TransportLimits,
};
use baton_types::{EngineId, HeapRegion, MemoryRegion, TransferId, UnitId};

use crate::config::{ServerConfig, TransportKind};
use crate::inbox::Inbox;

/// Engines in one process that hand KV to one another over `memory` meet here.
static HUB: LazyLock<Arc<MemoryHub>> = LazyLock::new(MemoryHub::new);

/// Memory of the kind that `kind` can move bytes from and into, `bytes` long and zeroed.
///
/// # Errors
/// If the operating system gives no such memory.
pub(crate) fn region(kind: TransportKind, bytes: usize) -> Result<Arc<dyn MemoryRegion>, TransportError> {
    Ok(match kind {
        TransportKind::Memory => Arc::new(HeapRegion::new(bytes)),
        // Its pages are there before the first step, whoever maps it.
        TransportKind::Shm | TransportKind::Tcp | TransportKind::Nixl => Arc::new(
            baton_transport::ShmRegion::populated(bytes)
                .map_err(|error| TransportError::Io(error.to_string()))?,
        ),
    })
}

/// The configured transport, with `region` registered; `tls` is for those that use a network.
///
/// # Errors
/// If the transport cannot be had on this machine, or not over this region.
pub(crate) fn open(
    config: &ServerConfig,
    engine: EngineId,
    region: Arc<dyn MemoryRegion>,
    tls: Option<PeerTls>,
) -> Result<Box<dyn Transport>, TransportError> {
    let limits = TransportLimits { enforce_permits: true, ..TransportLimits::default() };
    let mut transport = agent(config, engine, limits, tls)?;
    transport.register(region)?;
    Ok(transport)
}

/// Moves a few bytes there and back over the configured transport, between two agents of this process.
///
/// # Errors
/// If the transport cannot be had on this machine, or does not move them.
pub fn try_transport(config: &ServerConfig) -> Result<Moved, TransportError> {
    trial::move_bytes(|engine| agent(config, engine, TransportLimits::default(), None))
}

fn agent(
    config: &ServerConfig,
    engine: EngineId,
    limits: TransportLimits,
    tls: Option<PeerTls>,
) -> Result<Box<dyn Transport>, TransportError> {
    let io = |error: io::Error| TransportError::Io(error.to_string());
    Ok(match config.transport {
        TransportKind::Memory => Box::new(MemoryTransport::new(engine, HUB.clone(), limits)),
        TransportKind::Shm => Box::new(ShmTransport::new(engine, limits).map_err(io)?),
        TransportKind::Tcp => {
            let (side, tcp) = (&config.side_channel, &config.tcp);
            let config = TcpConfig {
                host: side.host.clone(),
                port: tcp.port,
                advertised_host: side.advertised_host.clone(),
                lanes: tcp.lanes,
                crc: tcp.crc,
                tls,
                ..TcpConfig::default()
            };
            Box::new(TcpTransport::new(engine, limits, config).map_err(io)?)
        }
        TransportKind::Nixl => Box::new(config.nixl.open(&config.side_channel, engine, limits)?),
    })
}

/// How long the engine's loop waits for a post, where it waits at all. The transfer thread may itself wait for a place in the
/// loop's inbox, so there has to be an end.
const POSTING_LIMIT: Duration = Duration::from_secs(1);

/// Who sets up what is read from peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Posting {
    InBackground,
    /// The engine's loop, before its next step, as engines do whose scheduler posts: a baseline to measure. It waits while the
    /// transfer thread posts, so what is measured is the waiting, on the same code.
    InLoop,
}

/// The engine thread's hold on the transfer thread. No call waits, but for [`Posting::InLoop`].
#[derive(Debug)]
pub(crate) struct TransferLink {
    thread: TransferHandle,
    /// Paths whose removal did not find a place among the thread's commands. Nothing else may stand for it:
    /// the fence has to come from the transport (I3).
    removals: VecDeque<EngineId>,
    posting: Posting,
    /// Reads to be posted before the next step.
    reads: Vec<(baton_proto::PostId, KvPost)>,
    /// What each transfer's peer may do, in as many parts as it was said in.
    permits: BTreeMap<(EngineId, TransferId), Vec<PermitId>>,
    next_permit: u64,
}

impl TransferLink {
    /// Starts the transfer thread; what it reports goes to `inbox`.
    ///
    /// # Errors
    /// If the transport does not take the pool.
    pub fn spawn(
        transport: Box<dyn Transport>,
        pool: KvPool,
        inbox: Inbox,
        posting: Posting,
    ) -> Result<Self, TransportError> {
        let sink = move |event| inbox.send_blocking(baton_engine::Input::Proto(input_of(event)));
        Ok(Self {
            thread: TransferThread::spawn(transport, pool, sink)?,
            removals: VecDeque::new(),
            posting,
            reads: Vec::new(),
            permits: BTreeMap::new(),
            next_permit: 0,
        })
    }

    /// Does what the protocol wants of the transport; gives the answer where it is known at once.
    ///
    /// # Panics
    /// If the transfer thread has died: blocks that peers may write into are nobody's then.
    pub fn obey(&mut self, output: Output) -> Option<Input> {
        match output {
            Output::AddPath { engine, metadata, shape } => {
                let refused = full(self.thread.add_peer(engine.clone(), metadata, shape));
                refused.then_some(Input::PathRefused { engine })
            }
            Output::RemovePath { engine } => {
                self.removals.push_back(engine);
                self.retry_removals();
                None
            }
            Output::Permit { engine, transfer, direction, units } => {
                self.permit(engine, transfer, direction, &units);
                None
            }
            Output::Forbid { engine, transfer } => {
                for id in self.permits.remove(&(engine.clone(), transfer)).unwrap_or_default() {
                    self.thread.forbid(&engine, id);
                }
                None
            }
            Output::Post { post, engine, direction, ranks, pairs, notify } => {
                let kv_post = KvPost {
                    id: PostId(post.0),
                    direction: match direction {
                        baton_proto::Direction::Read => Direction::Read,
                        baton_proto::Direction::Write => Direction::Write,
                    },
                    peer: engine,
                    ranks: (ranks.ours, ranks.theirs),
                    pairs,
                    notify,
                };
                if (self.posting, kv_post.direction) == (Posting::InLoop, Direction::Read) {
                    self.reads.push((post, kv_post));
                    return None;
                }
                full(self.thread.post(kv_post)).then_some(Input::Moved { post, ok: false })
            }
            other => unreachable!("not for the transport: {other:?}"),
        }
    }

    /// Posts the reads that wait for the loop, and waits until they are posted; gives those that found no place.
    ///
    /// # Panics
    /// As [`TransferLink::obey`].
    pub fn post_reads(&mut self) -> Vec<Input> {
        let posted = self.reads.drain(..).filter_map(|(post, kv_post)| {
            let refused = full(self.thread.post_and_wait(kv_post, POSTING_LIMIT));
            refused.then_some(Input::Moved { post, ok: false })
        });
        posted.collect()
    }

    fn permit(
        &mut self,
        engine: EngineId,
        transfer: TransferId,
        direction: baton_proto::Direction,
        units: &[UnitId],
    ) {
        let id = PermitId(self.next_permit);
        self.next_permit += 1;
        let access = match direction {
            baton_proto::Direction::Read => Access::Read,
            baton_proto::Direction::Write => Access::Write,
        };
        match self.thread.permit(&engine, id, access, units) {
            Ok(()) => self.permits.entry((engine, transfer)).or_default().push(id),
            // The peer's posts fail, and the transfer with them.
            Err(error) => tracing::warn!(%engine, %transfer, %error, "a peer cannot be given its permit"),
        }
    }

    /// Tries again what found no place; true if something still waits.
    pub fn retry_removals(&mut self) -> bool {
        while let Some(engine) = self.removals.front() {
            if full(self.thread.remove_peer(engine.clone())) {
                return true;
            }
            self.removals.pop_front();
        }
        false
    }
}

/// Whether a command found no place.
fn full(taken: Result<(), TransportError>) -> bool {
    match taken {
        Ok(()) => false,
        Err(TransportError::Limit(_)) => true,
        Err(error) => panic!("the transfer thread takes no commands any more: {error}"),
    }
}

fn input_of(event: Event) -> Input {
    match event {
        Event::Done(post) => Input::Moved { post: baton_proto::PostId(post.0), ok: true },
        Event::Failed(post, error) => {
            tracing::warn!(post = post.0, %error, "KV could not be moved");
            Input::Moved { post: baton_proto::PostId(post.0), ok: false }
        }
        Event::Notified { peer, bytes } => Input::Notified { engine: peer, bytes },
        Event::PeerLost(engine) => {
            tracing::info!(%engine, "the path to a peer is torn down");
            Input::PathLost { engine }
        }
        Event::PeerRefused(engine, error) => {
            tracing::warn!(%engine, %error, "no path to a peer");
            Input::PathRefused { engine }
        }
    }
}
