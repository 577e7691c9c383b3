//! Names of hosts. The system's resolver may take seconds, so a thread of its own asks it.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread;

use crate::transport::{TransportError, Waker};

/// A question, with the path that it is for.
type Question = (u64, String, u16);
/// The addresses of the host; none if it has no such name.
type Answer = (u64, Vec<SocketAddr>);

/// The thread is there from the first question on, and ends after this value.
#[derive(Debug)]
pub(super) struct Resolver {
    waker: Waker,
    questions: Option<SyncSender<Question>>,
    answers: (Sender<Answer>, Receiver<Answer>),
}

/// Names that may wait for an answer.
const MAX_QUESTIONS: usize = 256;
/// Addresses of one name that are tried.
const MAX_ADDRESSES: usize = 8;

impl Resolver {
    pub fn new(waker: Waker) -> Self {
        Self { waker, questions: None, answers: channel() }
    }

    /// The address that `host` is, if it is one.
    pub fn address(host: &str, port: u16) -> Option<SocketAddr> {
        host.parse::<IpAddr>().ok().map(|ip| SocketAddr::new(ip, port))
    }

    /// Asks for a host's addresses; [`Resolver::answers`] has them later.
    pub fn ask(&mut self, path: u64, host: &str, port: u16) -> Result<(), TransportError> {
        let questions = match &self.questions {
            Some(questions) => questions,
            None => {
                let (sender, questions) = sync_channel(MAX_QUESTIONS);
                let (answers, waker) = (self.answers.0.clone(), self.waker.clone());
                thread::Builder::new()
                    .name("baton-resolve".to_owned())
                    .spawn(move || answer(&questions, &answers, &waker))
                    .map_err(|error| TransportError::Io(error.to_string()))?;
                self.questions.insert(sender)
            }
        };
        let taken = questions.try_send((path, host.to_owned(), port));
        taken.map_err(|_| TransportError::Limit("names to be resolved"))
    }

    pub fn answers(&self) -> impl Iterator<Item = Answer> {
        self.answers.1.try_iter()
    }
}

fn answer(questions: &Receiver<Question>, answers: &Sender<Answer>, waker: &Waker) {
    for (path, host, port) in questions {
        let addresses = (host.as_str(), port).to_socket_addrs();
        let addresses = addresses.map_or_else(|_| Vec::new(), |found| found.take(MAX_ADDRESSES).collect());
        if answers.send((path, addresses)).is_err() {
            return;
        }
        waker.wake();
    }
}
