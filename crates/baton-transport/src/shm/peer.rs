//! A peer: our way into its memory, its way into ours.
//!
//! Each way is a connection of its own, made by the side that will copy. The accepting side hands its region
//! over on it, so a connection *is* a right to touch memory, and its end is the end of the right.

use std::time::{Duration, Instant};

use baton_types::{EngineId, MemoryRegion};
use rustix::io::Errno;

use super::packet::{Metadata, Packet};
use super::region::Mapping;
use super::socket::{Link, Received, Sockets, socket_name};
use crate::lists::Lists;
use crate::posts::{PostQueue, Sent};
use crate::transport::{Event, TransportError, TransportLimits};

/// Our way into the peer's memory.
#[derive(Debug)]
enum Outgoing {
    /// Too many connections wait at the peer's door; again at the given time.
    Dialing(Instant),
    /// Hello is sent, Welcome is not there.
    Greeting(Link),
    /// The mapping comes first, so that it is also dropped first: a closed connection says that it is gone.
    Open {
        mapping: Mapping,
        link: Link,
    },
    Closed,
}

#[derive(Debug)]
pub(super) struct Peer {
    id: EngineId,
    pub metadata: Metadata,
    pub lists: Lists,
    pub posts: PostQueue,
    /// When the peer must have let us in.
    answer_by: Instant,
    outgoing: Outgoing,
    /// The peer's way into our memory. While it is there, the peer may write.
    incoming: Option<Link>,
    leaving: bool,
    awaits_room: bool,
}

/// Packets read from a link at once, so that a peer that floods us does not hold up the others.
const MAX_PACKETS: usize = 64;
const REDIAL: Duration = Duration::from_millis(10);

impl Peer {
    /// Connects to the peer. An error if nobody of our user listens there.
    pub fn dial(
        id: &EngineId,
        us: &EngineId,
        metadata: Metadata,
        limits: &TransportLimits,
        sockets: &mut Sockets,
    ) -> Result<Self, TransportError> {
        let now = Instant::now();
        let mut peer = Self {
            id: id.clone(),
            lists: Lists::new(metadata.region_bytes, limits),
            metadata,
            posts: PostQueue::new(limits.posts),
            answer_by: now + limits.handshake,
            outgoing: Outgoing::Dialing(now),
            incoming: None,
            leaving: false,
            awaits_room: false,
        };
        peer.redial(us, sockets, now)?;
        Ok(peer)
    }

    fn redial(&mut self, us: &EngineId, sockets: &mut Sockets, now: Instant) -> Result<(), TransportError> {
        let hello = Packet::Hello { token: self.metadata.token, from: us.clone(), to: self.id.clone() };
        let dialed = sockets.connect(&socket_name(&self.metadata.socket)).and_then(|link| {
            match link.send(&hello, None) {
                Ok(()) => Ok(link),
                Err(error) => {
                    sockets.close(link);
                    Err(error)
                }
            }
        });
        self.outgoing = match dialed {
            Ok(link) => Outgoing::Greeting(link),
            Err(Errno::AGAIN) => Outgoing::Dialing(now + REDIAL),
            Err(Errno::CONNREFUSED | Errno::PIPE) => return Err(self.gone()),
            Err(Errno::PERM) => {
                return Err(TransportError::BadMetadata("another user's process listens there".to_owned()));
            }
            Err(error) => return Err(TransportError::Io(format!("connecting to {}: {error}", self.id))),
        };
        Ok(())
    }

    pub fn gone(&self) -> TransportError {
        TransportError::PeerGone(self.id.clone())
    }

    fn outgoing_link(&self) -> Option<&Link> {
        match &self.outgoing {
            Outgoing::Greeting(link) | Outgoing::Open { link, .. } => Some(link),
            Outgoing::Dialing(_) | Outgoing::Closed => None,
        }
    }

    pub fn has_link(&self, key: u64) -> bool {
        self.outgoing_link().into_iter().chain(&self.incoming).any(|link| link.key == key)
    }

    pub fn is_leaving(&self) -> bool {
        self.leaving
    }

    /// Nothing the peer posted can touch our memory any more, nor ours its.
    pub fn is_lost(&self) -> bool {
        self.leaving && self.incoming.is_none()
    }

    /// Whether a connection of the peer's is to be let in. At most one: a second one would make the first
    /// one's end no fence.
    pub fn awaits_incoming(&self) -> bool {
        !self.leaving && self.incoming.is_none()
    }

    /// Lets the peer into `region`.
    pub fn admit(&mut self, link: Link, region: &dyn MemoryRegion, sockets: &Sockets) {
        let welcome = Packet::Welcome { region_bytes: region.len() as u64 };
        match link.send(&welcome, region.shared_fd()) {
            Ok(()) => self.incoming = Some(link),
            // The peer gave this connection up; if it wants in, it makes another.
            Err(_) => sockets.close(link),
        }
    }

    /// Reads what came on one of the peer's links.
    pub fn read(&mut self, key: u64, sockets: &Sockets, events: &mut Vec<Event>) {
        for _ in 0..MAX_PACKETS {
            let more = match &self.incoming {
                Some(link) if link.key == key => self.read_incoming(sockets, events),
                _ => self.read_outgoing(key, sockets, events),
            };
            if !more {
                return;
            }
        }
    }

    fn read_incoming(&mut self, sockets: &Sockets, events: &mut Vec<Event>) -> bool {
        let Some(link) = &self.incoming else { return false };
        match link.receive() {
            Received::Nothing => return false,
            Received::Packet(Packet::Notify(bytes), _) => {
                events.push(Event::Notified { peer: self.id.clone(), bytes });
            }
            Received::Packet(..) | Received::Garbage => self.leave(self.gone(), sockets, events),
            Received::End => {
                // The fence. A process closes this connection when it has let go of the mapping, and a dying
                // one loses its memory, all threads of it, before its files: nothing of the peer can touch
                // our region any more.
                if let Some(link) = self.incoming.take() {
                    sockets.close(link);
                }
                self.leave(self.gone(), sockets, events);
                return false;
            }
        }
        true
    }

    fn read_outgoing(&mut self, key: u64, sockets: &Sockets, events: &mut Vec<Event>) -> bool {
        let Some(link) = self.outgoing_link().filter(|link| link.key == key) else { return false };
        match (link.receive(), &self.outgoing) {
            (Received::Nothing, _) => return false,
            (Received::Packet(Packet::Welcome { region_bytes }, Some(file)), Outgoing::Greeting(_))
                if region_bytes == self.metadata.region_bytes =>
            {
                match Mapping::of_peer(&file, region_bytes) {
                    Ok(mapping) => self.open(mapping),
                    Err(error) => self.leave(TransportError::Io(error.to_string()), sockets, events),
                }
            }
            // The end, or a request to let go, or nonsense.
            _ => self.leave(self.gone(), sockets, events),
        }
        true
    }

    fn open(&mut self, mapping: Mapping) {
        if let Outgoing::Greeting(link) = std::mem::replace(&mut self.outgoing, Outgoing::Closed) {
            self.outgoing = Outgoing::Open { mapping, link };
        }
    }

    /// Lets go of the peer's memory, and asks the peer to let go of ours. Both are said by closing: our own
    /// connection, and our direction of the peer's.
    pub fn leave(&mut self, why: TransportError, sockets: &Sockets, events: &mut Vec<Event>) {
        if self.leaving {
            return;
        }
        self.leaving = true;
        self.posts.fail_all(&why, events);
        match std::mem::replace(&mut self.outgoing, Outgoing::Closed) {
            Outgoing::Open { mapping, link } => {
                drop(mapping);
                sockets.close(link);
            }
            Outgoing::Greeting(link) => sockets.close(link),
            Outgoing::Dialing(_) | Outgoing::Closed => {}
        }
        if let Some(link) = &self.incoming {
            link.half_close();
        }
    }

    #[allow(unsafe_code)]
    pub fn copy_slice(&mut self, own: &dyn MemoryRegion) {
        if let Outgoing::Open { mapping, .. } = &self.outgoing {
            // SAFETY: prepared lists lie inside our region and inside the length that the mapping has; both
            // stay mapped while they are borrowed. Two mappings at different addresses do not overlap.
            self.posts.copy_slice(|run| unsafe {
                run.copy(own.base(), mapping.base());
                true
            });
        }
    }

    /// Whether there is more to do before the next sleep.
    pub fn is_busy(&self) -> bool {
        match &self.outgoing {
            Outgoing::Open { mapping, .. } => self.posts.is_copying() || !mapping.is_populated(),
            _ => false,
        }
    }

    /// Makes the peer's pages ready while nothing waits to be copied.
    pub fn populate_slice(&mut self) {
        if let Outgoing::Open { mapping, .. } = &mut self.outgoing
            && !self.posts.is_copying()
            && !mapping.is_populated()
        {
            mapping.populate_slice();
        }
    }

    pub fn send_notifications(&mut self, sockets: &Sockets, events: &mut Vec<Event>) {
        let Outgoing::Open { link, .. } = &self.outgoing else { return };
        let sent =
            self.posts.notify(events, |bytes| match link.send(&Packet::Notify(bytes.to_vec()), None) {
                Ok(()) => Sent::Yes,
                Err(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM) => Sent::Later,
                Err(_) => Sent::Gone,
            });
        let awaits_room = matches!(sent, Sent::Later);
        if awaits_room != self.awaits_room {
            self.awaits_room = awaits_room;
            sockets.watch_room(link, awaits_room);
        }
        if matches!(sent, Sent::Gone) {
            self.leave(self.gone(), sockets, events);
        }
    }

    /// Dials again, or gives up, when it is time.
    pub fn expire(&mut self, us: &EngineId, sockets: &mut Sockets, now: Instant, events: &mut Vec<Event>) {
        let waits = matches!(self.outgoing, Outgoing::Dialing(_) | Outgoing::Greeting(_));
        if waits && now >= self.answer_by {
            return self.leave(self.gone(), sockets, events);
        }
        if let Outgoing::Dialing(at) = self.outgoing
            && now >= at
            && let Err(error) = self.redial(us, sockets, now)
        {
            self.leave(error, sockets, events);
        }
    }

    pub fn deadline(&self) -> Option<Instant> {
        match &self.outgoing {
            Outgoing::Dialing(at) => Some(self.answer_by.min(*at)),
            Outgoing::Greeting(_) => Some(self.answer_by),
            Outgoing::Open { .. } | Outgoing::Closed => None,
        }
    }
}
