//! A peer: our way into its memory, its way into ours.
//!
//! Each way has a link of its own, made by the side that will post. The accepting side lets the other in on it, and
//! what ends the link is the end of that right; see the module's text on the fence.

use std::collections::VecDeque;
use std::ffi::{CStr, CString};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use baton_types::EngineId;
use rustix::io::Errno;

use super::agent::Agent;
use super::library::NixlError;
use super::link::{Link, Said};
use super::metadata::Metadata;
use super::postings::{Bases, Postings};
use super::word::{Hello, Word};
use crate::lists::Lists;
use crate::poller::Poller;
use crate::token::{Us, is_equal, proof};
use crate::transport::{Event, MAX_NOTIFICATION, TransportError, TransportLimits};

/// Our way into the peer's memory.
#[derive(Debug)]
enum Outgoing {
    /// The peer's name is being resolved.
    Resolving,
    /// Hello is sent, Welcome is not there.
    Greeting(Link),
    Open {
        link: Link,
        /// What the peer was last told: whether posts are in flight.
        is_moving: bool,
    },
    /// Bye is said, and not heard yet.
    Parting(Link),
    Closed,
}

/// The peer's way into our memory.
#[derive(Debug)]
enum Incoming {
    /// The peer has no right, and nothing of it is in flight.
    Closed,
    Open {
        link: Link,
        path: u64,
        is_moving: bool,
        /// Notifications of which the peer does not know yet that we have them.
        heard: u32,
    },
    /// The link has ended without Bye: the peer's process, or its agent, is gone. What it had sent may still wait
    /// in our network.
    Draining { next_probe: Instant, polls_left: Option<u8> },
    /// The network between us has ended the link. Nobody knows what the peer still does.
    Unknown,
}

#[derive(Debug)]
pub(super) struct Peer {
    id: EngineId,
    pub metadata: Metadata,
    /// As NIXL knows it.
    agent: CString,
    pub lists: Lists,
    pub postings: Postings,
    /// The number of our path, which goes with our notifications.
    pub path: u64,
    handshake: Duration,
    /// When the peer must have let us in.
    answer_by: Instant,
    /// Not tried yet.
    addresses: VecDeque<SocketAddr>,
    outgoing: Outgoing,
    incoming: Incoming,
    /// Why the path ends.
    leaving: Option<TransportError>,
}

/// Between two looks whether NIXL still reaches a peer that is gone.
const PROBE_EVERY: Duration = Duration::from_millis(2);
/// So often NIXL looks for what has come, after it has found a peer gone.
const DRAIN_POLLS: u8 = 4;
/// Words read from a link at once, so that a peer that floods us does not hold up the others.
const MAX_WORDS: usize = 64;

impl Peer {
    pub fn new(id: &EngineId, metadata: Metadata, path: u64, limits: &TransportLimits) -> Self {
        Self {
            id: id.clone(),
            lists: Lists::new(metadata.region_bytes, limits),
            metadata,
            agent: CString::default(),
            postings: Postings::new(limits.posts),
            path,
            handshake: limits.handshake,
            answer_by: Instant::now() + limits.handshake,
            addresses: VecDeque::new(),
            outgoing: Outgoing::Resolving,
            incoming: Incoming::Closed,
            leaving: None,
        }
    }

    /// Makes the peer known to NIXL.
    pub fn load(&mut self, agent: &Agent) -> Result<(), NixlError> {
        self.agent = agent.load_peer(&self.metadata.agent)?;
        // It takes a while, which is not the peer's.
        self.answer_by = Instant::now() + self.handshake;
        Ok(())
    }

    pub fn gone(&self) -> TransportError {
        TransportError::PeerGone(self.id.clone())
    }

    pub fn is_leaving(&self) -> bool {
        self.leaving.is_some()
    }

    /// Nothing the peer posted can touch our memory any more, nor ours its.
    pub fn is_lost(&self) -> bool {
        self.is_leaving()
            && matches!(self.incoming, Incoming::Closed)
            && matches!(self.outgoing, Outgoing::Closed)
    }

    /// Whether the peer may still touch our memory.
    pub fn has_our_memory(&self) -> bool {
        !matches!(self.incoming, Incoming::Closed)
    }

    /// Takes the addresses of the peer's host and connects to the first that answers. An error if it is known at
    /// once that none will.
    pub fn dial(
        &mut self,
        us: &Us,
        addresses: Vec<SocketAddr>,
        poller: &mut Poller,
    ) -> Result<(), TransportError> {
        self.addresses = addresses.into();
        self.dial_next(us, poller)
    }

    fn dial_next(&mut self, us: &Us, poller: &mut Poller) -> Result<(), TransportError> {
        let mut error = self.gone();
        while let Some(address) = self.addresses.pop_front() {
            match poller.connect(address) {
                Ok(socket) => {
                    let mut link = Link::new(socket);
                    link.say(&Word::Hello(Hello {
                        token: self.metadata.token,
                        proof: proof(&us.token, &self.metadata.token, self.path),
                        path: self.path,
                        from: us.id.clone(),
                        to: self.id.clone(),
                    }));
                    self.outgoing = Outgoing::Greeting(link);
                    return Ok(());
                }
                Err(Errno::CONNREFUSED) => error = self.gone(),
                Err(why) => {
                    error = TransportError::Io(format!("connecting to {} at {address}: {why}", self.id));
                }
            }
        }
        Err(error)
    }

    /// Whether a link of the peer's is to be let in. At most one: a second one would make the first one's end no
    /// fence.
    pub fn awaits_incoming(&self) -> bool {
        !self.is_leaving() && matches!(self.incoming, Incoming::Closed)
    }

    /// Lets a link in that shows that it is this peer's.
    pub fn admit(&mut self, us: &Us, hello: &Hello, mut link: Link) {
        if is_equal(&hello.proof, &proof(&self.metadata.token, &us.token, hello.path)) {
            link.say(&Word::Welcome);
            self.incoming = Incoming::Open { link, path: hello.path, is_moving: false, heard: 0 };
        }
    }

    /// Notes that something has come on one of the peer's links, or can go; false if none of them is `key`.
    pub fn wake(&mut self, key: u64) -> bool {
        let incoming = match &mut self.incoming {
            Incoming::Open { link, .. } => Some(link),
            _ => None,
        };
        let outgoing = match &mut self.outgoing {
            Outgoing::Greeting(link) | Outgoing::Open { link, .. } | Outgoing::Parting(link) => Some(link),
            Outgoing::Resolving | Outgoing::Closed => None,
        };
        let link = incoming.into_iter().chain(outgoing).find(|link| link.key() == key);
        if let Some(link) = link {
            link.readable = true;
            link.send();
            return true;
        }
        false
    }

    /// A notification has come from the peer's agent.
    pub fn notified(&mut self, bytes: &[u8], events: &mut Vec<Event>) {
        let Incoming::Open { path, heard, .. } = &mut self.incoming else { return };
        // One of an older path, or a probe, is nobody's.
        let Some((of_path, bytes)) = bytes.split_first_chunk() else { return };
        if self.leaving.is_some() || u64::from_le_bytes(*of_path) != *path {
            return;
        }
        *heard += 1;
        if bytes.len() > MAX_NOTIFICATION {
            return self.leave(self.gone(), events);
        }
        events.push(Event::Notified { peer: self.id.clone(), bytes: bytes.to_vec() });
    }

    /// Moves what can be moved, and ends the path if it cannot go on.
    pub fn poll(
        &mut self,
        us: &Us,
        agent: &Agent,
        region_base: usize,
        poller: &mut Poller,
        now: Instant,
        events: &mut Vec<Event>,
    ) {
        self.read_incoming(now, events);
        self.read_outgoing(us, poller, events);
        if matches!(self.outgoing, Outgoing::Resolving | Outgoing::Greeting(_)) && now >= self.answer_by {
            self.leave(self.gone(), events);
        }
        if let Some(why) = &self.leaving {
            self.postings.settle(agent, why, events);
            if !self.postings.is_moving() {
                self.part();
            }
        } else if matches!(self.outgoing, Outgoing::Open { .. })
            && let Err(error) = self.move_bytes(agent, region_base, events)
        {
            self.leave(TransportError::Io(format!("{}: {error}", self.id)), events);
        }
        self.tell();
        self.drain(agent, now);
    }

    fn move_bytes(
        &mut self,
        agent: &Agent,
        region_base: usize,
        events: &mut Vec<Event>,
    ) -> Result<(), NixlError> {
        let bases = Bases { local: region_base, remote: self.metadata.region_base as usize };
        self.postings.start_slice(agent, &self.agent, bases)?;
        self.postings.collect(agent)?;
        self.postings.notify(agent, &self.agent, self.path, events)
    }

    fn read_incoming(&mut self, now: Instant, events: &mut Vec<Event>) {
        for _ in 0..MAX_WORDS {
            let Incoming::Open { link, is_moving, .. } = &mut self.incoming else { return };
            match link.hear() {
                Said::Nothing => return,
                Said::Word(Word::Moving(moving)) => *is_moving = moving,
                // The fence, in the peer's own word.
                Said::Word(Word::Bye) => {
                    self.incoming = Incoming::Closed;
                    self.leave(self.gone(), events);
                }
                Said::Word(_) | Said::Nonsense => self.leave(self.gone(), events),
                Said::End => {
                    self.incoming = Incoming::Draining { next_probe: now, polls_left: None };
                    self.leave(self.gone(), events);
                }
                Said::Broken => {
                    self.incoming = Incoming::Unknown;
                    self.leave(self.gone(), events);
                }
            }
        }
    }

    fn read_outgoing(&mut self, us: &Us, poller: &mut Poller, events: &mut Vec<Event>) {
        for _ in 0..MAX_WORDS {
            let said = match &mut self.outgoing {
                Outgoing::Greeting(link) | Outgoing::Open { link, .. } | Outgoing::Parting(link) => {
                    link.hear()
                }
                Outgoing::Resolving | Outgoing::Closed => return,
            };
            match (said, std::mem::replace(&mut self.outgoing, Outgoing::Closed)) {
                (Said::Nothing, outgoing) => {
                    self.outgoing = outgoing;
                    return;
                }
                (Said::Word(Word::Welcome), Outgoing::Greeting(link)) => {
                    self.outgoing = Outgoing::Open { link, is_moving: false };
                }
                (Said::End | Said::Broken, Outgoing::Greeting(_)) => {
                    if self.dial_next(us, poller).is_err() {
                        self.leave(self.gone(), events);
                    }
                }
                (Said::End | Said::Broken, Outgoing::Parting(_)) => return,
                // What was on its way when Bye was said.
                (_, Outgoing::Parting(link)) => self.outgoing = Outgoing::Parting(link),
                (Said::Word(Word::Heard(count)), outgoing @ Outgoing::Open { .. }) => {
                    self.outgoing = outgoing;
                    if !self.postings.heard(count) {
                        return self.leave(self.gone(), events);
                    }
                }
                // The end, which is a request to let go, or nonsense.
                (_, outgoing) => {
                    self.outgoing = outgoing;
                    return self.leave(self.gone(), events);
                }
            }
        }
    }

    /// Says what is to be said on the links.
    fn tell(&mut self) {
        if let Outgoing::Open { link, is_moving } = &mut self.outgoing {
            let moving = self.postings.is_moving();
            if moving != *is_moving && link.is_sent() && !link.has_ended() {
                *is_moving = moving;
                link.say(&Word::Moving(moving));
            }
        }
        if let Incoming::Open { link, heard, .. } = &mut self.incoming
            && self.leaving.is_none()
            && *heard > 0
            && link.is_sent()
        {
            link.say(&Word::Heard(std::mem::take(heard)));
        }
    }

    /// Ends the path: nothing is posted any more, and the peer is asked to do the same.
    pub fn leave(&mut self, why: TransportError, events: &mut Vec<Event>) {
        if self.leaving.is_some() {
            return;
        }
        self.postings.give_up(&why, events);
        self.leaving = Some(why);
        if let Incoming::Open { link, .. } = &self.incoming {
            link.half_close();
        }
        if !self.postings.is_moving() {
            self.part();
        }
    }

    /// Says Bye, when nothing of ours is in flight any more.
    fn part(&mut self) {
        self.outgoing = match std::mem::replace(&mut self.outgoing, Outgoing::Closed) {
            // It may have let us in meanwhile. If not, it need not hear it.
            Outgoing::Greeting(mut link) => {
                link.say(&Word::Bye);
                Outgoing::Closed
            }
            Outgoing::Open { mut link, .. } => {
                link.say(&Word::Bye);
                Outgoing::Parting(link)
            }
            Outgoing::Resolving => Outgoing::Closed,
            // Nothing comes any more that closing could answer with a reset, which might overtake the Bye.
            Outgoing::Parting(link) if link.has_ended() && link.is_sent() => Outgoing::Closed,
            outgoing => outgoing,
        };
    }

    /// Waits until everything that a dead peer had sent has been taken out of the network.
    fn drain(&mut self, agent: &Agent, now: Instant) {
        let Incoming::Draining { next_probe, polls_left } = &mut self.incoming else { return };
        match polls_left {
            Some(0) => self.incoming = Incoming::Closed,
            Some(polls) => *polls -= 1,
            None if now >= *next_probe => {
                *next_probe = now + PROBE_EVERY;
                // NIXL takes in all that has come on a connection before it finds its end.
                if agent.notify(&self.agent, &[]).is_err() {
                    *polls_left = Some(DRAIN_POLLS);
                }
            }
            None => {}
        }
    }

    /// Says Bye at the end of our agent, if nothing of ours is in flight.
    pub fn bid_farewell(&mut self, agent: &Agent) {
        self.leave(self.gone(), &mut Vec::new());
        self.postings.settle(agent, &self.gone(), &mut Vec::new());
        if !self.postings.is_moving() {
            self.part();
        }
    }

    pub fn is_settled(&self) -> bool {
        !self.postings.is_moving()
    }

    /// Whether there is something to do at once.
    pub fn has_work(&self) -> bool {
        self.leaving.is_none() && matches!(self.outgoing, Outgoing::Open { .. }) && self.postings.can_start()
    }

    /// Whether NIXL needs us often: for our bytes, for the peer's, or for an end.
    pub fn needs_progress(&self) -> bool {
        let theirs = match &self.incoming {
            Incoming::Open { is_moving, .. } => *is_moving,
            Incoming::Draining { .. } => true,
            Incoming::Closed | Incoming::Unknown => false,
        };
        theirs || self.postings.is_moving() || (self.leaving.is_none() && self.postings.is_busy())
    }

    pub fn deadline(&self) -> Option<Instant> {
        matches!(self.outgoing, Outgoing::Resolving | Outgoing::Greeting(_)).then_some(self.answer_by)
    }

    pub fn name(&self) -> &CStr {
        &self.agent
    }
}
