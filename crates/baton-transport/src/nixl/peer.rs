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
use super::config::NixlConfig;
use super::drain::Drain;
use super::library::NixlError;
use super::link::{Link, Said};
use super::metadata::Metadata;
use super::postings::{Bases, Postings};
use super::serving::Serving;
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
    /// Bye is said, and the peer has not closed the link yet. If we did, what is still to come would be answered with
    /// a reset, which might overtake the Bye.
    Parting(Link),
    /// The link has ended without the peer's Bye, while it was to write what we had asked for.
    Draining(Drain),
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
        /// Notifications that are on their way, or, below zero, that were here before the peer said so.
        coming: i64,
        /// Notifications of which the peer does not know yet that we have them.
        heard: u32,
        /// Whether we have said Bye: the peer is to let go.
        is_over: bool,
    },
    /// The link has ended without Bye.
    Draining(Drain),
}

/// Our region: where it begins, and its bytes.
pub(super) type Span = (usize, u64);

#[derive(Debug)]
pub(super) struct Peer {
    id: EngineId,
    pub metadata: Metadata,
    /// As NIXL knows it.
    agent: CString,
    pub lists: Lists,
    pub postings: Postings,
    serving: Serving,
    /// The number of our path, which goes with our notifications.
    pub path: u64,
    handshake: Duration,
    /// Whether NIXL can be asked if it still reaches the peer.
    can_probe: bool,
    /// When the peer must have let us in.
    answer_by: Instant,
    /// Not tried yet.
    addresses: VecDeque<SocketAddr>,
    outgoing: Outgoing,
    incoming: Incoming,
    /// Why the path ends.
    leaving: Option<TransportError>,
}

/// Words read from a link at once, so that a peer that floods us does not hold up the others.
const MAX_WORDS: usize = 64;

impl Peer {
    pub fn new(
        id: &EngineId,
        metadata: Metadata,
        path: u64,
        limits: &TransportLimits,
        config: &NixlConfig,
    ) -> Self {
        let are_reads_asked = config.reads.are_asked(config.backend);
        Self {
            id: id.clone(),
            can_probe: config.backend.can_probe(),
            lists: Lists::new(metadata.region_bytes, limits),
            metadata,
            agent: CString::default(),
            postings: Postings::new(limits.posts, are_reads_asked),
            serving: Serving::default(),
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

    pub fn name(&self) -> &CStr {
        &self.agent
    }

    pub fn is_leaving(&self) -> bool {
        self.leaving.is_some()
    }

    /// Nothing the peer posted can touch our memory any more, nor ours its.
    pub fn is_lost(&self) -> bool {
        self.is_leaving()
            && matches!(self.incoming, Incoming::Closed)
            && matches!(self.outgoing, Outgoing::Closed)
            && self.is_settled()
    }

    /// Whether the peer may still touch our memory.
    pub fn has_our_memory(&self) -> bool {
        !matches!(self.incoming, Incoming::Closed) || self.postings.awaits_gifts()
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
            let path = hello.path;
            self.incoming =
                Incoming::Open { link, path, is_moving: false, coming: 0, heard: 0, is_over: false };
        }
    }

    /// Notes that something has come on one of the peer's links, or can go; false if none of them is `key`.
    pub fn wake(&mut self, key: u64) -> bool {
        let incoming = match &mut self.incoming {
            Incoming::Open { link, .. } => Some(link),
            Incoming::Draining(_) | Incoming::Closed => None,
        };
        let outgoing = match &mut self.outgoing {
            Outgoing::Greeting(link) | Outgoing::Open { link, .. } | Outgoing::Parting(link) => Some(link),
            Outgoing::Resolving | Outgoing::Draining(_) | Outgoing::Closed => None,
        };
        let Some(link) = incoming.into_iter().chain(outgoing).find(|link| link.key() == key) else {
            return false;
        };
        link.readable = true;
        link.send();
        true
    }

    /// A notification has come from the peer's agent.
    pub fn notified(&mut self, bytes: &[u8], events: &mut Vec<Event>) {
        let Incoming::Open { path, coming, heard, .. } = &mut self.incoming else { return };
        // One of an older path, or a probe, is nobody's.
        let Some((of_path, bytes)) = bytes.split_first_chunk() else { return };
        if self.leaving.is_some() || u64::from_le_bytes(*of_path) != *path {
            return;
        }
        *heard += 1;
        *coming -= 1;
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
        region: Span,
        poller: &mut Poller,
        now: Instant,
        events: &mut Vec<Event>,
    ) {
        self.read_incoming(region.1, now, events);
        self.read_outgoing(us, poller, now, events);
        if matches!(self.outgoing, Outgoing::Resolving | Outgoing::Greeting(_)) && now >= self.answer_by {
            self.leave(self.gone(), events);
        }
        if self.leaving.is_none()
            && let Err(error) = self.move_bytes(agent, region.0, events)
        {
            self.leave(TransportError::Io(format!("{}: {error}", self.id)), events);
        }
        self.settle(agent, events);
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
        if let Incoming::Open { link, .. } = &mut self.incoming {
            self.serving.start(agent, &self.agent, bases)?;
            for number in self.serving.collect(agent)? {
                link.say(&Word::Given(number));
            }
        }
        if let Outgoing::Open { link, .. } = &mut self.outgoing {
            if link.is_sent()
                && let Some(ask) = self.postings.start_slice(agent, &self.agent, bases)?
            {
                link.say(&ask);
            }
            self.postings.collect(agent)?;
            let sent = self.postings.notify(agent, &self.agent, self.path, events)?;
            if sent > 0 {
                link.say(&Word::Notified(sent));
            }
        }
        Ok(())
    }

    fn read_incoming(&mut self, region_bytes: u64, now: Instant, events: &mut Vec<Event>) {
        for _ in 0..MAX_WORDS {
            let Incoming::Open { link, is_moving, coming, .. } = &mut self.incoming else { return };
            match link.hear() {
                Said::Nothing => return,
                Said::Word(Word::Moving(moving)) => *is_moving = moving,
                Said::Word(Word::Notified(count)) => *coming += i64::from(count),
                // Too late. Our Bye says so.
                Said::Word(Word::Ask { .. }) if self.leaving.is_some() => {}
                Said::Word(Word::Ask { number, pieces }) => {
                    if !self.serving.push(number, pieces, region_bytes, self.metadata.region_bytes) {
                        self.leave(self.gone(), events);
                    }
                }
                // The fence, in the peer's own word.
                Said::Word(Word::Bye) => {
                    self.incoming = Incoming::Closed;
                    self.leave(self.gone(), events);
                }
                Said::Word(_) | Said::Nonsense => self.leave(self.gone(), events),
                end @ (Said::End | Said::Broken) => {
                    self.incoming = Incoming::Draining(Drain::new(&end, self.can_probe, now));
                    self.leave(self.gone(), events);
                }
            }
        }
    }

    fn read_outgoing(&mut self, us: &Us, poller: &mut Poller, now: Instant, events: &mut Vec<Event>) {
        for _ in 0..MAX_WORDS {
            let said = match &mut self.outgoing {
                Outgoing::Greeting(link) | Outgoing::Open { link, .. } | Outgoing::Parting(link) => {
                    link.hear()
                }
                Outgoing::Resolving | Outgoing::Draining(_) | Outgoing::Closed => return,
            };
            let more = match (said, std::mem::replace(&mut self.outgoing, Outgoing::Closed)) {
                (Said::Word(Word::Welcome), Outgoing::Greeting(link)) => {
                    self.outgoing = Outgoing::Open { link, is_moving: false };
                    true
                }
                (Said::End | Said::Broken, Outgoing::Greeting(_)) => self.dial_next(us, poller).is_ok(),
                (Said::End | Said::Broken, Outgoing::Parting(mut link)) => {
                    link.send();
                    if !link.is_sent() {
                        self.outgoing = Outgoing::Parting(link);
                    }
                    return;
                }
                (end @ (Said::End | Said::Broken), Outgoing::Open { .. }) if self.postings.awaits_gifts() => {
                    self.outgoing = Outgoing::Draining(Drain::new(&end, self.can_probe, now));
                    false
                }
                (said, outgoing) => {
                    let parting = matches!(outgoing, Outgoing::Parting(_));
                    self.outgoing = outgoing;
                    match said {
                        Said::Nothing => return,
                        // What was on its way when Bye was said.
                        _ if parting => true,
                        Said::Word(Word::Heard(count)) => self.postings.heard(count),
                        Said::Word(Word::Given(number)) => self.postings.given(number),
                        // The peer writes nothing any more, and asks us to let go.
                        Said::Word(Word::Bye) => {
                            self.leave(self.gone(), events);
                            self.postings.expect_no_gifts();
                            true
                        }
                        Said::Word(_) | Said::Nonsense | Said::End | Said::Broken => false,
                    }
                }
            };
            if !more {
                return self.leave(self.gone(), events);
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
        if let Incoming::Open { link, heard, is_over, .. } = &mut self.incoming
            && !*is_over
            && *heard > 0
            && link.is_sent()
        {
            link.say(&Word::Heard(std::mem::take(heard)));
        }
    }

    /// Ends the path: nothing is posted any more, and the peer is asked to do the same.
    pub fn leave(&mut self, why: TransportError, events: &mut Vec<Event>) {
        if self.leaving.is_none() {
            self.postings.give_up(&why, events);
            self.leaving = Some(why);
        }
    }

    /// Goes on with the end of a path.
    fn settle(&mut self, agent: &Agent, events: &mut Vec<Event>) {
        let Some(why) = &self.leaving else { return };
        self.postings.settle(agent, why, events);
        self.serving.settle(agent);
        if let Incoming::Open { link, is_over, .. } = &mut self.incoming
            && !self.serving.is_writing()
        {
            if !*is_over {
                *is_over = true;
                link.say(&Word::Bye);
            }
            if link.is_sent() {
                link.half_close();
            }
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
            outgoing @ (Outgoing::Parting(_) | Outgoing::Draining(_) | Outgoing::Closed) => outgoing,
        };
    }

    fn drain(&mut self, agent: &Agent, now: Instant) {
        if let Incoming::Draining(drain) = &mut self.incoming
            && drain.is_done(agent, &self.agent, now)
        {
            self.incoming = Incoming::Closed;
        }
        if let Outgoing::Draining(drain) = &mut self.outgoing
            && drain.is_done(agent, &self.agent, now)
        {
            self.postings.expect_no_gifts();
            self.outgoing = Outgoing::Closed;
        }
    }

    /// At the end of our agent: says Bye as soon as nothing of ours is in flight.
    pub fn bid_farewell(&mut self, agent: &Agent) {
        self.leave(self.gone(), &mut Vec::new());
        self.settle(agent, &mut Vec::new());
    }

    /// Whether nothing of ours is in flight, nor of what we were asked for.
    pub fn is_settled(&self) -> bool {
        !self.postings.is_moving() && !self.serving.is_writing()
    }

    /// Whether there is something to do at once.
    pub fn has_work(&self) -> bool {
        let may_start = match &self.outgoing {
            Outgoing::Open { link, .. } => link.is_sent() && self.postings.can_start(),
            _ => false,
        };
        self.leaving.is_none() && (may_start || self.serving.can_start())
    }

    /// Whether NIXL needs us often: for our bytes, for the peer's, or for an end.
    pub fn needs_progress(&self) -> bool {
        let theirs = match &self.incoming {
            Incoming::Open { is_moving, coming, .. } => *is_moving || (*coming > 0 && !self.is_leaving()),
            Incoming::Draining(drain) => drain.needs_progress(),
            Incoming::Closed => false,
        };
        let ours = self.postings.is_moving() || (self.leaving.is_none() && self.postings.is_busy());
        theirs || ours || self.serving.is_writing()
    }

    pub fn deadline(&self) -> Option<Instant> {
        matches!(self.outgoing, Outgoing::Resolving | Outgoing::Greeting(_)).then_some(self.answer_by)
    }
}
