//! Where connections come in, and wait until they are a peer's.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use baton_types::EngineId;
use rustix::io::Errno;
use rustls::ServerConnection;

use super::frame::{Frame, Hello};
use super::lane::{Heard, Lane};
use super::memory::Memory;
use super::wire::Wire;
use crate::peer_tls::PeerTls;
use crate::poller::{Poller, Socket, listen_at};
use crate::token::{Us, is_equal, random_bytes};

/// A connection that has not been admitted: it has been granted nothing yet.
#[derive(Debug)]
struct Stranger {
    lane: Lane,
    since: Instant,
    /// Who it is, once it has shown our token. A peer may well be faster than the news that it is one.
    hello: Option<Hello>,
}

#[derive(Debug)]
pub(super) struct Door {
    pub listener: OwnedFd,
    pub address: SocketAddr,
    pub us: Us,
    tls: Option<PeerTls>,
    max_strangers: usize,
    patience: Duration,
    strangers: BTreeMap<u64, Stranger>,
    /// No connection is taken until then: the process is out of file descriptors.
    shut_until: Option<Instant>,
}

/// Connections taken at once, so that a flood of them does not hold up the bytes of peers.
const MAX_ACCEPTS: usize = 16;
const SHUT_FOR: Duration = Duration::from_millis(100);
/// Bytes read from a stranger at once.
const HELLO_BUDGET: usize = 1024;

impl Door {
    pub fn new(
        id: EngineId,
        address: SocketAddr,
        tls: Option<PeerTls>,
        max_strangers: usize,
        patience: Duration,
    ) -> io::Result<Self> {
        let us = Us { id, token: random_bytes()? };
        let (listener, address) = listen_at(address)
            .map_err(|error| io::Error::new(error.kind(), format!("listening at {address}: {error}")))?;
        let strangers = BTreeMap::new();
        Ok(Self { listener, address, us, tls, max_strangers, patience, strangers, shut_until: None })
    }

    pub fn accept(&mut self, poller: &mut Poller, now: Instant) {
        for _ in 0..MAX_ACCEPTS {
            match poller.accept(&self.listener) {
                Ok(socket) => self.let_wait(socket, now),
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(Errno::AGAIN) => return,
                Err(_) => {
                    self.shut_until = Some(now + SHUT_FOR);
                    return poller.watch_listener(&self.listener, false);
                }
            }
        }
    }

    fn let_wait(&mut self, socket: Socket, now: Instant) {
        // Whoever has said nothing for the longest goes first. An agent speaks at once, so a flood of the silent
        // does not keep it out.
        if self.strangers.len() >= self.max_strangers {
            let silent = self.strangers.iter().find(|(_, stranger)| stranger.hello.is_none());
            let Some((&key, _)) = silent else { return };
            self.strangers.remove(&key);
        }
        let key = socket.key;
        let wire = match &self.tls {
            None => Wire::Plain(socket),
            Some(tls) => match ServerConnection::new(tls.server().clone()) {
                Ok(connection) => Wire::tls(socket, connection.into()),
                Err(_) => return,
            },
        };
        self.strangers.insert(key, Stranger { lane: Lane::new(wire, now), since: now, hello: None });
    }

    /// Reads from a stranger; returns who it is when it has just said so. None also if there is no such stranger.
    pub fn read(&mut self, key: u64, ended: bool, memory: &Memory, now: Instant) -> Option<EngineId> {
        let stranger = self.strangers.get_mut(&key)?;
        stranger.lane.readable = true;
        stranger.lane.ended |= ended;
        match stranger.lane.hear(memory, &mut { HELLO_BUDGET }, now) {
            // An answer of the TLS handshake that did not go at once.
            Heard::Nothing => {
                stranger.lane.writable = true;
                if stranger.lane.send(memory, &mut { HELLO_BUDGET }, now).is_err() {
                    self.strangers.remove(&key);
                }
                None
            }
            Heard::Frame(Frame::Hello(hello))
                if is_equal(&hello.token, &self.us.token)
                    && hello.to == self.us.id
                    && hello.from != self.us.id
                    && stranger.hello.is_none() =>
            {
                let from = hello.from.clone();
                // Lanes of an older path can only be ones that the engine has given up.
                let older = |s: &Stranger| {
                    s.hello.as_ref().is_some_and(|old| old.from == from && old.path != hello.path)
                };
                self.strangers.retain(|_, stranger| !older(stranger));
                if let Some(stranger) = self.strangers.get_mut(&key) {
                    stranger.hello = Some(hello);
                }
                Some(from)
            }
            Heard::Frame(_) | Heard::Payload(_) | Heard::End => {
                self.strangers.remove(&key);
                None
            }
        }
    }

    /// The path on whose lanes an engine waits.
    pub fn path(&self, from: &EngineId) -> Option<u64> {
        let hellos = self.strangers.values().filter_map(|stranger| stranger.hello.as_ref());
        hellos.filter(|hello| hello.from == *from).map(|hello| hello.path).next()
    }

    /// The lanes on which an engine waits: all of one path.
    pub fn take(&mut self, from: &EngineId) -> Vec<(Hello, Lane)> {
        let waits = |s: &Stranger| s.hello.as_ref().is_some_and(|hello| hello.from == *from);
        let keys: Vec<u64> = self.strangers.iter().filter(|(_, s)| waits(s)).map(|(&key, _)| key).collect();
        let strangers = keys.into_iter().filter_map(|key| self.strangers.remove(&key));
        strangers.filter_map(|stranger| Some((stranger.hello?, stranger.lane))).collect()
    }

    pub fn expire(&mut self, poller: &Poller, now: Instant) {
        self.strangers.retain(|_, stranger| now < stranger.since + self.patience);
        if self.shut_until.is_some_and(|until| now >= until) {
            self.shut_until = None;
            poller.watch_listener(&self.listener, true);
        }
    }

    pub fn deadline(&self) -> Option<Instant> {
        self.strangers.values().map(|s| s.since + self.patience).chain(self.shut_until).min()
    }
}
