//! `tcp`: engines of any two hosts.
//!
//! Each agent listens, and [`Transport::metadata`] says where, with a random token that shows that whoever
//! connects was told by the agent. To reach a peer an agent makes several connections, *lanes*, which carry what
//! it posts: a write goes out straight from KV blocks and is received straight into them; a read is a request
//! that is answered in the same way. What the peer posts comes on the lanes that the peer has made.
//! The module `frame` has what is said.
//!
//! # The fence
//! Nobody but this agent writes into its region: what a peer sends is received into blocks only after the ranges
//! were checked, against the region and against [`Permits`]. So a path that is torn down here is torn down for
//! good at once: [`Event::PeerLost`] waits for nobody, neither for a peer that is stopped nor for one that cannot
//! be reached.
//!
//! # What is bounded
//! Connections that have not said who they are: their number, their time, and what they can make us keep. Of a
//! peer: frames, runs and payloads of one, reads not answered, posts not ended, frames that wait for a peer that
//! does not read. At a limit a peer waits or its path is cut, and no other peer's with it.

mod config;
mod converting;
mod crc;
mod door;
mod frame;
#[cfg(any(test, fuzzing))]
pub mod hostile;
mod incoming;
mod lane;
mod memory;
mod metadata;
mod outgoing;
mod peer;
mod posting;
mod serving;
mod wire;

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use baton_types::{EngineId, MemoryRegion};
use rustix::event::{EventfdFlags, eventfd};

pub use self::config::TcpConfig;
use self::door::Door;
use self::memory::Memory;
use self::metadata::Metadata;
use self::peer::Peer;
use crate::convert::Conversion;
use crate::lists::{ListIds, Lists};
use crate::permits::Permits;
use crate::poller::{Poller, Ready};
use crate::resolve::Resolver;
use crate::token::random_bytes;
use crate::transport::{Descriptor, Event, ListId, Post, Transport, TransportError, TransportLimits, Waker};

/// An agent of the transport `tcp`.
pub struct TcpTransport {
    limits: TransportLimits,
    config: TcpConfig,
    host: String,
    door: Door,
    poller: Poller,
    resolver: Resolver,
    alarm: Arc<OwnedFd>,
    memory: Memory,
    permits: Permits,
    lists: Lists,
    list_ids: ListIds,
    peers: BTreeMap<EngineId, Peer>,
    /// From calls between two polls.
    pending: Vec<Event>,
    /// What woke us, if the next poll is to act on it.
    ready: Vec<Ready>,
}

impl TcpTransport {
    /// Listens at once.
    ///
    /// # Errors
    /// If it cannot listen there, or peers could not be told where it does.
    pub fn new(id: EngineId, limits: TransportLimits, config: TcpConfig) -> io::Result<Self> {
        let max_strangers = limits.peers.saturating_mul(usize::from(config.lanes));
        let door = Door::new(id, config.address()?, config.tls.clone(), max_strangers, limits.handshake)?;
        let host = config.advertised_host(door.address)?;
        let alarm = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let poller = Poller::new(&door.listener, &alarm, config.stall)?;
        Ok(Self {
            host,
            door,
            poller,
            resolver: Resolver::new(waker_of(&alarm)),
            alarm,
            memory: Memory::default(),
            permits: Permits::new(&limits),
            lists: Lists::new(0, &limits),
            list_ids: ListIds::default(),
            peers: BTreeMap::new(),
            pending: Vec::new(),
            ready: Vec::new(),
            limits,
            config,
        })
    }

    /// Lets a peer in whose connections wait at the door.
    fn admit(&mut self, from: &EngineId) {
        let Some(peer) = self.peers.get_mut(from).filter(|peer| !peer.is_leaving()) else { return };
        if self.door.path(from).is_some_and(|path| peer.incoming.takes(path)) {
            for (hello, lane) in self.door.take(from) {
                peer.admit(&self.door.us, &hello, lane, &self.memory);
            }
        }
    }

    /// Notes which connections are ready; reads from those that are nobody's yet.
    fn hear_sockets(&mut self, now: Instant) {
        if self.ready.is_empty() {
            self.poller.ready(Duration::ZERO, &mut self.ready);
        }
        for ready in std::mem::take(&mut self.ready) {
            match ready {
                Ready::Listener => self.door.accept(&mut self.poller, now),
                // Heard in `wait`, so that an alarm rung since then ends the next sleep.
                Ready::Waker => {}
                Ready::Socket { key, readable, writable, ended } => {
                    if let Some(lane) = self.peers.values_mut().find_map(|peer| peer.lane_mut(key)) {
                        lane.readable |= readable;
                        lane.writable |= writable;
                        lane.ended |= ended;
                    } else if let Some(from) = self.door.read(key, ended, &self.memory, now) {
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
                && let Err(error) = peer.dial(&self.door.us, addresses, &mut self.poller)
            {
                peer.leave(error, events);
            }
        }
    }
}

fn waker_of(alarm: &Arc<OwnedFd>) -> Waker {
    let alarm = alarm.clone();
    Waker::new(move || {
        // It fails only when it has been rung 2^64 times without being heard.
        let _ = rustix::io::write(&*alarm, &1u64.to_ne_bytes());
    })
}

impl Transport for TcpTransport {
    fn name(&self) -> &'static str {
        "tcp"
    }

    fn register(&mut self, region: Arc<dyn MemoryRegion>) -> Result<(), TransportError> {
        if self.memory.0.is_some() {
            return Err(TransportError::BadRegion("there is one already"));
        }
        self.lists = Lists::new(region.len() as u64, &self.limits);
        self.memory = Memory(Some(region));
        Ok(())
    }

    fn metadata(&self) -> Vec<u8> {
        let metadata = Metadata {
            token: self.door.us.token,
            region_bytes: self.memory.len(),
            tls: self.config.tls.is_some(),
            port: self.door.address.port(),
            host: self.host.clone(),
        };
        metadata.encode()
    }

    fn add_peer(&mut self, peer: &EngineId, metadata: &[u8]) -> Result<(), TransportError> {
        let bad = |why: &str| TransportError::BadMetadata(why.to_owned());
        let metadata = Metadata::decode(metadata).map_err(bad)?;
        if self.memory.0.is_none() {
            return Err(TransportError::BadRegion("none is registered"));
        }
        if *peer == self.door.us.id || metadata.token == self.door.us.token {
            return Err(bad("it is our own"));
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
        let mut known = Peer::new(peer, metadata, path, &self.limits, &self.config)?;
        match Resolver::address(&host, port) {
            Some(address) => known.dial(&self.door.us, vec![address], &mut self.poller)?,
            None => self.resolver.ask(path, &host, port)?,
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

    fn convert(&mut self, peer: &EngineId, conversion: Conversion) -> Result<(), TransportError> {
        let known = self.peers.get_mut(peer).ok_or_else(|| TransportError::UnknownPeer(peer.clone()))?;
        known.outgoing.convert(conversion);
        Ok(())
    }

    fn post(&mut self, post: Post) -> Result<(), TransportError> {
        match self.peers.get_mut(&post.peer) {
            None => Err(TransportError::UnknownPeer(post.peer)),
            Some(peer) if peer.is_leaving() => Err(peer.gone()),
            Some(peer) => peer.outgoing.push(post, &self.lists, &peer.lists),
        }
    }

    fn poll(&mut self, events: &mut Vec<Event>) -> bool {
        let now = Instant::now();
        events.append(&mut self.pending);
        self.hear_sockets(now);
        self.hear_resolver(events);
        self.door.expire(&self.poller, now);
        for peer in self.peers.values_mut() {
            peer.poll(&self.door.us, &self.memory, &self.permits, &mut self.poller, now, events);
        }
        self.peers.retain(|id, peer| {
            if peer.is_leaving() {
                events.push(Event::PeerLost(id.clone()));
            }
            !peer.is_leaving()
        });
        self.peers.values().any(Peer::has_work)
    }

    fn wait(&mut self, timeout: Duration) {
        if !self.pending.is_empty() || self.peers.values().any(|peer| peer.is_leaving() || peer.has_work()) {
            return;
        }
        let now = Instant::now();
        let deadlines = self.peers.values_mut().filter_map(|peer| peer.deadline(now));
        let deadline = deadlines.chain(self.door.deadline()).min();
        let left = deadline.map(|deadline| deadline.saturating_duration_since(now));
        self.poller.ready(left.map_or(timeout, |left| left.min(timeout)), &mut self.ready);
        if self.ready.contains(&Ready::Waker) {
            let _ = rustix::io::read(&*self.alarm, &mut [0; 8]);
        }
    }

    fn waker(&self) -> Waker {
        waker_of(&self.alarm)
    }

    fn permits(&self) -> &Permits {
        &self.permits
    }
}

impl fmt::Debug for TcpTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TcpTransport({}, {} peers)", self.door.us.id, self.peers.len())
    }
}
