//! A peer: our way into its memory, its way into ours.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use baton_types::EngineId;
use rustix::io::Errno;
use rustls::ClientConnection;
use rustls::pki_types::ServerName;

use super::config::TcpConfig;
use super::frame::{Frame, Hello};
use super::incoming::Incoming;
use super::lane::Lane;
use super::memory::Memory;
use super::metadata::Metadata;
use super::outgoing::{Ended, Outgoing};
use super::wire::Wire;
use crate::lists::Lists;
use crate::peer_tls::PeerTls;
use crate::permits::Permits;
use crate::poller::Poller;
use crate::token::{Us, is_equal, proof};
use crate::transport::{Event, TransportError, TransportLimits};

#[derive(Debug)]
pub(super) struct Peer {
    id: EngineId,
    pub metadata: Metadata,
    pub lists: Lists,
    /// The number of our path.
    pub path: u64,
    /// When the peer must have let us in.
    answer_by: Instant,
    stall: Duration,
    lanes: u8,
    tls: Option<(PeerTls, ServerName<'static>)>,
    /// Not tried yet; none while its name is being resolved.
    addresses: Option<VecDeque<SocketAddr>>,
    pub outgoing: Outgoing,
    pub incoming: Incoming,
    leaving: bool,
}

impl Peer {
    pub fn new(
        id: &EngineId,
        metadata: Metadata,
        path: u64,
        limits: &TransportLimits,
        config: &TcpConfig,
    ) -> Result<Self, TransportError> {
        let now = Instant::now();
        let bad = |why: String| TransportError::BadMetadata(why);
        let tls = match &config.tls {
            None if metadata.tls => return Err(bad("the peer speaks TLS, and we do not".to_owned())),
            Some(_) if !metadata.tls => return Err(bad("we speak TLS, and the peer does not".to_owned())),
            None => None,
            Some(tls) => {
                // A zone is ours to know, and in no certificate.
                let host = metadata.host.split_once('%').map_or(metadata.host.as_str(), |(host, _)| host);
                Some((tls.clone(), tls.server_name(host).map_err(|error| bad(error.to_string()))?))
            }
        };
        Ok(Self {
            id: id.clone(),
            lists: Lists::new(metadata.region_bytes, limits),
            outgoing: Outgoing::new(limits.posts, config.crc, metadata.region_bytes, now),
            metadata,
            path,
            answer_by: now + limits.handshake,
            stall: config.stall,
            lanes: config.lanes,
            tls,
            addresses: None,
            incoming: Incoming::default(),
            leaving: false,
        })
    }

    pub fn gone(&self) -> TransportError {
        TransportError::PeerGone(self.id.clone())
    }

    pub fn is_leaving(&self) -> bool {
        self.leaving
    }

    /// Takes the addresses of the peer's host and connects to the first that answers. An error if it is known at
    /// once that none will.
    pub fn dial(
        &mut self,
        us: &Us,
        addresses: Vec<SocketAddr>,
        poller: &mut Poller,
    ) -> Result<(), TransportError> {
        self.addresses = Some(addresses.into());
        self.dial_next(us, poller)
    }

    fn dial_next(&mut self, us: &Us, poller: &mut Poller) -> Result<(), TransportError> {
        let mut error = self.gone();
        while let Some(address) = self.addresses.as_mut().and_then(VecDeque::pop_front) {
            match self.connect(us, address, poller) {
                Ok(lanes) => {
                    self.outgoing.set_lanes(lanes);
                    return Ok(());
                }
                Err(why) => error = why,
            }
        }
        Err(error)
    }

    fn connect(
        &self,
        us: &Us,
        address: SocketAddr,
        poller: &mut Poller,
    ) -> Result<Vec<Lane>, TransportError> {
        let now = Instant::now();
        let io =
            |error: String| TransportError::Io(format!("connecting to {} at {address}: {error}", self.id));
        let connect = |number| {
            let socket = poller.connect(address).map_err(|error| match error {
                Errno::CONNREFUSED => self.gone(),
                error => io(error.to_string()),
            })?;
            let wire = match &self.tls {
                None => Wire::Plain(socket),
                Some((tls, name)) => {
                    let connection = ClientConnection::new(tls.client().clone(), name.clone());
                    Wire::tls(socket, connection.map_err(|error| io(error.to_string()))?.into())
                }
            };
            let mut lane = Lane::new(wire, now);
            lane.say(&Frame::Hello(Hello {
                token: self.metadata.token,
                proof: proof(&us.token, &self.metadata.token, self.path),
                path: self.path,
                lane: number,
                lanes: self.lanes,
                from: us.id.clone(),
                to: self.id.clone(),
            }));
            Ok(lane)
        };
        (0..self.lanes).map(connect).collect()
    }

    /// Lets a lane in that shows that it is this peer's.
    pub fn admit(&mut self, us: &Us, hello: &Hello, lane: Lane, memory: &Memory) {
        if is_equal(&hello.proof, &proof(&self.metadata.token, &us.token, hello.path)) {
            self.incoming.admit(hello, lane, memory);
        }
    }

    pub fn lane_mut(&mut self, key: u64) -> Option<&mut Lane> {
        let ours = self.outgoing.lane_mut(key);
        ours.or_else(|| self.incoming.lane_mut(key))
    }

    /// Moves what can be moved, and ends the path if it cannot go on.
    pub fn poll(
        &mut self,
        us: &Us,
        memory: &Memory,
        permits: &Permits,
        poller: &mut Poller,
        now: Instant,
        events: &mut Vec<Event>,
    ) {
        if self.leaving {
            return;
        }
        let sent =
            self.outgoing.read(memory, now, events).and_then(|()| self.outgoing.send(memory, now, events));
        if sent.is_err() {
            let may_try_another = !self.outgoing.is_answered();
            self.outgoing.close();
            if !may_try_another || self.dial_next(us, poller).is_err() {
                return self.leave(self.gone(), events);
            }
        }
        let served: Result<(), Ended> = self
            .incoming
            .read(&self.id, memory, permits, now, events)
            .and_then(|()| self.incoming.send(&self.id, memory, permits, now));
        if served.is_err() || self.deadline(now).is_some_and(|deadline| now >= deadline) {
            self.leave(self.gone(), events);
        }
    }

    /// Whether there is something to do at once.
    pub fn has_work(&self) -> bool {
        !self.leaving && (self.outgoing.has_work() || self.incoming.has_work())
    }

    /// When the peer is given up, unless it answers, or bytes move, before.
    pub fn deadline(&mut self, now: Instant) -> Option<Instant> {
        if self.leaving {
            return None;
        }
        let stalls = self.incoming.stalls_at(now, self.stall);
        let answers = if self.outgoing.is_open() {
            self.outgoing.stalls_at(now, self.stall)
        } else {
            Some(self.answer_by)
        };
        stalls.into_iter().chain(answers).min()
    }

    /// Ends the path. From here on nothing of the peer's touches our memory: it was this side that would have
    /// received it, and it does not any more.
    pub fn leave(&mut self, why: TransportError, events: &mut Vec<Event>) {
        if self.leaving {
            return;
        }
        self.leaving = true;
        self.outgoing.close();
        self.incoming.close();
        self.outgoing.postings.fail_all(&why, events);
    }
}
