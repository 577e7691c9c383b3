//! A connection between two agents, on which no KV moves.

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, recv, send, shutdown};

use super::word::{Nonsense, Word};
use crate::poller::Socket;

/// What a link had to say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Said {
    Word(Word),
    Nothing,
    /// Bytes that no agent sends.
    Nonsense,
    /// The other end has ended its direction, closed the link or died.
    End,
    /// The link broke, and nobody knows what became of the other end.
    Broken,
}

#[derive(Debug)]
pub(super) struct Link {
    socket: Socket,
    unread: Vec<u8>,
    unsent: Vec<u8>,
    /// Whether something may have come since it was last looked for.
    pub readable: bool,
    /// What is said does not matter any more, only the end.
    is_deaf: bool,
    end: Option<Said>,
}

/// Read at once.
const READ_BYTES: usize = 8192;

impl Link {
    pub fn new(socket: Socket) -> Self {
        Self { socket, unread: Vec::new(), unsent: Vec::new(), readable: true, is_deaf: false, end: None }
    }

    pub fn key(&self) -> u64 {
        self.socket.key
    }

    /// Whether everything said so far is on its way. Whoever says something that can wait, waits for that, so that
    /// nothing heaps up for a peer that does not read.
    pub fn is_sent(&self) -> bool {
        self.unsent.is_empty()
    }

    pub fn say(&mut self, word: &Word) {
        self.unsent.extend(word.encode());
        self.send();
    }

    /// Sends what it can. That the link has ended shows when it is read.
    pub fn send(&mut self) {
        while !self.unsent.is_empty() {
            match send(&self.socket, &self.unsent, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Ok(sent) => drop(self.unsent.drain(..sent)),
                Err(Errno::INTR) => {}
                // `NOTCONN`: not yet.
                Err(Errno::AGAIN | Errno::NOTCONN) => return,
                Err(_) => self.unsent.clear(),
            }
        }
    }

    /// The next word. Once the link has ended, it says so again and again.
    pub fn hear(&mut self) -> Said {
        while self.end.is_none() {
            match Word::decode(&self.unread) {
                _ if self.is_deaf => self.unread.clear(),
                Ok(Some((word, len))) => {
                    self.unread.drain(..len);
                    return Said::Word(word);
                }
                Ok(None) => {}
                Err(Nonsense) => {
                    self.is_deaf = true;
                    return Said::Nonsense;
                }
            }
            if !self.readable {
                return Said::Nothing;
            }
            let mut bytes = [0; READ_BYTES];
            match recv(&self.socket, &mut bytes, RecvFlags::DONTWAIT) {
                Ok((0, _)) | Err(Errno::CONNRESET | Errno::CONNREFUSED | Errno::PIPE) => {
                    self.end = Some(Said::End);
                }
                Ok((len, _)) => self.unread.extend(&bytes[..len]),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN | Errno::NOTCONN) => self.readable = false,
                Err(_) => self.end = Some(Said::Broken),
            }
        }
        self.end.clone().unwrap_or(Said::End)
    }

    pub fn has_ended(&self) -> bool {
        self.end.is_some()
    }

    /// Ends our direction only: the other end sees the end, and we still hear it.
    pub fn half_close(&self) {
        // It fails where the other end is gone already, and then there is nobody to tell.
        let _ = shutdown(&self.socket, Shutdown::Write);
    }
}
