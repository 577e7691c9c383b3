//! Where links come in, and wait until they are a peer's.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use baton_types::EngineId;
use rustix::io::Errno;

use super::link::{Link, Said};
use super::word::{Hello, Word};
use crate::poller::{Poller, listen_at};
use crate::token::{Us, is_equal};

/// A link that has not been admitted: it has been granted nothing yet.
#[derive(Debug)]
struct Stranger {
    link: Link,
    since: Instant,
    /// Who it is, once it has shown our token. A peer may well be faster than the news that it is one.
    hello: Option<Hello>,
}

#[derive(Debug)]
pub(super) struct Door {
    pub listener: OwnedFd,
    pub address: SocketAddr,
    max_strangers: usize,
    patience: Duration,
    strangers: BTreeMap<u64, Stranger>,
    /// No link is taken until then: the process is out of file descriptors.
    shut_until: Option<Instant>,
}

/// Links taken at once, so that a flood of them does not hold up the bytes of peers.
const MAX_ACCEPTS: usize = 16;
const SHUT_FOR: Duration = Duration::from_millis(100);

impl Door {
    pub fn new(address: SocketAddr, max_strangers: usize, patience: Duration) -> io::Result<Self> {
        let (listener, address) = listen_at(address)
            .map_err(|error| io::Error::new(error.kind(), format!("listening at {address}: {error}")))?;
        let strangers = BTreeMap::new();
        Ok(Self { listener, address, max_strangers, patience, strangers, shut_until: None })
    }

    pub fn accept(&mut self, poller: &mut Poller, now: Instant) {
        for _ in 0..MAX_ACCEPTS {
            match poller.accept(&self.listener) {
                Ok(socket) => self.let_wait(Link::new(socket), now),
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(Errno::AGAIN) => return,
                Err(_) => {
                    self.shut_until = Some(now + SHUT_FOR);
                    return poller.watch_listener(&self.listener, false);
                }
            }
        }
    }

    fn let_wait(&mut self, link: Link, now: Instant) {
        // Whoever has said nothing for the longest goes first. An agent speaks at once, so a flood of the silent
        // does not keep it out.
        if self.strangers.len() >= self.max_strangers {
            let silent = self.strangers.iter().find(|(_, stranger)| stranger.hello.is_none());
            let Some((&key, _)) = silent else { return };
            self.strangers.remove(&key);
        }
        self.strangers.insert(link.key(), Stranger { link, since: now, hello: None });
    }

    /// Reads from a stranger; returns who it is when it has just said so. None also if there is no such stranger.
    pub fn read(&mut self, key: u64, us: &Us) -> Option<EngineId> {
        let stranger = self.strangers.get_mut(&key)?;
        stranger.link.readable = true;
        match stranger.link.hear() {
            Said::Nothing => None,
            Said::Word(Word::Hello(hello))
                if is_equal(&hello.token, &us.token)
                    && hello.to == us.id
                    && hello.from != us.id
                    && stranger.hello.is_none() =>
            {
                let from = hello.from.clone();
                // An older link of the same engine can only be one that it has given up.
                self.strangers.retain(|&k, s| k == key || s.hello.as_ref().is_none_or(|h| h.from != from));
                self.strangers.get_mut(&key)?.hello = Some(hello);
                Some(from)
            }
            // Bye among them, from one that has given up before it was let in.
            Said::Word(_) | Said::Nonsense | Said::End | Said::Broken => {
                self.strangers.remove(&key);
                None
            }
        }
    }

    /// The link on which an engine waits.
    pub fn take(&mut self, from: &EngineId) -> Option<(Hello, Link)> {
        let waits = |s: &Stranger| s.hello.as_ref().is_some_and(|hello| hello.from == *from);
        let key = *self.strangers.iter().find(|(_, stranger)| waits(stranger))?.0;
        let stranger = self.strangers.remove(&key)?;
        Some((stranger.hello?, stranger.link))
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
