//! `shm`: engines of one host and user. The initiator copies directly between its own pool and the peer's:
//! one copy.
//!
//! Each agent keeps its region in a sealed memory file and listens on an abstract Unix socket;
//! [`Transport::metadata`] names the socket and carries a random token. To reach a peer an agent connects,
//! shows the token, and is handed the file. What is copied in is announced on the same connection.
//!
//! # The fence
//! [`Event::PeerLost`] must mean that nothing the peer posted can touch our memory any more, because blocks
//! are reused on it (I3). It rests on one rule: *a connection that was handed a region is held for as long as
//! that region is mapped*. An agent that lets go unmaps first and closes then; when a process dies, in
//! whatever way, the kernel takes the memory of all its threads before it closes its files. Either way the
//! end of the connection says that the mapping is gone. A process that is alive but does not run (stopped,
//! swapped out) keeps the connection open and us waiting, rightly: once it runs again, its next store may hit
//! our memory.
//!
//! # Permits
//! They cannot be enforced here: a mapping is all of the region or nothing, and the peer copies by itself. Which
//! blocks it touches is its own good behaviour, which is why only processes of the same user are let in. Where
//! that is not enough, `tcp` is the transport, also on one host.
//!
//! Both agents must be in one network namespace (that is where abstract names live) and run as one user.

mod door;
mod packet;
mod peer;
mod region;
mod socket;

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use baton_types::{EngineId, MemoryRegion};
use rustix::event::{EventfdFlags, eventfd};

use self::door::Door;
use self::packet::Metadata;
use self::peer::Peer;
pub use self::region::ShmRegion;
use self::socket::{Ready, Sockets};
use crate::convert::Conversion;
use crate::lists::{ListIds, Lists};
use crate::permits::Permits;
use crate::transport::{Descriptor, Event, ListId, Post, Transport, TransportError, TransportLimits, Waker};

/// An agent of the transport `shm`. Its region must be a [`ShmRegion`].
pub struct ShmTransport {
    id: EngineId,
    limits: TransportLimits,
    door: Door,
    sockets: Sockets,
    alarm: Arc<OwnedFd>,
    region: Option<Arc<dyn MemoryRegion>>,
    permits: Permits,
    lists: Lists,
    list_ids: ListIds,
    peers: BTreeMap<EngineId, Peer>,
    /// From calls between two polls.
    pending: Vec<Event>,
}

impl ShmTransport {
    pub fn new(id: EngineId, limits: TransportLimits) -> io::Result<Self> {
        let door = Door::new(id.clone(), limits.peers, limits.handshake)?;
        let alarm = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let sockets = Sockets::new(&door.listener, &alarm)?;
        Ok(Self {
            id,
            door,
            sockets,
            alarm: Arc::new(alarm),
            region: None,
            permits: Permits::new(&TransportLimits { enforce_permits: false, ..limits.clone() }),
            lists: Lists::new(0, &limits),
            list_ids: ListIds::default(),
            peers: BTreeMap::new(),
            pending: Vec::new(),
            limits,
        })
    }

    /// Lets a peer in whose connection waits at the door.
    fn admit(&mut self, from: &EngineId) {
        let (Some(peer), Some(region)) = (self.peers.get_mut(from), &self.region) else { return };
        if peer.awaits_incoming()
            && let Some(link) = self.door.take(from)
        {
            peer.admit(link, region.as_ref(), &self.sockets);
        }
    }

    fn read_sockets(&mut self, now: Instant, events: &mut Vec<Event>) {
        for ready in self.sockets.ready(Duration::ZERO) {
            match ready {
                Ready::Listener => self.door.accept(&mut self.sockets, now),
                // Heard in `wait`, so that an alarm rung since then ends the next sleep.
                Ready::Waker => {}
                Ready::Link { key } => {
                    if let Some(peer) = self.peers.values_mut().find(|peer| peer.has_link(key)) {
                        peer.read(key, &self.sockets, events);
                    } else if let Some(from) = self.door.read(key, &self.sockets) {
                        self.admit(&from);
                    }
                }
            }
        }
    }
}

impl Transport for ShmTransport {
    fn name(&self) -> &'static str {
        "shm"
    }

    fn register(&mut self, region: Arc<dyn MemoryRegion>) -> Result<(), TransportError> {
        if self.region.is_some() {
            return Err(TransportError::BadRegion("there is one already"));
        }
        if region.shared_fd().is_none() {
            return Err(TransportError::BadRegion("no other process can map it"));
        }
        self.lists = Lists::new(region.len() as u64, &self.limits);
        self.region = Some(region);
        Ok(())
    }

    fn metadata(&self) -> Vec<u8> {
        let region_bytes = self.region.as_ref().map_or(0, |region| region.len() as u64);
        Metadata { socket: self.door.socket, token: self.door.token, region_bytes }.encode()
    }

    fn add_peer(&mut self, peer: &EngineId, metadata: &[u8]) -> Result<(), TransportError> {
        let bad = |why: &str| TransportError::BadMetadata(why.to_owned());
        let metadata = Metadata::decode(metadata).map_err(bad)?;
        if self.region.is_none() {
            return Err(TransportError::BadRegion("none is registered"));
        }
        if *peer == self.id || metadata.token == self.door.token {
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
        let known = Peer::dial(peer, &self.id, metadata, &self.limits, &mut self.sockets)?;
        self.peers.insert(peer.clone(), known);
        self.admit(peer);
        Ok(())
    }

    fn remove_peer(&mut self, peer: &EngineId) {
        if let Some(known) = self.peers.get_mut(peer) {
            known.leave(known.gone(), &self.sockets, &mut self.pending);
            // If it waits at the door, it need not wait until its patience ends.
            if let Some(link) = self.door.take(peer) {
                self.sockets.close(link);
            }
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
        known.posts.conversion = Some(conversion);
        Ok(())
    }

    fn post(&mut self, post: Post) -> Result<(), TransportError> {
        match self.peers.get_mut(&post.peer) {
            None => Err(TransportError::UnknownPeer(post.peer)),
            Some(peer) if peer.is_leaving() => Err(peer.gone()),
            Some(peer) => peer.posts.push(post, &self.lists, &peer.lists),
        }
    }

    fn poll(&mut self, events: &mut Vec<Event>) -> bool {
        let now = Instant::now();
        events.append(&mut self.pending);
        self.read_sockets(now, events);
        self.door.expire(&self.sockets, now);
        for peer in self.peers.values_mut() {
            peer.expire(&self.id, &mut self.sockets, now, events);
            if let Some(own) = &self.region {
                peer.copy_slice(own.as_ref());
            }
            peer.send_notifications(&self.sockets, events);
            peer.populate_slice();
        }
        self.peers.retain(|id, peer| {
            if peer.is_lost() {
                events.push(Event::PeerLost(id.clone()));
            }
            !peer.is_lost()
        });
        self.peers.values().any(Peer::is_busy)
    }

    fn wait(&mut self, timeout: Duration) {
        if !self.pending.is_empty() || self.peers.values().any(Peer::is_lost) {
            return;
        }
        let deadline = self.peers.values().filter_map(Peer::deadline).chain(self.door.deadline()).min();
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let ready = self.sockets.ready(left.map_or(timeout, |left| left.min(timeout)));
        if ready.contains(&Ready::Waker) {
            let _ = rustix::io::read(&*self.alarm, &mut [0; 8]);
        }
    }

    fn waker(&self) -> Waker {
        let alarm = self.alarm.clone();
        Waker::new(move || {
            // It fails only when it has been rung 2^64 times without being heard.
            let _ = rustix::io::write(&*alarm, &1u64.to_ne_bytes());
        })
    }

    /// Never enforced: see the module's text.
    fn permits(&self) -> &Permits {
        &self.permits
    }
}

impl fmt::Debug for ShmTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ShmTransport({}, {} peers)", self.id, self.peers.len())
    }
}
