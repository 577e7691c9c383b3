//! Where connections come in, and wait until they are a peer's.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use baton_types::EngineId;
use rustix::io::Errno;

use super::packet::{Packet, Token};
use super::socket::{Link, Received, Sockets, listen_on, random_bytes, socket_name};

/// A connection that has not been admitted: it has been granted nothing yet.
#[derive(Debug)]
struct Stranger {
    link: Link,
    since: Instant,
    /// Who it is, once it has shown our token. A peer may well be faster than the news that it is one.
    hello: Option<EngineId>,
}

#[derive(Debug)]
pub(super) struct Door {
    pub listener: OwnedFd,
    /// The random part of the name that we listen under.
    pub socket: [u8; 16],
    pub token: Token,
    us: EngineId,
    max_strangers: usize,
    patience: Duration,
    strangers: BTreeMap<u64, Stranger>,
    /// No connection is taken until then: the process is out of file descriptors.
    shut_until: Option<Instant>,
}

/// Connections taken at once, so that a flood of them does not hold up the copies.
const MAX_ACCEPTS: usize = 16;
const SHUT_FOR: Duration = Duration::from_millis(100);

impl Door {
    pub fn new(us: EngineId, max_strangers: usize, patience: Duration) -> io::Result<Self> {
        let (socket, token) = (random_bytes()?, random_bytes()?);
        let listener = listen_on(&socket_name(&socket))?;
        let strangers = BTreeMap::new();
        Ok(Self { listener, socket, token, us, max_strangers, patience, strangers, shut_until: None })
    }

    pub fn accept(&mut self, sockets: &mut Sockets, now: Instant) {
        for _ in 0..MAX_ACCEPTS {
            match sockets.accept(&self.listener) {
                Ok(Some(link)) if self.strangers.len() < self.max_strangers => {
                    self.strangers.insert(link.key, Stranger { link, since: now, hello: None });
                }
                // The other end sees the connection end, and takes us for lost.
                Ok(Some(link)) => sockets.close(link),
                Ok(None) | Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(Errno::AGAIN) => return,
                Err(_) => {
                    self.shut_until = Some(now + SHUT_FOR);
                    return sockets.watch_listener(&self.listener, false);
                }
            }
        }
    }

    /// Reads from a stranger; returns who it is when it has just said so. None also if the link is not a
    /// stranger's.
    pub fn read(&mut self, key: u64, sockets: &Sockets) -> Option<EngineId> {
        let stranger = self.strangers.get_mut(&key)?;
        match stranger.link.receive() {
            Received::Nothing => return None,
            Received::Packet(Packet::Hello { token, from, to }, _)
                if token == self.token && to == self.us && stranger.hello.is_none() =>
            {
                stranger.hello = Some(from.clone());
                // An older connection of the same engine can only be one that it has given up.
                let older = |(&k, s): (&u64, &Stranger)| k != key && s.hello.as_ref() == Some(&from);
                if let Some(older) = self.strangers.iter().find_map(|e| older(e).then_some(*e.0)) {
                    self.send_away(older, sockets);
                }
                return Some(from);
            }
            Received::Packet(..) | Received::Garbage | Received::End => self.send_away(key, sockets),
        }
        None
    }

    /// The connection on which an engine waits.
    pub fn take(&mut self, from: &EngineId) -> Option<Link> {
        let (&key, _) = self.strangers.iter().find(|(_, s)| s.hello.as_ref() == Some(from))?;
        self.strangers.remove(&key).map(|stranger| stranger.link)
    }

    fn send_away(&mut self, key: u64, sockets: &Sockets) {
        if let Some(stranger) = self.strangers.remove(&key) {
            sockets.close(stranger.link);
        }
    }

    pub fn expire(&mut self, sockets: &Sockets, now: Instant) {
        let late = |s: &Stranger| now >= s.since + self.patience;
        let late: Vec<u64> = self.strangers.values().filter(|s| late(s)).map(|s| s.link.key).collect();
        for key in late {
            self.send_away(key, sockets);
        }
        if self.shut_until.is_some_and(|until| now >= until) {
            self.shut_until = None;
            sockets.watch_listener(&self.listener, true);
        }
    }

    pub fn deadline(&self) -> Option<Instant> {
        self.strangers.values().map(|s| s.since + self.patience).chain(self.shut_until).min()
    }
}
