//! The side channel: connections between engines. Each direction of a connection is a stream in order; connections, and the two
//! directions of one, know nothing of each other.
//!
//! What it guarantees is what TCP does: bytes arrive as they were sent, or the connection ends. So a flipped bit is either seen
//! below, and the connection breaks, or it makes a frame that is none.

use std::collections::BTreeMap;

use baton_proto::{Compat, ConnId, Input, Message, PeerAddress, codec};
use baton_types::Time;

use crate::depth::Depth;
use crate::fault::Fault;
use crate::node::Life;
use crate::split::Place;
use crate::world::{Event, World};

/// Both ends of every connection, each under a number of its own.
#[derive(Debug, Default)]
pub(crate) struct Wires {
    ends: BTreeMap<ConnId, End>,
    next: u64,
}

#[derive(Debug)]
struct End {
    /// None: a stranger's.
    owner: Option<Life>,
    other: ConnId,
    /// Nothing more may arrive here before this.
    arrived: Time,
    /// The wire is cut: its owner will hear of it, and of nothing else.
    cut: bool,
    /// What its owner and the other end have said for a handshake.
    said: Introduction,
    heard: Introduction,
}

#[derive(Clone, Copy, Debug, Default)]
struct Introduction {
    hello: Option<(u16, Compat)>,
    welcome: bool,
}

impl Introduction {
    fn note(&mut self, message: &Message) {
        match message {
            Message::Hello { version, compat, .. } => self.hello = Some((*version, *compat)),
            Message::Welcome { .. } => self.welcome = true,
            _ => {}
        }
    }
}

/// What reaches one end.
#[derive(Clone, Debug)]
pub(crate) enum WireNews {
    Connected(PeerAddress),
    Frame(Vec<u8>),
    Closed,
}

impl Wires {
    /// Every whole connection between engines, by one of its ends, with the nodes at both.
    pub fn pairs(&self) -> impl Iterator<Item = (ConnId, usize, usize)> {
        self.ends.iter().filter_map(|(conn, end)| {
            let other = self.ends.get(&end.other).filter(|_| !end.cut && *conn < end.other)?;
            Some((*conn, end.owner?.node, other.owner?.node))
        })
    }

    /// A connection on which a stranger was welcomed by this life.
    pub fn of_stranger(&self, at: Life) -> Option<ConnId> {
        let strange = |end: &End| self.ends.get(&end.other).is_some_and(|other| other.owner.is_none());
        let welcome = |end: &End| end.owner == Some(at) && end.said.welcome && end.heard.welcome;
        self.ends.iter().find(|(_, end)| welcome(end) && strange(end)).map(|(conn, _)| *conn)
    }

    /// A new connection: the dialling end and the other one.
    pub fn connect(&mut self, from: Option<Life>, to: Life, now: Time, at: Time) -> (ConnId, ConnId) {
        self.next += 2;
        let (theirs, ours) = (ConnId(self.next), ConnId(self.next + 1));
        let end = |owner, other, arrived| {
            let (said, heard) = Default::default();
            End { owner, other, arrived, cut: false, said, heard }
        };
        self.ends.insert(theirs, end(from, ours, at));
        self.ends.insert(ours, end(Some(to), theirs, now));
        (theirs, ours)
    }
}

impl World {
    pub fn dial(&mut self, node: usize, address: PeerAddress) {
        let from = self.nodes[node].life().expect("it has just spoken");
        let target = self.nodes.iter().position(|other| other.name == address.host);
        let target = target.filter(|_| !self.strikes(Fault::DialRefused));
        let apart = |target: &usize| self.apart_until(Place::Node(node), Place::Node(*target)).is_some();
        let target = target.filter(|target| !apart(target));
        let at = self.after_delay();
        self.queue.push(
            at,
            match target {
                Some(node) => Event::DialArrives { node, from, address },
                None => Event::Proto { to: from, input: Input::DialFailed { address } },
            },
        );
    }

    /// Whoever lives here now takes the call, be it the one that was meant or not.
    pub fn dial_arrives(&mut self, node: usize, from: Life, address: PeerAddress) {
        if !self.is_alive(from) {
            return;
        }
        let at = self.after_delay();
        let Some(here) = self.nodes[node].life() else {
            return self.queue.push(at, Event::Proto { to: from, input: Input::DialFailed { address } });
        };
        let (theirs, ours) = self.wires.connect(Some(from), here, self.now, at);
        self.queue.push(at, Event::Wire { to: from, conn: theirs, what: WireNews::Connected(address) });
        self.tell_proto(node, Input::Accepted { conn: ours });
    }

    pub fn send(&mut self, conn: ConnId, message: &Message) {
        let Some(end) = self.wires.ends.get_mut(&conn).filter(|end| !end.cut) else { return };
        check_words(end, message);
        end.said.note(message);
        let (from, other) = (end.owner.expect("strangers do not speak here"), end.other);
        let Some(to) = self.wires.ends.get(&other) else { return };
        if let Some(to) = to.owner {
            if self.depth == Depth::Bytes {
                let shown = self.nodes[from.node].spec.clock.shows(self.now);
                self.retention_book.hear(from, to, message, shown);
            }
            if let Some(given_back) = self.ledger.hear(from, to, message) {
                self.check_given_back(from, given_back);
            }
            if let Message::Claim { transfer, .. } = message {
                self.overhear(from, *transfer);
            }
        }
        self.travels(conn, other, message);
    }

    /// A message is on its way, if nothing happens to it.
    fn travels(&mut self, conn: ConnId, other: ConnId, message: &Message) {
        let frame = codec::encode(message);
        // Words of a handshake are said once and in order: each connection has its own.
        let opens = matches!(message, Message::Hello { .. } | Message::Welcome { .. });
        if self.strikes(Fault::FrameLost) {
            return;
        }
        if self.strikes(Fault::FrameGarbled) {
            return self.garbled(conn, other, frame);
        }
        if !opens && self.strikes(Fault::FrameLate) {
            let late =
                self.now + self.luck.of(Fault::FrameLate).duration(self.scenario.network.spike_us.clone());
            let Some(to) = self.wires.ends.get(&other).and_then(|end| end.owner) else { return };
            return self.queue.push(late, Event::Wire { to, conn: other, what: WireNews::Frame(frame) });
        }
        if !opens && self.strikes(Fault::FrameDoubled) {
            self.reaches(other, WireNews::Frame(frame.clone()));
        }
        self.reaches(other, WireNews::Frame(frame));
    }

    /// One bit is not what it was.
    fn garbled(&mut self, conn: ConnId, other: ConnId, mut frame: Vec<u8>) {
        let random = self.luck.of(Fault::FrameGarbled);
        let bit = random.below(frame.len() as u64 * 8);
        frame[(bit / 8) as usize] ^= 1 << (bit % 8);
        match codec::decode(&frame) {
            // A message still, and nobody could tell: so the checksum must.
            Ok(_) => self.break_off(conn, true),
            Err(_) => self.reaches(other, WireNews::Frame(frame)),
        }
    }

    /// Its owner hears nothing more of it; the other end does, once.
    pub fn close(&mut self, conn: ConnId) {
        let Some(end) = self.wires.ends.remove(&conn) else { return };
        self.reaches(end.other, WireNews::Closed);
    }

    /// Puts something on its way to an end that is still there.
    pub fn reaches(&mut self, conn: ConnId, what: WireNews) {
        let Some(end) = self.wires.ends.get(&conn).filter(|end| !end.cut) else { return };
        let Some(to) = end.owner else { return };
        let from = self.wires.ends.get(&end.other).and_then(|other| other.owner);
        let at = match from {
            Some(from) => self.arrival(Place::Node(from.node), Place::Node(to.node)),
            None => self.after_delay(),
        };
        let end = self.wires.ends.get_mut(&conn).expect("looked up above");
        end.arrived = end.arrived.max(at);
        self.queue.push(end.arrived, Event::Wire { to, conn, what });
    }

    pub fn wire_news(&mut self, node: usize, conn: ConnId, what: WireNews) {
        let Some(end) = self.wires.ends.get_mut(&conn) else { return };
        let input = match what {
            WireNews::Connected(address) => Input::Connected { address, conn },
            WireNews::Frame(_) if end.cut => return,
            WireNews::Frame(frame) => {
                if let Ok(message) = codec::decode(&frame) {
                    end.heard.note(&message);
                }
                Input::Received { conn, frame }
            }
            WireNews::Closed => {
                self.wires.ends.remove(&conn);
                Input::Closed { conn }
            }
        };
        self.tell_proto(node, input);
    }

    /// A connection breaks. What was on its way may arrive before the end does, or not at all.
    pub fn disconnect(&mut self) -> bool {
        let whole: Vec<ConnId> = self.wires.pairs().map(|(conn, ..)| conn).collect();
        if whole.is_empty() {
            return false;
        }
        let random = self.luck.of(Fault::Disconnect);
        let (conn, lossy) = (random.pick(&whole), random.chance(500));
        self.note("chaos", format_args!("{conn:?} breaks"));
        self.break_off(conn, lossy);
        true
    }

    pub fn break_off(&mut self, conn: ConnId, lossy: bool) {
        let other = self.wires.ends[&conn].other;
        for conn in [conn, other] {
            self.reaches(conn, WireNews::Closed);
            if let Some(end) = self.wires.ends.get_mut(&conn) {
                end.cut = lossy;
            }
        }
    }

    /// The owner of these ends is dead.
    pub fn hang_up(&mut self, dead: Life) {
        let gone = self.wires.ends.iter().filter(|(_, end)| end.owner == Some(dead));
        let gone: Vec<ConnId> = gone.map(|(conn, _)| *conn).collect();
        for conn in gone {
            self.close(conn);
        }
    }
}

/// I5, from outside: before both sides have welcomed each other nothing is said but versions.
fn check_words(end: &End, message: &Message) {
    match message {
        Message::Hello { .. } | Message::Incompatible { .. } => {}
        Message::Welcome { .. } => {
            let fits = end.said.hello.is_some() && end.said.hello == end.heard.hello;
            assert!(fits, "I5: a welcome to {:?}", end.heard.hello);
        }
        _ => assert!(end.said.welcome && end.heard.welcome, "I5: a stranger hears {message:?}"),
    }
}
