//! Names of hosts. The system's resolver may take seconds, so a thread of its own asks it.

use std::io;
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
pub(crate) struct Resolver {
    waker: Waker,
    questions: Option<SyncSender<Question>>,
    answers: (Sender<Answer>, Receiver<Answer>),
}

/// Of a DNS name, which is the longest that a host can have.
const MAX_HOST: usize = 253;
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

/// Whether it may be a host name, or an IP address with or without a zone.
pub(crate) fn is_host(host: &str) -> bool {
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':' | '%');
    !host.is_empty() && host.len() <= MAX_HOST && host.chars().all(legal)
}

/// The address of this host to listen at. Asks the system's resolver, which may take a while.
pub(crate) fn listening_address(host: &str, port: u16) -> io::Result<SocketAddr> {
    let mut addresses = (host, port).to_socket_addrs()?;
    let no_address = || invalid(format!("{host:?} is no address of this host"));
    addresses.next().ok_or_else(no_address)
}

/// What peers are told to dial.
pub(crate) fn host_to_dial(host: &str, advertised: Option<&str>, bound: SocketAddr) -> io::Result<String> {
    let host = match advertised {
        Some(host) => host,
        None if bound.ip().is_unspecified() => {
            let why = "peers cannot dial an unspecified address: the advertised host is missing";
            return Err(invalid(why.to_owned()));
        }
        None => host,
    };
    if !is_host(host) {
        return Err(invalid(format!("{host:?} is no host")));
    }
    Ok(host.to_owned())
}

fn invalid(why: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why)
}
