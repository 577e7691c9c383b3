//! `nixl`: engines of any two hosts, over NIXL: InfiniBand, RoCE, EFA, TCP, or shared memory within a host.
//!
//! NIXL is a library of NVIDIA's, loaded at run time ([`NixlLibrary`]). The region is registered with it once;
//! [`Transport::metadata`] carries what NIXL needs to reach it, and where this agent takes *links*. To reach a peer
//! an agent makes one, on which nothing but a few words are said (module `word`): that each side has added the other,
//! that bytes are moving, how many notifications were heard, and that nothing is in flight any more. KV and
//! notifications go through NIXL.
//!
//! Posts are cut into slices of at most 512 KiB and 256 runs, neighbours merged, because where NIXL copies it does
//! so in the call that starts a transfer. Up to 32 of them are in flight to a peer, so that a real network is kept
//! busy. With UCX NIXL has no thread of its own here: it makes progress when the transport is polled, every 50 microseconds
//! while bytes move in either direction, and every 10 milliseconds while none do.
//!
//! # The fence
//! NIXL has none that can be relied on. To forget a peer (`invalidateRemoteMD`) stops neither its writes by CMA,
//! which its own process makes, nor those over TCP, which our library goes on receiving: both were tried. To
//! deregister the region would end every peer's path, and a registration may stay in a cache. So
//! [`Event::PeerLost`] waits for one of two things:
//! - the peer's Bye, which it says when its last transfer is over, whatever came of it;
//! - the end of the peer's process or agent, which ends its link without Bye: a process keeps a link as long as any
//!   of its threads runs, and writes of CMA are made by such a thread. What a dead peer had sent over TCP may still
//!   be on its way: our library takes it in until it finds the end of the connection, and then refuses to notify
//!   the peer. Only then is it lost. (Over libfabric the end of the link counts alone: there a notification to a peer that is
//!   gone may be tried for ever.)
//!
//! A peer that is stopped, or cannot be reached, is not lost until it is heard of again.
//!
//! # Reads
//! Where NIXL's own are not good ([`NixlReads`]) a slice of a read is an Ask on the link, which the peer serves by a write
//! into our memory. Such a slice is in flight until the peer says that it is written, says Bye, or has died and its
//! bytes are taken in.
//!
//! # Ranks
//! All ranks of an engine here are in one process and one region, so one agent serves them all (docs/protocol.md says what
//! that changes). Engines whose ranks are processes of their own would need an agent for each.
//!
//! # Lists
//! Prepared lists are ours and not NIXL's: what a slice moves are runs of merged neighbours, cut anywhere, and those are no
//! entries of a list. Preparing would save 1 to 2 % of a slice (docs/protocol.md).
//!
//! # Trust
//! Whoever can reach the backend's port or network and was told our metadata can read and write the region: NIXL
//! asks for nothing more, encrypts nothing, and knows no permits. The network must be the operator's own.

mod agent;
mod config;
mod door;
mod drain;
mod install;
mod inventory;
mod library;
mod link;
mod metadata;
mod peer;
mod postings;
mod serving;
mod ucx;
mod word;

use std::collections::BTreeMap;
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use baton_types::{EngineId, MemoryRegion};
use rustix::event::{EventfdFlags, eventfd};

use self::agent::Agent;
pub use self::config::{NixlBackend, NixlConfig, NixlReads};
use self::config::{PATIENCE, has_rdma_device};
use self::door::Door;
pub use self::install::NixlInstall;
pub use self::inventory::{Inventory, Plugin};
pub use self::library::{NIXL_VERSION, NixlError, NixlLibrary};
use self::metadata::Metadata;
use self::peer::Peer;
use crate::lists::{ListIds, Lists};
use crate::permits::Permits;
use crate::poller::{Poller, Ready};
use crate::resolve::{Resolver, host_to_dial, listening_address};
use crate::token::{Us, random_bytes};
use crate::transport::{Descriptor, Event, ListId, Post, Transport, TransportError, TransportLimits, Waker};

/// An agent of the transport `nixl`.
pub struct NixlTransport {
    us: Us,
    limits: TransportLimits,
    config: NixlConfig,
    host: String,
    door: Door,
    poller: Poller,
    resolver: Resolver,
    alarm: Arc<OwnedFd>,
    /// Goes before the region that it has registered.
    agent: Agent,
    region: Option<Arc<dyn MemoryRegion>>,
    /// NIXL's, of us.
    agent_metadata: Vec<u8>,
    permits: Permits,
    lists: Lists,
    list_ids: ListIds,
    peers: BTreeMap<EngineId, Peer>,
    /// From calls between two polls.
    pending: Vec<Event>,
    /// What woke us, if the next poll is to act on it.
    ready: Vec<Ready>,
}

/// Between two polls while bytes move: NIXL makes no progress in between.
const BUSY_SLEEP: Duration = Duration::from_micros(50);
/// Between two polls while none do.
const IDLE_SLEEP: Duration = Duration::from_millis(10);
/// How long the end of an agent waits for transfers of its own.
const LAST_WAIT: Duration = Duration::from_millis(200);

impl NixlTransport {
    /// Listens at once. Takes half a second, in which NIXL looks for networks.
    ///
    /// # Errors
    /// If it cannot listen there, or peers could not be told where it does, or NIXL cannot use the backend.
    pub fn new(
        id: EngineId,
        limits: TransportLimits,
        config: NixlConfig,
        library: &'static NixlLibrary,
    ) -> Result<Self, NixlError> {
        let is_tcp = config.backend == NixlBackend::Libfabric && !has_rdma_device();
        if is_tcp && !config.takes_early_completions {
            return Err(NixlError::EarlyCompletions);
        }
        let io = |error: std::io::Error| NixlError::Io(error.to_string());
        let us = Us { id, token: random_bytes().map_err(io)? };
        let address = listening_address(&config.host, config.port).map_err(io)?;
        let door = Door::new(address, limits.peers, limits.handshake).map_err(io)?;
        let host = host_to_dial(&config.host, config.advertised_host.as_deref(), door.address).map_err(io)?;
        let alarm = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let alarm = Arc::new(alarm.map_err(|error| io(error.into()))?);
        let poller = Poller::new(&door.listener, &alarm, PATIENCE).map_err(|error| io(error.into()))?;
        // No other agent has it, be it of the same engine.
        let number = u64::from_le_bytes(*random_bytes().map_err(io)?.first_chunk().expect("16 bytes"));
        let agent = Agent::new(library, &format!("{}#{number:016x}", us.id), config.backend, &config.params)?;
        Ok(Self {
            us,
            host,
            door,
            poller,
            resolver: Resolver::new(waker_of(&alarm)),
            alarm,
            agent,
            region: None,
            agent_metadata: Vec::new(),
            permits: Permits::new(&TransportLimits { enforce_permits: false, ..limits.clone() }),
            lists: Lists::new(0, &limits),
            list_ids: ListIds::default(),
            peers: BTreeMap::new(),
            pending: Vec::new(),
            ready: Vec::new(),
            limits,
            config,
        })
    }

    /// Lets a peer in whose link waits at the door.
    fn admit(&mut self, from: &EngineId) {
        let Some(peer) = self.peers.get_mut(from) else { return };
        if peer.awaits_incoming()
            && let Some((hello, link)) = self.door.take(from)
        {
            peer.admit(&self.us, &hello, link);
        }
    }

    fn hear_links(&mut self, now: Instant) {
        if self.ready.is_empty() {
            self.poller.ready(Duration::ZERO, &mut self.ready);
        }
        for ready in std::mem::take(&mut self.ready) {
            match ready {
                Ready::Listener => self.door.accept(&mut self.poller, now),
                // Heard in `wait`, so that an alarm rung since then ends the next sleep.
                Ready::Waker => {}
                Ready::Socket { key, .. } => {
                    if !self.peers.values_mut().any(|peer| peer.wake(key))
                        && let Some(from) = self.door.read(key, &self.us)
                    {
                        self.admit(&from);
                    }
                }
            }
        }
    }

    fn hear_resolver(&mut self, events: &mut Vec<Event>) {
        for (path, addresses) in self.resolver.answers() {
            let Some(peer) = self.peers.values_mut().find(|peer| peer.path == path) else { continue };
            if !peer.is_leaving()
                && let Err(error) = peer.dial(&self.us, addresses, &mut self.poller)
            {
                peer.leave(error, events);
            }
        }
    }

    /// Lets NIXL make progress, and takes what it has heard.
    fn hear_agent(&mut self, events: &mut Vec<Event>) {
        let peers = &mut self.peers;
        self.agent.hear(|agent, bytes| {
            if let Some(peer) = peers.values_mut().find(|peer| peer.name() == agent) {
                peer.notified(bytes, events);
            }
        });
    }
}

fn waker_of(alarm: &Arc<OwnedFd>) -> Waker {
    let alarm = alarm.clone();
    Waker::new(move || {
        // It fails only when it has been rung 2^64 times without being heard.
        let _ = rustix::io::write(&*alarm, &1u64.to_ne_bytes());
    })
}

impl From<NixlError> for TransportError {
    fn from(error: NixlError) -> Self {
        Self::Io(error.to_string())
    }
}

impl Transport for NixlTransport {
    fn name(&self) -> &'static str {
        "nixl"
    }

    fn register(&mut self, region: Arc<dyn MemoryRegion>) -> Result<(), TransportError> {
        if self.region.is_some() {
            return Err(TransportError::BadRegion("there is one already"));
        }
        self.agent.register(region.base(), region.len())?;
        self.lists = Lists::new(region.len() as u64, &self.limits);
        self.region = Some(region);
        self.agent_metadata = self.agent.metadata()?;
        Ok(())
    }

    fn metadata(&self) -> Vec<u8> {
        let (region_base, region_bytes) = self
            .region
            .as_ref()
            .map_or((0, 0), |region| (region.base().as_ptr() as u64, region.len() as u64));
        let metadata = Metadata {
            token: self.us.token,
            region_base,
            region_bytes,
            port: self.door.address.port(),
            host: self.host.clone(),
            backend: self.config.backend.plugin().to_owned(),
            agent: self.agent_metadata.clone(),
        };
        metadata.encode()
    }

    /// Takes some ten milliseconds, in which nothing else is moved.
    fn add_peer(&mut self, peer: &EngineId, metadata: &[u8]) -> Result<(), TransportError> {
        let bad = |why: &str| TransportError::BadMetadata(why.to_owned());
        let metadata = Metadata::decode(metadata).map_err(bad)?;
        if self.region.is_none() {
            return Err(TransportError::BadRegion("none is registered"));
        }
        if *peer == self.us.id || metadata.token == self.us.token {
            return Err(bad("it is our own"));
        }
        if metadata.backend != self.config.backend.plugin() {
            return Err(TransportError::BadMetadata(format!("it has the backend {}", metadata.backend)));
        }
        if let Some(known) = self.peers.get(peer) {
            return match () {
                () if known.is_leaving() => Err(known.gone()),
                () if known.metadata == metadata => Ok(()),
                () => Err(bad("the peer is known by another")),
            };
        }
        if self.peers.len() >= self.limits.peers {
            return Err(TransportError::Limit("peers"));
        }
        let random = random_bytes().map_err(|error| TransportError::Io(error.to_string()))?;
        let path = u64::from_le_bytes(*random.first_chunk().expect("16 bytes"));
        let (host, port) = (metadata.host.clone(), metadata.port);
        let mut known = Peer::new(peer, metadata, path, &self.limits, &self.config);
        match Resolver::address(&host, port) {
            Some(address) => known.dial(&self.us, vec![address], &mut self.poller)?,
            None => self.resolver.ask(path, &host, port)?,
        }
        if let Err(error) = known.load(&self.agent) {
            known.bid_farewell(&self.agent);
            return Err(bad(&error.to_string()));
        }
        self.peers.insert(peer.clone(), known);
        self.admit(peer);
        Ok(())
    }

    fn remove_peer(&mut self, peer: &EngineId) {
        if let Some(known) = self.peers.get_mut(peer) {
            known.leave(known.gone(), &mut self.pending);
            // If it waits at the door, it need not wait until its patience ends.
            drop(self.door.take(peer));
        }
    }

    fn prepare_local(&mut self, descriptors: &[Descriptor]) -> Result<ListId, TransportError> {
        self.lists.prepare(self.list_ids.next()?, descriptors)
    }

    fn prepare_remote(
        &mut self,
        peer: &EngineId,
        descriptors: &[Descriptor],
    ) -> Result<ListId, TransportError> {
        let known = self.peers.get_mut(peer).ok_or_else(|| TransportError::UnknownPeer(peer.clone()))?;
        known.lists.prepare(self.list_ids.next()?, descriptors)
    }

    fn post(&mut self, post: Post) -> Result<(), TransportError> {
        match self.peers.get_mut(&post.peer) {
            None => Err(TransportError::UnknownPeer(post.peer)),
            Some(peer) if peer.is_leaving() => Err(peer.gone()),
            Some(peer) => peer.postings.push(post, &self.lists, &peer.lists),
        }
    }

    fn poll(&mut self, events: &mut Vec<Event>) -> bool {
        let now = Instant::now();
        events.append(&mut self.pending);
        self.hear_links(now);
        self.hear_resolver(events);
        self.door.expire(&self.poller, now);
        if !self.peers.is_empty() {
            self.hear_agent(events);
        }
        let region = self.region.as_ref();
        let region = region.map_or((0, 0), |region| (region.base().as_ptr() as usize, region.len() as u64));
        for peer in self.peers.values_mut() {
            peer.poll(&self.us, &self.agent, region, &mut self.poller, now, events);
        }
        self.peers.retain(|id, peer| {
            if peer.is_lost() {
                self.agent.forget_peer(peer.name());
                events.push(Event::PeerLost(id.clone()));
            }
            !peer.is_lost()
        });
        self.peers.values().any(Peer::has_work)
    }

    fn wait(&mut self, timeout: Duration) {
        if !self.pending.is_empty() || self.peers.values().any(|peer| peer.is_lost() || peer.has_work()) {
            return;
        }
        let now = Instant::now();
        let deadline = self.peers.values().filter_map(Peer::deadline).chain(self.door.deadline()).min();
        let left = deadline.map(|deadline| deadline.saturating_duration_since(now));
        let progress = match () {
            () if self.peers.values().any(Peer::needs_progress) => Some(BUSY_SLEEP),
            () if !self.peers.is_empty() => Some(IDLE_SLEEP),
            () => None,
        };
        let timeout = left.into_iter().chain(progress).fold(timeout, Duration::min);
        self.poller.ready(timeout, &mut self.ready);
        if self.ready.contains(&Ready::Waker) {
            let _ = rustix::io::read(&*self.alarm, &mut [0; 8]);
        }
    }

    fn waker(&self) -> Waker {
        waker_of(&self.alarm)
    }

    /// Never enforced: see the module's text.
    fn permits(&self) -> &Permits {
        &self.permits
    }
}

impl Drop for NixlTransport {
    fn drop(&mut self) {
        let until = Instant::now() + LAST_WAIT;
        loop {
            self.peers.values_mut().for_each(|peer| peer.bid_farewell(&self.agent));
            if self.peers.values().all(Peer::is_settled) || Instant::now() >= until {
                break;
            }
            self.agent.hear(|_, _| {});
            std::thread::sleep(BUSY_SLEEP);
        }
        if self.peers.values().any(Peer::has_our_memory) {
            // A peer's process may be writing into it, and is told only now: what is here must not become
            // somebody else's memory.
            std::mem::forget(self.region.take());
        }
    }
}

impl fmt::Debug for NixlTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NixlTransport({}, {} peers)", self.us.id, self.peers.len())
    }
}
